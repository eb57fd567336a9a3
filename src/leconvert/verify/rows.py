"""One data file of a result against the parquet files that it was joined from."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.arrow import is_list
from leconvert.errors import UnreadableSourceError
from leconvert.repairs import DEFAULT_COLUMNS, Repairs
from leconvert.source.info import DatasetInfo
from leconvert.verify.data_footer import wrong_extremes
from leconvert.verify.difference import Difference
from leconvert.verify.metadata import same_statistic
from leconvert.verify.same_bytes import first_difference, naming
from leconvert.verify.shown_values import shown_value
from leconvert.verify.stored_types import as_stored
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["RowRules", "RowSpan", "compare_rows", "expected_rows", "same_values"]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One episode's rows.

    Attributes:
        episode: Its index in the source.
        length: Its rows.
        source: The parquet file it came from.
        position: Its place in the result.
        first_index: Place of its first row in the result.
        row_group: Place of its row group in the file.
    """

    episode: int
    length: int
    source: str
    position: int
    first_index: int
    row_group: int


@dataclass(frozen=True, slots=True, eq=False)
class RowRules:
    """What rows must be, beside copies.

    Attributes:
        info: The source's ``info.json``.
        repairs: What the conversion changed.
        computed_stats: Gives the statistics of ``meta/episodes`` that it computed, columns
            ``stats/<feature>/<name>``, of the episode at a position of the result.
        task_of: Gives the result's index of the task that ``episodes.jsonl`` lists for an episode
            of the source; None where it lists another number of them.
    """

    info: DatasetInfo
    repairs: Repairs
    computed_stats: Callable[[int], Mapping[str, Any]]
    task_of: Callable[[int], int | None]

    @property
    def decodes(self) -> bool:
        """Whether rows must be decoded even where they are copies."""
        return bool(self.repairs.change_rows or self.computed_features)

    @property
    def computed_features(self) -> list[str]:
        """Features whose statistics are computed again from rows."""
        cameras = self.info.camera_keys
        return [name for name in self.repairs.computed_stats if name not in cameras]


def compare_rows(
    path: str,
    table: tables.StoredGroups,
    spans: Iterable[RowSpan],
    rules: RowRules,
    *,
    read_rows: bool,
) -> Iterator[Difference]:
    """Yield whatever in some episodes of one data file is not their rows, one row group an episode.

    A row group that was copied as it stood is compared as bytes; only where these differ, or a
    repair changed rows, are both sides decoded. See `leconvert.tables.StoredGroups` for what equal
    bytes prove. One that had to be a copy and is none differs even where its values are equal:
    another reader may see others.

    Args:
        path: The file, relative to the result.
        table: It; it has a row group for each of its episodes.
        spans: Some of its episodes.
        rules: What the conversion changed.
        read_rows: Compare every value too, not only the number of rows.

    Raises:
        UnreadableSourceError: A table of the source cannot be read.
    """

    def differs(what: str, expected: object, found: object, span: RowSpan) -> Difference:
        return Difference(what, path, str(expected), str(found), span.episode, "data")

    file: pq.ParquetFile | None = None
    copies: tables.DueCopies | None = None
    with ExitStack() as opened:
        stored = opened.enter_context(open(table.path, "rb", buffering=0)) if read_rows else None  # noqa: PTH123
        for span in spans:
            rows = table.rows[span.row_group]
            if rows != span.length:
                yield differs("rows", span.length, rows, span)
                continue
            if stored is None or (not rules.decodes and _is_copy(table, span, stored.fileno())):
                continue
            try:
                file = file or opened.enter_context(pq.ParquetFile(table.path))
                found = file.read_row_group(span.row_group, use_threads=False)
            except (OSError, pa.ArrowException) as error:
                raise_storage_trouble(error, table.path)
                yield differs("readable row group", "rows", error, span)
                continue
            is_same = True
            for what, expected, seen in itertools.chain(
                _compare_columns(span, found, rules),
                _compare_stats(span, found, rules),
                wrong_extremes(file.metadata.row_group(span.row_group), found),
            ):
                is_same = False
                yield differs(what, expected, seen, span)
            if is_same and not rules.decodes and tables.DueCopies.can_say(file.metadata.created_by):
                copies = copies or tables.DueCopies(file.schema_arrow)
                if copies.is_due(span.source, span.length):
                    what = "stored form of the row group"
                    yield differs(what, "the source's bytes", "other bytes of equal values", span)


def _is_copy(table: tables.StoredGroups, span: RowSpan, stored: int) -> bool:
    """Tell whether a row group's bytes are those of its source."""
    with tables.OpenedTable(span.source) as source:
        ranges = table.copied_from(span.row_group, source)
        if ranges is None:
            return False
        theirs, ((begin, size),) = ranges
        if source.whole is None:
            paths = (source.path, table.path)
            ours = [(begin, size)]
            return first_difference(source.descriptor, theirs, stored, ours, paths=paths) is None
        pages = b"".join([source.whole[first : first + length] for first, length in theirs])
        with naming(table.path):
            return pages == os.pread(stored, size, begin)


def _compare_columns(
    span: RowSpan, found: pa.Table, rules: RowRules
) -> Iterator[tuple[str, object, object]]:
    expected = expected_rows(span, rules, found.schema)
    if sorted(expected.column_names) != sorted(found.column_names):
        yield "columns", expected.column_names, found.column_names
        return
    expected = as_stored(expected, found.schema, span.source)
    for name in expected.column_names:
        ours = found.column(name).combine_chunks()
        theirs = expected.column(name).combine_chunks()
        if not same_values(theirs, ours):
            row = _first_difference(theirs, ours)
            place = f"column {name!r}, row {row}"
            yield place, shown_value(theirs, row), shown_value(ours, row)


