"""Contents: downloads, and uploads of large files in the manner of Git LFS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.hub.access import may_propose, may_read, may_write_to
from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.repo_routes import commit_of
from tests.hub.store import ConflictError, Repo

if TYPE_CHECKING:
    from tests.hub.standin import StandIn

__all__ = ["complete", "download", "large_batch", "store_large", "store_part", "verify_large"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def large_batch(hub: StandIn, repo: Repo | None, request: Request) -> Answer:
    """``POST /datasets/ID.git/info/lfs/objects/batch``: where to put what is not there yet."""
    asked = request.json()
    repo = may_write_to(request, repo, asked.get("ref", {}).get("name", ""))
    may_part = "multipart" in asked.get("transfers", [])
    objects: list[dict[str, Any]] = []
    for wanted in asked["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        entry: dict[str, Any] = {"oid": oid, "size": size}
        if size > hub.limits.large_bytes:
            entry["error"] = {"code": 422, "message": "This file is too large."}
        elif not repo.large(oid).exists():
            place = f"{hub.endpoint}/upload/{repo.kind}s/{repo.name}/{oid}"
            if may_part and size > hub.limits.part_bytes:
                count = -(-size // hub.limits.part_bytes)
                header = {str(n): f"{place}/{n}" for n in range(1, count + 1)}
                header["chunk_size"] = str(hub.limits.part_bytes)
                entry["actions"] = {"upload": {"href": place, "header": header}}
            else:
                verify = f"{hub.endpoint}/verify/{repo.kind}s/{repo.name}"
                entry["actions"] = {"upload": {"href": place}, "verify": {"href": verify}}
        objects.append(entry)
    return as_json({"transfer": "basic", "objects": objects})


def store_large(hub: StandIn, repo: Repo, request: Request, oid: str) -> Answer:
    """``PUT /upload/datasets/ID/SHA256``: the address is the permission, as on the Hub."""
    assert request.upload is not None
    try:
        repo.keep_large(oid, request.upload)
    except ConflictError as error:
        raise RefusedError(400, str(error)) from error
    return Answer()


def store_part(hub: StandIn, repo: Repo, request: Request, oid: str, number: int) -> Answer:
    """``PUT /upload/datasets/ID/SHA256/N``."""
    assert request.upload is not None
    request.upload.replace(repo.part(oid, number))
    return Answer(headers={"ETag": f'"{oid[:16]}-{number}"'})


def complete(hub: StandIn, repo: Repo, request: Request, oid: str) -> Answer:
    """``POST /upload/datasets/ID/SHA256``: all parts are there."""
    try:
        repo.complete(oid, [part["partNumber"] for part in request.json()["parts"]])
    except (ConflictError, FileNotFoundError) as error:
        raise RefusedError(400, f"The parts make no such file: {error}") from error
    return as_json({})


def verify_large(hub: StandIn, repo: Repo, request: Request) -> Answer:
    """``POST /verify/datasets/ID``."""
    may_propose(request, repo)
    asked = request.json()
    here = repo.large(asked["oid"])
    if not here.exists() or here.stat().st_size != asked["size"]:
        raise RefusedError(404, "The large file is missing.")
    return as_json({})


def download(
    hub: StandIn, repo: Repo | None, request: Request, revision: str, quoted_path: str
) -> Answer:
    """``HEAD`` and ``GET /datasets/ID/resolve/REV/PATH``, whole or a range."""
    repo = may_read(request, repo, "contents")
    oid = commit_of(repo, revision)
    entry = repo.tree(oid).get(unquote(quoted_path))
    if entry is None:
        raise RefusedError(404, "Entry not found", "EntryNotFound")
    large = entry.get("lfs")
    headers = {"X-Repo-Commit": oid, "ETag": f'"{large or entry["oid"]}"', "Accept-Ranges": "bytes"}
    if large:
        headers |= {"X-Linked-Size": str(entry["size"]), "X-Linked-Etag": f'"{large}"'}
    if "xet" in entry:
        route = f"/api/{repo.kind}s/{repo.name}/xet-read-token/{oid}"
        headers |= {
            "X-Xet-Hash": entry["xet"],
            "X-Xet-Refresh-Route": route,
            "Link": f'<{hub.endpoint}{route}>; rel="xet-auth"',
        }
    answer = Answer(headers=headers, media_type="application/octet-stream")
    answer.file, answer.length = repo.content(entry), entry["size"]
    if answer.file is None:
        if request.method == "GET":
            raise RefusedError(404, "The content is in Xet storage alone.")
        answer.file = repo.folder
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted:
        _cut(answer, wanted, entry["size"])
    return answer


def _cut(answer: Answer, wanted: re.Match[str], size: int) -> None:
    first, last = wanted.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise RefusedError(416, f"The file has {size} bytes.")
    answer.status, answer.start, answer.length = 206, start, end - start + 1
    answer.headers["Content-Range"] = f"bytes {start}-{end}/{size}"
