"""PyAV's own view of a video: coded packets and decoded frames, to check ours against."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import broken

__all__ = ["CodedPacket", "coded_packets", "decode_frames"]

Frame = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CodedPacket:
    """One coded packet of the first video stream, as FFmpeg's demuxer delivers it.

    Attributes:
        pts: Presentation time in ticks of ``time_base``; None where the file gives none.
        dts: Decode time, likewise.
        time_base: Seconds a tick.
        size: Bytes.
        keyframe: Whether decoding can start here.
        sha256: Hex digest of the coded bytes.
    """

    pts: int | None
    dts: int | None
    time_base: Fraction
    size: int
    keyframe: bool
    sha256: str


def coded_packets(path: str | os.PathLike[str]) -> Iterator[CodedPacket]:
    """Yield the packets of a video in decode order.

    Raises:
        UnreadableSourceError: FFmpeg cannot read it, or it has no video stream.
    """
    with opened_video(path) as (container, stream):
        time_base = Fraction(stream.time_base)
        for packet in container.demux(stream):
            if packet.size:
                yield CodedPacket(
                    pts=packet.pts,
                    dts=packet.dts,
                    time_base=time_base,
                    size=packet.size,
                    keyframe=bool(packet.is_keyframe),
                    sha256=hashlib.sha256(packet).hexdigest(),
                )


def decode_frames(
    path: str | os.PathLike[str], ranks: Iterable[int] | None = None
) -> Iterator[tuple[int, Frame]]:
    """Decode frames of a video.

    Args:
        path: The file.
        ranks: Which frames, as places in the order of presentation from 0, in any order; None
            for all.

    Yields:
        Rank and RGB picture, uint8 of shape (height, width, 3), in ascending order of rank.

    Raises:
        UnreadableSourceError: The video cannot be read or decoded, or has fewer frames.
    """
    if ranks is None:
        with opened_video(path) as (container, stream):
            for rank, frame in enumerate(container.decode(stream)):
                yield rank, frame.to_ndarray(format="rgb24")
        return
    wanted = sorted(set(ranks))
    if not wanted:
        return
    from leconvert.media.seek import seek_frames

    name = os.fspath(path)
    if wanted[0] < 0:
        raise broken(name, f"there is no frame {wanted[0]}")
    with opened_video(name) as (container, stream):
        yield from seek_frames(container, stream, name, wanted)


@contextmanager
def opened_video(path: str | os.PathLike[str]) -> Iterator[tuple[Any, Any]]:
    """Open a file with PyAV and give container and first video stream; translate its errors."""
    import av

    name = os.fspath(path)
    try:
        with av.open(name) as container:
            if not container.streams.video:
                raise broken(name, "FFmpeg finds no video in it")
            stream = container.streams.video[0]
            yield container, stream
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise UnreadableSourceError(
            f"{name} cannot be read by FFmpeg: {getattr(error, 'strerror', None) or error}.",
            path=name,
            next_step="Restore the file from its origin, or drop its episode "
            "(--on-bad-episode drop).",
        ) from error
