"""The API of one repo: what is in it, commits, tags, branches, pull requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from tests.hub.access import may_propose, may_read, may_write, may_write_to
from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.pull_routes import discussions, pull_of
from tests.hub.store import Entry, Repo, Tree

if TYPE_CHECKING:
    from tests.hub.standin import StandIn

__all__ = ["REPO_ROUTES"]

_LARGE_SUFFIXES = (".parquet", ".mp4", ".arrow", ".bin")


def commit_of(repo: Repo, quoted: str) -> str:
    """Return the commit that a quoted revision names.

    Raises:
        RefusedError: None.
    """
    oid = repo.resolve(unquote(quoted))
    if oid is None:
        raise RefusedError(404, f"Invalid rev id: {unquote(quoted)}", "RevisionNotFound")
    return oid


def _entry(path: str, entry: Entry) -> dict[str, Any]:
    seen = {"type": "file", "path": path, "size": entry["size"], "oid": entry["oid"]}
    if "lfs" in entry:
        seen["lfs"] = {"oid": entry["lfs"], "size": entry["size"], "pointerSize": 134}
    if "xet" in entry:
        seen["xetHash"] = entry["xet"]
    return seen


def info(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``GET /api/datasets/ID`` and ``GET /api/datasets/ID/revision/REV``."""
    repo = may_read(request, repo)
    oid = commit_of(repo, rest or "main")
    blobs = request.query.get("blobs", "").lower() in ("1", "true")
    siblings = [
        {"rfilename": path} | ({"size": e["size"], "blobId": e["oid"]} if blobs else {})
        | ({"lfs": {"sha256": e["lfs"], "size": e["size"], "pointerSize": 134}}
           if blobs and "lfs" in e else {})
        for path, e in sorted(repo.tree(oid).items())
    ]  # fmt: skip
    date = repo.read_commit(oid)["date"]
    return as_json(
        {
            "_id": repo.name, "id": repo.name, "author": repo.name.split("/")[0], "sha": oid,
            "private": repo.private, "gated": False, "disabled": False, "downloads": 0,
            "likes": 0, "tags": [], "createdAt": date, "lastModified": date, "siblings": siblings,
        }
    )  # fmt: skip


