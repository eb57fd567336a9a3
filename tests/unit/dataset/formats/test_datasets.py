"""A dataset tells the same of itself whatever its version is."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import leconvert
from leconvert.dataset.formats import Dataset, open_dataset, rows_of, v2
from leconvert.model.repairs import DroppedEpisode, Repairs
from leconvert.model.values import LayoutOptions, camera_of
from leconvert.support.errors import SourceError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    """A v2.1 dataset, and what it becomes in files of several episodes."""
    folder = tmp_path_factory.mktemp("datasets")
    spec = DatasetSpec(
        episodes=5,
        frames=[6, 4, 4, 1, 5],
        cameras=(CameraSpec("observation.images.top", 64, 48),),
        tasks=("Pick.", "Place."),
        tasks_per_episode=2,
        extra_episode_keys={"operator": ["ann", "bob"]},
    )
    source = make_dataset(folder / "source", spec)
    layout = LayoutOptions(data_file_size_in_mb=0.004, video_file_size_in_mb=0.008)
    leconvert.convert(source, output=folder / "out", layout=layout)
    return open_dataset(source), open_dataset(folder / "out")


def test_both_versions_tell_the_same_also_in_other_processes(pair: tuple[Dataset, Dataset]) -> None:
    old, new = pair
    assert (old.version, new.version) == ("v2.1", "v3.0")
    assert old.fps == new.fps
    assert old.streams == new.streams
    assert list(old.task_table) == list(new.task_table)
    assert np.array_equal(old.episodes.episode_index, new.episodes.episode_index)
    assert old.episodes.length.tolist() == new.episodes.length.tolist() == [6, 4, 4, 1, 5]
    assert list(old.lines()) == list(new.lines())
    assert list(rows_of(old.stats_blocks())) == list(rows_of(new.stats_blocks()))
    assert next(old.lines())["operator"] == "ann"
    for dataset in pair:
        dataset.slices("data")
        there = pickle.loads(pickle.dumps(dataset))
        assert list(there.lines()) == list(dataset.lines())
        assert there.slices("data").path(3) == dataset.slices("data").path(3)


def test_slices_lead_to_files_of_one_episode_or_of_several(pair: tuple[Dataset, Dataset]) -> None:
    old, new = pair
    for stream in old.streams:
        one, several = old.slices(stream), new.slices(stream)
        assert one.whole
        assert not several.whole
        assert len(one.paths) == 5 > len(several.paths) > 1
        assert one.first.tolist() == [0] * 5
        starts = [several.first[several.file == file].tolist() for file in range(2)]
        assert starts[0][0] == starts[1][0] == 0 < starts[0][1]
        for dataset, slices in ((old, one), (new, several)):
            for position in range(5):
                path = slices.path(position)
                assert (dataset.root / path).is_file()
                assert dataset.slice_of(path) is not None
        assert one.select(np.array([3, 1])).path(1) == one.path(1)
    camera = camera_of(old.streams[1])
    assert old.slices(old.streams[1]).path(2) == f"videos/chunk-000/{camera}/episode_000002.mp4"


def test_an_episode_without_statistics_has_none(pair: tuple[Dataset, Dataset]) -> None:
    old, _ = pair
    path = old.root / v2.STATS_PATH
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[3:]]))
    try:
        found = list(rows_of(v2.Dataset(old.root).stats_blocks()))
    finally:
        path.write_text("".join(lines))
    assert [bool(stats) for stats in found] == [True, True, False, True, True]


def test_an_episode_that_is_left_out_may_be_empty(pair: tuple[Dataset, Dataset]) -> None:
    old, _ = pair
    path = old.root / v2.EPISODES_PATH
    text = path.read_text()
    path.write_text(text.replace('"length": 1', '"length": 0'))
    try:
        repairs = Repairs(dropped_episodes=(DroppedEpisode(3, "empty-episode"),))
        assert v2.Dataset(old.root, repairs).episodes.length.tolist() == [6, 4, 4, 0, 5]
        with pytest.raises(SourceError, match="gives episode 3 the impossible length 0"):
            v2.Dataset(old.root).episodes  # noqa: B018
    finally:
        path.write_text(text)


def test_renamed_features_have_new_names_and_their_old_files(pair: tuple[Dataset, Dataset]) -> None:
    old_name, new_name = "observation.images.top", "observation.images.above"
    renames = {old_name: new_name, "action": "command"}
    for stored in pair:
        renamed = pickle.loads(
            pickle.dumps(open_dataset(stored.root, Repairs(renamed_features=renames)))
        )
        names = {renames.get(name, name) for name in stored.features}
        assert names == set(renamed.features) == set(renamed.info["features"])
        assert set(renamed.stored_features) == set(stored.features)
        assert [camera_of(stream) for stream in renamed.streams] == [None, new_name]
        assert set(renamed.stats) == {renames.get(name, name) for name in stored.stats}
        for row, before in zip(
            rows_of(renamed.stats_blocks()), rows_of(stored.stats_blocks()), strict=True
        ):
            assert row is not None
            assert before is not None
            assert row["command"] == before["action"]
        for new, old in zip(renamed.streams, stored.streams, strict=True):
            paths = list(stored.slices(old).paths)
            assert list(renamed.slices(new).paths) == paths
            assert renamed.relative(new, 0) == stored.relative(old, 0)
            assert list(renamed.absolute(new, [0])) == list(stored.absolute(old, [0]))
            assert renamed.slice_of(paths[0]) == (new, 0)
