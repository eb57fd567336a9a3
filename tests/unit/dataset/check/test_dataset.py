"""A v3.0 dataset in which one thing is broken gives the one finding that is meant for it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import (
    DATA,
    EPISODES,
    TASKS,
    TOP,
    Damage,
    byte_order_mark,
    edit_box,
    edit_feature,
    edit_info,
    edit_json,
    edit_stat,
    folder_instead,
    pipe_instead,
    remove,
    rewrite,
    set_cells,
    set_stat,
    truncate,
)
from tests.drift import remux

import leconvert
from leconvert import media
from leconvert.cli.main import main
from leconvert.dataset.check import check_dataset, checked
from leconvert.dataset.check.dataset import DatasetReport
from leconvert.dataset.findings import V3_CATALOGUE, grouped
from leconvert.dataset.formats.v2 import read_info
from leconvert.dataset.formats.v3 import rows
from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import Finding, Slice
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

CAMERA = "observation.images.top"
FILE = "videos/observation.images.top/file_index"
FROM = "videos/observation.images.top/from_timestamp"
TO = "videos/observation.images.top/to_timestamp"
IMAGE = "observation.images.still"
MATRIX = "observation.matrix"


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes with a camera, images, a matrix and a flag; do not change it."""
    folder = tmp_path_factory.mktemp("check")
    spec = DatasetSpec(
        episodes=5,
        frames=[12, 7, 1, 9, 15],
        cameras=(CameraSpec(width=64, height=48),),
        image_keys=(IMAGE,),
        image_size=(32, 32),
        matrix_shape=(2, 3),
        has_done=True,
        tasks_per_episode=2,
    )
    leconvert.convert(make_dataset(folder / "source", spec), output=folder / "sound")
    return folder / "sound"


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(sound, tmp_path / "dätä set 'ö'"))


def codes(report: DatasetReport) -> set[tuple[str, str]]:
    return {(finding.severity, finding.code) for finding in report.findings}


def test_a_sound_dataset_has_no_findings(sound: Path) -> None:
    report = check_dataset(sound)
    assert report.findings == ()
    assert (report.version, report.episodes, report.frames, report.files) == ("v3.0", 5, 44, 2)
    assert report.as_record()["ok"]


def drop_column(name: str) -> Damage:
    return rewrite(EPISODES, lambda table: table.drop_columns([name]))


def cast(column: str, kind: pa.DataType) -> Damage:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        values = pa.array(table.column(column).to_pylist()).cast(kind)
        return table.set_column(at, pa.field(column, kind), values)

    return rewrite(DATA, change)


