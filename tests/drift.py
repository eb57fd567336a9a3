"""Let the times of an MP4 drift, as joining clips by their rounded durations does."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.mp4_boxes import Box, changed, edit_list, stbl_of

__all__ = [
    "drift_in_place",
    "drifted",
    "other_timescale",
    "remux",
    "start_late_in_fragments",
    "with_sound",
]


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


def remux(path: Path, change: Callable[[Any], object] = lambda _: None, **options: str) -> None:
    """Write a video again, with each packet changed; the options are those of FFmpeg's muxer."""
    import av

    new = path.with_suffix(".new.mp4")
    with av.open(str(path)) as old, av.open(str(new), "w", options=options) as target:
        video: Any = old.streams.video[0]
        copy: Any = target.add_stream_from_template(video)
        for packet in old.demux(video):
            if packet.dts is not None:
                change(packet)
                packet.stream = copy
                target.mux(packet)
    new.replace(path)


def start_late_in_fragments(path: Path) -> None:
    """Make a clip a fragmented MP4 whose first frame is shown a second late."""
    ticks: list[int] = []

    def note(packet: Any) -> None:
        ticks.append(packet.time_base.denominator)

    remux(path, note, movflags="frag_keyframe+empty_moov")
    content = bytearray(path.read_bytes())
    at = content.find(b"tfdt")
    while at >= 0:  # the decode time at which a fragment begins
        time = slice(at + 8, at + (16 if content[at + 4] else 12))
        late = int.from_bytes(content[time]) + ticks[0]
        content[time] = late.to_bytes(time.stop - time.start)
        at = content.find(b"tfdt", at + 1)
    path.write_bytes(content)


def with_sound(path: Path, volume: float = 0.0) -> bytes:
    """Return a clip with a second track, of sound; its packets stay as they are."""
    import av
    import numpy as np

    loud = path.with_suffix(".loud")
    with av.open(str(path)) as old, av.open(str(loud), "w", format="mp4") as new:
        video: Any = old.streams.video[0]
        copy: Any = new.add_stream_from_template(video)
        sound: Any = new.add_stream("aac", rate=16000, layout="mono")
        for packet in old.demux(video):
            if packet.dts is not None:
                packet.stream = copy
                new.mux(packet)
        for number in range(8):
            wave = (np.sin(np.arange(1024)) * volume).astype(np.float32).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, 1024 * number
            new.mux(sound.encode(frame))
        new.mux(sound.encode(None))
    content = loud.read_bytes()
    loud.unlink()
    return content
