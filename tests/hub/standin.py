"""The server: reads requests, applies the rules, keeps the log, and hands on to the routes."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.hub import object_routes
from tests.hub.access import may_create
from tests.hub.answers import Answer, RefusedError, Request, as_json
from tests.hub.faults import Fault, Faults
from tests.hub.repo_routes import REPO_ROUTES
from tests.hub.store import Repo
from tests.hub.xet import XetStore

__all__ = ["OTHER_TOKEN", "READ_TOKEN", "WRITE_TOKEN", "Limits", "LoggedRequest", "StandIn"]

# Users, and what their tokens allow.
WRITE_TOKEN = "hf_tester_write"
READ_TOKEN = "hf_tester_read"
OTHER_TOKEN = "hf_stranger_write"
_TOKENS = {
    WRITE_TOKEN: ("tester", "write"),
    READ_TOKEN: ("tester", "read"),
    OTHER_TOKEN: ("stranger", "write"),
}
_BLOCK = 1 << 20
_REPO = r"/(models|datasets|spaces)/([^/]+/[^/]+)"


@dataclass(slots=True)
class Limits:
    """Sizes at which the server behaves otherwise; small ones make short tests.

    Attributes:
        page_size: Entries a page of a listing.
        regular_bytes: Files above it are large, as are parquet and video files of any size.
        part_bytes: Large files above it are uploaded in parts.
        preupload_files: Files a request for upload modes.
        commit_operations: Operations a commit.
    """

    page_size: int = 1000
    regular_bytes: int = 10 * 1024
    part_bytes: int = 5_000_000
    preupload_files: int = 256
    commit_operations: int = 25_000


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as it came and went; ``status`` 0 stands for no answer."""

    number: int
    method: str
    path: str
    query: str
    user: str | None
    body_bytes: int
    status: int
    answer_bytes: int
    fault: str | None


class StandIn:
    """A Hub on a port of its own, for the length of a ``with`` block.

    ``log`` holds every request that was served, and ``watch`` is called after each.

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
        for state in sorted(folder.glob("*/*/*/repo.json")):
            kind, org, name = state.parent.relative_to(folder).parts
            self._repos[f"{kind}/{org}/{name}"] = Repo.reopen(
                state.parent, kind[:-1], f"{org}/{name}"
            )
        self._server = _Server(("127.0.0.1", 0), _Handler)
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
        tags: tuple[str, ...] = (),
    ) -> Repo:
        """Make a dataset repo with one more commit that holds a folder or named contents."""
        with self.lock:
            repo = self._create("datasets", name, private=private)
            if files is not None:
                self.add_commit(name, files)
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
        if found := re.fullmatch(rf"/upload{_REPO}/([0-9a-f]{{64}})(?:/(\d+))?", request.path):
            return self._upload(request, *found.groups())
        with self.lock:
            if found := re.fullmatch(rf"/api{_REPO}(?:/([a-z-]+)(?:/(.*))?)?", request.path):
                kinds, name, verb, rest = found.groups()
                route = REPO_ROUTES.get((request.method, verb or ""))
                if route is not None:
                    return route(self, self.find(kinds, name), request, rest or "")
            if found := re.fullmatch(rf"{_REPO}\.git/info/lfs/objects/batch", request.path):
                return object_routes.large_batch(self, self.find(*found.groups()), request)
            if found := re.fullmatch(rf"/verify{_REPO}", request.path):
                return object_routes.verify_large(self, self._here(*found.groups()), request)
            if found := re.fullmatch(rf"{_REPO}/resolve/([^/]+)/(.+)", request.path):
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
            try:
                yaml.safe_load(content)
            except yaml.YAMLError as error:
                return as_json({"errors": [{"message": str(error)}], "warnings": []}, 400)
            return as_json({"errors": [], "warnings": []})
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    hub: StandIn


class _Handler(BaseHTTPRequestHandler):
    """One connection; kept open between requests, as the client expects."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True  # otherwise each small answer waits for the client's ACK
    server: _Server

    def log_message(self, *_: object) -> None:
        """Stay silent: the log is `StandIn.log`."""

    def _handle(self) -> None:
        hub = self.server.hub
        target = urlsplit(self.path)
        number, fault = hub.arrive(self.command, self.path)
        if fault is not None:
            fault.reached.set()
            if fault.delay_seconds:
                threading.Event().wait(fault.delay_seconds)
            if fault.interfere is not None:
                fault.interfere()
            if fault.kind == "hold":
                fault.release.wait()
        kind = fault.kind if fault else None
        user, role = _TOKENS.get(self.headers.get("Authorization", "")[7:], (None, ""))
        body, upload, size = self._body(hub, target.path)
        request = Request(
            self.command, target.path, dict(parse_qsl(target.query)),
            {name.lower(): value for name, value in self.headers.items()},
            body, upload, user, role,
        )  # fmt: skip
        if kind == "drop_before":
            answer = Answer(0)
        elif kind == "status" and fault is not None:
            answer = Answer(fault.status, b'{"error": "as a rule asks"}', dict(fault.headers))
        else:
            answer = self._answer(hub, request)
        if upload is not None:
            upload.unlink(missing_ok=True)
        dropped = kind in ("drop_before", "drop_after")
        # Before the answer is out, so that whoever has it finds the request in the log.
        hub.note(
            LoggedRequest(
                number, self.command, target.path, target.query, user, size,
                0 if dropped else answer.status, 0 if dropped else answer.size, kind,
            )
        )  # fmt: skip
        if dropped:
            self.close_connection = True
            return
        self._send(answer, fault.keep_bytes if fault and kind == "truncate" else None)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815 - http.server's names

    def _answer(self, hub: StandIn, request: Request) -> Answer:
        token = request.headers.get("authorization")
        try:
            if token is not None and request.user is None:
                raise RefusedError(401, "Invalid credentials in Authorization header")
            return hub.serve(request)
        except RefusedError as refused:
            return refused.answer()

    def _body(self, hub: StandIn, path: str) -> tuple[bytes, Path | None, int]:
        """Return the body, or the file that a large upload was written to, and its size."""
        left = [int(self.headers.get("Content-Length") or 0)]
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = iter(self._chunk, b"")
        else:
            pieces = iter(lambda: self.rfile.read(min(_BLOCK, left[0])), b"")
        found = re.match(rf"/upload{_REPO}", path) if self.command == "PUT" else None
        repo = hub.find(*found.groups()) if found else None
        upload = repo.scratch() if repo else None
        kept, size = [], 0
        with open(upload or os.devnull, "wb") as out:  # noqa: PTH123
            for piece in pieces:
                size += len(piece)
                left[0] -= len(piece)
                out.write(piece)
                if upload is None:
                    kept.append(piece)
        return b"".join(kept), upload, size

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, answer: Answer, keep_bytes: int | None) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(answer.size))
        self.end_headers()
        if self.command != "HEAD":
            if keep_bytes is not None:
                self.close_connection = True
            self._send_body(answer, answer.size if keep_bytes is None else keep_bytes)
        self.wfile.flush()

    def _send_body(self, answer: Answer, size: int) -> None:
        if answer.file is None:
            self.wfile.write(answer.body[:size])
            return
        with answer.file.open("rb") as file:
            file.seek(answer.start)
            left = min(size, answer.length)
            while left:
                piece = file.read(min(_BLOCK, left))
                left -= len(piece)
                self.wfile.write(piece)
