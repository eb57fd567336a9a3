"""Let the times of an MP4 drift, as joining clips by their rounded durations does."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.mp4_boxes import Box, changed, edit_list, stbl_of

__all__ = ["drift_in_place", "drifted", "other_timescale"]


def drifted(content: bytes, ticks: int = 3) -> bytes:
    """Let decode times drift: no two neighbours have the same duration."""

    def drift(top: Box) -> None:
        stts = stbl_of(top).find("stts")
        rows = list(struct.iter_unpack(">II", stts.payload[8:]))
        durations = [duration for count, duration in rows for _ in range(count)]
        durations = [duration + (number % 2) * ticks for number, duration in enumerate(durations)]
        table = b"".join(struct.pack(">II", 1, duration) for duration in durations)
        stts.payload = struct.pack(">II", 0, len(durations)) + table
        _show_longer(top)

    return changed(content, drift)


def other_timescale(content: bytes) -> bytes:
    """Count in milliseconds, which hold no 30th of a second."""

    def milliseconds(top: Box) -> None:
        media_header = top.find("moov/trak/mdia/mdhd")
        old = media_header.payload
        media_header.payload = old[:12] + struct.pack(">I", 1000) + old[16:]
        stts = stbl_of(top).find("stts")
        frames = struct.unpack_from(">I", stts.payload, 8)[0]
        stts.payload = struct.pack(">IIII", 0, 1, frames, 33)
        _show_longer(top)

    return changed(content, milliseconds)


def _show_longer(top: Box) -> None:
    """Let the edit list, which would hide the last frames, show twice as long."""
    if top.find("moov/trak").has("edts"):
        elst = top.find("moov/trak/edts/elst")
        duration, media_time = struct.unpack_from(">Ii", elst.payload, 8)
        elst.payload = edit_list((duration * 2, media_time, 0x10000))


def drift_in_place(root: Path) -> None:
    """Let every video file of a dataset drift."""
    for path in sorted(root.glob("videos/**/*.mp4")):
        path.write_bytes(drifted(path.read_bytes()))
