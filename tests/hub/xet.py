"""The Xet side: a ``local://`` store that the client itself writes, and the tokens for it."""

from __future__ import annotations

import shutil
import struct
import time
from pathlib import Path

from tests.hub.answers import Answer, as_json

__all__ = ["XetStore"]

_HEADER_BYTES = 48
_RECORD_BYTES = 48
_END = b"\xff" * 32
_WITH_VERIFICATION = 1 << 31
_WITH_METADATA = 1 << 30


class XetStore:
    """A folder that ``hf_xet`` uses as its content-addressed store.

    The stand-in never sees the uploads; it finds in the shards that the client left which Xet hash
    the file with a SHA-256 has.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashes: dict[str, str] = {}
        self._shards_read: set[Path] = set()

    @property
    def url(self) -> str:
        """What the client takes for the store's address."""
        return f"local://{self.folder}"

    def token(self) -> Answer:
        """Return a token, in the body and in the headers."""
        expires = int(time.time()) + 3600
        headers = {
            "X-Xet-Cas-Url": self.url,
            "X-Xet-Access-Token": "xet",
            "X-Xet-Token-Expiration": str(expires),
        }
        body = {"casUrl": self.url, "accessToken": "xet", "exp": expires}
        return as_json(body, headers=headers)

    def file_hash(self, sha256: str) -> str | None:
        """Return the Xet hash of an uploaded file; None if it is not there."""
        if sha256 not in self._hashes:
            for shard in sorted(self.folder.glob("xet/xorbs/shards/*.mdb")):
                if shard not in self._shards_read:
                    self._shards_read.add(shard)
                    self._hashes |= _files_of(shard.read_bytes())
        return self._hashes.get(sha256)

    def sent(self) -> tuple[int, int]:
        """Return the bytes of all blocks and of all shards that clients sent."""
        blocks, shards = self.folder / "xet/xorbs/xorbs", self.folder / "xet/xorbs/shards"
        return (
            sum(p.stat().st_size for p in blocks.glob("*") if p.suffix != ".tagset"),
            sum(p.stat().st_size for p in shards.glob("*.mdb")),
        )

    def forget_shards(self) -> None:
        """Remove the client's cache of shards, which lies beside a ``local://`` store."""
        shutil.rmtree(self.folder / "xet/shard-cache", ignore_errors=True)


def _text(raw: bytes) -> str:
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def _files_of(shard: bytes) -> dict[str, str]:
    """Return SHA-256 to Xet hash of the files that a shard describes."""
    found = {}
    place = _HEADER_BYTES
    while shard[place : place + 32] != _END:
        xet = _text(shard[place : place + 32])
        flags, entries = struct.unpack("<II", shard[place + 32 : place + 40])
        place += _HEADER_BYTES + _RECORD_BYTES * entries * (2 if flags & _WITH_VERIFICATION else 1)
        if flags & _WITH_METADATA:
            found[_text(shard[place : place + 32])] = xet
            place += _RECORD_BYTES
    return found
