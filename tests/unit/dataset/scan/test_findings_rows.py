"""Rows, episodes and tasks that are numbered or timed wrongly: each gives exactly its finding."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sound_dataset import LENGTHS, only, severities
from tests.dataset_damage import set_cells
from tests.trees import read_episodes

import leconvert
from leconvert import tables
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.run.planner import plan_repairs
from leconvert.support.errors import SourceError, UsageError
from leconvert.testing import (
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)


def test_timestamps_of_very_long_episodes_are_right_as_single_precision_has_them(
    tmp_path: Path,
) -> None:
    spec = DatasetSpec(episodes=1, frames=30, cameras=(), fps="0.01", tasks=("x",))
    source = make_dataset(tmp_path / "slow", spec)
    assert scan_source(source).findings == ()


@pytest.mark.parametrize(
    ("dictionary", "groups", "statistics"),
    [(True, 10, True), (True, 2, False), (False, 10, False), (False, 2, True)],
)
def test_timestamps_are_seen_however_a_file_is_written(
    source: Path, dictionary: bool, groups: int, statistics: bool
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
    assert "first is at frame 4" in only(scan_source(source), "timestamps").message


@pytest.mark.parametrize("has_times", [True, False])
def test_rows_in_another_order_get_no_new_times(source: Path, has_times: bool) -> None:
    edit_table(source, 1, lambda table: table.take(pa.array([*range(LENGTHS[1])][::-1])))
    if not has_times:
        edit_table(source, 1, set_cells("timestamp", r3=0.777))
    scan = scan_source(source, RepairOptions(retime=True, reindex=True))
    (found,) = [found for found in scan.findings if found.severity != "repaired"]
    assert found.code == "row-order"
    assert (found.severity, found.episode) == ("error", 1)
    assert [each.flag for each in found.remedies] == ["--on-bad-episode drop"]
    by_time = [("episode_index", "ascending"), ("timestamp", "ascending")]
    edit_table(source, 1, lambda table: table.sort_by(by_time if has_times else "frame_index"))
    codes = {found.code for found in scan_source(source).findings if found.severity == "error"}
    assert codes == (set() if has_times else {"timestamps"})


def test_the_table_of_another_episode_gets_no_new_numbers(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "source", DatasetSpec(episodes=3, frames=4))
    table, clip = "data/chunk-000/episode_{:06d}.parquet", "videos/chunk-000/{}/episode_{:06d}.mp4"
    shutil.copy(source / table.format(0), source / table.format(2))
    anew = RepairOptions(reindex=True)
    errors = [found for found in scan_source(source, anew).findings if found.severity == "error"]
    assert [(found.code, found.episode) for found in errors] == [("copied-table", 2)]
    assert "is a copy of the table of episode 0" in errors[0].message
    # An episode that is there twice shows its own frames.
    for camera in (source / "videos/chunk-000").iterdir():
        shutil.copy(source / clip.format(camera.name, 0), source / clip.format(camera.name, 2))
    assert "copied-table" not in {found.code for found in scan_source(source, anew).findings}


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


@pytest.mark.parametrize("place", [-1, 1])
def test_an_episode_that_is_counted_but_not_listed_is_an_error(source: Path, place: int) -> None:
    lines = (source / "meta/episodes.jsonl").read_text()
    edit_lines(source, "episodes", lambda lines: lines.pop(place))
    scan = scan_source(source)
    strays = {key: {"warning"} for key in ("stray-file", "stray-stats", "stale-total")}
    gap = {"episode-gap": {"error"}} if place == 1 else {}
    assert severities(scan) == {"unlisted-episode": {"error"}, **gap, **strays}
    for found in scan.findings:
        for remedy in found.remedies:
            assert (remedy.keeps.episodes, remedy.of.episodes) == (3, 4)
            assert remedy.of.frames == sum(LENGTHS)
    plan = plan_repairs(source)
    assert plan.flags == ("--on-bad-episode drop",)
    assert (plan.keeps.episodes, plan.of.episodes) == (3, 4)
    # The advice: the line is back.
    (source / "meta/episodes.jsonl").write_text(lines)
    assert scan_source(source).findings == ()


def test_an_episode_that_only_its_files_know_is_a_stray(source: Path) -> None:
    edit_lines(source, "episodes", lambda lines: lines.pop())
    edit_info(source, lambda info: info.update(total_episodes=3, total_frames=sum(LENGTHS[:3])))
    assert severities(scan_source(source)) == {
        "stray-file": {"warning"},
        "stray-stats": {"warning"},
        "stale-total": {"warning"},
    }


# --- tasks ------------------------------------------------------------------------------------


def test_one_index_of_two_texts_cannot_be_repaired(source_without_cameras: Path) -> None:
    edit_lines(source_without_cameras, "tasks", lambda lines: lines[1].update(task_index=0))
    options = RepairOptions(remap_tasks=True)
    found = severities(scan_source(source_without_cameras, options))
    assert found["task-conflict"] == {"error"}


def test_several_tasks_an_episode_are_said_once(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=3, frames=6, cameras=(), tasks_per_episode=2)
    finding = only(scan_source(make_dataset(tmp_path / "two", spec)), "several-tasks")
    assert finding.severity == "info"
    assert "The same holds for 3 episodes" in finding.message


@pytest.mark.parametrize("files", ["empty", "of frames", "none"])
def test_an_episode_without_frames_can_be_left_out(
    source: Path, tmp_path: Path, files: str
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
    drop = RepairOptions(on_bad_episode="drop")
    assert scan_source(source, drop).length.tolist() == [LENGTHS[0], *LENGTHS[2:]]
    if files == "of frames":  # tests/conformance converts the others
        out = tmp_path / "out"
        leconvert.convert(source, output=out, repairs=drop)
        assert leconvert.verify_pair(out, source, depth="bytes").ok
        rows = read_episodes(out)
        assert rows.column("length").to_pylist() == [LENGTHS[0], *LENGTHS[2:]]


@pytest.mark.parametrize("length", [-1, True, 1.0])
def test_a_length_that_is_no_number_of_frames_stays_refused(source: Path, length: object) -> None:
    edit_lines(source, "episodes", lambda lines: lines[1].update(length=length))
    with pytest.raises(SourceError, match="gives episode 1 the impossible length"):
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
    source_without_cameras: Path, tmp_path: Path, column: str, stored: str, code: str,
    flag: str | None,
) -> None:  # fmt: skip
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
    assert any(f"column {column} of type " in finding.message for finding in errors)
    if flag is not None:
        repairs = RepairOptions(retime=flag == "--retime", reindex=flag == "--reindex")
        assert "error" not in {f.severity for f in scan_source(source, repairs).findings}
    if (column, stored) in {("timestamp", "lists"), ("index", "text")}:
        leconvert.convert(source, output=tmp_path / "out", repairs=repairs)
        assert leconvert.verify_pair(tmp_path / "out", source, depth="bytes").ok


def test_rows_without_a_task_of_an_episode_with_several_can_only_go(source: Path) -> None:
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
