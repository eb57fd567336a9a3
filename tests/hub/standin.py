"""The stand-in: its repos, its log, its rules, and which request is served by which route."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from tests.hub import object_routes, site_routes
from tests.hub.access import may_create
from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.faults import Fault, Faults
from tests.hub.handler import Handler, LoggedRequest, Server
from tests.hub.repo_routes import REPO_ROUTES
from tests.hub.store import REPO_PATH, Repo
from tests.hub.xet import XetStore

__all__ = ["Limits", "StandIn"]


@dataclass(slots=True)
class Limits:
    """Sizes at which the server behaves otherwise; small ones make short tests.

    Attributes:
        page_size: Entries a page of a listing.
        regular_bytes: Files above it are large, as are parquet and video files of any size.
        part_bytes: Large files above it are uploaded in parts.
        large_bytes: Large files above it are refused.
        preupload_files: Files a request for upload modes.
        commit_operations: Operations a commit.
    """

    page_size: int = 1000
    regular_bytes: int = 10 * 1024
    part_bytes: int = 5_000_000
    large_bytes: int = 50_000_000_000
    preupload_files: int = 256
    commit_operations: int = 25_000


class StandIn:
    """A Hub on a port of its own, for the length of a ``with`` block.

    ``log`` holds every request that was served, and ``watch`` is called after each. ``collections``
    holds by slug the type and the name of each item.

    Args:
        folder: Where everything is kept; a folder with an older state is served as it is.
        xet: Whether large files go through Xet; they are then in ``folder/xet`` alone.
        limits: Sizes.
    """

    def __init__(self, folder: Path, *, xet: bool = False, limits: Limits | None = None) -> None:
        self.folder = folder
        self.limits = limits or Limits()
        self.xet = XetStore(folder / "xet") if xet else None
        self.log: list[LoggedRequest] = []
        self.watch: Callable[[LoggedRequest], None] | None = None
        self.lock = threading.RLock()
        self._faults = Faults()
        self._arrived = 0
        self._repos: dict[str, Repo] = {}
        self.collections: dict[str, list[tuple[str, str]]] = {}
        for state in sorted(folder.glob("*/*/*/repo.json")):
            kind, org, name = state.parent.relative_to(folder).parts
            self._repos[f"{kind}/{org}/{name}"] = Repo.reopen(
                state.parent, kind[:-1], f"{org}/{name}"
            )
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- for tests ---------------------------------------------------------------------------

    def repo(self, name: str, kind: str = "dataset") -> Repo:
        """Return a repo as it is kept."""
        return self._repos[f"{kind}s/{name}"]

    def add_repo(
        self,
        name: str,
        files: Path | Mapping[str, bytes] | None = None,
        *,
        private: bool = False,
        gated: str = "",
        tags: tuple[str, ...] = (),
    ) -> Repo:
        """Make a dataset repo with one more commit that holds a folder or named contents.

        Of one that is ``gated`` others than its owner see the ``contents`` not, or nothing at
        ``all``.
        """
        with self.lock:
            repo = self._create("datasets", name, private=private)
            if files is not None:
                self.add_commit(name, files)
            repo.gated = gated
            for tag in tags:
                repo.tags[tag] = repo.branches["main"]
            repo.save()
            return repo

    def add_commit(
        self,
        name: str,
        files: Path | Mapping[str, bytes],
        *,
        deleted: tuple[str, ...] = (),
        branch: str = "main",
    ) -> str:
        """Commit as another user would, and return the commit."""
        with self.lock:
            repo = self.repo(name)
            tree = dict(repo.tree(repo.branches[branch]))
            for path in deleted:
                del tree[path]
            if isinstance(files, Path):
                paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
                contents = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
            else:
                contents = dict(files)
            for path, content in contents.items():
                if path.endswith((".parquet", ".mp4")) or len(content) > self.limits.regular_bytes:
                    tree[path] = repo.add_large(content)
                else:
                    tree[path] = repo.add_regular(content)
            return repo.commit(branch, tree, "a change")

    def break_requests(self, *rules: Fault) -> None:
        """Replace the rules; requests are numbered from 1 again for them."""
        with self.lock:
            self._faults.set(*rules, numbered_from=self._arrived)

    # --- for the handler -----------------------------------------------------------------------

    def arrive(self, method: str, target: str) -> tuple[int, Fault | None]:
        """Number a request, and return the rule that holds for it."""
        with self.lock:
            self._arrived += 1
            return self._arrived, self._faults.take(self._arrived, method, target)

    def note(self, request: LoggedRequest) -> None:
        """Log a request that was served, and let whoever watches look at the state after it."""
        with self.lock:
            self.log.append(request)
            if self.watch is not None:
                self.watch(request)

    def find(self, kinds: str, name: str) -> Repo | None:
        """Return a repo, or None."""
        return self._repos.get(f"{kinds}/{name}")

    def serve(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            RefusedError: It cannot be served.
        """
        if found := re.fullmatch(rf"/upload{REPO_PATH}/([0-9a-f]{{64}})(?:/(\d+))?", request.path):
            return self._upload(request, *found.groups())
        with self.lock:
            if found := re.fullmatch(rf"/api{REPO_PATH}(?:/([a-z-]+)(?:/(.*))?)?", request.path):
                kinds, name, verb, rest = found.groups()
                route = REPO_ROUTES.get((request.method, verb or ""))
                if route is not None:
                    return route(self, self.find(kinds, name), request, rest or "")
            if found := re.fullmatch(rf"{REPO_PATH}\.git/info/lfs/objects/batch", request.path):
                return object_routes.large_batch(self, self.find(*found.groups()), request)
            if found := re.fullmatch(rf"/verify{REPO_PATH}", request.path):
                return object_routes.verify_large(self, self._here(*found.groups()), request)
            if found := re.fullmatch(rf"{REPO_PATH}/resolve/([^/]+)/(.+)", request.path):
                kinds, name, revision, path = found.groups()
                return object_routes.download(self, self.find(kinds, name), request, revision, path)
            return self._serve_site(request)

    def _upload(
        self, request: Request, kinds: str, name: str, oid: str, part: str | None
    ) -> Answer:
        # Outside the lock: contents are large, and each goes to a name of its own.
        repo = self._here(kinds, name)
        if request.method == "POST":
            return object_routes.complete(self, repo, request, oid)
        if part is not None:
            return object_routes.store_part(self, repo, request, oid, int(part))
        return object_routes.store_large(self, repo, request, oid)

    def _here(self, kinds: str, name: str) -> Repo:
        repo = self.find(kinds, name)
        if repo is None:
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        return repo

    def _serve_site(self, request: Request) -> Answer:
        if request.path == "/api/whoami-v2":
            if request.user is None:
                raise RefusedError(401, "Invalid username or password.")
            token = {"accessToken": {"displayName": "token", "role": request.role}}
            return as_json({"type": "user", "name": request.user, "orgs": [], "auth": token})
        if request.path == "/api/validate-yaml":
            content = request.json()["content"].removeprefix("---\n").partition("\n---")[0]
            wrong = None
            try:
                if not isinstance((yaml.safe_load(content) or {}).get("license", ""), str | list):
                    wrong = '"license" must be a string'
            except yaml.YAMLError as error:
                wrong = str(error)
            if wrong is not None:
                return as_json({"errors": [{"message": wrong}], "warnings": []}, 400)
            return as_json({"errors": [], "warnings": []})
        if (request.method, request.path) == ("GET", "/api/datasets"):
            return site_routes.list_datasets(self, request, self._repos)
        if found := re.fullmatch(r"/api/collections/(.+)", request.path):
            return site_routes.collection(self, found[1])
        if (request.method, request.path) == ("POST", "/api/repos/create"):
            asked = request.json()
            namespace = asked.get("organization") or request.user or ""
            kinds, name = f"{asked.get('type', 'model')}s", f"{namespace}/{asked['name']}"
            may_create(request, namespace)
            url = f"{self.endpoint}/{kinds}/{name}"
            if self.find(kinds, name) is not None:
                return as_json({"error": "You already created this repo", "url": url}, 409)
            private = asked.get("private", asked.get("visibility") == "private")
            self._create(kinds, name, private=bool(private))
            return as_json({"url": url, "name": name, "id": name})
        raise RefusedError(404, f"no {request.method} {request.path}")

    def _create(self, kinds: str, name: str, *, private: bool) -> Repo:
        key = f"{kinds}/{name}"
        self._repos[key] = Repo.create(self.folder / key, kinds[:-1], name, private=private)
        return self._repos[key]
