"""What the stand-in answers with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Answer", "RefusedError", "Request", "as_json"]


@dataclass(slots=True)
class Answer:
    """One answer: a body of bytes, or a stretch of a file."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    file: Path | None = None
    start: int = 0
    length: int = 0

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.length if self.file is not None else len(self.body)


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer that holds JSON."""
    return Answer(status, json.dumps(content).encode(), dict(headers or {}))


class RefusedError(Exception):
    """The request cannot be served; becomes an answer with the Hub's error headers.

    Args:
        status: The status.
        message: What the Hub would say.
        code: The Hub's word for it, such as ``RepoNotFound``; the client goes by it.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code

    def answer(self) -> Answer:
        """Return the answer."""
        headers = {"X-Error-Message": self.message}
        if self.code:
            headers["X-Error-Code"] = self.code
        return Answer(self.status, json.dumps({"error": self.message}).encode(), headers)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body read.

    Attributes:
        method: Such as ``GET``.
        path: Still quoted, so that a slash inside a revision can be told from one that parts.
        query: The first value of each parameter.
        headers: Names in lower case.
        body: The body; empty where it went to ``upload``.
        upload: A file that holds the body of a large upload.
        user: Who asks; None for anybody.
        role: ``write``, ``read``, or empty without a token.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    upload: Path | None
    user: str | None
    role: str

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body or b"{}")
