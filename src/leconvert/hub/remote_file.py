"""A file of a store that is not mounted: where it is, how large, and which bytes it must have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Content", "RemoteFile"]

_SHA256_DIGITS = 64
_BLOCK_BYTES = 4096
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a dataset at one commit.

    Attributes:
        path: Its path in the dataset.
        size_bytes: Its size.
        digest: SHA-256 of its content where it is kept in large-file storage (64 hexadecimal
            digits), the id of its Git blob where it is not (40), empty where the store has none.
    """

    path: str
    size_bytes: int
    digest: str = ""

    @property
    def charge_bytes(self) -> int:
        """What it takes on a disk of blocks of 4 KiB."""
        return -(-self.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


class Content:
    """Takes the bytes of a file as they come and says in the end whether they are the right ones.

    Git names a blob by the SHA-1 of ``blob <size>``, a zero byte and the content.

    Args:
        file: The file that is expected.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.size_bytes = 0
        if len(file.digest) == _SHA256_DIGITS or not file.digest:
            self._hash = hashlib.sha256()
        else:
            self._hash = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.size_bytes += len(chunk)
        self._hash.update(chunk)

    def add_file(self, path: Path) -> None:
        """Take all bytes of a local file."""
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                self.add(chunk)

    @property
    def is_right(self) -> bool:
        """Whether these are size and content that were expected."""
        if self.size_bytes != self._file.size_bytes:
            return False
        return not self._file.digest or self._hash.hexdigest() == self._file.digest
