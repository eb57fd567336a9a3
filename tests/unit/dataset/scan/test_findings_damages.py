"""A v2.1 dataset with one thing wrong: its one finding, what helps, and what that changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sound_dataset import LENGTHS, TOP, WRIST
from tests.oddities import rotate

from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import camera_of
from leconvert.testing import edit_info, edit_lines, edit_table, with_column

Edit = Callable[[Path], object]
TABLE = "data/chunk-000/episode_{:06d}.parquet"
CLIP = "videos/chunk-000/{}/episode_{:06d}.mp4"
DROP = "--on-bad-episode drop"


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong, and all that is expected of a scan.

    Attributes:
        edit: Damages the sound dataset.
        code: Of the only finding.
        severity: Its severity.
        said: Parts of its message.
        mended: Options with which the finding is ``repaired``; None where that is not asked.
        repairs: Fields that the repairs then have.
        left: Episodes that are then left; None for all.
        plain: Whether the dataset without cameras is damaged, which has two tasks.
        finding: Further fields of the finding.
    """

    edit: Edit
    code: str
    severity: str
    said: tuple[str, ...] = ()
    mended: RepairOptions | None = None
    repairs: Mapping[str, object] = field(default_factory=dict)
    left: Sequence[int] | None = None
    plain: bool = False
    finding: Mapping[str, object] = field(default_factory=dict)


def damage(
    edit: Edit,
    code: str,
    severity: str,
    *said: str,
    mended: RepairOptions | None = None,
    repairs: Mapping[str, object] | None = None,
    left: Sequence[int] | None = None,
    plain: bool = False,
    **finding: object,
) -> Damage:
    return Damage(edit, code, severity, said, mended, repairs or {}, left, plain, finding)


# --- edits ------------------------------------------------------------------------------------


def every(*edits: Edit) -> Edit:
    return lambda root: [edit(root) for edit in edits]


def table(episode: int, change: Callable[[pa.Table], pa.Table]) -> Edit:
    return lambda root: edit_table(root, episode, change)


def tables(change: Callable[[pa.Table], pa.Table], episodes: int = len(LENGTHS)) -> Edit:
    return every(*(table(episode, change) for episode in range(episodes)))


def info(**changes: object) -> Edit:
    return lambda root: edit_info(root, lambda found: found.update(changes))


