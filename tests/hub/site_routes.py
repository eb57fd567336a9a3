"""What the Hub tells across repos: listings and collections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.store import Repo, now

if TYPE_CHECKING:
    from tests.hub.standin import StandIn

__all__ = ["collection", "list_datasets"]


def list_datasets(hub: StandIn, request: Request, repos: Mapping[str, Repo]) -> Answer:
    """``GET /api/datasets?author=NAME``, in pages; private ones only for their owner."""
    author = request.query.get("author")
    found: list[dict[str, Any]] = []
    for key, repo in sorted(repos.items()):
        owner = repo.name.split("/")[0]
        is_visible = not repo.private or request.user == owner
        if key.startswith("datasets/") and is_visible and author in (None, owner):
            found.append(
                {"_id": repo.name, "id": repo.name, "author": owner, "private": repo.private,
                 "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": []}
            )  # fmt: skip
    begin = int(request.query.get("cursor", 0))
    end = begin + hub.limits.page_size
    headers = {}
    if end < len(found):
        author_of = f"author={author}&" if author else ""
        url = f"{hub.endpoint}{request.path}?{author_of}cursor={end}"
        headers["Link"] = f'<{url}>; rel="next"'
    return as_json(found[begin:end], headers=headers)


def collection(hub: StandIn, slug: str) -> Answer:
    """``GET /api/collections/SLUG``."""
    if slug not in hub.collections:
        raise RefusedError(404, "Collection not found")
    items = [
        {"_id": str(number), "id": name, "type": kind, "position": number}
        for number, (kind, name) in enumerate(hub.collections[slug])
    ]
    owner = {"_id": "1", "type": "user", "name": slug.split("/", maxsplit=1)[0]}
    return as_json(
        {"slug": slug, "title": slug, "owner": owner, "items": items, "lastUpdated": now(),
         "position": 0, "private": False, "theme": "green", "upvotes": 0}
    )  # fmt: skip
