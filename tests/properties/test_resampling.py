"""Resampling against numpy.interp and scipy's Slerp, whatever the clocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation, Slerp
from tests.unit.loading.trajectories import methods_of, padded

from leconvert.bench.pipelines import resample_one
from leconvert.loading import resample
from leconvert.loading.trajectories import Trajectory

# Times in whole milliseconds repeat now and then, and fall on targets now and then.
gaps = st.lists(st.integers(0, 60), min_size=0, max_size=40)
origins = st.sampled_from([0.0, -3.0, 86_400.0, 1_700_000_000.0])


@st.composite
def batches(draw: st.DrawFn, columns: int = 3) -> list[Trajectory]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        milliseconds = np.cumsum([0, *draw(gaps)])
        generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        made.append(
            Trajectory(
                f"trajectory {number}",
                draw(origins) + milliseconds / 1000,
                {
                    "x": generator.uniform(-5, 5, (len(milliseconds), columns)).astype(np.float32),
                    "n": generator.integers(-9, 9, len(milliseconds)),
                },
            )
        )
    return made


@settings(max_examples=60)
@given(batch=batches(), hz=st.sampled_from([50.0, 20.0, 333.0, 7.3]))
def test_even_targets_are_what_interp_gives(batch: list[Trajectory], hz: float) -> None:
    got = resample(*padded(batch), hz=hz)

    for row, one in enumerate(batch):
        seconds = one.times - one.times[0]
        targets = one.targets(hz)
        count = int(got.lengths[row])
        assert count == len(targets)
        assert got.mask[row].sum() == count
        assert not got.values["x"][row, count:].any()
        for column in range(3):
            wanted = np.interp(targets, seconds, one.columns["x"][:, column])
            assert np.abs(got.values["x"][row, :count, column].numpy() - wanted).max() <= 1e-5
        before = np.clip(np.searchsorted(seconds, targets, side="right") - 1, 0, None)
        assert np.array_equal(got.values["n"][row, :count].numpy(), one.columns["n"][before])


@settings(max_examples=60)
@given(batch=batches(), data=st.data())
def test_any_targets_are_what_interp_gives(batch: list[Trajectory], data: st.DataObject) -> None:
    times, values, lengths = padded(batch)
    count = data.draw(st.integers(1, 8))
    shifts = data.draw(
        st.lists(st.integers(-500, 3000), min_size=count * len(batch), max_size=count * len(batch))
    )
    targets = times[:, :1] + torch.tensor(shifts, dtype=torch.float64).view(len(batch), -1) / 1000

    got = resample(times, values, lengths, targets=targets, outside="clamp").values["x"]

    for row, one in enumerate(batch):
        seconds, aims = one.times - one.times[0], (targets[row] - times[row, 0]).numpy()
        for column in range(3):
            wanted = np.interp(aims, seconds, one.columns["x"][:, column])
            assert np.abs(got[row, :, column].numpy() - wanted).max() <= 1e-5


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    spread=st.sampled_from([1.0, 1e-2, 1e-4]),
)
def test_quaternions_are_what_slerp_gives(seed: int, steps: list[int], spread: float) -> None:
    generator = np.random.default_rng(seed)
    seconds = np.cumsum([0, *steps]) / 1000
    turns = generator.standard_normal((len(seconds), 3)) * spread
    quaternions = (Rotation.from_rotvec(turns) * Rotation.random(rng=seed)).as_quat()
    # A rotation is two quaternions, of any length: the recording may hold either.
    signs = generator.choice([-1.0, 1.0], (len(seconds), 1)) * generator.uniform(0.5, 2)
    one = Trajectory("turning", seconds, {"q": (quaternions * signs).astype(np.float32)})
    targets = one.targets(50)

    got = resample(*padded([one]), hz=50, methods={"q": "slerp"}).values["q"][0].numpy()
    numpys = resample_one(one, targets, methods_of(one, q="slerp"))["q"]

    wanted = Slerp(seconds, Rotation.from_quat(one.columns["q"].astype(float)))(
        np.minimum(targets, seconds[-1])
    )
    for found in (got, numpys):
        assert _apart(wanted, found) < 2e-6
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5


def _apart(wanted: Rotation, found: Any) -> float:
    """Return the largest difference of two rows of rotations, whichever sign they have."""
    both = [np.abs(sign * wanted.as_quat() - found).max(axis=1) for sign in (1, -1)]
    return float(np.minimum(*both).max())
