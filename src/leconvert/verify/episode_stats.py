"""The statistics that ``meta/episodes`` holds, added up a block of rows at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.model import Finding
from leconvert.tables.paths import EPISODES_DIR
from leconvert.verify.catalogue import found
from leconvert.verify.columns import FloatArray, nested_floats

__all__ = ["EpisodeStats", "Total"]

_PREFIX = "stats/"
_NEEDED = ("min", "max", "mean", "std", "count")


@dataclass(slots=True)
class Total:
    """What is known of one feature over the episodes so far.

    The variance of all frames is Σn(s² + (m − M)²)/Σn with count n, mean m and deviation s of each
    episode and M the mean of all. It is added up around the first episode's mean, so that large
    means do not swallow small deviations.
    """

    minimum: FloatArray
    maximum: FloatArray
    around: FloatArray
    count: float = 0.0
    deviation_sum: FloatArray | None = None
    square_sum: FloatArray | None = None

    def add(self, block: Mapping[str, FloatArray]) -> None:
        """Add episodes: each statistic has shape (rows, ...), ``count`` (rows, 1)."""
        mean = block["mean"] - self.around
        weights = block["count"].reshape(-1, *(1,) * (mean.ndim - 1))
        deviations = (mean * weights).sum(axis=0)
        squares = ((block["std"] ** 2 + mean**2) * weights).sum(axis=0)
        self.minimum = np.minimum(self.minimum, block["min"].min(axis=0))
        self.maximum = np.maximum(self.maximum, block["max"].max(axis=0))
        self.count += float(block["count"].sum())
        first = self.deviation_sum is None or self.square_sum is None
        self.deviation_sum = deviations if first else self.deviation_sum + deviations
        self.square_sum = squares if first else self.square_sum + squares

    def result(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the statistics of all episodes."""
        assert self.deviation_sum is not None
        assert self.square_sum is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = self.deviation_sum / self.count
            variance = self.square_sum / self.count - shift**2
        return {
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.around + shift,
            "std": np.sqrt(np.maximum(variance, 0)),
            "count": np.array([self.count]),
        }


class EpisodeStats:
    """Adds up the statistics of some features; a feature whose statistics are unusable is left out.

    Args:
        features: The features; others are passed over.
    """

    def __init__(self, features: Collection[str]) -> None:
        self._features = sorted(features)
        self._totals: dict[str, Total] = {}
        self._unusable: dict[str, str] = {}
        self._has_columns = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a block of rows of meta/episodes."""
        self._has_columns |= any(name.startswith(_PREFIX) for name in batch.schema.names)
        for feature in self._features:
            if feature not in self._unusable:
                problem = self._add(feature, batch)
                if problem is not None:
                    self._unusable[feature] = problem

    def _add(self, feature: str, batch: pa.RecordBatch) -> str | None:
        block: dict[str, FloatArray] = {}
        for statistic in _NEEDED:
            name = f"{_PREFIX}{feature}/{statistic}"
            at = batch.schema.get_field_index(name)
            if at < 0:
                return f"there is no column {name!r}"
            values = nested_floats(batch.column(at))
            if values is None:
                return f"{name} is not one array of numbers an episode"
            block[statistic] = values
        shapes = {name: values.shape[1:] for name, values in block.items()}
        if shapes.pop("count") != (1,) or len(set(shapes.values())) > 1:
            return f"the shapes of its statistics do not go together: {shapes}"
        total = self._totals.get(feature)
        if total is None:
            first = {name: values[0] for name, values in block.items()}
            total = Total(first["min"], first["max"], first["mean"])
            self._totals[feature] = total
        elif total.around.shape != shapes["mean"]:
            return f"its statistics have several shapes, {total.around.shape} and {shapes['mean']}"
        with np.errstate(invalid="ignore", over="ignore"):
            total.add(block)
        return None

    def findings(self) -> Iterator[Finding]:
        """Yield the features whose statistics cannot be used."""
        if self._features and not self._has_columns:
            message = "meta/episodes holds no statistics at all."
            yield found("episode-stats", message, path=EPISODES_DIR)
            return
        for feature, problem in self._unusable.items():
            message = f"The statistics of {feature}: {problem}."
            yield found("episode-stats", message, stream=feature, path=EPISODES_DIR)

    def aggregate(self) -> dict[str, dict[str, FloatArray]]:
        """Return the statistics over all episodes of each usable feature."""
        return {
            feature: total.result()
            for feature, total in self._totals.items()
            if feature not in self._unusable
        }
