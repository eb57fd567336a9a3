"""Sets of trajectories: made, out of a dataset, and through HDF5."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from leconvert.api import convert
from leconvert.errors import SourceError, TargetError, UnreadableSourceError, UsageError
from leconvert.resampling.benchmark import ResampleOptions
from leconvert.resampling.kernel import pack
from leconvert.resampling.trajectories import (
    DatasetSet,
    Hdf5Set,
    SyntheticSet,
    Trajectory,
    exact_times,
    methods_for,
    preload,
    set_record,
    write_hdf5,
)
from leconvert.testing import DatasetSpec, make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of numbers at 30 frames a second."""
    folder = tmp_path_factory.mktemp("numbers")
    spec = DatasetSpec(episodes=3, frames=[40, 1, 25], cameras=(), has_done=True)
    make_dataset(folder / "v21", spec)
    convert(folder / "v21", output=folder / "v30")
    return folder / "v30"


def test_synthetic_rates_are_what_was_drawn() -> None:
    made = SyntheticSet(count=40, seed=5)
    rates, durations = [], []
    for place in range(len(made)):
        one = made.load(place)
        steps = np.diff(one.times)
        assert np.allclose(steps, steps[0], rtol=1e-9)
        rates.append(1 / steps[0])
        durations.append(one.duration_s)
        assert one.columns["action"].shape == (len(one), 7)
        assert one.columns["observation.state"].shape == (len(one), 14)
    assert len({round(rate, 6) for rate in rates}) == 40
    assert min(rates) >= 30
    assert max(rates) <= 333
    assert max(rates) > 250
    assert min(rates) < 80
    assert max(durations) <= 4
    assert min(durations) > 1 - 1 / 30


def test_equal_seeds_give_equal_trajectories_in_any_order() -> None:
    one, other = SyntheticSet(count=9, seed=1), SyntheticSet(count=5, seed=1)

    assert np.array_equal(one.load(4).times, other.load(4).times)
    assert not np.array_equal(one.load(4).times, SyntheticSet(count=9, seed=2).load(4).times)
    jittery = SyntheticSet(count=1, seed=1, jitter=0.4).load(0)
    assert len({round(step, 9) for step in np.diff(jittery.times)}) > 10


def test_a_dataset_gives_its_numeric_columns_at_its_timestamps(dataset: Path) -> None:
    source = DatasetSet(str(dataset))

    first = source.load(0)

    assert len(source) == 3
    assert set(first.columns) == {"observation.state", "action", "next.done"}
    assert np.array_equal(first.times, np.arange(40) / 30)
    assert first.name == f"episode 0 of {dataset}"
    assert [segment.method for segment in methods_for(source, {})["next.done"]] == ["previous"]
    assert len(DatasetSet(str(dataset), most=2)) == 2
    assert set(DatasetSet(str(dataset), columns=["action"]).load(1).columns) == {"action"}
    with pytest.raises(UsageError, match=r"no numeric feature wheels"):
        DatasetSet(str(dataset), columns=["wheels"])


def test_only_a_rounding_of_the_grid_is_undone() -> None:
    grid = np.arange(2000) / 30
    stored = grid.astype(np.float32)
    stored[7] += np.float32(1e-4)

    times = exact_times(stored, 30.0)

    assert times[7] == np.float64(stored[7])
    assert np.array_equal(np.delete(times, 7), np.delete(grid, 7))


def test_hdf5_keeps_everything(tmp_path: Path, dataset: Path) -> None:
    made, path = DatasetSet(str(dataset)), tmp_path / "new" / "set.h5"

    write_hdf5(made, path)
    read = Hdf5Set(path)

    assert [entry.name for entry in path.parent.iterdir()] == ["set.h5"]
    assert len(read) == 3
    for place in range(3):
        before, after = made.load(place), pickle.loads(pickle.dumps(read)).load(place)
        assert np.array_equal(before.times, after.times)
        assert set(before.columns) == set(after.columns)
        for key, values in before.columns.items():
            assert values.dtype == after.columns[key].dtype
            assert np.array_equal(values, after.columns[key])
    assert set(Hdf5Set(path, columns=["action"], most=1).load(0).columns) == {"action"}
    with pytest.raises(TargetError, match="exists already"):
        write_hdf5(made, path)
    with pytest.raises(UsageError, match="no numeric feature x"):
        Hdf5Set(path, columns=["x"])


