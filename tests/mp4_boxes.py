"""Take MP4 files apart and put them together differently: a deliberately simple second opinion."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

CONTAINERS = frozenset([b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf"])


@dataclass
class Box:
    kind: bytes
    payload: bytes = b""
    children: list[Box] = field(default_factory=list)
    wide: bool = False

    def encoded(self) -> bytes:
        body = b"".join(child.encoded() for child in self.children) or self.payload
        if self.wide:
            return struct.pack(">I4sQ", 1, self.kind, len(body) + 16) + body
        return struct.pack(">I4s", len(body) + 8, self.kind) + body

    def find(self, path: str) -> Box:
        box = self
        for kind in path.split("/"):
            box = next(child for child in box.children if child.kind == kind.encode())
        return box

    def has(self, kind: str) -> bool:
        return any(child.kind == kind.encode() for child in self.children)

    def replace(self, kind: str, payload: bytes) -> None:
        self.find(kind).payload = payload

    def remove(self, kind: str) -> None:
        self.children = [child for child in self.children if child.kind != kind.encode()]


def parsed(data: bytes) -> list[Box]:
    boxes = []
    position = 0
    while position < len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        header = 8
        if size == 1:
            size, header = struct.unpack_from(">Q", data, position + 8)[0], 16
        payload = data[position + header : position + size]
        if kind in CONTAINERS:
            boxes.append(Box(kind, children=parsed(payload), wide=header == 16))
        else:
            boxes.append(Box(kind, payload, wide=header == 16))
        position += size
    return boxes


def stbl_of(top: Box) -> Box:
    return top.find("moov/trak/mdia/minf/stbl")


def changed(data: bytes, change: Callable[[Box], None]) -> bytes:
    """Apply a change to the tree of boxes and mend the chunk offsets of the first track."""
    top = Box(b"", children=parsed(data))
    before = media_start(data)
    change(top)
    after = media_start(top_bytes(top))
    stbl = stbl_of(top)
    for kind, code in (("stco", "I"), ("co64", "Q")):
        if stbl.has(kind):
            payload = stbl.find(kind).payload
            count = struct.unpack_from(">I", payload, 4)[0]
            offsets = struct.unpack_from(f">{count}{code}", payload, 8)
            moved = [offset + after - before for offset in offsets]
            stbl.replace(kind, payload[:8] + struct.pack(f">{count}{code}", *moved))
    return top_bytes(top)


def top_bytes(top: Box) -> bytes:
    return b"".join(child.encoded() for child in top.children)


def media_start(data: bytes) -> int:
    position = 0
    while True:
        size, kind = struct.unpack_from(">I4s", data, position)
        header = 8
        if size == 1:
            size, header = struct.unpack_from(">Q", data, position + 8)[0], 16
        if kind == b"mdat":
            return position + header
        position += size


def edit_list(*entries: tuple[int, int, int]) -> bytes:
    """Payload of an elst of (duration, media time, rate in 16.16)."""
    rows = b"".join(struct.pack(">Iii", *entry) for entry in entries)
    return struct.pack(">II", 0, len(entries)) + rows


def with_a_shorter_sample(top: Box) -> None:
    """Say that the first sample is shorter than it is: those behind it are read from there on."""
    sizes = bytearray(stbl_of(top).find("stsz").payload)
    (size,) = struct.unpack_from(">I", sizes, 12)
    struct.pack_into(">I", sizes, 12, size - 9)
    stbl_of(top).replace("stsz", bytes(sizes))


def with_bytes_over(top: Box, value: int = 0xAB) -> None:
    """Put bytes before the first sample that belong to none; all samples decode as before."""
    media = top.find("mdat")
    media.payload = bytes([value]) * 77 + media.payload
    places = bytearray(stbl_of(top).find("stco").payload)
    (count,) = struct.unpack_from(">I", places, 4)
    for at in range(8, 8 + 4 * count, 4):
        (start,) = struct.unpack_from(">I", places, at)
        struct.pack_into(">I", places, at, start + 77)
    stbl_of(top).replace("stco", bytes(places))


def with_zeros_over(top: Box) -> None:
    """Put zeros there, as a join does that shares blocks with its sources."""
    with_bytes_over(top, 0)
