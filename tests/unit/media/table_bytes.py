"""Sample tables as bytes, for the readers of ``leconvert.media`` that take a buffer."""

from __future__ import annotations

import struct

from leconvert.media.boxes import Boxes

# Between tables, so that a reader that strays from its own finds no zeros there.
_BETWEEN = b"\xee" * 5


def counted(*rows: tuple[int, ...], code: str = "I") -> bytes:
    """Payload of a table of rows behind their number."""
    numbers = [number for row in rows for number in row]
    return struct.pack(f">II{len(numbers)}{code}", 0, len(rows), *numbers)


def stsz(*sizes: int) -> bytes:
    return struct.pack(f">III{len(sizes)}I", 0, 0, len(sizes), *sizes)


def visual_entry(
    kind: bytes = b"avc1",
    *children: bytes,
    width: int = 64,
    height: int = 48,
    reference: int = 1,
    compressor: bytes = b"",
) -> bytes:
    """A sample entry, box header included."""
    fixed = struct.pack(
        ">6xH16xHHIIIH32sHh", reference, width, height, 72 << 16, 72 << 16, 0, 1, compressor, 24, -1
    )
    body = fixed + b"".join(children)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def stsd(*entries: bytes, count: int | None = None) -> bytes:
    number = len(entries) if count is None else count
    return struct.pack(">II", 0, number) + b"".join(entries)


def laid_out(tables: dict[str, bytes], path: str = "clip.mp4") -> Boxes:
    """Return boxes with these payloads, the last of which ends the buffer."""
    buffer = bytearray()
    spans = {}
    for kind, payload in tables.items():
        buffer += _BETWEEN
        spans[kind.encode()] = len(buffer), len(buffer) + len(payload)
        buffer += payload
    return Boxes(bytes(buffer), path, spans)
