"""Stats of generated episodes, in the shapes that LeRobot v2.1 stores.

Numeric features are computed over all rows. Images are computed from the frames that were drawn
(before encoding), through a histogram a channel, so that they are exact for the sampled frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ImageHistogram", "column_stats", "pooled_stats"]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, Any]


def column_stats(values: npt.NDArray[Any], *, quantiles: bool) -> Stats:
    """Compute the stats of one feature of one episode.

    Args:
        values: One row a frame, of shape (frames,) or (frames, …).
        quantiles: Whether to add them.

    Returns:
        ``min`` and ``max`` in the type of the values, ``mean`` and ``std`` (of the population) as
        floats, each in the feature's shape, a scalar's being (1,); ``count`` of shape (1,).
    """
    rows = values.reshape(len(values), 1) if values.ndim == 1 else values
    numbers = rows.astype(np.float64)
    stats: Stats = {
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
        "mean": numbers.mean(axis=0).tolist(),
        "std": numbers.std(axis=0).tolist(),
        "count": [len(rows)],
    }
    if quantiles:
        for name, level in QUANTILES.items():
            stats[name] = np.quantile(numbers, level, axis=0).tolist()
    return stats


class ImageHistogram:
    """How often each channel takes each of its 256 values, over the frames added so far."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 256), dtype=np.int64)
        self._images = 0

    def add(self, image: npt.NDArray[np.uint8]) -> None:
        """Count the pixels of one frame of shape (height, width, 3)."""
        for channel in range(3):
            self._counts[channel] += np.bincount(image[:, :, channel].ravel(), minlength=256)
        self._images += 1

    def stats(self, *, quantiles: bool) -> Stats:
        """Return the stats, scaled to 0..1 and of shape (3, 1, 1); ``count`` is of frames."""
        levels = np.arange(256) / 255
        total = self._counts.sum(axis=1)
        mean = self._counts @ levels / total
        variance = self._counts @ levels**2 / total - mean**2
        present = self._counts > 0
        found = {
            "min": levels[present.argmax(axis=1)],
            "max": levels[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(variance, 0)),
        }
        if quantiles:
            cumulated = self._counts.cumsum(axis=1)
            for name, level in QUANTILES.items():
                found[name] = levels[(cumulated >= level * total[:, None]).argmax(axis=1)]
        stats: Stats = {name: values.reshape(3, 1, 1).tolist() for name, values in found.items()}
        return stats | {"count": [self._images]}


def pooled_stats(episodes: Sequence[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Combine the stats of episodes into the ``stats.json`` of a v2.0 dataset, without counts."""
    return {feature: _pool(stats[feature] for stats in episodes) for feature in episodes[0]}


def _pool(parts: Iterable[Stats]) -> Stats:
    listed = list(parts)
    counts = np.array([part["count"][0] for part in listed], dtype=np.float64)
    means = np.array([part["mean"] for part in listed], dtype=np.float64)
    deviations = np.array([part["std"] for part in listed], dtype=np.float64)
    weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
    mean = (means * weights).sum(axis=0)
    variance = ((deviations**2 + (means - mean) ** 2) * weights).sum(axis=0)
    return {
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "max": np.array([part["max"] for part in listed]).max(axis=0).tolist(),
        "min": np.array([part["min"] for part in listed]).min(axis=0).tolist(),
    }
