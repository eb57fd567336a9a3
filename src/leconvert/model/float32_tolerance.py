"""Frames that LeRobot refuses to load although every stored time is exact.

LeRobot 0.6.1 looks a video frame up by time. Frame *i* of an episode that begins at frame *b* of
its file is asked for at ``from_timestamp + timestamp``. The decoder returns the frame of the
nearest number, and both times are compared in single precision:

======================== ===================================================== =========
value                    formula                                               precision
======================== ===================================================== =========
``timestamp``            i / fps                                               32 bits
``from_timestamp``       b / fps                                               64 bits
time asked for, *q*      from_timestamp + timestamp                            64 bits
frame number             round(q * average rate of the file)                   64 bits
time found, *p*          frame number / fps                                    64 bits
refused if               abs(float32(q) - float32(p)) >= float32(1e-4)         32 bits
======================== ===================================================== =========

The only inexact number that matters is ``timestamp``. Its error is up to half the spacing of single
precision at i / fps, which grows with the length of the *episode*. Rounding q and p to 32 bits can
turn that error into a whole step of the spacing at p, which grows with the position in the *file*:
6.1e-5 s below 1,024 s and 1.2e-4 s from there on. So frames of long episodes late in long files do
not load.

The functions compute with whole episodes at a time. They read no file and decode no frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from leconvert.model.values import LEROBOT_TOLERANCE_SECONDS, BoolArray, IntArray

__all__ = ["frames_always_in_reach", "frames_out_of_reach", "is_out_of_reach", "placed_rate"]

_TOLERANCE = np.float32(LEROBOT_TOLERANCE_SECONDS)
_CERTAIN_SECONDS = 1024
# Rounding boundaries from 1,024 s on are odd multiples of 2**-14 s, or of larger powers of two.
_FINEST_BOUNDARY = 2**14
# Three roundings to double precision change a time by less than this, relative to the time.
_DOUBLE_ERROR = 2.0**-50
# Up to here, 97 days, boundaries are coarse enough for `_frames_sure_of_their_place`.
_LONGEST_SECONDS = 2.0**23
# Above it, half the spacing of single precision can be half a frame.
_FASTEST_CERTAIN = 2**13
_FRAMES_A_BLOCK = 2**17
# The largest frame rate, and duration of a frame in ticks, that FFmpeg can hold.
_LARGEST_NUMERATOR = 2**31 - 1
_LARGEST_DENOMINATOR = 2**23


def placed_rate(fps: Fraction) -> Fraction:
    """Return the rate of the frames in a video file: ``fps``, or the nearest that MP4 can hold.

    Only long decimals such as 29.97002997 differ: MP4 and FFmpeg cannot hold them as a fraction. Up
    to 255 frames a second the difference is less than 2**-23 frames a second (Dirichlet's theorem).
    A decimal that stands for a fraction, such as 30000 / 1001, differs by as much as its last
    digit.
    """
    if fps.numerator <= _LARGEST_NUMERATOR and fps.denominator <= _LARGEST_DENOMINATOR:
        return fps
    return fps.limit_denominator(min(_LARGEST_NUMERATOR // math.ceil(fps), _LARGEST_DENOMINATOR))


def frames_always_in_reach(fps: Fraction) -> int:
    """Return how many frames from the start of a file load wherever their episodes begin.

    Below 1,024 s neighbours in single precision are 2**-14 s apart or less. The time asked for has
    an error of at most half of that, and rounding each of the two times adds at most half: 1.5 *
    2**-14 = 9.2e-5 s in all, less than the tolerance of 1e-4 s.
    """
    rate = placed_rate(fps)
    return math.ceil(_CERTAIN_SECONDS * rate) if rate < _FASTEST_CERTAIN else 0


def is_out_of_reach(begin_frame: IntArray, frame: IntArray, fps: Fraction) -> BoolArray:
    """Return which frames LeRobot refuses, or confuses with a neighbour.

    The function repeats LeRobot's own arithmetic for each frame.

    Args:
        begin_frame: Frames of the same file before the frame's episode, shape (N,).
        frame: The frame's number in its episode, shape (N,).
        fps: Frames a second, as the exact fraction of the decimal in ``info.json``.

    Returns:
        One answer a frame, shape (N,).
    """
    rate = placed_rate(fps)
    timestamps = (frame / float(fps)).astype(np.float32)
    asked = begin_frame * rate.denominator / rate.numerator + timestamps.astype(np.float64)
    numbers = np.rint(asked * float(rate))
    found = numbers * rate.denominator / rate.numerator
    distances = np.abs(asked.astype(np.float32) - found.astype(np.float32))
    # If frames are closer to each other than the tolerance, a neighbour would pass the first test.
    refused: BoolArray = (distances >= _TOLERANCE) | (numbers != begin_frame + frame)
    return refused


def frames_out_of_reach(begin_frame: IntArray, length: IntArray, fps: Fraction) -> IntArray:
    """Count the frames of each episode for which `is_out_of_reach` is true.

    Two kinds of frames are certain to load and are not evaluated: those of
    `frames_always_in_reach`, and those so early in their episode that their error is smaller than
    the least distance between any frame's time and a rounding boundary. So common rates and short
    episodes cost nothing; other frames cost some 30 ns each. Memory does not grow with the number
    of frames.

    Args:
        begin_frame: Frames of the same file before each episode, shape (E,).
        length: Frames of each episode, shape (E,).
        fps: Frames a second, as the exact fraction of the decimal in ``info.json``.

    Returns:
        Number of frames of each episode that do not load, shape (E,).
    """
    counts = np.zeros(len(length), np.int64)
    if not len(length):
        return counts
    file_frames = int((begin_frame + length).max())
    first = np.maximum(
        frames_always_in_reach(fps) - begin_frame, _frames_sure_of_their_place(fps, file_frames)
    )
    doubtful = np.flatnonzero(length > first)
    for episodes, frames in _blocks(doubtful, first[doubtful], length[doubtful]):
        refused = is_out_of_reach(begin_frame[episodes], frames, fps)
        np.add.at(counts, episodes[refused], 1)
    return counts


def _frames_sure_of_their_place(fps: Fraction, file_frames: int) -> int:
    """Return how many frames from the start of an episode load wherever the episode begins.

    The two times that are compared become one number unless a rounding boundary lies between them.
    From 1,024 s on, boundaries are at odd multiples of 2**-a s, a <= 14. Let the rate be n / d in
    lowest terms and n = w * 2**v with w odd. The distance of frame g's time, g * d / n, from the
    boundary m * 2**-a is abs(g * d * 2**a - m * n) / (n * 2**a). If v < a the dividend is a
    multiple of 2**v and, as m is odd, never zero: no time is closer to a boundary than 1 / (w *
    2**a) s. A frame is found if the error of the time asked for is less. That error is half the
    spacing of single precision at the frame's timestamp, which is t * 2**-24 at most for a time t.
    """
    rate = placed_rate(fps)
    seconds = file_frames / rate
    odd = rate.numerator
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    # The exponent a of the boundaries shrinks by one with every doubling of the time; it is 14 up
    # to 2,048 s.
    coarsest = 24 - int(max(seconds, Fraction(_CERTAIN_SECONDS))).bit_length() + 1
    if twos >= coarsest or seconds >= _LONGEST_SECONDS or rate >= _FASTEST_CERTAIN:
        return 0
    drift = float(abs(fps / rate - 1))
    least_distance = 1 / (odd * _FINEST_BOUNDARY) - float(seconds) * (_DOUBLE_ERROR + drift)
    if least_distance <= 0:
        return 0
    # The spacing doubles at powers of two: below a power of two t, half the spacing is t * 2**-25.
    return math.floor(2.0 ** math.floor(math.log2(least_distance * 2**25)) * rate)


def _blocks(
    episodes: IntArray, first: IntArray, length: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield every frame from ``first`` to ``length`` of each episode, a block at a time."""
    ends = np.cumsum(length - first)
    begins = ends - (length - first)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, _FRAMES_A_BLOCK):
        stop = min(start + _FRAMES_A_BLOCK, total)
        head, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        inside = slice(head, last + 1)
        shares = np.minimum(ends[inside], stop) - np.maximum(begins[inside], start)
        offsets = np.repeat(first[inside] - begins[inside], shares)
        yield np.repeat(episodes[inside], shares), np.arange(start, stop) + offsets
