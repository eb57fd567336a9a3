"""The server: reads requests, applies the rules, and sends answers."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from tests.hub.access import TOKENS
from tests.hub.answers import Answer, RefusedError, Request
from tests.hub.store import REPO_PATH

if TYPE_CHECKING:
    from tests.hub.standin import StandIn

__all__ = ["Handler", "LoggedRequest", "Server"]

_BLOCK = 1 << 20


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


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 128
    hub: StandIn


class Handler(BaseHTTPRequestHandler):
    """One connection; kept open between requests, as the client expects."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True  # otherwise each small answer waits for the client's ACK
    server: Server

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
        user, role = TOKENS.get(self.headers.get("Authorization", "")[7:], (None, ""))
        body, upload, size = self._body(hub, target.path)
        if fault is not None and kind == "flip_up" and upload is not None:
            with upload.open("r+b") as file:
                file.seek(fault.at_byte)
                byte = file.read(1)
                file.seek(fault.at_byte)
                file.write(bytes([byte[0] ^ 1]))
        request = Request(
            self.command, target.path, dict(parse_qsl(target.query)),
            {name.lower(): value for name, value in self.headers.items()},
            body, upload, user, role,
        )  # fmt: skip
        if kind == "drop_before":
            answer = Answer(0)
        elif kind == "status" and fault is not None:
            answer = Answer(fault.status, fault.body, dict(fault.headers))
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
        if fault is not None and kind == "flip":
            _flip(answer, fault.at_byte)
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
        found = re.match(rf"/upload{REPO_PATH}", path) if self.command == "PUT" else None
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


def _flip(answer: Answer, at_byte: int) -> None:
    """Change a bit of an answer's body, as a bad line or proxy does."""
    if answer.file is not None:
        with answer.file.open("rb") as file:
            file.seek(answer.start)
            answer.body = file.read(answer.length)
        answer.file = None
    body = bytearray(answer.body)
    if at_byte < len(body):
        body[at_byte] ^= 1
    answer.body = bytes(body)
