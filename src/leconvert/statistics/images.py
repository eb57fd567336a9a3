"""Statistics of the frames of one camera in one episode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.statistics.quantiles import QUANTILES, rank_of
from leconvert.statistics.sampling import downsampled

__all__ = ["ImageStats"]

_MAX_COLOUR = 255


class ImageStats:
    """Collects frames and gives their statistics, exactly, one value a channel.

    What is kept is how often each channel took each of its values: a few kilobytes, however many
    frames come. All statistics follow from it in whole numbers and are rounded once. Frames are
    thinned out as LeRobot does before they are counted.

    Args:
        quantiles: Whether to add ``q01``, ``q10``, ``q50``, ``q90`` and ``q99``.
        is_depth: Values are distances and keep their units; colours are divided by 255.
    """

    def __init__(self, *, quantiles: bool, is_depth: bool = False) -> None:
        self._quantiles = quantiles
        self._scale = 1 if is_depth else _MAX_COLOUR
        self._counts: npt.NDArray[np.int64] | None = None
        self._frames = 0

    def add(self, frame: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> None:
        """Count the values of one frame.

        Args:
            frame: Shape (height, width, channels), uint8; depth may be uint16.

        Raises:
            ValueError: It is of another type or shape, or has other channels than those before.
        """
        values = {np.dtype(np.uint8): 256, np.dtype(np.uint16): 65536}.get(frame.dtype)
        if values is None or (values > 256 and self._scale != 1):
            raise ValueError(f"frames are of {frame.dtype}")
        if frame.ndim != 3 or not frame.size:
            raise ValueError(f"a frame has shape {frame.shape}")
        if self._counts is None:
            self._counts = np.zeros((frame.shape[2], values), np.int64)
        if self._counts.shape != (frame.shape[2], values):
            raise ValueError("frames have different numbers of channels or bits")
        thinned = downsampled(frame)
        for channel in range(len(self._counts)):
            found = np.bincount(thinned[..., channel].ravel(), minlength=values)
            self._counts[channel] += found
        self._frames += 1

    def result(self) -> dict[str, Any]:
        """Return the statistics as nested lists of shape (channels, 1, 1).

        ``count`` is the number of frames, shape (1,). Quantiles are over pixels: the value at rank
        ⌈level × pixels⌉ in ascending order.

        Raises:
            ValueError: No frame was added.
        """
        if self._counts is None:
            raise ValueError("there are no frames")
        channels = [_Channel(counts, self._scale) for counts in self._counts]

        def each(statistic: Callable[[_Channel], float]) -> list[list[list[float]]]:
            return [[[statistic(channel)]] for channel in channels]

        stats: dict[str, Any] = {
            "min": each(_Channel.minimum),
            "max": each(_Channel.maximum),
            "mean": each(_Channel.mean),
            "std": each(_Channel.std),
            "count": [self._frames],
        }
        if self._quantiles:
            for name, level in QUANTILES.items():
                stats[name] = [[[channel.quantile(level)]] for channel in channels]
        return stats


class _Channel:
    """The values that one channel took and how often, as whole numbers of any size."""

    def __init__(self, counts: npt.NDArray[np.int64], scale: int) -> None:
        present = np.flatnonzero(counts)
        self._scale = scale
        self._levels: list[int] = present.tolist()
        self._cumulated = np.cumsum(counts[present])
        self._pixels = int(self._cumulated[-1])
        pairs = list(zip(self._levels, counts[present].tolist(), strict=True))
        self._sum: int = sum(level * count for level, count in pairs)
        self._sum_of_squares: int = sum(level * level * count for level, count in pairs)

    def minimum(self) -> float:
        return self._levels[0] / self._scale

    def maximum(self) -> float:
        return self._levels[-1] / self._scale

    def mean(self) -> float:
        return self._sum / (self._pixels * self._scale)

    def std(self) -> float:
        # √(n Σx² − (Σx)²) / n, where the difference is exact.
        spread = self._pixels * self._sum_of_squares - self._sum**2
        return math.sqrt(spread / (self._pixels * self._scale) ** 2)

    def quantile(self, level: float) -> float:
        rank = rank_of(level, self._pixels)
        place = int(np.searchsorted(self._cumulated, rank, side="right"))
        return self._levels[place] / self._scale
