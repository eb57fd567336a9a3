"""Decode chosen frames of a video without decoding all that lie between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import broken
from leconvert.media.index import read_clip_index

__all__ = ["seek_frames"]


def seek_frames(
    container: Any, stream: Any, path: str, wanted: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield the frames of ascending ranks, seeking to keyframes where the index allows it.

    Args:
        container: An open PyAV container.
        stream: Its video stream.
        path: Its file.
        wanted: Ranks, ascending and distinct.
    """
    try:
        index = read_clip_index(path)
    except UnreadableSourceError:
        # Not ours to read; FFmpeg delivers frames in order all the same.
        yield from _in_order(enumerate(container.decode(stream)), path, wanted)
        return
    times = np.sort(index.presentation_times)
    keyframe_ranks = np.sort(index.ranks[index.keyframes])
    frames: Iterator[Any] = iter(())
    reached = -1
    for rank in wanted:
        if rank >= len(times):
            raise broken(path, f"there is no frame {rank}")
        place = int(np.searchsorted(keyframe_ranks, rank, side="right")) - 1
        # The keyframe at or before it lies ahead of where decoding stands: jump.
        jump = reached < 0 or (place >= 0 and int(keyframe_ranks[place]) > reached + 1)
        found = None
        while found is None:
            if jump:
                if place >= 0:
                    container.seek(int(times[keyframe_ranks[place]]), stream=stream)
                else:
                    container.seek(int(index.decode_times[0]), stream=stream)
                frames = container.decode(stream)
            for frame in frames:
                reached = _rank_of(frame, times, path)
                if reached >= rank:
                    found = frame
                    break
            if reached != rank:
                # The seek came out too late; one keyframe further back, or the very start.
                if place < 0 or not jump:
                    raise broken(path, f"frame {rank} cannot be decoded")
                place -= 1
                found = None
        yield rank, found.to_ndarray(format="rgb24")


def _rank_of(frame: Any, times: npt.NDArray[np.int64], path: str) -> int:
    place = -1 if frame.pts is None else int(np.searchsorted(times, frame.pts))
    if not 0 <= place < len(times) or times[place] != frame.pts:
        raise broken(path, f"a frame decodes at tick {frame.pts}, which its index does not have")
    return place


def _in_order(
    frames: Iterator[tuple[int, Any]], path: str, wanted: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    rest = iter(wanted)
    next_rank = next(rest, None)
    for rank, frame in frames:
        if next_rank is None:
            return
        if rank == next_rank:
            yield rank, frame.to_ndarray(format="rgb24")
            next_rank = next(rest, None)
    if next_rank is not None:
        raise broken(path, f"there is no frame {next_rank}")