def as_text(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("task_index")
    values = [str(value) for value in table.column("task_index").to_pylist()]
    return table.set_column(at, "task_index", pa.array(values))


def five_joints(table: pa.Table) -> pa.Table:
    rows = [row[:5] for row in table.column("action").to_pylist()]
    at = table.schema.get_field_index("action")
    return table.set_column(at, "action", pa.array(rows, pa.list_(pa.float32(), 5)))


def drop_last_row(table: pa.Table) -> pa.Table:
    return table.slice(0, table.num_rows - 1)


def joined(*parts: tuple[int, int]) -> Damage:
    """Let the video be made of these parts of it: where each begins, and how many frames it has."""

    def damage(root: Path) -> None:
        slices = [Slice(str(root / TOP), *part) for part in parts]
        media.join_clips(slices, root / "joined.mp4", fps=Fraction(30))
        (root / "joined.mp4").replace(root / TOP)

    return damage


def lose_episodes_and_rows(root: Path) -> None:
    remove(EPISODES)(root)
    rewrite(DATA, drop_last_row, row_groups=False)(root)


def fragment(root: Path) -> None:
    """Remux the video into a fragmented MP4, with the same frames at the same times."""
    flags = "frag_keyframe+empty_moov+default_base_moof"
    remux(root / TOP, movflags=flags, video_track_timescale="15360")


def last_apart(root: Path, others: int, last: int, *, reverse: bool = False) -> None:
    """Give the last episode a data file of its own, perhaps with columns in another order."""
    with pq.ParquetFile(root / DATA) as file:
        groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    own = groups[-1].select(groups[-1].column_names[::-1]) if reverse else groups[-1]
    for number, part in ((others, groups[:-1]), (last, [own])):
        path = root / f"data/chunk-000/file-00{number}.parquet"
        with pq.ParquetWriter(path, part[0].schema) as writer:
            for group in part:
                writer.write_table(group)
    cells = {f"r{row}": others for row in range(4)} | {"r4": last}
    rewrite(EPISODES, set_cells("data/file_index", **cells))(root)


def no_frames(root: Path) -> None:
    """Leave an MP4 that is whole and has no frames."""
    target, options = root / "empty.mp4", {"movflags": "empty_moov"}
    with av.open(str(root / TOP)) as source, av.open(str(target), "w", options=options) as result:
        result.add_stream_from_template(source.streams.video[0])
        result.start_encoding()
    target.replace(root / TOP)


def pause(root: Path) -> None:
    """Let the last two episodes come a second later, as meta/episodes then says as well."""

    def later(packet: Any) -> None:
        if packet.pts * packet.time_base >= Fraction(20, 30):
            packet.pts += 15360
            packet.dts += 15360

    remux(root / TOP, later, video_track_timescale="15360")
    begins = set_cells(FROM, r3=20 / 30 + 1, r4=29 / 30 + 1)
    ends = set_cells(TO, r3=29 / 30 + 1, r4=44 / 30 + 1)
    rewrite(EPISODES, lambda table: ends(begins(table)))(root)


def add_feature(key: str, entry: object) -> Damage:
    return edit_json("meta/info.json", lambda info: info["features"].update({key: entry}))


def edit_stats(**changes: object) -> Damage:
    return edit_json("meta/stats.json", lambda stats: stats.update(changes))


def edit_pandas(**changes: object) -> Damage:
    """Change what the table of tasks tells pandas."""

    def change(table: pa.Table) -> pa.Table:
        told = {**json.loads(table.schema.metadata[b"pandas"]), **changes}
        return table.replace_schema_metadata({"pandas": json.dumps(told)})

    return rewrite(TASKS, change)


def both(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for one in damages:
            one(root)

    return damage


def too_many_rows(table: pa.Table) -> pa.Table:
    """Give the file a row of an episode that is in no file."""
    more = set_cells("episode_index", r0=99)(table.slice(0, 1))
    return pa.concat_tables([table, more])


def swap_two_rows(table: pa.Table) -> pa.Table:
    return table.take(pa.array([0, 2, 1, *range(3, len(table))]))


DEFECTS: dict[str, tuple[str, Damage]] = {
    "a video that is gone": ("error missing-file", remove(TOP)),
    "data that is gone": ("error missing-file", remove(DATA)),
    "tasks that are gone": ("error missing-file", remove(TASKS)),
    "tasks that are gone, and another version": (
        "error missing-file",
        lambda root: (remove(TASKS)(root), edit_info(codebase_version="v2.1")(root)),
    ),
    "episodes that are gone": ("error missing-file", lose_episodes_and_rows),
    "a truncated video": ("error unreadable-file", truncate(TOP)),
    "truncated data": ("error unreadable-file", truncate(DATA)),
    "truncated statistics": ("error unreadable-file", truncate("meta/stats.json")),
    "a folder for a video": ("error unreadable-file", folder_instead(TOP)),
    "a folder for episodes": ("error unreadable-file", folder_instead(EPISODES)),
    "a pipe for episodes": ("error unreadable-file", pipe_instead(EPISODES)),
    "a camera described by no object": ("error info-value", edit_feature(CAMERA, info=True)),
    "a byte order mark": ("error unreadable-file", byte_order_mark("meta/info.json")),
    "a byte order mark of statistics": (
        "error unreadable-file", byte_order_mark("meta/stats.json"),
    ),
    "an empty video": ("error unreadable-file", no_frames),
    "splits in a list": ("info splits", edit_info(splits=["0:5"])),
    "a feature that no folder can have": (
        "error feature", add_feature("..", {"dtype": "string", "shape": [1]}),
    ),
    "a feature of nothing": ("error feature", add_feature("more", 3)),
    "a picture of two axes": (
        "error feature", add_feature("more", {"dtype": "image", "shape": [2, 3]}),
    ),
    "a feature larger than any memory": (
        "error feature", add_feature("more", {"dtype": "float32", "shape": [2**20, 2**20]}),
    ),
    "a template that is no template": ("error path-template", edit_info(data_path="data/{")),
    "a template without numbers": (
        "error path-template", edit_info(video_path="videos/{video_key}/file.mp4"),
    ),
    "a template of another folder": (
        "error path-template",
        edit_info(data_path="rows/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"),
    ),
    "tasks under another index": (
        "error derivable", edit_pandas(index_columns=[{"kind": "range", "start": 0}]),
    ),
    "tasks under no column": ("error derivable", edit_pandas(index_columns=["text"])),
    "a task that is missing": ("error tasks-layout", rewrite(TASKS, set_cells("task", r1=None))),
    "tasks numbered in another type": (
        "error tasks-order",
        rewrite(
            TASKS,
            lambda table: table.set_column(
                table.schema.get_field_index("task_index"),
                "task_index",
                table.column("task_index").cast(pa.decimal128(22, 2)),
            ),
        ),
    ),
    "data of nobody": (
        "error stray-data",
        lambda root: shutil.copy(root / DATA, root / "data/chunk-000/file-001.parquet"),
    ),
    "a video of nobody": (
        "warning stray-file",
        lambda root: shutil.copy(root / TOP, (root / TOP).with_name("file-001.mp4")),
    ),
    "videos of a camera that is not declared": (
        "warning undeclared-camera",
        lambda root: shutil.copytree(
            root / f"videos/{CAMERA}", root / "videos/observation.images.back"
        ),
    ),
    "a desktop's file": (
        "info stray-file", lambda root: (root / "videos/.DS_Store").write_bytes(b""),
    ),
    "no frame rate": ("error info-value", edit_info(fps="30")),
    "a frame rate of zero": ("error info-value", edit_info(fps=0)),
    "no files a chunk": ("error info-value", edit_info(chunks_size=0)),
    "features that are a list": ("error info-value", edit_info(features=[])),
    "a wrong number of frames": ("error stale-total", edit_info(total_frames=43)),
    "a wrong number of episodes": ("error stale-total", edit_info(total_episodes=6)),
    "a wrong number of tasks": ("warning stale-total", edit_info(total_tasks=3)),
    "a split beyond the end": ("info splits", edit_info(splits={"train": "0:6"})),
    "a template that leaves the dataset": (
        "error path-template",
        edit_info(data_path="data/../../{chunk_index}-{file_index}.parquet"),
    ),
    "a template that fills memory": (
        "error path-template",
        edit_info(data_path="data/{chunk_index:0999999999d}/{file_index}.parquet"),
    ),
    "another file of a camera": (
        "error wrong-files", rewrite(EPISODES, set_cells(FILE, r0=3, r1=3, r2=3, r3=3, r4=3)),
    ),
    "no template for videos": ("error path-template", edit_info(video_path=None)),
    "a dtype that nobody knows": ("error feature", edit_feature("action", dtype="float33")),
    "a default column not declared": (
        "error feature", edit_json("meta/info.json", lambda info: info["features"].pop("index")),
    ),
    "no names of axes": ("warning feature-names", edit_feature(CAMERA, names=None)),
    "tasks without pandas": (
        "error derivable", rewrite(TASKS, lambda table: table.replace_schema_metadata()),
    ),
    "tasks out of order": (
        "error tasks-order", rewrite(TASKS, lambda table: table.take(pa.array([1, 0]))),
    ),
    "a task twice": (
        "warning task-duplicate", rewrite(TASKS, set_cells("task", r1="Pick up the cube.")),
    ),
    "no rows of episodes": (
        "error no-episodes",
        both(rewrite(EPISODES, lambda table: table.slice(0, 0), row_groups=False)),
    ),
    "episodes without lengths": ("error episodes-column", drop_column("length")),
    "episodes without a route": ("error episodes-column", drop_column("data/file_index")),
    "episodes without tasks": ("warning episodes-column", drop_column("tasks")),
    "a route of fractions": (
        "error episodes-column",
        rewrite(
            EPISODES,
            lambda table: table.set_column(
                table.schema.get_field_index("data/file_index"),
                "data/file_index",
                table.column("data/file_index").cast(pa.float64()),
            ),
        ),
    ),
    "an episode without a route": (
        "error episodes-null", rewrite(EPISODES, set_cells("data/file_index", r3=None)),
    ),
    "an episode that starts at no time": (
        "error episodes-null", rewrite(EPISODES, set_cells(FROM, r3=float("nan"))),
    ),
    "episodes out of order": (
        "error episode-order", rewrite(EPISODES, set_cells("episode_index", r1=2, r2=1)),
    ),
    "a wrong first row": (
        "error episode-range", rewrite(EPISODES, set_cells("dataset_from_index", r3=21)),
    ),
    "a length of nothing": ("error episode-range", rewrite(EPISODES, set_cells("length", r1=0))),
    "ranges with gaps": (
        "error episode-range", rewrite(EPISODES, set_cells("dataset_to_index", r1=18, r2=21)),
    ),
    "a wrong length": ("error episode-range", rewrite(EPISODES, set_cells("length", r1=8))),
    "files out of order": ("error file-order", lambda root: last_apart(root, 1, 0)),
    "a row in another file": (
        "warning episodes-location",
        rewrite(EPISODES, set_cells("meta/episodes/file_index", r4=1)),
    ),
    "a task that is not in the table": (
        "warning task-mismatch", rewrite(EPISODES, set_cells("tasks", r1=["Dance."])),
    ),
    "a task that no row has": (
        "warning task-mismatch", rewrite(EPISODES, set_cells("tasks", r1=["Pick up the cube."])),
    ),
    "a task that only rows have": (
        "warning task-mismatch", rewrite(EPISODES, set_cells("tasks", r1=[])),
    ),
    "a lost column": (
        "error phantom-feature", rewrite(DATA, lambda table: table.drop_columns(["action"])),
    ),
    **{
        f"no column {name}": (
            "error missing-column", rewrite(DATA, lambda table, n=name: table.drop_columns([n])),
        )
        for name in ("frame_index", "timestamp", "index")
    },
    "a column too many": (
        "error undeclared-column",
        rewrite(DATA, lambda table: table.append_column("more", table.column("index"))),
    ),
    "a column twice": (
        "error unreadable-file",
        rewrite(DATA, lambda table: table.append_column("index", table.column("index"))),
    ),
    "a text as a number": (
        "error dtype-mismatch",
        both(
            add_feature("note", {"dtype": "string", "shape": [1]}),
            rewrite(DATA, lambda table: table.append_column("note", table.column("index"))),
        ),
    ),
    "a wider number": (
        "warning dtype-mismatch", cast("observation.state", pa.list_(pa.float64(), 6)),
    ),
    "other numbers that fit": (
        "warning dtype-mismatch", cast("next.done", pa.int64()),
    ),
    "numbers that do not fit": (
        "error dtype-mismatch", edit_feature("observation.state", dtype="int64"),
    ),
    "another number of joints": ("error dtype-mismatch", rewrite(DATA, five_joints)),
    "a scalar as text": ("error task-index", rewrite(DATA, as_text)),
    "columns in another order": (
        "warning schema-mismatch", lambda root: last_apart(root, 0, 1, reverse=True),
    ),
    "images that do not say so": (
        "warning image-metadata", rewrite(DATA, lambda table: table.replace_schema_metadata()),
    ),
    "images that say so in a list": (
        "warning image-metadata",
        rewrite(DATA, lambda table: table.replace_schema_metadata({b"huggingface": b"[1]"})),
    ),
    "one row group": ("warning row-groups", rewrite(DATA, lambda table: table, row_groups=False)),
    "a row of nobody": ("error stray-rows", rewrite(DATA, too_many_rows, row_groups=False)),
    "a row too few": ("error row-count", rewrite(DATA, drop_last_row)),
    "a wrong index": ("error global-index", rewrite(DATA, set_cells("index", r20=21))),
    "no index": ("error global-index", rewrite(DATA, set_cells("index", r20=None))),
    "a wrong episode": ("error episode-index", rewrite(DATA, set_cells("episode_index", r20=0))),
    "a wrong frame": ("error frame-index", rewrite(DATA, set_cells("frame_index", r20=1))),
    "a time off its place": ("error timestamps", rewrite(DATA, set_cells("timestamp", r1=0.034))),
    "rows in another order than their times": ("error row-order", rewrite(DATA, swap_two_rows)),
    "a time that is no number": (
        "error timestamps", rewrite(DATA, set_cells("timestamp", r1=float("nan"))),
    ),
    "a time that is missing": ("error timestamps", rewrite(DATA, set_cells("timestamp", r13=None))),
    "a row without a value": ("error empty-values", rewrite(DATA, set_cells("action", r3=None))),
    "a vector with an empty value": (
        "error empty-values", rewrite(DATA, set_cells("action", r13=[0.5, None, *[0.5] * 4])),
    ),
    "a task beyond the table": ("error task-index", rewrite(DATA, set_cells("task_index", r3=2))),
    "a video without its last frame": ("error frame-count", joined((0, 43))),
    "an episode between two frames": (
        "error frame-times", rewrite(EPISODES, set_cells(FROM, r2=19 / 30 + 0.001)),
    ),
    "an episode a frame late": (
        "error shared-frames", rewrite(EPISODES, set_cells(FROM, r1=13 / 30)),
    ),
    "episodes on the frames of another": (
        "error shared-frames", rewrite(EPISODES, set_cells(FROM, r1=0.0, r2=0.0)),
    ),
    "a frame more than its episodes have": ("warning video-neighbours", joined((0, 44), (0, 1))),
    "episodes a frame late": (
        "warning video-neighbours",
        both(
            joined((0, 12), (0, 1), (12, 32)),
            rewrite(EPISODES, set_cells(FROM, r1=13 / 30, r2=20 / 30, r3=21 / 30, r4=30 / 30)),
            rewrite(EPISODES, set_cells(TO, r1=20 / 30, r2=21 / 30, r3=30 / 30, r4=45 / 30)),
        ),
    ),
    "a pause between episodes": ("warning video-neighbours", pause),
    "an end that is no end": ("warning video-end", rewrite(EPISODES, set_cells(TO, r1=0.7))),
    "a timescale that is off": ("error frame-times", edit_box(TOP, b"mdhd", 15, bit=4)),
    "a keyframe less": ("warning no-keyframe", edit_box(TOP, b"stss", 8 + 6 * 4 + 3)),
    "another size of frames": ("warning shape-mismatch", edit_feature(CAMERA, shape=[48, 32, 3])),
    "another codec": ("warning codec-mismatch", edit_feature(CAMERA, info={"video.codec": "av1"})),
    "a fragmented video": ("info video-index", fragment),
    "no statistics": ("warning stats-missing", remove("meta/stats.json")),
    "a feature without statistics": (
        "warning stats-missing", edit_json("meta/stats.json", lambda stats: stats.pop("action")),
    ),
    "a statistic of another shape": (
        "warning stats-shape", set_stat(CAMERA, "mean", [0.1, 0.2, 0.3]),
    ),
    "a count of another shape": (
        "warning stats-shape", edit_stat("action", "count", lambda v: [v]),
    ),
    "statistics in words": ("warning stats-missing", edit_stats(action="none")),
    "a statistic that is missing": (
        "warning stats-missing",
        edit_json("meta/stats.json", lambda stats: stats["action"].pop("std")),
    ),
    "a statistic of words": ("warning stats-shape", set_stat("next.done", "std", ["?"])),
    "a ragged statistic": ("warning stats-shape", set_stat("next.done", "std", [[1.0], []])),
    "a least above the mean": ("warning stats-value", set_stat("next.done", "min", [2.0])),
    "a deviation below nothing": ("warning stats-value", set_stat("next.done", "std", [-1.0])),
    "a count of nothing": ("warning stats-value", set_stat("next.done", "count", [0])),
    "statistics of several shapes": (
        "warning stats-value", set_stat(MATRIX, "min", [0.0, 0.0, 0.0]),
    ),
    "statistics of the rows of a matrix": (
        "warning stats-aggregate",
        edit_stats(**{MATRIX: {
            "min": [0.0] * 3, "max": [1.0] * 3, "mean": [0.5] * 3, "std": [0.1] * 3, "count": [44],
        }}),
    ),
    "a mean that is no number": (
        "warning stats-value",
        edit_stat("action", "mean", lambda v: [float("nan"), *v[1:]]),
    ),
    "images from 0 to 255": ("warning stats-value", set_stat(IMAGE, "max", [[[255.0]]] * 3)),
    "stale statistics": (
        "warning stats-aggregate", edit_stat("observation.state", "std", lambda v: [1.5, *v[1:]]),
    ),
    "statistics of relative actions": (
        "info stats-aggregate", edit_stat("action", "std", lambda v: [1.5, *v[1:]]),
    ),
    "a statistic that no episode has": ("warning episode-stats", drop_column("stats/action/std")),
    "counts of another shape": (
        "warning episode-stats",
        rewrite(EPISODES, set_cells("stats/action/count", **{f"r{n}": [1, 1] for n in range(5)})),
    ),
    "an episode without statistics": (
        "warning episode-stats", rewrite(EPISODES, set_cells("stats/action/mean", r2=None)),
    ),
}  # fmt: skip


# The first episode, and what is counted or read of it.
WHERE_AND_WHAT: dict[str, tuple[int | None, str]] = {
    "a wrong length": (1, "length 8, rows 12 to 19"),
    "a length of nothing": (1, "but the lengths before it add up to"),
    "a time that is missing": (0, "44 rows, first frame 0 of episode 0, where values are missing"),
    "images that say so in a list": (None, f"metadata of column {IMAGE!r} is None."),
    "no column timestamp": (None, "The column 'timestamp' is missing."),
    "a wrong index": (3, "1 rows, first frame 0 of episode 3, where it is 21 instead of 20"),
    "a row too few": (4, "has 14 rows of episode 4, but meta/episodes says 15"),
    "an episode a frame late": (2, "episodes 1 and 2 share 1 frame (1 such place)"),
    "episodes on the frames of another": (1, "episodes 0 and 1 share 7 frames (2 such places)"),
    "episodes a frame late": (1, "no episode has the 1 frame between episodes 0 and 1"),
    "a task beyond the table": (0, "first frame 3 of episode 0, where it is 2"),
    "an episode between two frames": (2, "at least 1 of 44 frames, in 1 episodes"),
    "a pause between episodes": (3, "episode 3 begins 1.000 s after the end of episode 2"),
    "a frame more than its episodes have": (4, "no episode has the 1 frame at the end"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_one_defect_gives_the_one_finding_that_names_it(broken: Path, defect: str) -> None:
    wanted, damage = DEFECTS[defect]
    damage(broken)
    report = check_dataset(broken)
    assert codes(report) == {tuple(wanted.split())}, report.findings
    assert all(finding.message and finding.remedy for finding in report.findings)
    if defect in WHERE_AND_WHAT:
        episode, said = WHERE_AND_WHAT[defect]
        assert report.findings[0].episode == episode
        assert said in report.findings[0].message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda table: drop_last_row(table).drop_columns(["episode_index"]),
            [(n, f"has 0 rows of episode {n}, but") for n in range(5)],
        ),
        (
            lambda table: set_cells("episode_index", r42=None)(drop_last_row(table)),
            [(4, "has 13 rows of episode 4, but meta/episodes says 15.")],
        ),
    ],
)
def test_rows_are_counted_by_their_column(
    broken: Path, change: Callable[[pa.Table], pa.Table], said: list[tuple[int, str]]
) -> None:
    rewrite(DATA, change, row_groups=False)(broken)
    with checked(broken, read_info(broken)) as check:
        found = [each for each in check.findings if each.code == "row-count"]
    assert [each.episode for each in found] == [episode for episode, _ in said]
    assert all(text in each.message for each, (_, text) in zip(found, said, strict=True))


def test_wrong_rows_are_counted_over_blocks_and_the_first_is_told(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS_AT_A_TIME", 8)
    rewrite(DATA, set_cells("frame_index", r13=0, r43=0))(broken)
    (finding,) = check_dataset(broken).findings
    assert "2 rows, first frame 1 of episode 1, where it is 0 instead of 1" in finding.message


def test_tables_without_footers_are_derived_if_the_episodes_are_not_listed(broken: Path) -> None:
    sound, data = (broken / DATA).read_bytes(), pq.read_table(broken / DATA)
    (broken / DATA).write_bytes(sound[:-16])
    (found,) = check_dataset(broken).findings  # another copy may have all rows
    assert (found.code, found.path) == ("unreadable-file", DATA)
    assert "no footer: it was cut off, or a recording ended without finalize()" in found.message
    truncate(EPISODES)(broken)
    rest = {("warning", "episode-stats"), ("error", "derivable")}
    assert codes(check_dataset(broken)) == rest
    paths = {found.path for found in check_dataset(broken).findings if found.code == "derivable"}
    assert paths == {DATA, "meta/episodes"}
    assert main(["repair", str(broken)]) == 0
    assert codes(check_dataset(broken)) == {("warning", "episode-stats")}
    assert pq.read_table(broken / DATA).to_pydict() == data.to_pydict()


def test_a_table_without_a_footer_and_without_rows_is_no_recording(broken: Path) -> None:
    (broken / DATA).write_bytes((broken / DATA).read_bytes()[:100])
    (broken / EPISODES).unlink()
    found, of_data = (f for f in check_dataset(broken).findings if f.severity == "error")
    assert (found.code, of_data.code, of_data.path) == ("missing-file", "unreadable-file", DATA)
    assert "let it end by itself" in str(of_data.remedy)
    assert "--on-bad-episode" not in str(of_data.remedy)


def test_a_second_file_of_episodes_lacks_columns_and_places_too(broken: Path) -> None:
    """What was said of the first file is not said again."""
    first = pq.read_table(broken / EPISODES)
    pq.write_table(first.slice(0, 3).drop_columns(["length", TO]), broken / EPISODES)
    second = (broken / EPISODES).with_name("file-001.parquet")
    pq.write_table(first.slice(3).drop_columns(["length"]), second)
    found = check_dataset(broken).findings
    assert [finding.code for finding in found] == ["episodes-column", "episodes-location"]
    assert found[1].message.startswith("meta/episodes/file_index is 0, but the row is in")


@pytest.mark.parametrize(
    ("first", "second", "is_wrong"),
    [
        (None, [1, 2], True), ([1, 2, 3], None, False), ([1, 2, 3], [1.5, 2.0], True),
        ([1, 2, 3], [1.0, 2.0], False), ([None] * 3, ["a", "b"], True),
        (["a"] * 3, [None] * 2, False),
    ],
)  # fmt: skip
def test_lerobot_reads_no_file_of_episodes_with_columns_that_the_first_lacks(
    broken: Path, first: list[Any] | None, second: list[Any] | None, is_wrong: bool
) -> None:
    """Checked with LeRobot in `tests/conformance/test_resumed_recording.py`."""
    table = pq.read_table(broken / EPISODES)
    set_place = set_cells("meta/episodes/file_index", r0=1, r1=1)
    parts = [table.slice(0, 3), set_place(table.slice(3))]
    for number, values in enumerate((first, second)):
        path = (broken / EPISODES).with_name(f"file-00{number}.parquet")
        part = parts[number]
        pq.write_table(part if values is None else part.append_column("note", [values]), path)
    found = [(each.code, each.severity) for each in check_dataset(broken).findings]
    assert found == ([("schema-mismatch", "error")] if is_wrong else [])
    leconvert.convert(broken, output=broken.with_name("new"))
    assert check_dataset(broken.with_name("new")).findings == ()


def test_statistics_of_one_shape_here_and_another_there_cannot_be_used(broken: Path) -> None:
    first = pq.read_table(broken / EPISODES)
    rows = first.slice(3)
    for name in ("min", "max", "mean", "std"):
        key = f"stats/action/{name}"
        fewer = pa.array([row[:2] for row in rows.column(key).to_pylist()])
        rows = rows.set_column(rows.schema.get_field_index(key), key, fewer)
    pq.write_table(first.slice(0, 3), broken / EPISODES)
    set_place = set_cells("meta/episodes/file_index", r0=1, r1=1)
    pq.write_table(set_place(rows), (broken / EPISODES).with_name("file-001.parquet"))
    (finding,) = check_dataset(broken).findings
    assert (finding.code, finding.stream) == ("episode-stats", "action")
    assert "its statistics have several shapes, (6,) and (2,)" in finding.message


def test_a_depth_map_by_either_name_may_have_any_range(broken: Path) -> None:
    for name in ("info", "video_info"):
        edit_feature(CAMERA, **{name: {"is_depth_map": True}})(broken)
        wide = edit_stat(CAMERA, "max", lambda _: [[[4000.0]]] * 3)
        wide(broken)
        assert {finding.code for finding in check_dataset(broken).findings} == {"stats-aggregate"}
        edit_feature(CAMERA, info=None)(broken)


def test_frames_beyond_single_precision_are_those_that_the_plan_reckons(tmp_path: Path) -> None:
    camera = CameraSpec(width=16, height=16, gop_size=60)
    spec = DatasetSpec(
        episodes=3, frames=[240, 243, 247], fps="0.17", cameras=(camera,), distinct_clips=1
    )
    out = tmp_path / "out"
    leconvert.convert(make_dataset(tmp_path / "source", spec), output=out)
    length = pq.read_table(out / EPISODES).column("length").to_numpy()
    reckoned = frames_out_of_reach(length.cumsum() - length, length, spec.rate)
    assert reckoned.sum() > 20
    (finding,) = check_dataset(out).findings
    assert finding.code == "float32-reach"
    assert f"at least {reckoned.sum():,} of {length.sum():,} frames" in finding.message


@pytest.mark.parametrize("change", [{"codec": "hevc"}, {"width": 64}])
def test_no_conversion_is_advised_for_the_few_clips_that_differ_from_a_right_declaration(
    change: dict[str, Any], tmp_path: Path
) -> None:
    camera = CameraSpec(width=32, height=32)
    spec = DatasetSpec(episodes=3, frames=6, cameras=(camera,))
    source = make_dataset(tmp_path / "source", spec)
    other = make_dataset(tmp_path / "other", replace(spec, cameras=(replace(camera, **change),)))
    clip = f"videos/chunk-000/{camera.key}/episode_000001.mp4"
    shutil.copy(other / clip, source / clip)
    leconvert.convert(source, output=tmp_path / "out")
    (finding,) = (
        finding
        for finding in check_dataset(tmp_path / "out").findings
        if finding.code != "streaming-video"
    )
    if "codec" in change:
        assert (finding.severity, finding.remedy) == ("info", None)
    else:
        assert "--exclude-episodes 1`" in str(finding.remedy)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, UnreadableSourceError),
        ("{", UnreadableSourceError),
        ("[" * 100_000, UnreadableSourceError),
        ("[]", UnreadableSourceError),
        ("{}", SourceError),
        ('{"codebase_version": 3}', SourceError),
        ('{"codebase_version": "v1.6"}', SourceError),
    ],
)
def test_what_is_no_dataset_is_one_clear_error(
    broken: Path, content: str | None, kind: type[SourceError]
) -> None:
    info = broken / "meta/info.json"
    info.unlink()
    if content is not None:
        info.write_text(content)
    with pytest.raises(kind, match=r"info\.json"):
        check_dataset(broken)
    with pytest.raises(UnreadableSourceError, match="is not a folder"):
        check_dataset(broken / "none")


