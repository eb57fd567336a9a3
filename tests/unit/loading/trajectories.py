"""Small trajectories for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leconvert.loading.trajectories import Methods, Trajectory, choose_methods


def trajectory(
    times: Sequence[float], name: str = "one", **columns: Sequence[Any] | np.ndarray[Any, Any]
) -> Trajectory:
    """A trajectory; ``x`` counts its samples where no columns are given."""
    given = columns or {"x": np.arange(len(times), dtype=np.float32)[:, None]}
    return Trajectory(
        name, np.array(times, np.float64), {key: np.asarray(v) for key, v in given.items()}
    )


def methods_of(one: Trajectory, **given: str) -> Methods:
    widths = one.widths()
    columns = {key: (values.dtype, widths[key]) for key, values in one.columns.items()}
    return choose_methods(columns, given)  # type: ignore[arg-type]


def padded(trajectories: Sequence[Trajectory]) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
    """The arguments of `resample`: times, values, lengths; padding holds NaN, to be ignored."""
    lengths = [len(one) for one in trajectories]
    times = torch.full((len(lengths), max(lengths)), float("nan"), dtype=torch.float64)
    values = {}
    for key, first in trajectories[0].columns.items():
        dtype = torch.from_numpy(first).dtype
        fill = float("nan") if dtype.is_floating_point else 1
        shape = (len(lengths), max(lengths), *first.shape[1:])
        values[key] = torch.full(shape, fill, dtype=dtype)
    for row, one in enumerate(trajectories):
        times[row, : len(one)] = torch.from_numpy(one.times)
        for key, table in values.items():
            table[row, : len(one)] = torch.from_numpy(one.columns[key])
    return times, values, lengths