def lines(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Edit:
    return lambda root: edit_lines(root, name, change)


def without_encoding(edit: Edit) -> Edit:
    """Let a camera's clips be declared as nothing, so that nothing contradicts the edit."""
    return every(
        lambda root: edit_info(root, lambda found: found["features"][TOP].pop("info")), edit
    )


def times(episode: int, seconds: float, frames: slice = slice(None)) -> Edit:
    """Shift timestamps, and say so in the statistics."""

    def edit(root: Path) -> None:
        def shift(rows: pa.Table) -> pa.Table:
            shown = rows.column("timestamp").to_numpy().copy()
            shown[frames] += np.float32(seconds)
            return with_column(rows, "timestamp", pa.array(shown))

        edit_table(root, episode, shift)
        shown = pq.read_table(root / TABLE.format(episode)).column("timestamp").to_pylist()
        stats(episode, "timestamp", stats_of(shown))(root)

    return edit


def column(episode: int, name: str, values: list[int]) -> Edit:
    """Give a table another column, and say so in the statistics."""
    return every(
        table(episode, lambda rows: with_column(rows, name, pa.array(values))),
        stats(episode, name, stats_of(values)),
    )


def stats_of(values: Sequence[float]) -> dict[str, list[float]]:
    return {name: [float(getattr(np, name)(values))] for name in ("min", "max", "mean", "std")}


def emptied(name: str, rows_left: slice) -> Edit:
    def empty(rows: pa.Table) -> pa.Table:
        values = np.array(rows.column(name).to_pylist(), object)
        values[rows_left] = None
        return with_column(rows, name, pa.array(values.tolist(), pa.int64()))

    return table(1, empty)


def stats(episode: int, name: str, changes: Mapping[str, object]) -> Edit:
    return lines("episodes_stats", lambda found: found[episode]["stats"][name].update(changes))


def all_stats(name: str, **changes: object) -> Edit:
    return every(*(stats(episode, name, changes) for episode in range(len(LENGTHS))))


def two_stats(change: Callable[[dict[str, Any]], object]) -> Edit:
    return lines("episodes_stats", lambda found: [change(found[e]["stats"]) for e in (1, 2)])


def remove(path: str) -> Edit:
    return lambda root: (root / path).unlink()


def written(path: str, content: Callable[[bytes], bytes]) -> Edit:
    return lambda root: (root / path).write_bytes(content((root / path).read_bytes()))


def folder(path: str) -> Edit:
    return every(remove(path), lambda root: (root / path).mkdir())


def number_behind(box: bytes, place: int, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    """Change a number of four bytes; ``place`` counts from where the name of its box begins."""

    def edit(content: bytes) -> bytes:
        at = content.index(box) + place
        number = change(int.from_bytes(content[at : at + 4], "big"))
        return content[:at] + number.to_bytes(4, "big") + content[at + 4 :]

    return edit


def without_episode(root: Path) -> None:
    for name in ("episodes", "episodes_stats"):
        edit_lines(root, name, lambda found: found.pop(1))
    for path in root.rglob("episode_000001.*"):
        path.unlink()
    info(total_episodes=3, total_frames=17, total_videos=6)(root)


def turned(*matrix: int) -> Edit:
    return lambda root: [rotate(clip, *matrix) for clip in root.glob(f"videos/*/{TOP}/*.mp4")]


def repeated_text(found: list[dict[str, Any]]) -> None:
    found.append({"task_index": 2, "task": found[0]["task"]})


def rounded_or_no_number(found: list[dict[str, Any]]) -> None:
    action = found[0]["stats"]["action"]
    action["min"] = [float(f"{value:.6g}") for value in action["min"]]
    for name in ("min", "max", "mean", "std"):
        found[1]["stats"]["action"][name] = [float("nan")] * 6


SOUND: dict[str, Edit] = {
    "another name of the same codec": lambda root: edit_info(
        root,
        lambda found: found["features"][TOP]["info"].update(
            {"video.codec": "libx264", "video.pix_fmt": "yuvj420p", "video.fps": 30.0}
        ),
    ),
    "a total that is not stated": lambda root: edit_info(
        root, lambda found: found.pop("total_chunks")
    ),
    "statistics rounded or no number": lines("episodes_stats", rounded_or_no_number),
    "times within the tolerance": times(0, 9e-5),
    "a narrower integer": table(
        1, lambda rows: with_column(rows, "frame_index", pa.array(range(5), pa.int32()))
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_unusual_and_sound_is_no_finding(source: Path, name: str) -> None:
    SOUND[name](source)
    assert scan_source(source).findings == ()


# --- damages ----------------------------------------------------------------------------------

REINDEX, RETIME = RepairOptions(reindex=True), RepairOptions(retime=True)
REMAP, RECOMPUTE = RepairOptions(remap_tasks=True), RepairOptions(recompute_stats=True)
DROPPED = RepairOptions(on_bad_episode="drop")
EFFORT = {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]}
NO_STAT = dict.fromkeys(("min", "max", "mean", "std"), "abcdef")
HUNDRED = "?" * 99

FILES = {
    "a table that is gone": damage(
        remove(TABLE.format(2)), "missing-file", "error", "3 tables of 4",
        path=TABLE.format(2), episode=2, remedy=DROP, mended=DROPPED, left=[0, 1, 3],
    ),
    "a clip that is gone": damage(
        remove(CLIP.format(WRIST, 1)), "missing-file", "error", "3 videos of 4",
        path=CLIP.format(WRIST, 1), episode=1, remedy=DROP, mended=DROPPED, left=[0, 2, 3],
    ),
    **{
        f"{kind} for {what}": damage(
            edit(path), "unreadable-file", "error", episode=0, path=path, mended=DROPPED,
            left=[1, 2, 3],
        )
        for what, path in {"a table": TABLE.format(0), "a clip": CLIP.format(TOP, 0)}.items()
        for kind, edit in {
            "half a file": lambda path: written(path, lambda sound: sound[: len(sound) // 2]),
            "an empty file": lambda path: written(path, lambda _: b""),
            "garbage": lambda path: written(path, lambda _: HUNDRED.encode()),
            "a folder": folder,
        }.items()
    },
    "rows too few": damage(
        table(1, lambda rows: rows.slice(0, 3)), "row-count", "error",
        "3 rows", "says 5", "videos have 5 frames", episode=1,
    ),
    "a clip of another episode": damage(
        lambda root: shutil.copy(root / CLIP.format(WRIST, 3), root / CLIP.format(WRIST, 0)),
        "frame-count", "error", "7 frames", "says 6", "table has 6 rows",
        episode=0, stream=f"videos/{WRIST}",
    ),
    "no keyframe at the begin": damage(
        written(CLIP.format(TOP, 1), number_behind(b"stss", 12, lambda _: 2)),
        "no-keyframe", "error", episode=1,
    ),
    "frames far from their place": damage(
        without_encoding(
            written(CLIP.format(TOP, 0), number_behind(b"mdhd", 16, lambda ticks: 2 * ticks))
        ),
        "frame-times", "warning", stream=f"videos/{TOP}",
    ),
    "clips that are to be rotated": damage(
        turned(0, 1, -1, 0), "rotated-frames", "warning",
        "torchcodec does that and PyAV does not",
        "The same holds for",
    ),
    "clips that are to be mirrored": damage(
        turned(-1, 0, 0, 1), "rotated-frames", "warning", "asks to be shown",
        "The same holds for",
    ),
    "another column in one table": damage(
        table(0, lambda rows: with_column(rows, "extra", pa.array([1] * 6))),
        "schema-mismatch", "error", "extra is not expected", episode=0,
    ),
    "a default column that one table lacks": damage(
        table(3, lambda rows: rows.drop_columns(["frame_index"])),
        "schema-mismatch", "error", "frame_index is missing", episode=3,
    ),
    "a wider type in one table": damage(
        every(
            table(
                2,
                lambda rows: with_column(
                    rows, "action", pa.array([[0.0] * 6] * 4, pa.list_(pa.float64(), 6))
                ),
            ),
            stats(2, "action", dict.fromkeys(("min", "max", "mean", "std"), [0.0] * 6)),
        ),
        "dtype-mismatch", "warning", "action is stored as float64",
    ),
    "another type in one table": damage(
        every(
            table(
                2,
                lambda rows: with_column(
                    rows, "action", pa.array([[0] * 6] * 4, pa.list_(pa.int64(), 6))
                ),
            ),
            stats(2, "action", dict.fromkeys(("min", "max", "mean", "std"), [0.0] * 6)),
        ),
        "schema-mismatch", "error", "action is", episode=2,
        remedy="--drop-feature action",
    ),
    "two columns of one name": damage(
        table(1, lambda rows: rows.append_column("index", rows.column("index"))),
        "unreadable-file", "error", "same name, index", episode=1, remedy=DROP,
    ),
    "a camera that is not declared": damage(
        lambda root: shutil.copytree(
            root / "videos/chunk-000" / TOP, root / "videos/chunk-000/observation.images.back"
        ),
        "undeclared-camera", "warning", "Videos of observation.images.back are left behind (4)",
    ),
    **{
        f"the template {template}": damage(
            info(data_path=template), "path-template", "error", TABLE.format(0)
        )
        for template in (
            "data/{episode_index}.parquet",
            "data/chunk-{chunk_index:03d}/file-{file_index}.parquet",
            "data/{episode_index:06d",
            "data/all.parquet",
            "data/{episode_index:999999999d}.parquet",
            "data/{episode_index!r}.parquet",
        )
    },
    "no table at all": damage(
        lambda root: shutil.rmtree(root / "data"), "missing-file", "error",
        "No episode has a table",
    ),
    "links that lead in circles": damage(
        lambda root: (
            (root / "data/again").symlink_to(root),
            (root / "videos/loop").symlink_to(root / "videos/loop"),
        ),
        "stray-file", "warning", path="videos/loop",
    ),
    "a camera without any video": damage(
        every(lambda root: shutil.rmtree(root / "videos/chunk-000" / WRIST), info(total_videos=4)),
        "phantom-feature", "error", stream=f"videos/{WRIST}", remedy=f"--drop-feature {WRIST}",
        mended=RepairOptions(drop_features=(WRIST,)), repairs={"dropped_features": (WRIST,)},
    ),
    "a declared column that no table has": damage(
        lambda root: edit_info(root, lambda found: found["features"].update(effort=EFFORT)),
        "phantom-feature", "error", remedy="--drop-feature effort",
    ),
    "a column that is not declared": damage(
        tables(lambda rows: with_column(rows, "__index_level_0__", pa.array(range(rows.num_rows)))),
        "undeclared-column", "error",
        remedies=["--declare-features", "--drop-feature __index_level_0__"],
        mended=RepairOptions(drop_features=("__index_level_0__",)),
    ),
    "a default column that is not declared": damage(
        lambda root: edit_info(root, lambda found: found["features"].pop("timestamp")),
        "undeclared-column", "error", remedies=["--declare-features"],
        mended=RepairOptions(declare_features=True),
        repairs={
            "declared_features": {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}
        },
    ),
}  # fmt: skip

ROWS = {
    **{
        f"times {seconds} s off": damage(
            times(1, seconds), "timestamps", "error", "5 of 5 timestamps", "at frame 0",
            episode=1, remedy="--retime", mended=RETIME,
            repairs={"computed_columns": ("timestamp",), "computed_stats": ("timestamp",)},
        )
        for seconds in (0.05, 1.7e9, -0.2, float("nan"))
    },
    "times off without cameras": damage(times(2, 0.05), "timestamps", "warning", plain=True),
    "one time off": damage(
        times(0, 0.0005, slice(3, 4)), "timestamps", "error",
        "1 of 6 timestamps", "The first is at frame 3", "0.0005",
    ),
    "times in another order": damage(
        table(
            3,
            lambda rows: with_column(
                rows, "timestamp", rows.column("timestamp").combine_chunks()[::-1]
            ),
        ),
        "timestamps", "error", "6 of 7",
    ),
    "a time twice": damage(times(3, -1 / 30, slice(2, 3)), "timestamps", "error", "1 of 7"),
    "rows without a time": damage(
        table(
            1,
            lambda rows: with_column(
                rows, "timestamp", pa.array([0.0, None, 2 / 30, None, 4 / 30], pa.float32())
            ),
        ),
        "timestamps", "error", "2 rows without a timestamp",
        episode=1, remedy="--retime", mended=RETIME,
    ),
    "a number of many digits": damage(
        column(1, "episode_index", [1234567] * 5), "episode-index", "error",
        "has rows with episode_index",
    ),
    **{
        f"{name} {values}": damage(
            column(1, name, values), code, "error", episode=1, remedy="--reindex",
            mended=REINDEX,
            repairs={"computed_columns": ("frame_index", "episode_index", "index")},
        )
        for name, values, code in (
            ("frame_index", [1, 2, 3, 4, 5], "frame-index"),
            ("episode_index", [3] * 5, "episode-index"),
            ("episode_index", [1, 1, 1, 1, 2], "episode-index"),
        )
    },
    # The extremes are right.
    **{
        f"{name} that is empty {where}": damage(
            emptied(name, rows), code, "error", remedy=remedy,
            **({} if name == "index" else {"episode": 1}),
        )
        for name, code, remedy in (
            ("frame_index", "frame-index", "--reindex"),
            ("episode_index", "episode-index", "--reindex"),
            ("index", "global-index", "--reindex"),
            ("task_index", "task-index", "--tasks-from episodes"),
        )
        for where, rows in {"between": slice(1, -1), "everywhere": slice(None)}.items()
    },
    "an index that begins anew": damage(
        every(*(column(episode, "index", [*range(n)]) for episode, n in enumerate(LENGTHS))),
        "global-index", "error", "The same holds for 3 episodes", episode=None, mended=REINDEX,
    ),
    "rows of which of several tasks": damage(
        tables(lambda rows: rows.drop_columns(["task_index"]), 3), "missing-column", "error",
        plain=True,
    ),
    "a gap in the episodes": damage(
        without_episode, "episode-gap", "error", "no episode 1", remedy=DROP, mended=DROPPED,
        left=[0, 2, 3],
        repairs={"computed_columns": ("episode_index", "index"), "dropped_episodes": ()},
    ),
    "no table of tasks": damage(
        remove("meta/tasks.jsonl"), "missing-tasks", "error", remedy="--tasks-from episodes",
    ),
    # One error, and no reason to drop every episode.
    "an empty table of tasks": damage(
        written("meta/tasks.jsonl", lambda _: b"\n"), "missing-tasks", "error",
        "lists no task", remedy="--tasks-from episodes",
    ),
    "a gap in the tasks": damage(
        every(
            lines("tasks", lambda found: found[0].update(task_index=4)),
            *(column(episode, "task_index", [4] * n) for episode, n in enumerate(LENGTHS)),
        ),
        "task-gap", "error", remedy="--remap-tasks", mended=REMAP,
        repairs={"task_map": {4: 0}, "computed_stats": ("task_index",)},
    ),
    "a text that stands for two tasks": damage(
        every(lines("tasks", repeated_text), info(total_tasks=3)), "task-duplicate", "error",
        plain=True, mended=REMAP, repairs={"task_map": {0: 0, 1: 1, 2: 0}},
    ),
    "rows of a task that is not listed": damage(
        column(2, "task_index", [0, 0, 5, 0]), "task-index", "error", "task 5", episode=2,
    ),
    "rows of a task that their episode does not list": damage(
        column(0, "task_index", [0, 1, 0, 1]), "task-mismatch", "warning", "task 1", plain=True,
    ),
    "an episode that lists no task": damage(
        lines("episodes", lambda found: found[3].update(tasks=[])), "task-mismatch", "warning",
        "Rows of episode 3 have task 0",
    ),
    "an episode that lists an unknown task": damage(
        lines("episodes", lambda found: found[3].update(tasks=["Juggle.\n"])),
        "task-mismatch", "error", r"'Juggle.\n'",
    ),
}  # fmt: skip

FEATURES = {
    "a wider type than declared": damage(
        tables(
            lambda rows: with_column(
                rows, "action", rows.column("action").cast(pa.list_(pa.float64(), 6))
            )
        ),
        "dtype-mismatch", "warning", "float64", "float32",
    ),
    **{
        f"{key} {value!r}": damage(info(**{key: value}), "stale-total", "warning", key)
        for key, value in {
            "total_episodes": 5, "total_frames": 1, "total_tasks": 0, "total_videos": "8",
            "total_chunks": True,
        }.items()
    },
    **{
        f"{key} of {name} that is stale": damage(
            all_stats(name, **{key: value}), "stale-stats", "warning",
            "for episode", "The same holds for 4 episodes",
            remedy="--fill-stats", mended=RECOMPUTE,
            repairs={"computed_stats": {name, TOP, WRIST}},
        )
        for name, key, value in (
            ("action", "min", [-9.0] * 6),
            ("observation.matrix", "max", [[9.0] * 3] * 2),
            ("timestamp", "max", [0.5]),
            ("index", "min", [1]),
            ("next.done", "max", [False]),
            ("action", "count", [3]),
        )
    },
    **{
        f"statistics that are missing ({number})": damage(
            two_stats(change), "missing-stats", "error", "The same holds for 2 episodes",
            remedy="--fill-stats", mended=RECOMPUTE,
        )
        for number, change in enumerate((
            lambda found: found.pop("action"),
            lambda found: found["action"].pop("std"),
            lambda found: found.update(action=7),
            lambda found: found.pop(TOP),
            lambda found: found["action"].update(NO_STAT),
            lambda found: found[TOP].update(count=[-5]),
            lambda found: found["observation.matrix"].update(
                std=[[0.1, 0.1, 0.1], [0.1, None, 0.1]]
            ),
            lambda found: found["observation.matrix"].update({key: [] for key in NO_STAT}),
            lambda found: found["action"].update(min=[10**400] * 6),
        ))
    },
    "a line of statistics that is missing": damage(
        lines("episodes_stats", lambda found: found.pop(2)), "missing-stats", "error",
        "no statistics of episode 2",
    ),
    "no table of statistics": damage(
        remove("meta/episodes_stats.jsonl"), "missing-stats", "error", "is missing",
    ),
    "a line of statistics too many": damage(
        lines("episodes_stats", lambda found: found.append({"episode_index": 9, "stats": {}})),
        "stray-stats", "warning",
    ),
    **{
        f"the version {said!r}": damage(
            info(codebase_version=said), "codebase-version", "error",
            remedy="--assume-version v2.1", mended=RepairOptions(assume_version="v2.1"),
        )
        for said in (None, 2, "v3.0", "v4")
    },
    **{
        f"placeholders {names}": damage(
            info(data_path=template), "template-names", "info", f"with {names}."
        )
        for names, template in {
            "{chunk_index}": "data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet",
            "{chunk}, {episode}": "data/chunk-{chunk:03d}/episode_{episode:06d}.parquet",
        }.items()
    },
}  # fmt: skip

DAMAGES = FILES | ROWS | FEATURES


@pytest.mark.parametrize("name", DAMAGES)
def test_one_damage_gives_the_one_finding_that_names_it(
    source: Path, source_without_cameras: Path, name: str
) -> None:
    wrong = DAMAGES[name]
    root = source_without_cameras if wrong.plain else source
    wrong.edit(root)
    (finding,) = scan_source(root).findings
    assert (finding.code, finding.severity) == (wrong.code, wrong.severity)
    assert [said for said in wrong.said if said not in finding.message] == []
    for key, value in wrong.finding.items():
        found = getattr(finding, key)
        assert ([each.flag for each in found] if key == "remedies" else found) == value, key
    if wrong.mended is None:
        return
    scan = scan_source(root, wrong.mended)
    assert [(each.code, each.severity) for each in scan.findings] == [(wrong.code, "repaired")]
    assert scan.episode_index.tolist() == [*(wrong.left or range(3 if wrong.plain else 4))]
    assert {camera_of(each.stream) for each in scan.streams}.isdisjoint(wrong.mended.drop_features)
    for key, value in wrong.repairs.items():
        found = getattr(scan.repairs, key)
        assert value <= set(found) if isinstance(value, set) else found == value, key
