"""Damage to what lies under ``meta/``: episodes, tasks, statistics and ``info.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mutation import BYTES, DATA, EPISODES, SPARE_TOP, STRUCTURE, TOP, Mutation, break_page, cut
from tests.dataset_damage import (
    Change,
    Damage,
    byte_order_mark,
    edit_feature,
    edit_info,
    edit_json,
    edit_stat,
    remove,
    rewrite,
    set_cells,
)

__all__ = ["MUTATIONS"]

_CAMERA = "videos/observation.images.top"
_INFO, _STATS, _TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
_FOLDER = "meta/episodes"


def _cells(column: str, **cells: object) -> Damage:
    return rewrite(EPISODES, set_cells(column, **cells))


def _in_turn(*changes: Change) -> Damage:
    def all_of_them(table: pa.Table) -> pa.Table:
        for change in changes:
            table = change(table)
        return table

    return rewrite(EPISODES, all_of_them)


def move_boundary(root: Path) -> None:
    """Let an episode end a frame early and the next begin there, wherever that is said."""
    _in_turn(
        set_cells("length", r1=3, r2=5),
        set_cells("dataset_to_index", r1=9),
        set_cells("dataset_from_index", r2=9),
        *(set_cells(f"videos/observation.images.{camera}/{edge}_timestamp", **{row: 9 / 30})
          for camera in ("top", "wrist") for edge, row in (("to", "r1"), ("from", "r2"))),
    )(root)  # fmt: skip


def _taken(*rows: int) -> Damage:
    return rewrite(EPISODES, lambda table: table.take(list(rows)), row_groups=False)


def _nearly(column: str, row: int) -> Damage:
    """Change a float, or the first of a list, by as little as can be."""

    def change(table: pa.Table) -> pa.Table:
        value = table.column(column)[row].as_py()
        first, *rest = value if isinstance(value, list) else [value]
        near = math.nextafter(first, 10)
        return set_cells(column, **{f"r{row}": [near, *rest] if rest else near})(table)

    return rewrite(EPISODES, change)


def _cast(column: str, kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, table.column(at).cast(kind))

    return change


def _stats(edit: Callable[[dict[str, Any]], object]) -> Damage:
    return edit_json(_STATS, edit)


def _tasks(change: Change) -> Damage:
    return rewrite(_TASKS, change)


def _texts(*texts: str) -> Change:
    return lambda table: table.set_column(1, table.schema.field(1), pa.array(texts))


def _info(edit: Callable[[dict[str, Any]], object]) -> Damage:
    return edit_json(_INFO, edit)


def rename_episodes(root: Path) -> None:
    """Move the table to the next file's name, and say so in its rows."""
    _cells("meta/episodes/file_index", **{f"r{row}": 1 for row in range(6)})(root)
    (root / EPISODES).rename(root / "meta/episodes/chunk-000/file-001.parquet")


def forget_episode_types(root: Path) -> None:
    table = pq.read_table(root / EPISODES)
    told = json.loads(table.schema.metadata[b"huggingface"])
    told["info"]["features"]["length"]["dtype"] = "int32"
    metadata = {"huggingface": json.dumps(told)}
    pq.write_table(table.replace_schema_metadata(metadata), root / EPISODES)