def test_findings_that_are_alike_are_one_with_a_count() -> None:
    many = (
        Finding("of v2.x", "error", f"a/{n}.mp4 has {n} frames.", episode=n, path=f"a/{n}.mp4")
        for n in range(10_000)
    )
    (kept,) = grouped(many)
    assert (kept.count, kept.episode, kept.path) == (10_000, 0, "a/0.mp4")
    assert kept.message == "a/0.mp4 has 0 frames. The same holds for 10,000 findings in all."
    assert grouped([kept, kept])[0].count == 20_000


def test_findings_of_other_features_are_not_alike_and_all_are_counted() -> None:
    many = [Finding("of v2.x", "error", f"joint_{n} is gone.", stream="data") for n in range(81)]
    kept = grouped(many)
    assert len(kept) == 21
    assert sum(each.count for each in kept) == 81
    assert [each.message for each in kept[:2]] == ["joint_0 is gone.", "joint_1 is gone."]


def test_every_code_of_the_catalogue_is_tested() -> None:
    tested = {wanted.split()[1] for wanted, _ in DEFECTS.values()}
    elsewhere = {"float32-reach", "streaming-video", "provenance", "misplaced-file"}
    assert set(V3_CATALOGUE) == tested | elsewhere


# Of these the remedy says what to correct by hand, since no command can know it.
BY_HAND = {
    "info-value", "splits", "tasks-layout", "task-duplicate",
    "tasks-order", "no-episodes", "episodes-column", "episodes-null", "task-mismatch",
}  # fmt: skip
# What else the dataset says is enough for these.
MENDED = {"a task that only rows have", "tasks out of order"}
# Where the only file of its kind is gone: what a command leaves out would be everything.
ALL_LOST = {"a scalar as text"}
FIRST_OF_EACH_CODE = {wanted.split()[1]: name for name, (wanted, _) in reversed(DEFECTS.items())}
FIRST_OF_EACH_CODE["feature"] = "a dtype that nobody knows"
TRIED = sorted({*FIRST_OF_EACH_CODE.values(), "truncated statistics", *MENDED})


