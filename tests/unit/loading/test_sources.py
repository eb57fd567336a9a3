"""Sets of trajectories: made, out of a dataset, and through HDF5."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from leconvert.api import convert
from leconvert.bench.options import ResampleOptions
from leconvert.bench.resampling import SyntheticSet, set_record
from leconvert.loading.resampling import pack
from leconvert.loading.trajectories import (
    DatasetSet,
    Hdf5Set,
    Trajectory,
    exact_times,
    methods_for,
    preload,
)
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.testing import DatasetSpec, make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of numbers at 30 frames a second."""
    folder = tmp_path_factory.mktemp("numbers")
    spec = DatasetSpec(episodes=3, frames=[40, 1, 25], cameras=(), has_done=True)
    make_dataset(folder / "v21", spec)
    convert(folder / "v21", output=folder / "v30")
    return folder / "v30"


def test_equal_seeds_give_equal_trajectories_in_any_order() -> None:
    one, other = SyntheticSet(count=9, seed=1), SyntheticSet(count=5, seed=1)

    assert np.array_equal(one.load(4).times, other.load(4).times)
    assert not np.array_equal(one.load(4).times, SyntheticSet(count=9, seed=2).load(4).times)


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


def test_only_a_rounding_of_the_grid_is_undone_and_times_stay_in_order() -> None:
    grid = np.arange(2000) / 30
    stored = grid.astype(np.float32)
    stored[7] += np.float32(1e-4)

    times = exact_times(stored, 30.0)

    assert times[7] == np.float64(stored[7])
    assert np.array_equal(np.delete(times, 7), np.delete(grid, 7))
    grid = (np.arange(300) / 30).astype(np.float32)
    for place in range(1, 299):
        stuck = grid.copy()
        stuck[place + 1] = stuck[place]
        times = exact_times(stuck, 30.0)
        assert times[place + 1] == times[place] == place / 30
        assert (np.diff(times) >= 0).all()
    skipped = exact_times(np.array([0, 1 / 30, 3 / 30], np.float32), 30.0)
    assert skipped.tolist() == [0, 1 / 30, 3 / 30]


def test_other_files_are_no_trajectories(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    (tmp_path / "text.h5").write_text("no")
    torn = robomimic_file(tmp_path / "torn.h5", None)
    with h5py.File(torn, "a") as file:
        del file["data/demo_2/actions"]

    with pytest.raises(UnreadableSourceError, match="no demonstrations"):
        Hdf5Set(tmp_path / "other.h5")
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        Hdf5Set(tmp_path / "text.h5")
    with pytest.raises(UnreadableSourceError, match="it is missing"):
        Hdf5Set(tmp_path / "none.h5")
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        Hdf5Set(torn, source_hz=20).load(1)


def test_a_set_without_numbers_is_refused(tmp_path: Path, dataset: Path) -> None:
    path = robomimic_file(tmp_path / "lift.hdf5", None)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            for name in ("actions", "obs/robot0_eef_pos"):
                if name in demo:
                    del demo[name]

    with pytest.raises(UsageError, match="has no numeric columns"):
        Hdf5Set(path, source_hz=20)
    with pytest.raises(UsageError, match=r"No feature of .* is chosen"):
        DatasetSet(str(dataset), columns=[])


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


def test_numbers_of_another_byte_order_are_read_from_hdf5(tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "set.h5", None)
    values = np.arange(14, dtype=np.float32).reshape(2, 7)
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0"].create_dataset("actions", data=values, dtype=">f4")
    source = Hdf5Set(path, columns=["action"], source_hz=20)
    packed = pack([pickle.loads(pickle.dumps(source)).load(0)])
    assert np.array_equal(packed.rows["action"].numpy(), values)


@pytest.mark.parametrize("device", ["cuda:x", "cuda:-1", "cpu:1", "tpu"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="cpu, cuda or cuda:N"):
        ResampleOptions(devices=(device,))


def test_columns_of_the_synthetic_set_are_not_ignored_in_silence() -> None:
    with pytest.raises(UsageError, match="--columns"):
        ResampleOptions(columns=("action",))


def robomimic_file(path: Path, env_args: str | None) -> Path:
    """Write three demonstrations as robomimic does, the tenth after the second in its order."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 9
        if env_args is not None:
            data.attrs["env_args"] = env_args
        for number, length in ((10, 4), (2, 3), (0, 2)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length
            demo["actions"] = np.full((length, 7), number, np.float64)
            demo["states"] = np.zeros((length, 30))
            demo["obs/robot0_eef_pos"] = np.full((length, 3), number + 0.5, np.float64)
            demo["obs/agentview_image"] = np.zeros((length, 8, 8, 3), np.uint8)
            demo["next_obs/robot0_eef_pos"] = np.zeros((length, 3))
        file.create_group("mask")["train"] = np.array([b"demo_0"])
    return path


def test_demonstrations_of_robomimic_are_read_in_their_order(tmp_path: Path) -> None:
    env_args = '{"env_name": "Lift", "env_kwargs": {"control_freq": 20}}'
    source = Hdf5Set(robomimic_file(tmp_path / "lift.hdf5", env_args))

    found = [source.load(index) for index in range(len(source))]

    assert [one.name for one in found] == [
        f"demo_{number} in {tmp_path / 'lift.hdf5'}" for number in (0, 2, 10)
    ]
    for one, (number, length) in zip(found, ((0, 2), (2, 3), (10, 4)), strict=True):
        assert set(one.columns) == {"action", "observation.robot0_eef_pos"}
        assert np.array_equal(one.times, np.arange(length) / 20)
        assert np.array_equal(one.columns["action"], np.full((length, 7), number))
        eef = one.columns["observation.robot0_eef_pos"]
        assert np.array_equal(eef, np.full((length, 3), number + 0.5))
    assert len(Hdf5Set(tmp_path / "lift.hdf5", most=2)) == 2
    assert set(Hdf5Set(tmp_path / "lift.hdf5", columns=["action"]).load(0).columns) == {"action"}
    with pytest.raises(UsageError, match="no numeric feature observation"):
        Hdf5Set(tmp_path / "lift.hdf5", columns=["observation.agentview_image"])


@pytest.mark.parametrize("env_args", [None, "{}", '{"env_kwargs": {"control_freq": 0}}', "no JSON"])
def test_the_rate_of_a_robomimic_file_is_stated_or_given(
    tmp_path: Path, env_args: str | None
) -> None:
    path = robomimic_file(tmp_path / "lift.hdf5", env_args)

    with pytest.raises(SourceError, match="contains no sample rate") as caught:
        Hdf5Set(path)
    assert "--source-hz" in str(caught.value.next_step)
    assert np.array_equal(Hdf5Set(path, source_hz=10).load(1).times, np.arange(3) / 10)
