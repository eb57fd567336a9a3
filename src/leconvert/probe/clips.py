"""An open video file: which frames it holds, when they are shown and where their bytes lie."""

from __future__ import annotations

import os
from struct import Struct

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.media import ClipIndex, UnsupportedClipError, read_clip_index
from leconvert.model import IntArray
from leconvert.probe.files import OpenFile

__all__ = ["Clip", "is_rate_close", "open_clip", "undecodable"]

_BOX = Struct(">I4s")
_LARGE_SIZE = Struct(">Q")
_MOST_BOXES = 4096
# Fetched before anything is known of a remote file; most indices fit.
_HEAD_BYTES = 64 * 1024
# A decoder is fed on until a frame comes out: past the 16 that H.264 may hold back, and then some.
_FED_BEYOND = 20
# FFmpeg looks at the first packets of a file before it decodes any other.
_FIRST_SAMPLES = 4
# How far a rate may be from the one that frame numbers are computed with, over a whole file.
_MOST_FRAMES_OFF = 0.25


class Clip:
    """A video file of a dataset.

    Frames are known by rank: their number in the order of presentation, from 0.

    Attributes:
        source: The file.
        num_frames: Frames that it holds; None where its index is of a kind that we do not read.
        index: Its index, kept where bytes must be found or times are uneven.
        rate: Frames a second where frame *n* is shown at *n* / rate exactly; else None.
    """

    def __init__(self, source: OpenFile, index: ClipIndex | None, *, keep_index: bool) -> None:
        self.source = source
        self.num_frames = None if index is None else index.num_samples
        self.rate = None if index is None else _even_rate(index)
        self.index = index if keep_index or self.rate is None else None
        self._times: npt.NDArray[np.float64] | None = None
        if index is not None and self.rate is None:
            self._times = np.sort(index.presentation_times) / index.timescale

    def seconds(self, ranks: IntArray) -> npt.NDArray[np.float64] | None:
        """Return when frames are shown, in seconds; None where that is not known."""
        if self._times is not None:
            return self._times[ranks]
        return None if self.rate is None else ranks / self.rate

    def is_right(self, ranks: IntArray, fps: float) -> npt.NDArray[np.bool_]:
        """Return which frames exist and are shown within half a frame of rank / ``fps``."""
        if self.num_frames is None:
            return np.ones(len(ranks), np.bool_)
        right = (ranks >= 0) & (ranks < self.num_frames)
        seconds = self.seconds(np.clip(ranks, 0, self.num_frames - 1))
        if seconds is None:
            return right
        close: npt.NDArray[np.bool_] = np.abs(seconds - ranks / fps) * fps < 0.5
        return right & close

    def spans(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the ranges of bytes that ``count`` frames from ``first`` are decoded from."""
        if self.index is None:
            return [(0, self.source.size_bytes)]
        ranks = self.index.ranks
        inside = np.flatnonzero((ranks >= first) & (ranks < first + count))
        if not len(inside):
            return []
        # Decoding begins at a keyframe; the first frame of an episode should be one.
        heads = np.flatnonzero(self.index.keyframes[: int(inside[0]) + 1])
        begin = int(heads[-1]) if len(heads) else 0
        end = min(int(inside[-1]) + 1 + _FED_BEYOND, self.index.num_samples)
        runs = self.index.byte_runs(begin, end)
        return [(start, start + length) for start, length in runs]


def open_clip(source: OpenFile, *, keep_index: bool) -> Clip:
    """Read a video file's index.

    Args:
        source: The file.
        keep_index: Whether bytes or packets will be asked for.

    Raises:
        UnreadableSourceError: It is missing, damaged or no video.
    """
    _need_index(source)
    try:
        index = read_clip_index(source.path)
    except UnsupportedClipError:
        # Sound, but of a kind that cannot be joined as it lies; FFmpeg knows what to do with it.
        source.need([(0, source.size_bytes)])
        return Clip(source, None, keep_index=False)
    except UnreadableSourceError as error:
        if source.path == source.name:
            raise
        raise UnreadableSourceError(
            error.message.replace(source.path, source.name),
            path=source.name,
            next_step=error.next_step,
        ) from error
    clip = Clip(source, index, keep_index=keep_index)
    runs = index.byte_runs(0, min(_FIRST_SAMPLES, index.num_samples))
    source.need([(start, start + length) for start, length in runs])
    return clip


def _need_index(source: OpenFile) -> None:
    """Fetch the boxes of a file but for the media data."""
    source.need([(0, min(_HEAD_BYTES, source.size_bytes))])
    descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = 0
        for _ in range(_MOST_BOXES):
            if position + 16 > source.size_bytes:
                break
            source.need([(position, position + 16)])
            head = os.pread(descriptor, 16, position)
            size_bytes, kind = _BOX.unpack_from(head)
            if size_bytes == 1:
                size_bytes = _LARGE_SIZE.unpack_from(head, 8)[0]
            end = position + size_bytes if size_bytes else source.size_bytes
            if kind == b"moov":
                source.need([(position, end)])
                break
            if end <= position:
                break
            position = end
    finally:
        os.close(descriptor)


def _even_rate(index: ClipIndex) -> float | None:
    """Return the frame rate if frame *n* is shown at *n* times one duration, else None."""
    times = index.shown
    if isinstance(times, range):
        step = times.step
        if times.start or step < 1:
            return None
        return index.timescale / step
    ordered = np.sort(times)
    if len(ordered) < 2 or ordered[0] != 0 or ordered[1] < 1:
        return None
    if not np.array_equal(ordered, np.arange(len(ordered)) * ordered[1]):
        return None
    return index.timescale / float(ordered[1])


def is_rate_close(rate: float, other: float, num_frames: int) -> bool:
    """Return whether frame numbers computed with one rate are those of the other."""
    return abs(rate / other - 1) * num_frames < _MOST_FRAMES_OFF


def undecodable(clip: Clip, reason: str) -> UnreadableSourceError:
    """Return the error of a clip whose frames do not come out."""
    first_line = reason.strip().partition("\n")[0].rstrip(".")
    return UnreadableSourceError(
        f"{clip.source.name} cannot be decoded: {first_line}.",
        path=clip.source.name,
        next_step="Convert the dataset again from a sound source, or leave the episode out.",
    )
