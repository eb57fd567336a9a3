"""One data file of a v3.0 dataset: schema, row groups, and the five columns that place a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.arrow import floats, integers
from leconvert.check.meta import Ranges, RoutedFile
from leconvert.findings import found
from leconvert.formats.v3 import Declared, EpisodeTable
from leconvert.model import DATA_STREAM, Finding, IntArray
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.tables.lerobot_reader import NUMBER_DTYPES, dtype_name, read_by_lerobot
from leconvert.tables.schemas import HUGGINGFACE_KEY

__all__ = ["DataFileReport", "check_data_file", "check_schema"]


# ------------------------------------------------------------------------------------------------
# The rows of one data file: the five columns that say which frame of which episode a row is.


ROWS_AT_A_TIME = 1 << 16
"""Rows of five columns that are held at a time."""

_TOLERANCE_SECONDS = 1e-4
_CODES = {
    "index": "index-column",
    "episode_index": "episode-column",
    "frame_index": "frame-column",
    "timestamp": "timestamp-column",
    "task_index": "task-column",
}


@dataclass(slots=True)
class _Wrong:
    """The rows of one column that are wrong: how many, and the first."""

    count: int = 0
    episode: int = 0
    said: str = ""


class RowCheck:
    """Compares blocks of rows with what their place in the file demands.

    Args:
        routed: The file and its episodes.
        table: What meta/episodes says.
        ranges: The rows of each episode; the file must have as many as its episodes.
        declared: What info.json declares.
        num_tasks: Number of tasks, None where unknown.
    """

    def __init__(
        self,
        routed: RoutedFile,
        table: EpisodeTable,
        ranges: Ranges,
        declared: Declared,
        num_tasks: int | None,
    ) -> None:
        self._routed = routed
        self._table = table
        self._start = ranges.start[routed.episodes]
        self._length = ranges.length[routed.episodes]
        self._ends = np.cumsum(self._length)
        self._fps = float(declared.fps)
        self._num_tasks = num_tasks
        self._has_video = bool(declared.cameras)
        self._wrong: dict[str, _Wrong] = {}
        self._tasks_seen: dict[int, set[int]] = {}
        self._tasks_differ = _Wrong()
        self._untimed: list[IntArray] = []

    @property
    def untimed(self) -> IntArray:
        """Episodes with timestamps that are not ``i / fps``, as far as rows were compared."""
        if not self._untimed:
            return np.empty(0, np.int64)
        together: IntArray = np.concatenate(self._untimed)
        return np.unique(together)

    def check(self, file: pq.ParquetFile) -> Iterator[Finding]:
        """Yield a finding for each column that is wrong somewhere: how often, and where first."""
        names = [name for name in DEFAULT_COLUMNS if name in file.schema_arrow.names]
        row = 0
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=names, use_threads=False):
            self._add(row, batch)
            row += batch.num_rows
        self._close_tasks(len(self._length))
        for name, code in _CODES.items():
            wrong = self._wrong.get(name)
            if wrong is not None:
                # Without videos nothing is looked up by time.
                mild = name == "timestamp" and not self._has_video
                yield found(
                    code,
                    f"{self._routed.path}: {wrong.count:,} rows, first {wrong.said}.",
                    episode=wrong.episode,
                    stream=DATA_STREAM,
                    path=self._routed.path,
                    severity="warning" if mild else None,
                )
        if self._tasks_differ.count:
            yield found(
                "episode-tasks",
                f"{self._tasks_differ.count:,} episodes, first {self._tasks_differ.said}.",
                episode=self._tasks_differ.episode,
                stream="episodes",
                path=self._routed.path,
            )

    def _add(self, first_row: int, batch: pa.RecordBatch) -> None:
        rows = np.arange(first_row, first_row + batch.num_rows)
        place = np.searchsorted(self._ends, rows, side="right")
        frame = rows - (self._ends[place] - self._length[place])
        expected = {
            "index": self._start[place] + frame,
            "episode_index": self._routed.episodes[place],
            "frame_index": frame,
        }
        for name, wanted in expected.items():
            values = self._integers(batch, name, place, frame)
            if values is not None:
                self._note(name, values != wanted, values, wanted, place, frame)
        self._check_times(batch, place, frame)
        tasks = self._integers(batch, "task_index", place, frame)
        if tasks is None or self._num_tasks is None:
            return
        bad = ~((tasks >= 0) & (tasks < self._num_tasks) & (tasks == np.rint(tasks)))
        self._note("task_index", bad, tasks, None, place, frame)
        if not bad.any():
            self._gather_tasks(place, tasks)

    def _check_times(self, batch: pa.RecordBatch, place: IntArray, frame: IntArray) -> None:
        at = batch.schema.get_field_index("timestamp")
        if at < 0:
            return
        seconds = floats(batch.column(at))
        if seconds is None:
            if batch.column(at).null_count:
                self._unusable("timestamp", place, frame)
                self._untimed.append(self._routed.episodes[np.unique(place)])
            return
        # Single precision is coarser than the tolerance from 2,048 s on: the time that it stores
        # for i / fps is right wherever it is.
        wanted = (frame / self._fps).astype(np.float32).astype(np.float64)
        off = ~(np.abs(seconds - wanted) < _TOLERANCE_SECONDS)
        if off.any():
            self._untimed.append(self._routed.episodes[np.unique(place[off])])
        self._note("timestamp", off, seconds, wanted, place, frame)

    def _integers(
        self, batch: pa.RecordBatch, name: str, place: IntArray, frame: IntArray
    ) -> npt.NDArray[Any] | None:
        at = batch.schema.get_field_index(name)
        if at < 0:
            return None
        column = batch.column(at)
        values: npt.NDArray[Any] | None = integers(column)
        if pa.types.is_floating(column.type):  # LeRobot casts them, where they are whole
            values = floats(column)
        if values is None and (column.null_count or pa.types.is_integer(column.type)):
            self._unusable(name, place, frame)  # another type is a finding of its own
        return values

    def _unusable(self, name: str, place: IntArray, frame: IntArray) -> None:
        everywhere = np.ones(len(place), np.bool_)
        values = np.full(len(place), np.nan)
        self._note(name, everywhere, values, None, place, frame, said="values are missing")

    def _note(
        self,
        name: str,
        bad: npt.NDArray[np.bool_],
        values: npt.NDArray[Any],
        wanted: npt.NDArray[Any] | None,
        place: IntArray,
        frame: IntArray,
        said: str | None = None,
    ) -> None:
        count = int(np.count_nonzero(bad))
        if not count:
            return
        wrong = self._wrong.get(name)
        if wrong is None:
            at = int(np.argmax(bad))
            episode = int(self._routed.episodes[place[at]])
            shown = said or f"it is {values[at]}"
            if wanted is not None:
                shown += f" and not {wanted[at]}"
            wrong = self._wrong[name] = _Wrong(
                0, episode, f"frame {frame[at]} of episode {episode}, where {shown}"
            )
        wrong.count += count

    def _gather_tasks(self, place: IntArray, tasks: npt.NDArray[Any]) -> None:
        """Collect the tasks of each episode; one that is complete is compared and forgotten."""
        if not len(self._table.task_ends):
            return
        changes = np.flatnonzero((np.diff(place) != 0) | (np.diff(tasks) != 0)) + 1
        for at in [0, *changes.tolist()]:
            self._tasks_seen.setdefault(int(place[at]), set()).add(int(tasks[at]))
        self._close_tasks(int(place[-1]))

    def _close_tasks(self, below: int) -> None:
        for place in [place for place in self._tasks_seen if place < below]:
            seen = self._tasks_seen.pop(place)
            episode = int(self._routed.episodes[place])
            listed = self._table.tasks_of(episode)
            if listed != seen:
                if not self._tasks_differ.count:
                    self._tasks_differ.episode = episode
                    self._tasks_differ.said = (
                        f"episode {episode}: its rows have the tasks {sorted(seen)}, "
                        f"meta/episodes lists {_listed(listed)}"
                    )
                self._tasks_differ.count += 1


def _listed(tasks: set[int]) -> str:
    return str(
        [task if task >= 0 else "one that is not in tasks.parquet" for task in sorted(tasks)]
    )


# ------------------------------------------------------------------------------------------------
# The schema of a data file against what info.json declares.


def check_schema(schema: pa.Schema, declared: Declared, path: str) -> Iterator[Finding]:
    """Yield columns that are missing, too many, or of another type.

    What LeRobot casts without a word (another width of number, a list of any length) is a warning
    or nothing, the rest an error: its loader passes the declared types to `datasets`, which raises.
    """

    def wrong(code: str, message: str, *, severity: str | None = None) -> Finding:
        return found(code, message, stream=DATA_STREAM, path=path, severity=severity)

    features = declared.features
    stored = {key: feature for key, feature in features.items() if feature.dtype != "video"}
    missing = sorted(stored.keys() - set(schema.names))
    extra = sorted(set(schema.names) - declared.names | set(schema.names) & set(declared.cameras))
    if missing:
        yield wrong("data-columns", f"There is no column {', '.join(map(repr, missing))}.")
    if extra:
        yield wrong("data-columns", f"info.json does not declare {', '.join(map(repr, extra))}.")
    if len(set(schema.names)) < len(schema.names):
        yield wrong("data-columns", "Two columns have the same name.")
        return
    entries = _dataset_entries(schema)
    for name in schema.names:
        if name not in stored:
            continue
        feature, kind = stored[name], schema.field(name).type
        reading = read_by_lerobot(name, feature.raw, kind)
        if feature.dtype == "image":
            if reading.verdict != "exact":
                yield wrong("data-types", f"The image {name!r} is stored as {kind}.")
            elif not _says_image(entries.get(name)):
                yield wrong("image-metadata", f"The entry of {name!r} is {entries.get(name)!r}.")
        elif reading.verdict != "exact":
            # Texts that happen to be numbers, and numbers as texts, are cast too; nobody means it.
            is_alike = {feature.dtype, dtype_name(kind)} <= NUMBER_DTYPES
            declared_as = f"{feature.dtype} of shape {list(feature.shape)}"
            yield wrong(
                "data-types",
                f"{name!r} is declared as {declared_as} and stored as {plain_type(kind)}.",
                severity="warning" if is_alike and reading.verdict == "cast" else "error",
            )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type, and other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _dataset_entries(schema: pa.Schema) -> Mapping[str, Any]:
    """Return what the file tells `datasets` about its columns."""
    try:
        entries = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _says_image(entry: object) -> bool:
    return isinstance(entry, Mapping) and entry.get("_type") == "Image"


# ------------------------------------------------------------------------------------------------
# One data file of a v3.0 dataset: schema, row groups, and the five columns that place a row.


@dataclass(slots=True)
class DataFileReport:
    """What a look at one data file gives.

    Attributes:
        findings: What is wrong with it.
        columns: Names and types of its columns; None where it could not be read, or they are a
            finding of their own.
        untimed: Episodes whose timestamps are wrong, so that nothing can be said of their video
            frames; None where rows were not compared.
    """

    findings: list[Finding] = field(default_factory=list)
    columns: tuple[tuple[str, str], ...] | None = None
    untimed: IntArray | None = None


def check_data_file(
    root: Path,
    routed: RoutedFile,
    table: EpisodeTable,
    ranges: Ranges,
    declared: Declared,
    num_tasks: int | None,
) -> DataFileReport:
    """Check one data file; memory is bounded by a block of rows of five columns, and its footer."""
    report = DataFileReport()
    path = routed.path
    if not (root / path).exists():
        first = int(routed.episodes[0])
        message = f"{path} is not there; {len(routed.episodes):,} episodes are in it."
        report.findings.append(
            found("missing-file", message, episode=first, stream=DATA_STREAM, path=path)
        )
        return report
    try:
        with pq.ParquetFile(root / path) as file:
            schema = file.schema_arrow
            report.findings += check_schema(schema, declared, path)
            if not report.findings:
                report.columns = tuple((item.name, str(plain_type(item.type))) for item in schema)
            lengths = ranges.length[routed.episodes]
            if file.metadata.num_rows == int(lengths.sum()):
                report.findings += _row_group_findings(file, routed, lengths)
                rows = RowCheck(routed, table, ranges, declared, num_tasks)
                report.findings += rows.check(file)
                report.untimed = rows.untimed
            else:
                report.findings.append(_wrong_rows(file, routed, lengths))
    except (OSError, ValueError, pa.ArrowException) as error:
        message = f"{path} cannot be read: {error}"
        report.findings.append(found("unreadable-file", message, stream=DATA_STREAM, path=path))
    return report


def _row_group_findings(
    file: pq.ParquetFile, routed: RoutedFile, lengths: IntArray
) -> Iterator[Finding]:
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    if [group.num_rows for group in groups] == lengths.tolist():
        return
    largest = max(groups, key=lambda group: group.total_byte_size)
    message = (
        f"{routed.path} has {len(lengths):,} episodes of {lengths.mean():,.0f} rows on average, "
        f"and row groups of up to {largest.num_rows:,} rows, "
        f"{largest.total_byte_size / 2**20:,.1f} MiB ({len(groups):,} in all)."
    )
    yield found("row-groups", message, stream=DATA_STREAM, path=routed.path)


def _wrong_rows(file: pq.ParquetFile, routed: RoutedFile, lengths: IntArray) -> Finding:
    """Say which episode has another number of rows, as far as its column tells."""
    rows, wanted = file.metadata.num_rows, int(lengths.sum())
    episode, detail = None, ""
    counts = _rows_of_episodes(file, routed)
    if counts is not None and not np.array_equal(counts, lengths):
        first = int(np.argmax(counts != lengths))
        episode = int(routed.episodes[first])
        detail = f"; episode {episode} has {counts[first]:,} of {lengths[first]:,}"
    message = f"{routed.path} has {rows:,} rows, its episodes have {wanted:,}{detail}."
    return found("rows", message, episode=episode, stream=DATA_STREAM, path=routed.path)


def _rows_of_episodes(file: pq.ParquetFile, routed: RoutedFile) -> IntArray | None:
    """Count each episode's rows by their column; None where it does not tell of every row."""
    if "episode_index" not in file.schema_arrow.names:
        return None
    counts = np.zeros(len(routed.episodes), np.int64)
    for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["episode_index"], use_threads=False):
        values = integers(batch.column(0))
        if values is None:
            return None
        at = np.searchsorted(routed.episodes, values)
        at[at == len(counts)] = 0
        counts += np.bincount(at[routed.episodes[at] == values], minlength=len(counts))
    return counts
