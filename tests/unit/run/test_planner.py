"""What a planner says of a source that needs help, and what it does beside other planners."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leconvert.model.values import LayoutOptions
from leconvert.run import planner
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.planner import draft_plan, open_or_plan
from leconvert.run.space import SpaceNeeded
from leconvert.support.errors import FindingsError, PlanMismatchError, StorageError, TargetError
from leconvert.support.progress import SilentProgress
from leconvert.testing import edit_table, with_column
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import OpenedRun

OPTIONS = LayoutOptions()


class Said(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def shift_times(source: Path, episode: int) -> None:
    import pyarrow as pa

    edit_table(
        source,
        episode,
        lambda table: with_column(
            table, "timestamp", pa.array([9.0] * table.num_rows, pa.float32())
        ),
    )


def count_rows_from_one(source: Path, episode: int) -> None:
    import pyarrow as pa

    edit_table(
        source,
        episode,
        lambda table: with_column(table, "frame_index", pa.array(range(1, table.num_rows + 1))),
    )


def give_one_number_to_two_tasks(source: Path) -> None:
    with (source / "meta/tasks.jsonl").open("a") as lines:
        lines.write('{"task_index": 0, "task": "another one"}\n')


@pytest.mark.parametrize(
    ("damages", "helps"),
    [
        ([lambda s: shift_times(s, 0)], "Run the command again with --retime"),
        (
            [lambda s: shift_times(s, 0), lambda s: count_rows_from_one(s, 1)],
            "Run the command again with --retime --reindex",
        ),
        ([give_one_number_to_two_tasks], "Repair the source and run the command again"),
        (
            [give_one_number_to_two_tasks, lambda s: shift_times(s, 0)],
            "Repair the source and run the command again, with --retime",
        ),
    ],
    ids=["a flag", "two flags", "no flag", "a flag for a part"],
)
def test_a_source_with_errors_is_told_what_helps(
    source_copy: Path, tmp_path: Path, damages: list[Callable[[Path], None]], helps: str
) -> None:
    for damage in damages:
        damage(source_copy)
    with pytest.raises(FindingsError) as caught:
        draft_plan(source_copy, tmp_path / "out", tmp_path / "work", Conversion(layout=OPTIONS))
    assert caught.value.next_step == f"{helps}; nothing was written."
    errors = [found for found in caught.value.findings if found["severity"] == "error"]
    number = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    assert caught.value.message == f"{source_copy} cannot be converted as it is: {number}."
    assert not (tmp_path / "work").exists()


def test_of_two_planners_that_scanned_at_once_the_second_joins_the_first(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[OpenedRun] = []
    check_room = planner.check_room

    def overtaken(space: SpaceNeeded, target: Path) -> None:
        check_room(space, target)
        monkeypatch.undo()
        first.append(
            open_or_plan(
                small_source, tmp_path / "out", tmp_path / "work", Conversion(layout=OPTIONS)
            )
        )

    monkeypatch.setattr(planner, "check_room", overtaken)
    said = Said()
    second = open_or_plan(
        small_source, tmp_path / "out", tmp_path / "work", Conversion(layout=OPTIONS), progress=said
    )
    assert second.manifest.run_id == first[0].manifest.run_id
    assert len(list((tmp_path / "work/runs").iterdir())) == 1
    assert not [line for line in said.lines if "Resuming" in line], "it just began"


def test_a_planner_that_is_refused_under_its_lock_leaves_no_lock(
    small_source: Path, tmp_path: Path
) -> None:
    def taken() -> None:
        raise TargetError("taken", path="x")

    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(TargetError):
        open_or_plan(
            small_source, tmp_path / "out", work, Conversion(layout=OPTIONS), check_target=taken
        )
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


def test_a_run_that_vanishes_before_it_can_be_joined_is_planned_anew(
    vanishing: OpenedRun, small_source: Path, tmp_path: Path
) -> None:
    run = open_or_plan(
        small_source, tmp_path / "out", tmp_path / "work", Conversion(layout=OPTIONS)
    )
    assert run.manifest.run_id != vanishing.manifest.run_id
    assert run.manifest.num_episodes == vanishing.manifest.num_episodes


def test_a_plan_made_in_place_of_a_vanished_run_must_fit_on_the_disk_too(
    vanishing: OpenedRun, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_space: SpaceNeeded, target: Path) -> None:
        raise StorageError(f"{target.parent} has 0 MiB free.")

    monkeypatch.setattr(planner, "check_room", full)
    with pytest.raises(StorageError, match="0 MiB free"):
        open_or_plan(small_source, tmp_path / "out", tmp_path / "work", Conversion(layout=OPTIONS))
    assert WorkDir(tmp_path / "work").current_run_id() is None


def test_a_run_of_another_layout_is_not_joined_and_the_options_that_differ_are_named(
    planned: OpenedRun, small_source: Path, tmp_path: Path
) -> None:
    options = LayoutOptions(episodes_per_batch=1, layout="streaming", loader_workers=2)
    with pytest.raises(PlanMismatchError) as caught:
        open_or_plan(small_source, tmp_path / "out", tmp_path / "work", Conversion(layout=options))
    assert caught.value.details == (
        "layout: not given in the plan, streaming now",
        "loader_workers: not given in the plan, 2 now",
    )
    run = open_or_plan(
        small_source,
        tmp_path / "out",
        tmp_path / "work",
        Conversion(layout=options, plan=PlanOptions(restart=True)),
    )
    assert run.manifest.options["layout"] == "streaming"
    with pytest.raises(PlanMismatchError) as caught:
        open_or_plan(
            small_source,
            tmp_path / "out",
            tmp_path / "work",
            Conversion(layout=LayoutOptions(episodes_per_batch=1)),
        )
    assert caught.value.details == (
        "layout: streaming in the plan, not given now",
        "loader_workers: 2 in the plan, not given now",
    )


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
    assert (finding.code, finding.severity) == ("rewritten-file", "info")
    assert finding.path == "data/chunk-000/episode_000001.parquet"
    assert finding.message == (
        f"{finding.path} has other columns or types than the result, so it is written again."
    )
    shards = [shard for batch in draft.batches for shard in batch.shards]
    assert [(shard.stream, shard.first) for shard in shards if not shard.keep] == [("data", 1)]
    files = draft.summary.files
    assert draft.summary.kept == {**files, "data": files["data"] - 1}


def test_frames_beyond_the_reach_of_float32_are_told_with_what_helps(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "count_out_of_reach", lambda *_: {"videos/a": 7, "videos/b": 0})
    for layout, remedy in (("reference", "--layout streaming"), ("streaming", None)):
        draft = draft_plan(
            small_source,
            tmp_path / "out",
            tmp_path / "work",
            Conversion(layout=LayoutOptions(layout=layout)),
        )
        [finding] = draft.summary.findings
        assert (finding.code, finding.stream, finding.remedy) == (
            "float32-reach",
            "videos/a",
            remedy,
        )
        assert "7 of 44 frames" in finding.message
