"""``meta/info.json`` of a v3.0 dataset, its tasks and repairs, and the paths of all other files."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found
from leconvert.dataset.formats.dataset import (
    MOST_LEVELS,
    Totals,
    fps_number,
    frame_rate,
    is_deeper,
    with_other_keys,
    written_features,
    written_splits,
)
from leconvert.model.repairs import DEFAULT_COLUMNS, NO_REPAIRS, TEXT_DTYPES, VISUAL_DTYPES, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    Finding,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.values import dataclass
from leconvert.tables.arrow import array_of, floats
from leconvert.tables.data_file import open_parquet, unreadable, with_unique_names
from leconvert.workdir.fs import make_folders_below

# Paths of the tables and records of a v3.0 dataset, relative to its root.


INFO_PATH = "meta/info.json"
TASKS_PATH = "meta/tasks.parquet"
REPAIRS_PATH = "meta/repairs.json"
REPAIRED_PATH = "meta/repaired.json"
"""The changes of `leconvert repair` in a v3.0 dataset; `REPAIRS_PATH` has a conversion's."""
EPISODES_DIR = "meta/episodes"

# The templates in info.json; readers fill them with str.format.
DATA_PATH_TEMPLATE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def episodes_path(number: int) -> str:
    """Return the path of file ``number`` of the episodes table, counted from 0."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return f"{EPISODES_DIR}/chunk-{chunk:03d}/file-{file:03d}.parquet"


class FileNames(NamedTuple):
    """The names of the files of a dataset's streams, by their numbers from 0 on.

    Attributes:
        data_path: Template of data files, as in ``info.json``.
        video_path: Template of video files.
        files_per_chunk: Number of files of a stream in a chunk.
        counts_on: Whether ``file_index`` continues from chunk to chunk, as episodes of v2.x do.
    """

    data_path: str = DATA_PATH_TEMPLATE
    video_path: str = VIDEO_PATH_TEMPLATE
    files_per_chunk: int = FILES_PER_CHUNK
    counts_on: bool = False

    def indices[Number: (int, IntArray)](self, number: Number) -> tuple[Number, Number]:
        """Return ``chunk_index`` and ``file_index`` of a file, or of each of several."""
        chunk, file = divmod(number, self.files_per_chunk)
        return chunk, number if self.counts_on else file

    def path(self, stream: str, number: int) -> str:
        """Return the path of a file, relative to the dataset."""
        chunk, file = self.indices(number)
        template = self.data_path if stream == DATA_STREAM else self.video_path
        return template.format(video_key=camera_of(stream), chunk_index=chunk, file_index=file)

    def numbers(self, chunk: IntArray, file: IntArray) -> IntArray:
        """Return the numbers of files by their indices; -1 for indices that no file can have."""
        if not self.counts_on:
            return chunk * self.files_per_chunk + file
        return np.where(chunk == file // self.files_per_chunk, file, -1)


USUAL_NAMES = FileNames()
"""The names that leconvert and LeRobot give to files of a new dataset."""


def names_of(info: Mapping[str, Any]) -> FileNames:
    """Return the naming of a result's files: leconvert's, or its v2.x source's."""
    usual = USUAL_NAMES
    data, video, size = (info.get(key) for key in ("data_path", "video_path", "chunks_size"))
    if not isinstance(data, str) or data == usual.data_path or template_problem(data, DATA_STREAM):
        return usual
    if video is not None and template_problem(video, stream_of_camera("camera")):
        return usual
    if type(size) is not int or size < 1:
        return usual
    return FileNames(data, usual.video_path if video is None else video, size, counts_on=True)


def stream_of(path: str) -> str | None:
    """Return the stream of a dataset's file, by its name; None for other files."""
    stream, _, _ = path.rpartition("/")[0].rpartition("/")
    if stream == DATA_STREAM:
        return stream if path.endswith(".parquet") else None
    return stream if camera_of(stream) and path.endswith(".mp4") else None


# JSON files, read as strictly as LeRobot's readers do.


