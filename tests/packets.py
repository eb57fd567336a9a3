"""The coded packets of a video as FFmpeg's demuxer delivers them: a second opinion on ours."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from leconvert.media.pyav import opened_video


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
    """Yield the packets of a video in decode order."""
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
