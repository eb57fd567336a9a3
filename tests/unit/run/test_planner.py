"""What a planner says of a source that needs help, and what it does beside other planners."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.plans import draft_plan, open_or_plan

from leconvert.model.values import LayoutOptions
from leconvert.run import planner
from leconvert.run.conversion import Conversion
from leconvert.run.space import SpaceNeeded
from leconvert.support.errors import StorageError, TargetError
from leconvert.support.progress import SilentProgress
from leconvert.testing import edit_table
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import OpenedRun

Places = tuple[Path, Path, Path]


@pytest.fixture
def places(small_source: Path, tmp_path: Path) -> Places:
    return small_source, tmp_path / "out", tmp_path / "work"


class Said(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_of_two_planners_that_scanned_at_once_the_second_joins_the_first(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[OpenedRun] = []
    check_room = planner.check_room

    def overtaken(space: SpaceNeeded, target: Path) -> None:
        check_room(space, target)
        monkeypatch.undo()
        first.append(open_or_plan(*places))

    monkeypatch.setattr(planner, "check_room", overtaken)
    said = Said()
    second = open_or_plan(*places, progress=said)
    assert second.paths.run_id == first[0].paths.run_id
    assert len(list((places[2] / "runs").iterdir())) == 1
    assert not [line for line in said.lines if "Resuming" in line], "it just began"


def test_a_planner_that_is_refused_under_its_lock_leaves_no_lock(places: Places) -> None:
    _, taken, work = places
    work.mkdir()
    taken.mkdir()
    with pytest.raises(TargetError, match="exists already"):
        open_or_plan(*places)
    assert list(work.iterdir()) == []


@pytest.fixture
def vanishing(planned: OpenedRun, monkeypatch: pytest.MonkeyPatch) -> OpenedRun:
    """A run whose work dir is removed just before a planner holds its lock."""

    @contextmanager
    def removed_first(folder: WorkDir) -> Iterator[None]:
        shutil.rmtree(folder.root)
        with planner_lock(folder):
            yield

    monkeypatch.setattr(planner, "planner_lock", removed_first)
    return planned


def test_a_run_that_vanishes_is_planned_anew(vanishing: OpenedRun, places: Places) -> None:
    run = open_or_plan(*places)
    assert run.paths.run_id != vanishing.paths.run_id
    assert run.manifest.num_episodes == vanishing.manifest.num_episodes


@pytest.mark.usefixtures("vanishing")
def test_a_plan_made_in_place_of_a_vanished_run_must_fit_on_the_disk_too(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=StorageError("The disk has 0 MiB free."))
    monkeypatch.setattr(planner, "check_room", full)
    with pytest.raises(StorageError, match="0 MiB free"):
        open_or_plan(*places)
    assert WorkDir(places[2]).current_run_id() is None


@pytest.mark.parametrize("episodes_per_batch", [None, 2])
def test_a_file_that_cannot_be_kept_is_told_with_the_reason(
    source_copy: Path, tmp_path: Path, episodes_per_batch: int | None
) -> None:
    edit_table(source_copy, 1, lambda table: table.drop_columns(["index"]).append_column(
        "index", table["index"].cast("int32")
    ))  # fmt: skip
    options = LayoutOptions(layout="episode-files", episodes_per_batch=episodes_per_batch)
    draft = draft_plan(source_copy, tmp_path / "out", tmp_path / "work", Conversion(layout=options))
    [finding] = [each for each in draft.summary.findings if each.code == "rewritten-file"]
    assert (finding.severity, finding.path) == ("info", "data/chunk-000/episode_000001.parquet")
    assert finding.path in finding.message
    shards = [shard for batch in draft.batches for shard in batch.shards]
    assert [(shard.stream, shard.first) for shard in shards if not shard.keep] == [("data", 1)]
    files = draft.summary.files
    assert draft.summary.kept == {**files, "data": files["data"] - 1}


def test_frames_beyond_the_reach_of_float32_are_told_with_what_helps(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "count_out_of_reach", lambda *_: {"videos/a": 7, "videos/b": 0})
    for layout, remedy in (("reference", "--layout streaming"), ("streaming", None)):
        draft = draft_plan(*places, Conversion(layout=LayoutOptions(layout=layout)))
        [found] = draft.summary.findings
        assert (found.code, found.stream, found.remedy) == ("float32-reach", "videos/a", remedy)
        assert "7 of 44 frames" in found.message