def commands_of(finding: Finding, root: Path) -> list[list[str]]:
    """Return the command lines that a remedy names; a flag alone goes with the first."""
    assert finding.remedy is not None
    missing = {"CAMERA": "observation.images.top", "NAME": "action"}
    told = [shlex.split(text) for text in re.findall(r"`([^`]*)`", finding.remedy)]
    commands = []
    for told_words in told:
        if told_words[0] == "git":
            continue
        is_whole = told_words[0] == "leconvert"
        words = told_words[1:] if is_whole else ["repair", str(root), *told_words]
        commands.append([missing.get(word, word) for word in words])
    return [[f"{root}_new" if word == "NEW" else word for word in words] for words in commands]


# Defects that the same commands mend, and that can be in one dataset.
TOGETHER = [
    {
        "a row in another file", "a task that only rows have", "a template that is no template",
        "a wrong episode", "a wrong first row", "a wrong frame", "a wrong index",
        "a wrong number of frames", "an end that is no end", "an episode between two frames",
        "episodes out of order", "tasks under another index",
    },
    {
        "a fragmented video", "a text as a number", "a video of nobody",
        "images that do not say so", "videos of a camera that is not declared",
    },
    {
        "another codec", "another size of frames", "columns in another order", "no names of axes",
        "one row group",
    },
    {
        "a count of nothing", "a least above the mean", "a statistic of another shape",
        "statistics of the rows of a matrix",
    },
    {
        "a camera described by no object", "a task that is missing", "an episode without a route",
        "episodes without lengths",
    },
    {"a row too few", "a video without its last frame"},
    {"a row of nobody", "data of nobody"},
]  # fmt: skip


