"""The API of a repo's pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.hub.access import may_propose, may_read, may_write_to
from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.store import ConflictError, Repo, now

if TYPE_CHECKING:
    from tests.hub.standin import StandIn

__all__ = ["discussions", "pull_of"]


def pull_of(repo: Repo, number: str) -> dict[str, Any]:
    """Return a pull request.

    Raises:
        RefusedError: There is none of that number.
    """
    if not number.isdigit() or not 1 <= int(number) <= len(repo.pulls):
        raise RefusedError(404, f"Discussion {number} does not exist")
    return repo.pulls[int(number) - 1]


def discussions(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``/api/datasets/ID/discussions``: list, open, show, change the status, merge."""
    number, _, verb = rest.partition("/")
    if request.method == "GET":
        repo = may_read(request, repo)
        if number:
            return as_json(_details(repo, pull_of(repo, number)))
        wanted = request.query.get("status", "all")
        shown = [
            _summary(repo, pull)
            for pull in reversed(repo.pulls)
            if wanted == "all" or (wanted == "open") == (pull["status"] == "open")
        ]
        return as_json({"discussions": shown, "count": len(shown), "start": 0})
    if not number:
        repo = may_propose(request, repo)
        asked = request.json()
        if not asked.get("pullRequest"):
            raise RefusedError(501, "Only pull requests can be opened here.")
        pull = repo.open_pull(asked["title"], str(request.user), repo.branches["main"])
        return as_json({"num": pull["num"]})
    reference = f"refs/pr/{number}" if verb == "status" else ""
    repo = may_write_to(request, repo, reference)
    pull = pull_of(repo, number)
    if verb == "merge":
        try:
            repo.merge(pull)
        except ConflictError as error:
            raise RefusedError(409, str(error)) from error
        return as_json({})
    if verb == "status":
        pull["status"] = request.json()["status"]
        repo.save()
        event = {
            "id": f"{number}-status", "type": "status-change", "createdAt": now(),
            "author": {"name": request.user}, "data": {"status": pull["status"]},
        }  # fmt: skip
        return as_json({"newStatus": event})
    raise RefusedError(404, f"no {request.method} {request.path}")


def _summary(repo: Repo, pull: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": pull["title"], "num": pull["num"], "author": {"name": pull["author"]},
        "createdAt": pull["createdAt"], "status": pull["status"], "isPullRequest": True,
        "repo": {"name": repo.name, "type": repo.kind},
    }  # fmt: skip


def _details(repo: Repo, pull: dict[str, Any]) -> dict[str, Any]:
    changes = {"base": "refs/heads/main", "mergeCommitId": pull["merged"]}
    return {**_summary(repo, pull), "changes": changes, "filesWithConflicts": [], "events": []}
