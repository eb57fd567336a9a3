"""A set of trajectories as many robots would record it, each at its own rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leconvert.probe.resampling.values import Trajectory

__all__ = ["SyntheticSet"]

_WAVES = 3
_FREQUENCIES_HZ = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class SyntheticSet:
    """Smooth motions, sampled at rates and over times that are drawn for each trajectory.

    A rate is kept as it was drawn: samples are exactly 1/rate apart (plus ``jitter``), whatever
    fraction of a sample the duration then cuts off. Equal numbers and seeds give equal
    trajectories, in whatever order and process they are made.

    Attributes:
        count: Trajectories.
        seed: Of everything.
        rates_hz: Lowest and highest rate, drawn uniformly.
        durations_s: Likewise.
        action_dim: Columns of ``action``, float32.
        state_dim: Columns of ``observation.state``, float32.
        jitter: How far a sample's time is off, at most, as a share of the step; below a half.
    """

    count: int = 512
    seed: int = 0
    rates_hz: tuple[float, float] = (30.0, 333.0)
    durations_s: tuple[float, float] = (1.0, 4.0)
    action_dim: int = 7
    state_dim: int = 14
    jitter: float = 0.0

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """There are none."""
        return {}

    def __len__(self) -> int:
        return self.count

    def load(self, place: int) -> Trajectory:
        """Make a trajectory."""
        random = np.random.default_rng([self.seed, place])
        rate = random.uniform(*self.rates_hz)
        duration = random.uniform(*self.durations_s)
        steps = np.arange(int(duration * rate) + 1)
        shifts = random.uniform(-self.jitter, self.jitter, len(steps))
        shifts[0] = 0
        times = (steps + shifts) / rate
        width = self.action_dim + self.state_dim
        motion = np.zeros((len(times), width))
        for _ in range(_WAVES):
            frequency = random.uniform(*_FREQUENCIES_HZ, width)
            phase = random.uniform(0, 2 * np.pi, width)
            motion += np.sin(2 * np.pi * frequency * times[:, None] + phase)
        numbers = motion.astype(np.float32)
        return Trajectory(
            f"synthetic trajectory {place}",
            times,
            {
                "action": np.ascontiguousarray(numbers[:, : self.action_dim]),
                "observation.state": np.ascontiguousarray(numbers[:, self.action_dim :]),
            },
        )

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return {"source": "synthetic", "place": None, "synthetic": asdict(self)}
