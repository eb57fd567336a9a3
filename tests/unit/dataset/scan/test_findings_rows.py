"""Rows, episodes and tasks that are numbered or timed wrongly: each gives exactly its finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sound_dataset import LENGTHS, Only, Severities
from tests.trees import read_episodes

import leconvert
from leconvert import tables
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import DroppedEpisode, RepairOptions
from leconvert.support.errors import SourceError, UsageError
from leconvert.testing import (
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)


def shift_times(root: Path, episode: int, seconds: float, frames: slice = slice(None)) -> None:
    def shift(table: pa.Table) -> pa.Table:
        times = table.column("timestamp").to_numpy().copy()
        times[frames] += np.float32(seconds)
        return with_column(table, "timestamp", pa.array(times))

    edit_table(root, episode, shift)
    times = pq.read_table(root / f"data/chunk-000/episode_{episode:06d}.parquet").column(
        "timestamp"
    )
    extremes = {"min": [min(times.to_pylist())], "max": [max(times.to_pylist())]}
    edit_lines(
        root, "episodes_stats", lambda lines: lines[episode]["stats"]["timestamp"].update(extremes)
    )


def set_column(root: Path, episode: int, name: str, values: list[int]) -> None:
    edit_table(root, episode, lambda table: with_column(table, name, pa.array(values)))
    extremes = {"min": [min(values)], "max": [max(values)]}
    edit_lines(root, "episodes_stats", lambda lines: lines[episode]["stats"][name].update(extremes))


@pytest.mark.parametrize("seconds", [0.05, 1.7e9, -0.2, float("nan")])
def test_shifted_timestamps_are_an_error_where_there_are_cameras(
    source: Path, only: Only, seconds: float
) -> None:
    shift_times(source, 1, seconds)
    finding = only(scan_source(source), "timestamps")
    assert (finding.severity, finding.episode, finding.remedy) == ("error", 1, "--retime")
    assert "5 of 5 timestamps" in finding.message
    assert "first at frame 0" in finding.message


def test_shifted_timestamps_are_a_warning_without_cameras(
    source_without_cameras: Path, only: Only
) -> None:
    shift_times(source_without_cameras, 2, 0.05)
    assert only(scan_source(source_without_cameras), "timestamps").severity == "warning"


def test_one_timestamp_between_right_ones_is_seen(source: Path, only: Only) -> None:
    shift_times(source, 0, 0.0005, slice(3, 4))
    finding = only(scan_source(source), "timestamps")
    assert "1 of 6 timestamps" in finding.message
    assert "first at frame 3" in finding.message
    assert "0.0005" in finding.message


def test_timestamps_in_another_order_are_seen(source: Path, only: Only) -> None:
    edit_table(
        source,
        3,
        lambda table: with_column(
            table, "timestamp", table.column("timestamp").combine_chunks()[::-1]
        ),
    )
    assert "6 of 7" in only(scan_source(source), "timestamps").message


def test_repeated_timestamps_are_seen(source: Path, only: Only) -> None:
    shift_times(source, 3, -1 / 30, slice(2, 3))
    assert "1 of 7" in only(scan_source(source), "timestamps").message


def test_timestamps_within_the_tolerance_are_right(source: Path) -> None:
    shift_times(source, 0, 9e-5)
    assert scan_source(source).findings == ()


def test_timestamps_of_very_long_episodes_are_right_as_single_precision_has_them(
    tmp_path: Path,
) -> None:
    spec = DatasetSpec(episodes=1, frames=30, cameras=(), fps="0.01", tasks=("x",))
    source = make_dataset(tmp_path / "slow", spec)
    assert scan_source(source).findings == ()


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("groups", [10, 2])
@pytest.mark.parametrize("statistics", [True, False])
def test_timestamps_are_seen_however_a_file_is_written(
    source: Path, only: Only, dictionary: bool, groups: int, statistics: bool
) -> None:
    path = source / "data/chunk-000/episode_000000.parquet"
    rows = pq.read_table(path)
    options = {
        "use_dictionary": dictionary, "row_group_size": groups, "write_statistics": statistics,
    }  # fmt: skip
    pq.write_table(rows, path, **options)
    assert scan_source(source).findings == ()
    times = rows.column("timestamp").to_numpy().copy()
    times[4] += 0.001
    pq.write_table(with_column(rows, "timestamp", pa.array(times)), path, **options)
    assert "first at frame 4" in only(scan_source(source), "timestamps").message


def test_retimed_timestamps_are_repaired_and_their_statistics_computed(
    source: Path, only: Only
) -> None:
    shift_times(source, 1, 0.05)
    scan = scan_source(source, RepairOptions(retime=True))
    assert only(scan, "timestamps").severity == "repaired"
    assert scan.repairs.computed_columns == ("timestamp",)
    assert scan.repairs.computed_stats == ("timestamp",)


def test_accepted_timestamps_are_a_warning(source: Path, only: Only) -> None:
    shift_times(source, 1, 0.05)
    scan = scan_source(source, RepairOptions(accept=("timestamps",)))
    assert only(scan, "timestamps").severity == "warning"
    assert not scan.repairs


def test_rows_without_a_timestamp_are_mended_by_retiming(source: Path, only: Only) -> None:
    times = pa.array([0.0, None, 2 / 30, None, 4 / 30], pa.float32())
    edit_table(source, 1, lambda table: with_column(table, "timestamp", times))
    finding = only(scan_source(source), "timestamps")
    assert (finding.severity, finding.episode, finding.remedy) == ("error", 1, "--retime")
    assert "2 rows without timestamp" in finding.message
    scan = scan_source(source, RepairOptions(retime=True))
    assert only(scan, "timestamps").severity == "repaired"


def test_numbers_of_large_datasets_are_shown_with_all_their_digits(
    source: Path, only: Only
) -> None:
    set_column(source, 1, "episode_index", [1234567] * 5)
    assert "rows of episode 1234567." in only(scan_source(source), "episode-index").message


@pytest.mark.parametrize(
    ("column", "values", "code"),
    [
        ("frame_index", [1, 2, 3, 4, 5], "frame-index"),
        ("episode_index", [3] * 5, "episode-index"),
        ("episode_index", [1, 1, 1, 1, 2], "episode-index"),
    ],
)
def test_wrong_indices_of_an_episode_are_its_error(
    source: Path, only: Only, column: str, values: list[int], code: str
) -> None:
    set_column(source, 1, column, values)
    finding = only(scan_source(source), code)
    assert (finding.severity, finding.episode, finding.remedy) == ("error", 1, "--reindex")
    scan = scan_source(source, RepairOptions(reindex=True))
    assert only(scan, code).severity == "repaired"
    assert scan.repairs.computed_columns == ("frame_index", "episode_index", "index")


@pytest.mark.parametrize(
    ("column", "code", "remedy"),
    [
        ("frame_index", "frame-index", "--reindex"),
        ("episode_index", "episode-index", "--reindex"),
        ("index", "global-index", "--reindex"),
        ("task_index", "task-index", "--tasks-from episodes"),
    ],
)
@pytest.mark.parametrize("count", [1, 5])
def test_rows_without_a_number_are_seen_though_the_extremes_are_right(
    source: Path, only: Only, column: str, code: str, remedy: str, count: int
) -> None:
    def empty(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        middle = slice(1, -1) if count == 1 else slice(None)
        values[middle] = [None] * len(values[middle])
        return with_column(table, column, pa.array(values, pa.int64()))

    edit_table(source, 1, empty)
    finding = only(scan_source(source), code)
    assert (finding.severity, finding.remedy) == ("error", remedy)
    if column != "index":
        assert finding.episode == 1
        assert f"without {column}" in finding.message


def test_an_index_that_begins_anew_with_each_episode_is_one_finding(
    source: Path, only: Only
) -> None:
    for episode, length in enumerate(LENGTHS):
        set_column(source, episode, "index", list(range(length)))
    finding = only(scan_source(source), "global-index")
    assert (finding.severity, finding.episode) == ("error", None)
    assert "3 episodes are like this" in finding.message
    assert only(scan_source(source, RepairOptions(reindex=True)), "global-index").severity == (
        "repaired"
    )


@pytest.mark.parametrize(
    "columns", [["frame_index"], ["index", "episode_index"], ["timestamp"], ["task_index"]]
)
def test_default_columns_that_no_table_has_are_computed(source: Path, columns: list[str]) -> None:
    for episode in range(4):
        edit_table(source, episode, lambda table: table.drop_columns(columns))
    scan = scan_source(source)
    assert [(f.code, f.severity) for f in scan.findings] == [("missing-column", "warning")] * len(
        columns
    )
    assert set(scan.repairs.added_columns) == set(columns)
    assert scan.repairs.added_columns == scan.repairs.computed_columns
    assert set(scan.repairs.computed_stats) == set(columns)
    names = tables.deserialize_schema(scan.data_schema).names
    assert set(names[-len(columns) :]) == set(columns)


def test_which_of_several_tasks_a_row_has_cannot_be_computed(
    source_without_cameras: Path, only: Only
) -> None:
    for episode in range(3):
        edit_table(source_without_cameras, episode, lambda table: table.drop_columns("task_index"))
    assert only(scan_source(source_without_cameras), "missing-column").severity == "error"


def test_gaps_in_episode_indices_are_closed_by_renumbering(source: Path, only: Only) -> None:
    for name in ("episodes", "episodes_stats"):
        edit_lines(source, name, lambda lines: lines.pop(1))
    for path in source.rglob("episode_000001.*"):
        path.unlink()
    edit_info(
        source,
        lambda info: info.update(total_episodes=3, total_frames=17, total_videos=6),
    )
    finding = only(scan_source(source), "episode-gap")
    assert (finding.severity, finding.remedy) == ("error", "--on-bad-episode drop")
    assert "no episode 1" in finding.message
    scan = scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert only(scan, "episode-gap").severity == "repaired"
    assert scan.episode_index.tolist() == [0, 2, 3]
    assert scan.repairs.computed_columns == ("episode_index", "index")
    assert scan.repairs.dropped_episodes == ()


def test_an_episode_that_only_its_files_know_is_a_stray(
    source: Path, severities: Severities
) -> None:
    edit_lines(source, "episodes", lambda lines: lines.pop())
    assert severities(scan_source(source)) == {
        "stray-file": {"warning"},
        "stray-stats": {"warning"},
        "stale-total": {"warning"},
    }


def test_a_bad_episode_is_dropped_from_every_stream(source: Path, only: Only) -> None:
    (source / "data/chunk-000/episode_000002.parquet").unlink()
    scan = scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert only(scan, "missing-file").severity == "repaired"
    assert scan.repairs.dropped_episodes == (DroppedEpisode(2, "missing-file"),)
    assert scan.repairs.computed_columns == ("episode_index", "index")
    assert scan.repairs.computed_stats == ("episode_index", "index")
    assert scan.episode_index.tolist() == [0, 1, 3]
    assert scan.length.tolist() == [6, 5, 7]
    for stream in scan.streams:
        assert stream.frames.tolist() == [6, 5, 7]
        assert stream.size_bytes.min() > 0


def test_a_dataset_of_bad_episodes_alone_is_refused(source: Path) -> None:
    for path in source.rglob("episode_*.parquet"):
        path.write_bytes(b"")
    with pytest.raises(SourceError, match="No episode would be left") as caught:
        scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert len(caught.value.details) == 4


def test_an_episode_with_a_flag_of_its_own_is_not_dropped(source: Path) -> None:
    shift_times(source, 1, 0.05)
    both = RepairOptions(on_bad_episode="drop", retime=True)
    assert scan_source(source, both).num_episodes == 4
    assert scan_source(source, RepairOptions(on_bad_episode="drop")).num_episodes == 3


# --- tasks ------------------------------------------------------------------------------------


def test_a_missing_table_of_tasks_is_an_error(source: Path, only: Only) -> None:
    (source / "meta/tasks.jsonl").unlink()
    finding = only(scan_source(source), "missing-tasks")
    assert (finding.severity, finding.remedy) == ("error", "--tasks-from episodes")


def test_an_empty_table_of_tasks_is_one_error_and_no_reason_to_drop_every_episode(
    source: Path, only: Only
) -> None:
    (source / "meta/tasks.jsonl").write_text("\n")
    finding = only(scan_source(source), "missing-tasks")
    assert (finding.severity, finding.remedy) == ("error", "--tasks-from episodes")
    assert "lists no task" in finding.message


def test_tasks_with_gaps_are_numbered_anew(source: Path, only: Only) -> None:
    edit_lines(source, "tasks", lambda lines: lines[0].update(task_index=4))
    for episode, length in enumerate(LENGTHS):
        set_column(source, episode, "task_index", [4] * length)
    assert only(scan_source(source), "task-gap").remedy == "--remap-tasks"
    scan = scan_source(source, RepairOptions(remap_tasks=True))
    assert only(scan, "task-gap").severity == "repaired"
    assert scan.repairs.task_map == {4: 0}
    assert scan.repairs.computed_stats == ("task_index",)


def test_a_text_that_stands_for_two_tasks_is_merged(
    source_without_cameras: Path, only: Only
) -> None:
    def repeat(lines: list[dict[str, object]]) -> None:
        lines.append({"task_index": 2, "task": lines[0]["task"]})

    edit_lines(source_without_cameras, "tasks", repeat)
    edit_info(source_without_cameras, lambda info: info.update(total_tasks=3))
    assert only(scan_source(source_without_cameras), "task-duplicate").severity == "error"
    scan = scan_source(source_without_cameras, RepairOptions(remap_tasks=True))
    assert only(scan, "task-duplicate").severity == "repaired"
    assert scan.repairs.task_map == {0: 0, 1: 1, 2: 0}


def test_one_index_of_two_texts_cannot_be_repaired(
    source_without_cameras: Path, severities: Severities
) -> None:
    edit_lines(source_without_cameras, "tasks", lambda lines: lines[1].update(task_index=0))
    options = RepairOptions(remap_tasks=True)
    found = severities(scan_source(source_without_cameras, options))
    assert found["task-conflict"] == {"error"}


def test_rows_of_a_task_that_is_not_listed_are_their_episodes_error(
    source: Path, only: Only
) -> None:
    set_column(source, 2, "task_index", [0, 0, 5, 0])
    finding = only(scan_source(source), "task-index")
    assert (finding.severity, finding.episode) == ("error", 2)
    assert "task 5" in finding.message


def test_rows_of_a_task_that_their_episode_does_not_list_are_a_warning(
    source_without_cameras: Path, only: Only
) -> None:
    set_column(source_without_cameras, 0, "task_index", [0, 1, 0, 1])
    finding = only(scan_source(source_without_cameras), "task-mismatch")
    assert finding.severity == "warning"
    assert "task 1" in finding.message


def test_an_episode_that_lists_no_task_though_its_rows_have_one_is_a_warning(
    source: Path, only: Only
) -> None:
    edit_lines(source, "episodes", lambda lines: lines[3].update(tasks=[]))
    finding = only(scan_source(source), "task-mismatch")
    assert finding.severity == "warning"
    assert "Rows of episode 3 have task 0" in finding.message


def test_an_episode_that_lists_an_unknown_task_is_a_warning(source: Path, only: Only) -> None:
    edit_lines(source, "episodes", lambda lines: lines[3].update(tasks=["Juggle.\n"]))
    assert "'Juggle.\\n'" in only(scan_source(source), "task-mismatch").message


def test_several_tasks_an_episode_are_said_once(tmp_path: Path, only: Only) -> None:
    spec = DatasetSpec(episodes=3, frames=6, cameras=(), tasks_per_episode=2)
    finding = only(scan_source(make_dataset(tmp_path / "two", spec)), "several-tasks")
    assert finding.severity == "info"
    assert "3 episodes are like this" in finding.message


@pytest.mark.parametrize("files", ["empty", "of frames", "none"])
def test_an_episode_without_frames_can_be_left_out(
    source: Path, tmp_path: Path, severities: Severities, files: str
) -> None:
    edit_lines(source, "episodes", lambda lines: lines[1].update(length=0))
    edit_lines(source, "episodes_stats", lambda lines: lines.pop(1))
    if files == "empty":
        edit_table(source, 1, lambda table: table.slice(0, 0))
    elif files == "none":
        for path in source.glob("*/chunk-000/**/episode_000001.*"):
            path.unlink()
    found = severities(scan_source(source))
    assert found["empty-episode"] == {"error"}
    assert "missing-stats" not in found
    out = tmp_path / "out"
    leconvert.convert(source, output=out, repairs=RepairOptions(on_bad_episode="drop"))
    assert leconvert.verify_pair(out, source, depth="bytes").ok
    rows = read_episodes(out)
    assert rows.column("length").to_pylist() == [LENGTHS[0], *LENGTHS[2:]]


@pytest.mark.parametrize("length", [-1, True, 1.0])
def test_a_length_that_is_no_number_of_frames_stays_refused(source: Path, length: object) -> None:
    edit_lines(source, "episodes", lambda lines: lines[1].update(length=length))
    with pytest.raises(SourceError, match="gives episode 1 the length"):
        scan_source(source)


@pytest.mark.parametrize(
    ("column", "stored", "code", "flag"),
    [
        ("timestamp", "lists", "timestamps", "--retime"),
        ("timestamp", "text", "timestamps", "--retime"),
        ("frame_index", "text", "frame-index", "--reindex"),
        ("episode_index", "text", "episode-index", "--reindex"),
        ("index", "text", "global-index", "--reindex"),
        ("task_index", "text", "dtype-mismatch", None),
    ],
)
def test_a_column_of_lists_or_texts_is_mended_by_computing_it(
    source_without_cameras: Path,
    tmp_path: Path,
    column: str,
    stored: str,
    code: str,
    flag: str | None,
) -> None:
    source = source_without_cameras

    def changed(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        others = [[value] * 2 if stored == "lists" else str(value) for value in values]
        return with_column(table, column, pa.array(others))

    for episode in range(3):
        edit_table(source, episode, changed)
    accept = tuple(code for code in (code,) if code in ("timestamps", "frame-index"))
    findings = scan_source(source, RepairOptions(accept=accept)).findings
    errors = [
        finding
        for finding in findings
        if finding.severity == "error" and finding.code != "unloadable-feature"
    ]
    assert {(finding.code, finding.remedy) for finding in errors} == {(code, flag)}
    assert any(f"column {column} is " in finding.message for finding in errors)
    if flag is not None:
        repairs = RepairOptions(retime=flag == "--retime", reindex=flag == "--reindex")
        leconvert.convert(source, output=tmp_path / "out", repairs=repairs)
        assert leconvert.verify_pair(tmp_path / "out", source, depth="bytes").ok


def test_rows_without_a_task_of_an_episode_with_several_can_only_go(
    source: Path, only: Only
) -> None:
    def empty(table: pa.Table) -> pa.Table:
        return with_column(table, "task_index", pa.nulls(table.num_rows, pa.int64()))

    edit_table(source, 1, empty)
    edit_lines(source, "tasks", lambda lines: lines.append({"task_index": 1, "task": "Wait."}))
    edit_lines(source, "episodes", lambda lines: lines[1]["tasks"].append("Wait."))
    edit_info(source, lambda info: info.update(total_tasks=2))
    for flag in (None, "episodes"):
        findings = scan_source(source, RepairOptions(tasks_from=flag)).findings
        [finding] = [finding for finding in findings if finding.code == "task-index"]
        assert (finding.severity, finding.remedy) == ("error", "--on-bad-episode drop")


def test_timestamps_that_step_at_another_rate_tell_that_fps_is_wrong(source: Path) -> None:
    edit_info(source, lambda info: info.update(fps=10))
    found = {finding.code: finding.remedy for finding in scan_source(source).findings}
    assert found["frame-rate"] == found["timestamps"] == "--assume-fps 30"
    for options in (RepairOptions(assume_fps="30"), RepairOptions(retime=True)):
        severities = {
            finding.severity
            for finding in scan_source(source, options).findings
            if finding.code in ("frame-rate", "timestamps")
        }
        assert severities == {"repaired"}


@pytest.mark.parametrize("rate", ["0", "-1", "fast", "1e3", "nan", ""])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(UsageError, match="--assume-fps takes a number"):
        RepairOptions(assume_fps=rate)
