"""Single checks on what a scan rarely meets: odd declarations, odd headers, odd statistics."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sound_dataset import LENGTHS, TOP, WRIST, only, severities
from tests.plans import open_or_plan

import leconvert.dataset.scan as sources
from leconvert import media, tables
from leconvert.dataset.findings import ObservationLog
from leconvert.dataset.formats import StatsBlock
from leconvert.dataset.formats.v2 import PathTemplateError, SourcePaths, load_info
from leconvert.dataset.scan import (
    changes,
    check_source_unchanged,
    check_tables_unchanged,
    scan_source,
)
from leconvert.dataset.scan.file_checks import StatsCheck, pixel_format
from leconvert.dataset.scan.v2 import EpisodeScanner
from leconvert.model.values import DATA_STREAM, stream_of_camera
from leconvert.support.errors import SourceChangedError
from leconvert.testing import (
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)
from leconvert.workdir.run import OpenedRun

CLIP = f"videos/chunk-000/{TOP}/episode_000000.mp4"


# --- headers of clips -----------------------------------------------------------------------------


def avc_entry(profile: int, *rest: int) -> bytes:
    return b"\x00" * 8 + b"avc1" + b"\x00" * 20 + b"avcC" + bytes([1, profile, 0, 30, 0xFF, *rest])


@pytest.mark.parametrize(
    ("entry", "pixels"),
    [
        (avc_entry(77), "yuv420p"),
        (avc_entry(100, 0xE0, 0, 0xFD, 0xF8), "yuv420p"),
        (avc_entry(110, 0xE0, 0, 0xFE, 0xFA), "yuv422p10le"),
        (avc_entry(100, 0xE0, 0, 0xFC, 0xF8), None),
        (avc_entry(100, 0xE1, 0, 9), None),
        (avc_entry(100), None),
        (b"\x00" * 8 + b"mp4v" + b"\x00" * 70, None),
    ],
    ids=["main", "high", "4:2:2", "without colour", "cut off in a set", "cut off", "other"],
)
def test_a_header_that_does_not_say_the_pixel_format_says_none(
    sound_source: Path, entry: bytes, pixels: str | None
) -> None:
    clip = media.read_clip_index(sound_source / CLIP)
    assert pixel_format(replace(clip, sample_entry=entry)) == pixels


# --- statistics -----------------------------------------------------------------------------------


def stats_codes(feature: dict[str, object], stats: object) -> list[str]:
    notes = ObservationLog()
    row = {} if stats is None else {"x": stats}
    StatsCheck({"x": feature})(StatsBlock([row]), [0], notes, [(5, {"x": (0.0, 1.0)})])
    return [remark.code for remark in notes.sightings.remarks()]


NUMBERS = {"dtype": "uint32", "shape": [2]}  # unsigned: whether extremes are right plays no part
PICTURES = {"dtype": "video", "shape": [4, 4, 3]}
SOUND = {
    "uint32": {"min": [0, 0.0], "max": [1, 1.0], "mean": [0.5, 1], "std": [0, 0], "count": [5]},
    "video": {key: [[[0.5]], [[1]], [[0]]] for key in ("min", "max", "mean", "std")}
    | {"count": [5]},
}
NOTHING = ([1], [], [{}, {}], [1, None], [1, "a"], "ab", b"ab", {"a": 1, "b": 2}, None, 5)
VALUES = {
    "uint32": ([[1, 0.5], [True, False]], [[1, [2]], [[1.0], [2]], [2**70, 1], *NOTHING]),
    "video": (
        [[[[1]], [[0.5]], [[True]]]],
        [[[[1]]], [[[1]], [[1]]], [[[1]], [[1]], [["a"]]], [[[1]], [[1]], [[1, 2]]],
         [[[[1]]]] * 3, [1, 1, 1], *NOTHING],
    ),
}  # fmt: skip
COUNTS = (
    [[5], [5.0], [0], [True]],
    [[-1], [float("nan")], [Decimal(5)], ["5"], [None], [[5]], [5, 5], [], "5", {"5": 5}, None, 5],
)


@pytest.mark.parametrize("feature", [NUMBERS, PICTURES], ids=["column", "camera"])
@pytest.mark.parametrize("key", ["min", "max", "mean", "std", "count"])
def test_one_statistic_that_cannot_be_added_up_makes_all_of_a_feature_missing(
    feature: dict[str, object], key: str
) -> None:
    kind = str(feature["dtype"])
    sound, unsound = COUNTS if key == "count" else VALUES[kind]
    for value in sound:
        assert "missing-stats" not in stats_codes(feature, SOUND[kind] | {key: value}), value
    for value in unsound:
        assert stats_codes(feature, SOUND[kind] | {key: value}) == ["missing-stats"], value
    assert stats_codes(feature, None) == stats_codes(feature, []) == ["missing-stats"]
    if feature is NUMBERS:
        assert stats_codes({**feature, "shape": [3]}, SOUND[kind]) == ["missing-stats"]


@pytest.mark.parametrize(
    ("dtype", "low", "said"),
    [
        ("float32", [0.0], []),
        ("float32", [0.5], ["stale-stats"]),
        ("uint32", [0.5], []),
        ("uint64", [0.5], []),
    ],
)
def test_extremes_are_compared_with_those_of_a_footer_that_has_them(
    dtype: str, low: list[float], said: list[str]
) -> None:
    stats = {"min": low, "max": [1.0], "mean": [0.5], "std": [0.1], "count": [5]}
    assert stats_codes({"dtype": dtype, "shape": [1]}, stats) == said


NAN = [float("nan")]


@pytest.mark.parametrize(
    ("other", "is_possible"),
    [
        ({}, True),
        ({"min": NAN, "max": NAN, "mean": NAN, "std": NAN}, True),  # of data with NaN
        ({"min": [-np.inf], "mean": [-np.inf], "std": NAN}, True),
        ({"mean": NAN}, False),
        ({"max": NAN}, False),
        ({"std": [np.inf]}, False),
        ({"std": [-0.1]}, False),
        ({"std": [1.1]}, False),
        ({"mean": [-0.1]}, False),
        ({"mean": [1.1]}, False),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_statistics_that_contradict_each_other_are_stale(
    other: dict[str, list[float]], is_possible: bool, together: bool
) -> None:
    sound = {"min": [0.0], "max": [1.0], "mean": [0.5], "std": [0.1], "count": [5]}
    rows = [{"x": sound}, {"x": sound | other}, {} if not together else {"x": sound}]
    notes = ObservationLog()
    check = StatsCheck({"x": {"dtype": "float32", "shape": [1]}})
    check(StatsBlock(rows), [0, 1, 2], notes)
    assert notes.stale_stats == ({} if is_possible else {"x": [1]})


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (pa.int64(), lambda row, rows: row + (row == rows - 1)),
        (pa.float64(), lambda row, _: row + 0.5),
        (pa.float64(), lambda row, _: float("nan") if row == 2 else row),
        (pa.uint64(), lambda row, _: row + 2**63),
        (pa.float64(), lambda row, _: row + 1e300),
    ],
    ids=["a gap", "halves", "a NaN", "beyond int64", "huge"],
)
def test_an_index_that_does_not_count_its_rows_is_told(
    source: Path, kind: pa.DataType, change: Callable[[int, int], float]
) -> None:
    first = 0
    for episode, rows in enumerate(LENGTHS):
        values = pa.array([change(row, rows) + first for row in range(rows)], kind)
        edit_table(source, episode, lambda table, v=values: with_column(table, "index", v))
        first += rows
    found = severities(scan_source(source))
    assert found["global-index"] == {"error"}
    assert set(found) <= {"global-index", "dtype-mismatch", "stale-stats"}


@pytest.mark.parametrize(
    "task",
    [float("inf"), float("-inf"), float("nan"), 0.5, 1e300],
    ids=["inf", "-inf", "NaN", "half", "huge"],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_task_that_is_no_index_is_its_episodes_error_and_no_end_of_the_scan(
    source: Path, task: float, everywhere: bool
) -> None:
    for episode, length in enumerate(LENGTHS):
        tasks = pa.array([task] * length if everywhere else [0.0] * (length - 1) + [task])
        edit_table(source, episode, lambda table, t=tasks: with_column(table, "task_index", t))
    findings = [f for f in scan_source(source).findings if f.code == "task-index"]
    assert [(f.episode, f.severity) for f in findings] == [(n, "error") for n in range(4)]
    assert "with a task_index that is not in" in findings[0].message


def test_an_episode_of_one_row_with_a_huge_index_is_no_end_of_the_scan(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "one", DatasetSpec(episodes=1, frames=1, cameras=()))
    edit_table(root, 0, lambda table: with_column(table, "index", pa.array([1e300])))
    assert "global-index" in {finding.code for finding in scan_source(root).findings}


def test_columns_are_compared_where_footers_have_nothing_in_common(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables.DataFile, "schema_key", property(lambda file: file.path))
    assert scan_source(source).findings == ()
    edit_table(source, 2, lambda table: table.append_column("extra", pa.array(range(4))))
    assert only(scan_source(source), "schema-mismatch").episode == 2


def test_a_looker_in_another_process_sees_what_it_sees_here(sound_source: Path) -> None:
    info = load_info(sound_source)
    streams = [DATA_STREAM, stream_of_camera(TOP), stream_of_camera(WRIST)]
    index, length = np.arange(4), np.array(LENGTHS)
    paths = SourcePaths(sound_source, info)
    look = EpisodeScanner(paths, Fraction(30), info.features, streams, index, length, None)
    here, there = look(1, 3), pickle.loads(pickle.dumps(look))(1, 3)
    for one, other in zip(here.slices, there.slices, strict=True):
        assert one.numbers.tolist() == other.numbers.tolist()
        assert (one.stream, one.kinds) == (other.stream, other.kinds)
    assert here.rows == there.rows


# --- names ----------------------------------------------------------------------------------------


def test_cameras_that_would_share_their_files_are_refused(source: Path) -> None:
    template = "videos/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4"
    edit_info(source, lambda info: info.update(video_path=template))
    with pytest.raises(PathTemplateError) as caught:
        SourcePaths(source, load_info(source))
    assert caught.value.message == (
        f"{source}/meta/info.json has a video_path without {{video_key}}: all cameras would share "
        "one file."
    )


@pytest.mark.parametrize(
    ("relative", "slice_"),
    [
        ("data/chunk-000/episode_000007.parquet", (DATA_STREAM, 7)),
        ("data/chunk-001/episode_000007.parquet", None),
        ("data/chunk-000/episode_7.parquet", None),
        (f"videos/chunk-000/{TOP}/episode_000007.mp4", (stream_of_camera(TOP), 7)),
        (f"videos/chunk-002/{TOP}/episode_000007.mp4", None),
        ("videos/chunk-000/observation.images.new/episode_000007.mp4",
         (stream_of_camera("observation.images.new"), 7)),
        ("meta/info.json", None),
    ],
)  # fmt: skip
def test_a_name_stands_for_an_episode_only_if_the_template_makes_it(
    sound_source: Path, relative: str, slice_: tuple[str, int] | None
) -> None:
    assert SourcePaths(sound_source, load_info(sound_source)).slice_of(relative) == slice_


# --- changes after the plan -----------------------------------------------------------------------


@pytest.fixture
def run(source: Path, tmp_path: Path) -> OpenedRun:
    return open_or_plan(source, tmp_path / "out", tmp_path / "work")


def test_tables_that_are_not_the_planned_ones_are_told(run: OpenedRun, source: Path) -> None:
    check_tables_unchanged(run)
    edit_lines(source, "episodes", lambda lines: lines[0].update(length=99))
    for check in (check_tables_unchanged, check_source_unchanged):
        with pytest.raises(SourceChangedError) as caught:
            check(run)
        assert caught.value.details == ("meta/: the tables differ from the plan",)


def test_a_table_that_vanishes_while_it_is_read_is_a_change(
    run: OpenedRun, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(root: Path, codebase_version: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", f"{root}/meta/x.jsonl")

    monkeypatch.setattr(changes, "meta_digest", vanished)
    with pytest.raises(SourceChangedError) as caught:
        check_tables_unchanged(run)
    assert caught.value.details == (f"{source}/meta/x.jsonl: No such file or directory",)


def test_of_many_changes_twenty_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    error = sources.source_changed(tmp_path, [f"file {n}" for n in range(23)])
    assert error.message == f"{tmp_path} changed after the conversion was planned, in 23 places."
    assert error.details == (*(f"file {n}" for n in range(20)), "... and 3 more")