def test_other_files_are_no_trajectories(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    (tmp_path / "text.h5").write_text("no")
    write_hdf5(SyntheticSet(count=1), tmp_path / "torn.h5")
    with h5py.File(tmp_path / "torn.h5", "a") as file:
        del file["trajectories/000000/times"]

    with pytest.raises(UnreadableSourceError, match="no file of trajectories"):
        Hdf5Set(tmp_path / "other.h5")
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        Hdf5Set(tmp_path / "text.h5")
    with pytest.raises(UnreadableSourceError, match="it is missing"):
        Hdf5Set(tmp_path / "none.h5")
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        Hdf5Set(tmp_path / "torn.h5").load(0)


def test_a_preloaded_set_is_read_once_and_described() -> None:
    made = SyntheticSet(count=4, seed=3)

    loaded = preload(made)
    record = set_record(loaded, methods_for(loaded, {"action[6]": "previous"}))

    assert loaded.load(2) is loaded.load(2)
    assert record["source"] == "synthetic"
    assert record["synthetic"]["seed"] == 3
    assert record["samples"] == sum(len(made.load(place)) for place in range(4))
    assert record["columns"]["action"]["methods"] == [[0, 6, "linear"], [6, 7, "previous"]]
    assert 30 <= record["rate_hz"]["min"] <= record["rate_hz"]["max"] <= 333
    with pytest.raises(SourceError, match="no trajectories"):
        preload(SyntheticSet(count=0))


def test_a_quaternion_needs_a_direction() -> None:
    class Standing(SyntheticSet):
        def load(self, index: int) -> Trajectory:  # noqa: ARG002
            x = np.float32([[0, 0, 0, 1], [0, 0, 0, 0]])
            return Trajectory("one", np.array([0.0, 1.0]), {"q": x})

    with pytest.raises(SourceError, match=r"quaternion 0 in q\[0:4\] at sample 1"):
        methods_for(Standing(2), {"q": "slerp"})


def test_times_that_repeat_or_skip_frames_stay_in_order() -> None:
    grid = (np.arange(300) / 30).astype(np.float32)
    for place in range(1, 299):
        stuck = grid.copy()
        stuck[place + 1] = stuck[place]
        times = exact_times(stuck, 30.0)
        assert times[place + 1] == times[place] == place / 30
        assert (np.diff(times) >= 0).all()
    skipped = exact_times(np.array([0, 1 / 30, 3 / 30], np.float32), 30.0)
    assert skipped.tolist() == [0, 1 / 30, 3 / 30]


class Unreadable(SyntheticSet):
    """A set whose second trajectory cannot be read."""

    def load(self, place: int) -> Trajectory:
        if place:
            raise SourceError("The second is damaged.", path="second")
        return super().load(place)


def test_a_set_that_cannot_be_read_leaves_no_half_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="second is damaged"):
        write_hdf5(Unreadable(3), tmp_path / "set.h5")
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_another_byte_order_are_read_from_hdf5(tmp_path: Path) -> None:
    write_hdf5(SyntheticSet(1), tmp_path / "set.h5")
    with h5py.File(tmp_path / "set.h5", "r+") as file:
        group = file["trajectories/000000/columns"]
        values = group["action"][()]
        del group["action"]
        group.create_dataset("action", data=values, dtype=">f4")
    packed = pack([Hdf5Set(tmp_path / "set.h5").load(0)])
    assert np.array_equal(packed.rows["action"].numpy(), values)


@pytest.mark.parametrize("device", ["cuda:x", "cuda:-1", "cpu:1", "tpu"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="cpu, cuda or cuda:N"):
        ResampleOptions(devices=(device,))


def test_columns_of_the_synthetic_set_are_not_ignored_in_silence() -> None:
    with pytest.raises(UsageError, match="--columns"):
        ResampleOptions(columns=("action",))