@pytest.mark.parametrize(
    "defects",
    [*map(sorted, TOGETHER), *([one] for one in TRIED if one not in set().union(*TOGETHER))],
    ids=lambda defects: defects[0],
)
def test_a_command_that_findings_name_makes_them_right(
    sound: Path, tmp_path: Path, defects: list[str]
) -> None:
    broken = Path(shutil.copytree(sound, tmp_path / "broken"))
    for defect in defects:
        DEFECTS[defect][1](broken)
    wrong = {DEFECTS[defect][0].split()[1] for defect in defects}
    found = check_dataset(broken).findings
    assert {finding.code for finding in found} == wrong
    commands, *others = (commands_of(finding, broken) for finding in found)
    assert others == [commands] * len(others)
    helped = False
    for number, command in enumerate(commands):
        root = Path(shutil.copytree(broken, tmp_path / str(number)))
        words = [word.replace(str(broken), str(root)) for word in command]
        if main([*words, "--json"]) == 0:
            made = Path(f"{root}_new") if f"{root}_new" in words else root
            if not wrong & {each.code for each in check_dataset(made).findings}:
                helped = True
                break
    is_hopeless = (wrong <= BY_HAND and not MENDED & {*defects}) or bool(ALL_LOST & {*defects})
    assert helped != is_hopeless, commands