def tree(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``GET /api/datasets/ID/tree/REV[/FOLDER]``, in pages."""
    repo = may_read(request, repo)
    revision, _, folder = rest.partition("/")
    oid, top = commit_of(repo, revision), unquote(folder).strip("/")
    recursive = request.query.get("recursive", "").lower() in ("1", "true")
    listed = list(_listed(repo.tree(oid), f"{top}/" if top else "", recursive=recursive))
    if top and not listed:
        raise RefusedError(404, f"{top} does not exist on {revision}", "EntryNotFound")
    begin = int(request.query.get("cursor", 0))
    end = begin + hub.limits.page_size
    headers = {}
    if end < len(listed):
        url = f"{hub.endpoint}{request.path}?recursive={str(recursive).lower()}&cursor={end}"
        headers["Link"] = f'<{url}>; rel="next"'
    return as_json(listed[begin:end], headers=headers)


def _listed(files: Tree, prefix: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
    folders = set()
    for path, entry in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        parents = path.removeprefix(prefix).split("/")[:-1]
        for depth in range(len(parents)):
            folder = prefix + "/".join(parents[: depth + 1])
            if folder not in folders and (recursive or depth == 0):
                folders.add(folder)
                yield {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
        if recursive or not parents:
            yield _entry(path, entry)


def paths_info(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``POST /api/datasets/ID/paths-info/REV``."""
    repo = may_read(request, repo)
    files = repo.tree(commit_of(repo, rest))
    if "json" in request.headers.get("content-type", ""):
        asked = request.json()["paths"]
    else:
        asked = parse_qs(request.body.decode()).get("paths", [])
    return as_json([_entry(path, files[path]) for path in asked if path in files])


def refs(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``GET /api/datasets/ID/refs``."""
    repo = may_read(request, repo)

    def named(names: dict[str, str], place: str) -> list[dict[str, str]]:
        return [
            {"name": name, "ref": f"{place}/{name}", "targetCommit": oid}
            for name, oid in names.items()
        ]

    pulls = {str(pull["num"]): pull["head"] for pull in repo.pulls}
    return as_json(
        {
            "branches": named(repo.branches, "refs/heads"),
            "converts": [],
            "tags": named(repo.tags, "refs/tags"),
            "pullRequests": named(pulls, "refs/pr") if request.query.get("include_prs") else [],
        }
    )


def commits(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``GET /api/datasets/ID/commits/REV``, newest first."""
    repo = may_read(request, repo)
    return as_json(
        [
            {
                "id": oid, "title": commit["title"], "message": "", "date": commit["date"],
                "authors": [{"user": repo.name.split("/")[0]}],
            }
            for oid, commit in repo.history(commit_of(repo, rest))
        ]
    )  # fmt: skip


def tag(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``POST /api/datasets/ID/tag/REV`` and ``DELETE /api/datasets/ID/tag/TAG``."""
    repo = may_write(request, repo)
    if request.method == "DELETE":
        if repo.tags.pop(unquote(rest), None) is None:
            raise RefusedError(404, f"Tag {unquote(rest)} does not exist", "RevisionNotFound")
    else:
        name = request.json()["tag"]
        if name in repo.tags:
            raise RefusedError(409, f"Tag reference exists already: refs/tags/{name}")
        repo.tags[name] = commit_of(repo, rest)
    repo.save()
    return as_json({})


def branch(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``POST /api/datasets/ID/branch/BRANCH``."""
    repo = may_write(request, repo)
    name = unquote(rest)
    if name in repo.branches:
        raise RefusedError(409, f"Reference already exists: refs/heads/{name}")
    start = request.json().get("startingPoint", "main")
    repo.branches[name] = commit_of(repo, quote(start, safe=""))
    repo.save()
    return as_json({})


def preupload(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``POST /api/datasets/ID/preupload/REV``: which files are large, which are there."""
    proposed = request.query.get("create_pr") == "1"
    repo = may_propose(request, repo) if proposed else may_write_to(request, repo, unquote(rest))
    files = repo.tree(commit_of(repo, rest))
    if len(asked := request.json()["files"]) > hub.limits.preupload_files:
        raise RefusedError(413, "too many files")
    modes = []
    for file in asked:
        path = file["path"]
        large = path.endswith(_LARGE_SUFFIXES) or file["size"] > hub.limits.regular_bytes
        mode = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        if path in files:
            mode["oid"] = files[path].get("lfs", files[path]["oid"])
        modes.append(mode)
    return as_json({"files": modes})


def commit(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``POST /api/datasets/ID/commit/REV``: lines of JSON, all or nothing."""
    proposed = request.query.get("create_pr") == "1"
    repo = may_propose(request, repo) if proposed else may_write_to(request, repo, unquote(rest))
    lines = [json.loads(line) for line in request.body.splitlines()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    changes = [line for line in lines if line["key"] != "header"]
    if len(changes) > hub.limits.commit_operations:
        raise RefusedError(413, f"A commit takes {hub.limits.commit_operations} operations.")
    target, pull = unquote(rest), None
    head = commit_of(repo, rest)
    if header.get("parentCommit") not in (None, head):
        raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
    files = dict(repo.tree(head))
    for change in changes:
        _change(hub, repo, files, change["key"], change["value"])
    url = f"{hub.endpoint}/datasets/{repo.name}"
    if proposed:
        pull = repo.open_pull(header["summary"], str(request.user), head)
        pull["status"] = "open"
    elif target.startswith("refs/pr/"):
        pull = pull_of(repo, target.rsplit("/", 1)[1])
    if pull is not None:
        oid = pull["head"] = repo.write_commit(files, header["summary"], pull["head"])
        repo.save()
    elif target in repo.branches:
        oid = repo.commit(target, files, header["summary"])
    else:
        raise RefusedError(404, f"{target} is no branch", "RevisionNotFound")
    return as_json(
        {
            "success": True,
            "commitOid": oid,
            "commitUrl": f"{url}/commit/{oid}",
            "hookOutput": "",
            "pullRequestUrl": f"{url}/discussions/{pull['num']}" if pull and proposed else None,
        }
    )


def _change(hub: StandIn, repo: Repo, files: Tree, key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if key == "file":
        files[path] = repo.add_regular(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        oid = value["oid"]
        here = repo.large(oid)
        xet = None if here.exists() or hub.xet is None else hub.xet.file_hash(oid)
        if not here.exists() and xet is None:
            raise RefusedError(400, f"The large file of {path} was not uploaded.")
        size = here.stat().st_size if here.exists() else value["size"]
        files[path] = repo.large_entry(oid, size, xet)
    elif key == "deletedFile":
        if files.pop(path, None) is None:
            raise RefusedError(404, "A file with this name doesn't exist", "EntryNotFound")
    elif key == "deletedFolder":
        inside = [name for name in files if name.startswith(path.rstrip("/") + "/")]
        if not inside:
            raise RefusedError(404, "A folder with this name doesn't exist", "EntryNotFound")
        for name in inside:
            del files[name]
    else:
        raise RefusedError(400, f"unknown operation {key}")


def xet_token(hub: StandIn, repo: Repo | None, request: Request, rest: str) -> Answer:
    """``GET /api/datasets/ID/xet-read-token/REV`` and ``…/xet-write-token/REV``."""
    if "xet-write-token" in request.path:
        proposed = request.query.get("create_pr") == "1"
        revision = unquote(request.path.rsplit("/", 1)[1])
        may_propose(request, repo) if proposed else may_write_to(request, repo, revision)
    else:
        may_read(request, repo)
    if hub.xet is None:
        raise RefusedError(404, "This Hub has no Xet storage.")
    return hub.xet.token()


Route = Callable[["StandIn", "Repo | None", Request, str], Answer]

REPO_ROUTES: dict[tuple[str, str], Route] = {
    ("GET", ""): info,
    ("GET", "revision"): info,
    ("GET", "tree"): tree,
    ("POST", "paths-info"): paths_info,
    ("GET", "refs"): refs,
    ("GET", "commits"): commits,
    ("POST", "tag"): tag,
    ("DELETE", "tag"): tag,
    ("POST", "branch"): branch,
    ("POST", "preupload"): preupload,
    ("POST", "commit"): commit,
    ("GET", "discussions"): discussions,
    ("POST", "discussions"): discussions,
    ("GET", "xet-read-token"): xet_token,
    ("GET", "xet-write-token"): xet_token,
}
