"""Which episodes and frames a verification looks at more closely, or at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError
from leconvert.model import IntArray

__all__ = ["EVERYTHING", "Place", "Sampling", "chosen"]


class Place(NamedTuple):
    """One frame: the position of its episode, and its place in the order of presentation there."""

    position: int
    frame: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is looked at beside, or instead of, everything.

    Attributes:
        share: Share of the episodes whose files are compared, above 0 and up to 1; one at least.
        decode: Pictures to decode on both sides.
        deep: Samples to load through LeRobot's dataset.
        seed: Decides which; equal seeds choose the same of equal datasets.
    """

    share: float = 1.0
    decode: int = 0
    deep: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"A sample is a share above 0 and up to 1, not {self.share:g}.")
        for name, count in (("decode", self.decode), ("deep", self.deep)):
            if count < 0:
                raise UsageError(f"--{name} takes 0 or more, not {count}.")

    def episodes(self, num_episodes: int) -> npt.NDArray[np.bool_] | None:
        """Return which episodes are compared, shape (E,); None for all."""
        if self.share == 1:
            return None
        is_chosen = np.zeros(num_episodes, np.bool_)
        is_chosen[chosen(num_episodes, max(1, round(self.share * num_episodes)), self.seed)] = True
        return is_chosen

    def frames(
        self, count: int, lengths: IntArray, groups: Sequence[str] = ("",)
    ) -> list[tuple[str, Place]]:
        """Return frames of random groups, group by group and in order.

        Args:
            count: How many; all where there are fewer.
            lengths: Frames of each episode, 0 for those that are left out, shape (E,).
            groups: What each frame has one of, for example cameras.
        """
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        found = []
        for number in chosen(total * len(groups), count, self.seed).tolist():
            group, frame = divmod(number, total)
            position = int(np.searchsorted(ends, frame, side="right"))
            first = int(ends[position] - lengths[position])
            found.append((groups[group], Place(position, frame - first)))
        return found


EVERYTHING = Sampling()
"""All episodes; nothing is decoded."""


def chosen(population: int, count: int, seed: int) -> IntArray:
    """Return ``count`` different numbers below ``population``, ascending; all if there are fewer.

    Python's own generator is used: what it gives for a seed does not change with its version.
    """
    numbers = random.Random(seed).sample(range(population), min(count, population))  # noqa: S311
    return np.array(sorted(numbers), np.int64)