def read_json_object(path: Path, *, in_any_utf: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file.

    LeRobot opens these files as UTF-8 text, so a byte order mark, or UTF-16, is invalid.

    Args:
        path: The file.
        in_any_utf: Whether both are valid, as in a source, whose result is UTF-8.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no JSON object, or one that is nested too deeply.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    try:
        raw = path.read_bytes()
        content = json.loads(raw if in_any_utf else raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    if is_deeper(content, MOST_LEVELS):
        raise ValueError("it is nested too deeply")
    return content


# ``meta/info.json`` of a v3.0 dataset: its declarations, and the findings about them.


_NO_DTYPE = "has no dtype"
_GIVE_DTYPE = (
    "Write the dtype and the shape into meta/info.json. Or take the feature out of the "
    "features there: `leconvert repair DATASET --declare-features` then declares its "
    "column as it is stored."
)
_NO_FOLDER_NAMES = {"", ".", ".."}
_MAX_DIMENSIONS = 5
# `datasets` has no type for any other; a misspelt type fails only when data is read.
_NUMBER = re.compile(r"(bool|u?int(8|16|32|64)|float(16|32|64))")
_OTHER_DTYPES = TEXT_DTYPES | VISUAL_DTYPES
# The format of a number in a template: none, or a few digits with leading zeros.
_NUMBER_FORMAT = re.compile(r"(0?\d)?d?")


class Feature(NamedTuple):
    """A declared feature.

    Attributes:
        key: Its name.
        dtype: Its type, such as ``float32``, ``video``, ``image``, ``string``.
        shape: Its declared shape.
        raw: The declaration as stored.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    raw: Mapping[str, Any]

    @property
    def is_number(self) -> bool:
        """Whether values are numbers, for which there are statistics."""
        return _NUMBER.fullmatch(self.dtype) is not None


@dataclass(frozen=True, slots=True)
class Declared:
    """The usable content of info.json.

    Attributes:
        raw: The file as parsed.
        fps: Frames a second, as the exact fraction of the decimal.
        features: Usable features by key.
        templates: Path template of each stream with a usable template.
    """

    raw: Mapping[str, Any]
    fps: Fraction
    features: Mapping[str, Feature]
    templates: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """All declared features, usable or not, and the columns that all datasets have."""
        return frozenset({*self.raw["features"], *DEFAULT_COLUMNS})

    @property
    def cameras(self) -> tuple[str, ...]:
        """Video features, sorted."""
        return tuple(sorted(k for k, feature in self.features.items() if feature.dtype == "video"))

    def path(self, stream: str, chunk: int, file: int) -> str:
        """Return the path of a file of a stream, relative to the dataset."""
        return self.templates[stream].format(
            video_key=camera_of(stream), chunk_index=chunk, file_index=file
        )


def declaration(
    raw: Mapping[str, Any], assumed_fps: str | None = None
) -> tuple[Declared | None, list[Finding]]:
    """Return the declarations of a v3.0 info.json and the findings about them.

    The declaration is None if nothing can be checked by it. ``assumed_fps`` replaces its rate.
    """
    findings: list[Finding] = []

    def wrong(code: str, message: str, **place: Any) -> None:
        findings.append(found(code, message, path=INFO_PATH, **place))

    fps = Fraction(assumed_fps) if assumed_fps else frame_rate(raw.get("fps"))
    if fps is None:
        wrong("info-value", f"fps is {_shown(raw.get('fps'))}, which is not a frame rate.")
        return None, findings
    for key in ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb"):
        value = raw.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            wrong("info-value", f"{key} is {_shown(value)}, which is not a positive number.")
    declared = raw.get("features")
    if not isinstance(declared, dict):
        wrong("info-value", "info.json has no features.")
        return None, findings

    features: dict[str, Feature] = {}
    for key, entry in declared.items():
        problem = _feature_problem(key, entry)
        for name in ("info", "video_info"):
            about = entry.get(name) if isinstance(entry, Mapping) else None
            if about and not isinstance(about, Mapping):
                said = f"{name} of {_shown(key)} is {_shown(about)}, which is no object."
                wrong("info-value", said)
        if problem is not None:
            wrong("feature", f"The feature {_shown(key)} {problem}.")
            if problem == _NO_DTYPE:  # nothing can read it
                findings[-1] = replace(findings[-1], remedy=_GIVE_DTYPE)
            continue
        feature = Feature(key, entry["dtype"], tuple(entry["shape"]), entry)
        features[key] = feature
        names = entry.get("names")
        has_axis_names = isinstance(names, list) and len(names) >= 3
        if feature.dtype in VISUAL_DTYPES and not has_axis_names:
            wrong("feature-names", f"The feature {key!r} has names {_shown(names)}.")
    for name in DEFAULT_COLUMNS:
        if name not in declared:
            wrong("feature", f"The feature {name!r}, which every dataset has, is not declared.")

    templates: dict[str, str] = {}
    streams = [DATA_STREAM]
    streams += [
        stream_of_camera(key) for key, ft in sorted(features.items()) if ft.dtype == "video"
    ]
    told: set[str] = set()
    for stream in streams:
        name = "data_path" if stream == DATA_STREAM else "video_path"
        problem = template_problem(raw.get(name), stream)
        if problem is None:
            templates[stream] = str(raw[name])
        elif name not in told:
            told.add(name)
            wrong("path-template", f"{name} is {_shown(raw.get(name))}: {problem}.")
    return Declared(raw, fps, features, templates), findings


def split_findings(raw: Mapping[str, Any], num_episodes: int) -> Iterator[Finding]:
    """Yield findings about splits that are no ranges of episodes."""
    splits = raw.get("splits") or {}
    if not isinstance(splits, Mapping):
        yield found("splits", f"splits is {_shown(splits)}, which is not a table.", path=INFO_PATH)
        return
    for name, value in splits.items():
        ends = value.split(":") if isinstance(value, str) else []
        if (
            len(ends) != 2
            or not all(re.fullmatch(r"\d{1,18}", end) for end in ends)
            or not int(ends[0]) <= int(ends[1]) <= num_episodes
        ):
            message = (
                f"The split {_shown(name)} is {_shown(value)}, but the dataset has "
                f"{num_episodes:,} episodes."
            )
            yield found("splits", message, path=INFO_PATH)


def _feature_problem(key: str, entry: object) -> str | None:
    if set(key.split("/")) & _NO_FOLDER_NAMES or "\0" in key:
        return "has a name that cannot be the name of a folder"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("dtype"), str):
        return _NO_DTYPE
    dtype, shape = entry["dtype"], entry.get("shape")
    if dtype not in _OTHER_DTYPES and not _NUMBER.fullmatch(dtype):
        return f"has the dtype {_shown(dtype)}, which LeRobot does not know"
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        return f"has the shape {_shown(shape)}"
    if dtype in VISUAL_DTYPES and len(shape) != 3:
        return f"is an image of shape {shape}, which does not have three axes"
    if dtype not in _OTHER_DTYPES and not 1 <= len(shape) <= _MAX_DIMENSIONS:
        return f"has {len(shape)} axes, but LeRobot stores one to five"
    if math.prod(shape) >= 2**40:
        return f"has the impossible shape {shape}"
    return None


def template_problem(template: object, stream: str) -> str | None:
    """Return why LeRobot's loaders would not find a stream's files by a template, or None."""
    if not isinstance(template, str):
        return "the template is missing"
    wanted = {"chunk_index", "file_index"} | (set() if stream == DATA_STREAM else {"video_key"})
    try:
        fields = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        return str(error)
    if {name for name, _, _ in fields} != wanted:
        return f"it must contain exactly {', '.join(sorted(wanted))}"
    for name, form, conversion in fields:
        allowed = not form if name == "video_key" else _NUMBER_FORMAT.fullmatch(form or "")
        if conversion or not allowed:
            return f"{{{name}}} has a format that is not a number of digits"
    filled = template.format(video_key="camera", chunk_index=1, file_index=2)
    path = PurePosixPath(filled)
    if path.is_absolute() or ".." in path.parts:
        return "it leads out of the dataset"
    if stream == DATA_STREAM and (
        len(path.parts) != 3 or path.parts[0] != "data" or path.suffix != ".parquet"
    ):
        return "loaders read only data/*/*.parquet"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


# The ``meta/info.json`` that a conversion writes.


# v2.x has the counts; in v3.0, files and chunks are found by meta/episodes. Tools that say nothing
# are left out.
_DROPPED_KEYS = frozenset({"total_chunks", "total_videos", "tools"})
_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


def converted_info(
    info: Mapping[str, Any],
    totals: Totals,
    *,
    data_file_size_in_mb: float,
    video_file_size_in_mb: float,
    has_videos: bool,
    names: FileNames = USUAL_NAMES,
) -> dict[str, Any]:
    """Return the v3.0 ``info.json`` for a v2.x one.

    The known keys come first, in LeRobot's order; unknown keys follow unchanged. ``info`` is not
    modified.
    """
    rate = fps_number(totals.fps)
    features = written_features(info["features"])
    for feature in features.values():
        # Video features hold the rate among the facts about their encoding.
        if feature.get("dtype") != "video":
            feature["fps"] = rate
    size = info.get("chunks_size")
    known = {
        "codebase_version": V3_VERSION,
        "fps": rate,
        "features": features,
        "total_episodes": totals.episodes,
        "total_frames": totals.frames,
        "total_tasks": totals.tasks,
        "chunks_size": size if type(size) is int and size > 0 else FILES_PER_CHUNK,
        "data_files_size_in_mb": data_file_size_in_mb,
        "video_files_size_in_mb": video_file_size_in_mb,
        "data_path": names.data_path,
        "video_path": names.video_path if has_videos else None,
        "robot_type": info.get("robot_type"),
        "splits": written_splits(info, totals),
    }
    if info.get("tools") is not None:
        known["tools"] = copy.deepcopy(info["tools"])
    return with_other_keys(known, info, _DROPPED_KEYS)


def kept_splits(splits: object, index: IntArray) -> dict[str, str]:
    """Return splits in the result's numbering; values that are no ranges stay unchanged."""
    if not isinstance(splits, Mapping):
        return {}
    kept = {}
    for name, text in splits.items():
        stated = _RANGE.fullmatch(str(text))
        if stated is not None:
            first, stop = np.searchsorted(index, [int(stated[1]), int(stated[2])]).tolist()
            kept[str(name)] = f"{first}:{stop}"
        else:
            kept[str(name)] = text
    return kept


def write_info(root: str | os.PathLike[str], info: Mapping[str, Any]) -> None:
    """Write ``meta/info.json`` below ``root``, formatted as LeRobot formats it."""
    path = Path(root) / INFO_PATH
    make_folders_below(Path(root), path.parent)
    path.write_text(json.dumps(info, indent=4, ensure_ascii=False), encoding="utf-8")


# ``meta/tasks.parquet``: the text of each task, which readers find by row.


SUBTASKS_PATH = "meta/subtasks.parquet"
# The name that pandas gives to a nameless index.
_NAMELESS_INDEX = "__index_level_0__"


def write_tasks(root: str | os.PathLike[str], tasks: Sequence[tuple[int, str]]) -> None:
    """Write ``meta/tasks.parquet`` below ``root``; see `task_table`."""
    table, path = task_table(tasks), Path(root) / TASKS_PATH
    make_folders_below(Path(root), path.parent)
    pq.write_table(table, path)


def task_table(tasks: Sequence[tuple[int, str]]) -> pa.Table:
    """Return tasks, given as index and text, in the form of ``meta/tasks.parquet``.

    pandas reads it as a frame with the column ``task_index`` and the index ``task``.

    Raises:
        SourceError: The task indices are not 0, 1, ..., in any order.
    """
    ordered = sorted((int(index), text) for index, text in tasks)
    indices = [index for index, _ in ordered]
    if indices != list(range(len(ordered))):
        wrong = next(row for row, index in enumerate(indices) if row != index)
        raise SourceError(
            f"The task indices have a gap or a repetition: row {wrong} would hold task "
            f"{indices[wrong]}.",
            next_step="Number the tasks from 0 without gaps, in tasks.jsonl and in the data.",
        )
    schema = pa.schema(
        [pa.field("task_index", pa.int64()), pa.field("task", pa.string())],
        metadata={"pandas": json.dumps(_pandas_metadata())},
    )
    columns = [
        array_of(indices, pa.int64()),
        array_of([text for _, text in ordered], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def read_tasks(root: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Return index and text of each task, in row order."""
    return tasks_in(read_task_table(root), Path(root))


def read_task_table(root: str | os.PathLike[str]) -> pa.Table:
    """Return ``meta/tasks.parquet`` as stored."""
    return _read_table(Path(root) / TASKS_PATH)


def tasks_in(table: pa.Table, root: Path) -> list[tuple[int, str]]:
    """Return index and text of each row of a dataset's table of tasks.

    The texts are the pandas index, whatever its name, as for LeRobot. A table without one has the
    column ``task``, or the nameless index that LeRobot wrote at first.
    """
    texts = pandas_index(table.schema)
    if texts is None:
        texts = _NAMELESS_INDEX if _NAMELESS_INDEX in table.column_names else "task"
    try:
        columns = table.select(["task_index", texts])
    except (KeyError, pa.ArrowException) as error:
        raise unreadable(root / TASKS_PATH, error) from error
    return list(zip(columns.column(0).to_pylist(), columns.column(1).to_pylist(), strict=True))


def _read_table(path: Path) -> pa.Table:
    reader = open_parquet(path)
    try:
        with_unique_names(reader.schema_arrow)
        table = reader.read_all(use_threads=False)
        table.validate(full=True)  # checks that texts are valid
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()
    return table


def read_task_rows(root: Path, info: Mapping[str, Any]) -> tuple[list[str] | None, list[Finding]]:
    """Read the table as LeRobot's readers do: the text is the pandas index, by row.

    Returns:
        The text of each row (None: the table cannot be used), and the findings.
    """
    try:
        table = read_task_table(root)
    except UnreadableSourceError as error:
        code = "unreadable-file" if (root / TASKS_PATH).exists() else "missing-file"
        return None, [found(code, str(error), stream="tasks", path=TASKS_PATH)]
    return check_task_table(table, info)


def read_task_numbers(root: Path) -> list[object]:
    """Return ``task_index`` of each row as stored."""
    numbers: list[object] = read_task_table(root).column("task_index").to_pylist()
    return numbers


def read_subtasks(root: str | os.PathLike[str]) -> list[str]:
    """Return the text of each row of ``meta/subtasks.parquet``; empty if there is no such table.

    LeRobot 0.4.4 to 0.5.1 used ``subtask_index`` as the row, and the row's pandas index as text.
    """
    path = Path(root) / SUBTASKS_PATH
    if not path.exists():
        return []
    table = _read_table(path)
    index = pandas_index(table.schema)
    return [str(row) for row in (table if index is None else table.column(index)).to_pylist()]


def check_task_table(
    table: pa.Table, info: Mapping[str, Any]
) -> tuple[list[str] | None, list[Finding]]:
    """Return the result of `read_task_rows` for a table that was read."""
    findings: list[Finding] = []

    def wrong(code: str, message: str, severity: str | None = None) -> None:
        findings.append(found(code, message, stream="tasks", path=TASKS_PATH, severity=severity))

    index = pandas_index(table.schema)
    if index is None or "task_index" not in table.column_names:
        wrong(
            "tasks-layout",
            f"The columns are {table.column_names}. The pandas index with the texts is missing.",
        )
        return None, findings
    texts = table.column(index).to_pylist()
    if not all(isinstance(text, str) for text in texts):
        wrong("tasks-layout", f"The index {index!r} does not consist of texts.")
        return None, findings
    numbers = floats(table.column("task_index").combine_chunks())
    rows = list(range(len(texts)))
    if numbers is None:
        kind = table.schema.field("task_index").type
        wrong("tasks-order", f"task_index has the type {kind}, or is missing in some rows.")
    elif numbers.tolist() != rows:
        row = next(row for row in rows if numbers[row] != row)
        wrong("tasks-order", f"Row {row} has task_index {numbers[row]:g}.")
    first_row: dict[str, int] = {}
    for row, text in enumerate(texts):
        if first_row.setdefault(text, row) != row:
            wrong("task-duplicate", f"Rows {first_row[text]} and {row} are both {text[:60]!r}.")
    declared = info.get("total_tasks")
    if declared != len(texts):
        # LeRobot opens the table only if the total says that there are tasks.
        message = f"total_tasks is {declared!r}, but there are {len(texts)} tasks."
        is_number = isinstance(declared, int | float) and declared > 0
        severity = "warning" if is_number else "error"
        findings.append(found("stale-total", message, path=INFO_PATH, severity=severity))
    return texts, findings


def _pandas_metadata() -> dict[str, Any]:
    """Return the description of the frame for pandas, with the key order of pandas' writers."""

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    return {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
    }


def pandas_index(schema: pa.Schema) -> str | None:
    """Return the column that pandas takes as index; None if it is not one column of texts."""
    try:
        described = json.loads((schema.metadata or {})[b"pandas"])
        names = described["index_columns"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        return None
    at = schema.get_field_index(names[0])
    if at < 0:
        return None
    kind = schema.field(at).type
    return names[0] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


# ``meta/repairs.json``: a conversion's changes other than of format; absent if there are none.


_FORMAT = "leconvert/repairs"
# Version 1 has fewer fields; the missing ones have the values of an unchanged source. Results with
# selected episodes have version 3, because older readers would miss the others. Trimmed episodes
# have version 4, renamed features version 5, cast columns version 6, v3.0 sources that are read
# otherwise than they say version 7.
_KNOWN_VERSIONS = (1, 2, 3, 4, 5, 6, 7)


def write_repairs(root: str | os.PathLike[str], repairs: Repairs) -> None:
    """Write the record below ``root``, whose ``meta`` folder exists."""
    version = 2 if repairs.selected_episodes is None else 3
    version = 4 if repairs.trimmed_episodes else version
    version = 5 if repairs.renamed_features else version
    version = 6 if repairs.cast_columns else version
    reads_v3 = repairs.path_templates or repairs.derived_tables
    version = 7 if reads_v3 or repairs.assumed_version == V3_VERSION else version
    record = {"format": _FORMAT, "version": version, **repairs.as_record()}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (Path(root) / REPAIRS_PATH).write_text(text, encoding="utf-8")


def read_meta_record[Record](
    path: Path,
    format_name: str,
    versions: Sequence[int],
    parse: Callable[[Mapping[str, Any]], Record],
    *,
    next_step: str,
) -> Record | None:
    """Return the content of a versioned record; None if there is no such file.

    Args:
        path: The file.
        format_name: Its ``format``.
        versions: The known versions.
        parse: Makes the content from the JSON object.
        next_step: The next step for an error.

    Raises:
        UnreadableSourceError: The file is damaged or of an unknown version.
    """
    try:
        record = read_json_object(path)
        if record["format"] != format_name or record["version"] not in versions:
            raise ValueError(f"it is {record['format']} version {record['version']}")
        return parse(record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.", path=str(path), next_step=next_step
        ) from error


def read_repairs(root: str | os.PathLike[str]) -> Repairs:
    """Return the changes of the dataset below ``root``; `NO_REPAIRS` without a record."""
    repairs = read_meta_record(
        Path(root) / REPAIRS_PATH,
        _FORMAT,
        _KNOWN_VERSIONS,
        Repairs.from_record,
        next_step="Convert again, or use the version of leconvert that wrote it.",
    )
    return NO_REPAIRS if repairs is None else repairs