MUTATIONS = [
    # meta/episodes: where things are.
    Mutation("an episode's data file has another number", STRUCTURE,
             _cells("data/file_index", r3=1), DATA, "row groups (one for each episode)", "3", "4"),
    Mutation("an episode's video file has another number", STRUCTURE,
             _cells(f"{_CAMERA}/file_index", r3=1), TOP, "number of frames", "14", "15"),
    Mutation("an episode's video file is in another chunk", STRUCTURE,
             _cells(f"{_CAMERA}/chunk_index", r4=1, r5=1),
             "videos/observation.images.top/chunk-001/file-001.mp4", "file", "a file", "nothing"),
    Mutation("an episode's video file is counted from another chunk", STRUCTURE,
             _in_turn(set_cells(f"{_CAMERA}/chunk_index", r4=-1, r5=-1),
                      set_cells(f"{_CAMERA}/file_index", r4=1001, r5=1001)),
             _FOLDER, f"column '{_CAMERA}/chunk_index', row 4", "a number from 0", "-1"),
    Mutation("two episodes' video files are exchanged", STRUCTURE,
             _cells(f"{_CAMERA}/file_index", r3=1, r4=0), SPARE_TOP, "episodes of a file",
             "one run", "several"),
    Mutation("an episode begins a frame late in its video", STRUCTURE,
             _cells(f"{_CAMERA}/from_timestamp", r1=7 / 30), TOP, "from_timestamp", "0.2", "0.23",
             episode=1),
    Mutation("an episode begins as little later as a float can say", STRUCTURE,
             _nearly(f"{_CAMERA}/from_timestamp", 1), TOP, "from_timestamp", episode=1),
    Mutation("an episode ends a frame early in its video", STRUCTURE,
             _cells(f"{_CAMERA}/to_timestamp", r1=9 / 30), TOP, "to_timestamp", "0.33", "0.3",
             episode=1),
    Mutation("an episode ends as little later as a float can say", STRUCTURE,
             _nearly(f"{_CAMERA}/to_timestamp", 2), TOP, "to_timestamp", episode=2),
    Mutation("an episode's rows begin one early", STRUCTURE, _cells("dataset_from_index", r2=9),
             _FOLDER, "dataset_from_index", "10", "9", episode=2),
    Mutation("an episode's rows end one late", STRUCTURE, _cells("dataset_to_index", r2=15),
             _FOLDER, "dataset_to_index", "14", "15", episode=2),
    Mutation("an episode is a frame longer", STRUCTURE, _cells("length", r2=5), _FOLDER, "length",
             "4", "5", episode=2),
    Mutation("the boundary of two episodes is a frame early everywhere", STRUCTURE, move_boundary,
             _FOLDER, "length", "4", "3", episode=1),
    Mutation("an episode's index is another", STRUCTURE, _cells("episode_index", r2=3), _FOLDER,
             "episode_index", "2", "3", episode=2),
    Mutation("a row says that it is in another file", STRUCTURE,
             _cells("meta/episodes/file_index", r2=1), EPISODES, "meta/episodes/file_index", "0",
             "0, 1"),
    Mutation("a row says that it is in another chunk", STRUCTURE,
             _cells("meta/episodes/chunk_index", r5=1), EPISODES, "meta/episodes/chunk_index",
             "0", "0, 1"),
    # meta/episodes: what the source says of episodes.
    Mutation("an episode's tasks are others", STRUCTURE, _cells("tasks", r0=["Dance."]), _FOLDER,
             "tasks", "Pick", "Dance.", episode=0),
    Mutation("an episode lacks one of its tasks", STRUCTURE, _cells("tasks", r0=["Pick."]),
             _FOLDER, "tasks", "Place.", episode=0),
    Mutation("a text of `episodes.jsonl` is another", STRUCTURE, _cells("operator", r1="eve"),
             _FOLDER, "operator", "bob", "eve", episode=1),
    Mutation("a number of `episodes.jsonl` is another", STRUCTURE, _cells("score", r2=3.25),
             _FOLDER, "score", "3.5", "3.25", episode=2),
    Mutation("a key of `episodes.jsonl` is dropped", STRUCTURE,
             rewrite(EPISODES, lambda table: table.drop_columns(["operator"])), _FOLDER,
             "operator", "ann", "None", episode=0),
    Mutation("a column is added to the episodes", STRUCTURE,
             rewrite(EPISODES, lambda table: table.append_column("mood", pa.array(["good"] * 6))),
             _FOLDER, "mood", "None", "good", episode=0),
    # meta/episodes: the table.
    Mutation("two rows of the episodes are exchanged", STRUCTURE, _taken(0, 2, 1, 3, 4, 5),
             _FOLDER, "episode_index", "1", "2", episode=1),
    Mutation("an episode's row is missing", STRUCTURE, _taken(0, 1, 2, 3, 4), _FOLDER, "episodes",
             "6", "5"),
    Mutation("an episode's row is there twice", STRUCTURE, _taken(0, 1, 2, 3, 4, 5, 5), _FOLDER,
             "episodes", "6", "7"),
    Mutation("a column that leads to files is dropped", STRUCTURE,
             rewrite(EPISODES, lambda table: table.drop_columns([f"{_CAMERA}/file_index"])),
             _FOLDER, f"column '{_CAMERA}/file_index'", "one such column", "none"),
    Mutation("a column of the episodes is narrower", STRUCTURE,
             rewrite(EPISODES, _cast("length", pa.int32())), _FOLDER, "column 'length'", "int64",
             "int32"),
    Mutation("a place of an episode is missing", STRUCTURE, _cells("dataset_to_index", r4=None),
             _FOLDER, "column 'dataset_to_index'", "a value for each episode", "1 missing"),
    Mutation("the episodes tell `datasets` another type (`huggingface`)", STRUCTURE,
             forget_episode_types, EPISODES, "`huggingface` entry of column 'length'", "int64",
             "int32"),
    Mutation("the episodes are in a file of another number", STRUCTURE, rename_episodes, EPISODES,
             "file", "a file", "nothing"),
    Mutation("the episodes lose their last bytes", STRUCTURE, cut(EPISODES, lambda size: size - 9),
             EPISODES, "readable metadata", "its tables"),
    Mutation("the episodes are gone", STRUCTURE, remove(EPISODES), EPISODES,
             "readable metadata", "its tables", "does not exist"),
    # Statistics.
    Mutation("a statistic of an episode is the next float", BYTES,
             _nearly("stats/action/mean", 3), _FOLDER, "stats/action/mean", episode=3),
    Mutation("a page of the episodes' statistics cannot be read", BYTES,
             lambda root: break_page(root / EPISODES, "stats/action/mean"), EPISODES,
             "readable metadata", "statistics"),
    Mutation("a count of an episode's frames is another", BYTES,
             _cells("stats/observation.images.top/count", r3=[2]), _FOLDER,
             "stats/observation.images.top/count", "1", "2", episode=3),
    Mutation("an episode lacks a statistic", BYTES, _cells("stats/action/max", r2=None), _FOLDER,
             "stats/action/max", found="None", episode=2),
    Mutation("a column of statistics is dropped", BYTES,
             rewrite(EPISODES, lambda table: table.drop_columns(["stats/action/std"])), _FOLDER,
             "stats/action/std", found="None", episode=0),
    Mutation("a column of statistics is there twice", STRUCTURE,
             rewrite(EPISODES, lambda table: table.append_column(
                 "stats/action/std", table.column("stats/action/std"))),
             EPISODES, "readable metadata", "its tables", "two columns have the same name"),
    Mutation("a statistic of the dataset is the next float", BYTES,
             edit_stat("action", "mean", lambda mean: [math.nextafter(mean[0], 10), *mean[1:]]),
             _STATS, "aggregate mean of 'action'"),
    Mutation("the dataset lacks a statistic", BYTES,
             _stats(lambda stats: stats["action"].pop("std")), _STATS,
             "aggregate std of 'action'", found="None"),
    Mutation("the dataset lacks a feature's statistics", BYTES,
             _stats(lambda stats: stats.pop("action")), _STATS, "aggregate of 'action'",
             "statistics", "nothing"),
    Mutation("the statistics are gone", STRUCTURE, remove(_STATS), _STATS, "file", "a file",
             "nothing"),
    Mutation("the statistics of the dataset are no JSON", STRUCTURE,
             lambda root: (root / _STATS).write_text("{"), _STATS, "aggregate",
             "readable statistics", "Expecting property name"),
    Mutation("the statistics of the dataset are a list", STRUCTURE,
             lambda root: (root / _STATS).write_text("[]"), _STATS, "aggregate",
             "readable statistics", "it is not a JSON object"),
    Mutation("the statistics of the dataset begin with a byte order mark", STRUCTURE,
             byte_order_mark(_STATS), _STATS, "aggregate", "readable statistics",
             "Unexpected UTF-8 BOM"),
    # Tasks.
    Mutation("a task is another", STRUCTURE, _tasks(_texts("Pick.", "Dance.", "Rest.")), _TASKS,
             "tasks", "task 1, 'Place.'", "task 1, 'Dance.'"),
    Mutation("two tasks are exchanged", STRUCTURE, _tasks(_texts("Place.", "Pick.", "Rest.")),
             _TASKS, "tasks", "task 0, 'Pick.'", "task 0, 'Place.'"),
    Mutation("a task is dropped", STRUCTURE, _tasks(lambda table: table.slice(0, 2)), _TASKS,
             "tasks", "task 2, 'Rest.'", "no such row"),
    Mutation("a task is numbered otherwise", STRUCTURE, _tasks(set_cells("task_index", r1=7)),
             _TASKS, "tasks", "task 1", "task 7"),
    Mutation("the texts of tasks are no pandas index", STRUCTURE,
             _tasks(lambda table: table.replace_schema_metadata(None)), _TASKS, "layout",
             "texts as pandas index"),
    Mutation("tasks are numbered in another type", STRUCTURE,
             _tasks(_cast("task_index", pa.decimal128(22, 2))), _TASKS,
             "type of column 'task_index'", "int64", "decimal128(22, 2)"),
    Mutation("a column is added to the tasks", STRUCTURE,
             _tasks(lambda table: table.append_column("more", table.column("task"))), _TASKS,
             "columns", "['task', 'task_index']", "'more'"),
    Mutation("the tasks are gone", STRUCTURE, remove(_TASKS), _TASKS, "readable metadata",
             "its tables", "does not exist"),
    # info.json.
    Mutation("the total of episodes is another", STRUCTURE, edit_info(total_episodes=7), _INFO,
             "total_episodes", "6", "7"),
    Mutation("the total of frames is another", STRUCTURE, edit_info(total_frames=25), _INFO,
             "total_frames", "24", "25"),
    Mutation("the total of tasks is another", STRUCTURE, edit_info(total_tasks=2), _INFO,
             "total_tasks", "3", "2"),
    Mutation("the frame rate is another", STRUCTURE, edit_info(fps=29), _INFO, "fps", "30", "29"),
    Mutation("the version is another", STRUCTURE, edit_info(codebase_version="v2.1"), _INFO,
             "codebase_version", "v3.0", "v2.1"),
    Mutation("the robot is another", STRUCTURE, edit_info(robot_type="hand"), _INFO, "robot_type",
             "generated", "hand"),
    Mutation("the splits are others", STRUCTURE, edit_info(splits={"train": "0:5"}), _INFO,
             "splits", "0:6", "0:5"),
    Mutation("the path of data files leads elsewhere", STRUCTURE,
             edit_info(data_path="data/{chunk_index}/{file_index}.parquet"), _INFO, "data_path",
             "file-", "{file_index}.parquet"),
    Mutation("there is no path of videos", STRUCTURE, edit_info(video_path=None), _INFO,
             "video_path", "videos/", "None"),
    Mutation("the size of chunks is another", STRUCTURE, edit_info(chunks_size=100), _INFO,
             "chunks_size", "1000", "100"),
    Mutation("the limit of a file's size is no size", STRUCTURE,
             edit_info(video_files_size_in_mb=0), _INFO, "video_files_size_in_mb",
             "a positive number", "0"),
    Mutation("a key of the source's own is dropped", STRUCTURE,
             _info(lambda info: info.pop("license")), _INFO, "license", "mit", "no such key"),
    Mutation("a key of the source's own is another", STRUCTURE, edit_info(license="gpl"), _INFO,
             "license", "mit", "gpl"),
    Mutation("a key is added", STRUCTURE, edit_info(total_videos=12), _INFO, "total_videos",
             "no such key", "12"),
    Mutation("a feature is dropped", STRUCTURE, _info(lambda info: info["features"].pop("note")),
             _INFO, "features", "note"),
    Mutation("a feature is added", STRUCTURE,
             _info(lambda info: info["features"].update(mood={"dtype": "string", "shape": [1]})),
             _INFO, "features", found="mood"),
    Mutation("a feature's shape is another", STRUCTURE, edit_feature("action", shape=[5]), _INFO,
             "shape of feature 'action'", "[6]", "[5]"),
    Mutation("a feature's type is another", STRUCTURE, edit_feature("action", dtype="float64"),
             _INFO, "dtype of feature 'action'", "float32", "float64"),
    Mutation("a feature's names are others", STRUCTURE, edit_feature("action", names=None), _INFO,
             "names of feature 'action'", found="None"),
    Mutation("a feature's rate is another", STRUCTURE, edit_feature("action", fps=15), _INFO,
             "fps of feature 'action'", "30", "15"),
    Mutation("a camera's codec is another", STRUCTURE,
             _info(lambda info: info["features"]["observation.images.top"]["info"].update(
                 {"video.codec": "av1"})),
             _INFO, "info of feature 'observation.images.top'", "h264", "av1"),
    Mutation("`info.json` is no JSON", STRUCTURE, lambda root: (root / _INFO).write_text("{"),
             _INFO, "readable metadata", "a JSON object", "Expecting property name"),
    Mutation("`info.json` begins with a byte order mark", STRUCTURE, byte_order_mark(_INFO), _INFO,
             "readable metadata", "a JSON object", "Unexpected UTF-8 BOM"),
    Mutation("`info.json` is nested beyond reason", STRUCTURE,
             lambda root: (root / _INFO).write_text("[" * 100_000), _INFO, "readable metadata",
             "a JSON object", "it is nested too deeply"),
]  # fmt: skip
