"""A file of a store that is not mounted: where it is, how large, and which bytes it must have."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RemoteFile"]

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

    def is_content_of(self, path: Path) -> bool:
        """Tell whether a local file has the size and the content that were listed.

        Git names a blob by the SHA-1 of ``blob <size>``, a zero byte and the content.

        Raises:
            OSError: It cannot be read.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self.size_bytes:
                return False
            if not self.digest:
                return True
            if len(self.digest) == _SHA256_DIGITS:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.digest
            digest = hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
            return digest.hexdigest() == self.digest
