"""Bring a clip that cannot be joined as it lies into a plain MP4, without re-encoding."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import broken
from leconvert.media.clip import IntArray, presentation_ranks
from leconvert.media.errors import UnsupportedClipError
from leconvert.media.header import frame_ticks
from leconvert.media.index import read_clip_index
from leconvert.media.packets import opened_video
from leconvert.media.sample_description import CHANGES_MIDWAY

__all__ = ["remux_clip"]


def remux_clip(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, fps: Fraction
) -> None:
    """Copy the coded packets of the first video stream into a plain MP4.

    Source times only give the order of presentation; the copy's frame *i* is at i / fps. A
    container that keeps coded bytes in another framing (MPEG-TS, AVI) has them reframed by FFmpeg,
    so that packets need not be the same bytes; what they decode to is.

    Args:
        source: Any file that FFmpeg reads.
        destination: Written anew.
        fps: Frames a second.

    Raises:
        UnreadableSourceError: FFmpeg cannot read or copy it, some of its frames are hidden by an
            edit list, its frames have no times that order them, or its decoder configuration
            changes midway.
    """
    import av

    name = os.fspath(source)
    _refuse_changing_configuration(name)
    ranks = _ranks(name)
    timescale, frame_duration = frame_ticks(fps)
    shift = max(0, int((np.arange(len(ranks)) - ranks).max())) * frame_duration
    with (
        opened_video(name) as (container, stream),
        av.open(
            os.fspath(destination),
            "w",
            format="mp4",
            options={"video_track_timescale": str(timescale)},
        ) as output,
    ):
        try:
            copy = output.add_stream_from_template(stream)
        except (ValueError, TypeError) as error:
            raise UnreadableSourceError(
                f"{name} holds a video that cannot be put into an MP4: {error}.", path=name
            ) from error
        copy.time_base = Fraction(1, timescale)
        number = 0
        for packet in container.demux(stream):
            if not packet.size:
                continue
            packet.stream = copy
            packet.time_base = Fraction(1, timescale)
            packet.pts = int(ranks[number]) * frame_duration
            packet.dts = number * frame_duration - shift
            packet.duration = frame_duration
            output.mux(packet)
            number += 1


def _refuse_changing_configuration(path: str) -> None:
    """Refuse a clip for two decoders: FFmpeg keeps the first's set-up and drops the other silently.

    What the other decodes to would be noise, and every packet still the same bytes.
    """
    try:
        read_clip_index(path)
    except UnsupportedClipError as error:
        if error.reason == CHANGES_MIDWAY:
            raise broken(path, f"{error.reason}, and a remux would lose the second") from error
    except UnreadableSourceError:
        return  # FFmpeg may read it all the same


def _ranks(path: str) -> IntArray:
    """Return the presentation rank of each packet, in decode order."""
    times: list[int] = []
    with opened_video(path) as (container, stream):
        for packet in container.demux(stream):
            if not packet.size:
                continue
            if packet.is_discard:
                raise broken(path, "an edit list hides frames that other frames need")
            if packet.pts is None:
                raise broken(path, "its frames have no times")
            times.append(packet.pts)
    if not times:
        raise broken(path, "FFmpeg finds no frames in it")
    ticks = np.array(times, np.int64)
    ranks = presentation_ranks(ticks)
    ordered = bool((ticks[1:] >= ticks[:-1]).all())
    if not ordered and len(np.unique(ticks)) != len(ticks):
        raise broken(path, "two of its frames have the same time")
    return ranks