def expected_rows(span: RowSpan, rules: RowRules, found: pa.Schema | None = None) -> pa.Table:
    """Return an episode's rows as the source and the repairs demand them.

    Args:
        span: The episode.
        rules: What the conversion changed.
        found: The schema of the result, whose types repaired columns may have.

    Raises:
        UnreadableSourceError: The source cannot be read.
    """
    try:
        with pq.ParquetFile(span.source) as file:
            expected = file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableSourceError(
            f"The parquet file {span.source} cannot be read: {error}.", path=span.source
        ) from error
    if rules.repairs.change_rows:
        return _repaired(expected, span, rules, pa.schema([]) if found is None else found)
    return expected


def _repaired(table: pa.Table, span: RowSpan, rules: RowRules, found: pa.Schema) -> pa.Table:
    """Return the rows as the repairs demand them, found in another way than the worker's."""
    repairs, fps = rules.repairs, rules.info.fps
    columns = {name: table.column(name) for name in table.column_names}
    for name in repairs.dropped_features:
        columns.pop(name, None)
    for name in repairs.unwrapped_columns:
        if name in columns and is_list(columns[name].type):
            values = [None if row is None else row[0] for row in columns[name].to_pylist()]
            columns[name] = pa.chunked_array([pa.array(values, columns[name].type.value_type)])
    rows = range(span.length)
    demanded: dict[str, list[int] | list[float]] = {
        "timestamp": [row * fps.denominator / fps.numerator for row in rows],
        "frame_index": list(rows),
        "episode_index": [span.position] * span.length,
        "index": [span.first_index + row for row in rows],
        "task_index": [0] * span.length,
    }
    if repairs.task_map is not None and "task_index" in columns:
        tasks = columns["task_index"].to_pylist()
        demanded["task_index"] = [repairs.task_map.get(task, -1) for task in tasks]
    own = rules.task_of(span.episode) if repairs.tasks_from else None
    if own is not None:
        demanded["task_index"] = [own] * span.length
    maps = bool(repairs.task_map) or own is not None
    changed = [*repairs.computed_columns, *(["task_index"] if maps else [])]
    for name in repairs.task_columns:
        task_map = repairs.task_map or {}
        values = [task_map.get(task, -1) for task in columns[name].to_pylist()]
        columns[name] = pa.chunked_array([pa.array(values).cast(columns[name].type, safe=False)])
    for name in changed:
        # A stored type that cannot hold the values gives way to LeRobot's.
        kind = pa.type_for_alias(DEFAULT_COLUMNS[name])
        if name in columns and name in found.names and found.field(name).type != kind:
            kind = columns[name].type
        columns[name] = pa.chunked_array([pa.array(demanded[name]).cast(kind, safe=False)])
    return pa.table(columns)


def _compare_stats(
    span: RowSpan, found: pa.Table, rules: RowRules
) -> Iterator[tuple[str, object, object]]:
    """Compute again what the conversion computed of these rows, and compare."""
    computes = rules.repairs.computes_stats
    names = [name for name in rules.computed_features if computes(name, span.episode)]
    if not names:
        return
    stats = rules.computed_stats(span.position)
    from leconvert.statistics import table_stats  # decoders of images: only where there is need

    expected = table_stats(
        found,
        rules.repairs.features(rules.info.features),
        names=names,
        quantiles=rules.repairs.quantiles,
    )
    for feature, values in expected.items():
        for name, value in values.items():
            column = f"stats/{feature}/{name}"
            have = stats.get(column)
            if not same_statistic(value, have):
                yield column, value, have


def _first_difference(expected: pa.Array, found: pa.Array) -> int:
    low, high = 0, max(len(expected), len(found))
    while low < high:  # the longest equal head, by bisection
        middle = (low + high + 1) // 2
        if same_values(expected.slice(0, middle), found.slice(0, middle)):
            low = middle
        else:
            high = middle - 1
    return low


def same_values(expected: pa.Array, found: pa.Array) -> bool:
    """Tell whether two arrays hold the same values bit by bit.

    Floats are compared by their bits, so NaN equals NaN and 0.0 does not equal -0.0. A list of
    fixed size equals one of variable size with the same values.
    """
    if len(expected) != len(found) or expected.null_count != found.null_count:
        return False
    if expected.null_count:
        if not expected.is_null().equals(found.is_null()):
            return False
        expected, found = expected.drop_null(), found.drop_null()
    if is_list(expected.type):
        import pyarrow.compute as pc  # costs a conversion that reads no rows 50 ms

        return bool(
            is_list(found.type)
            and pc.list_value_length(expected)
            .cast(pa.int64())
            .equals(pc.list_value_length(found).cast(pa.int64()))
            and same_values(pc.list_flatten(expected), pc.list_flatten(found))
        )
    if pa.types.is_struct(expected.type):
        names = [field.name for field in expected.type]
        return bool(
            pa.types.is_struct(found.type)
            and names == [field.name for field in found.type]
            and all(
                same_values(left, right)
                for left, right in zip(expected.flatten(), found.flatten(), strict=True)
            )
        )
    if expected.type != found.type:
        return False
    if pa.types.is_floating(expected.type):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[expected.type.bit_width]
        expected, found = expected.view(bits), found.view(bits)
    return bool(expected.equals(found))
