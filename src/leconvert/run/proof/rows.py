"""One data file of a result against the parquet files that it was made from.

A file is proven in one of three ways. A file that is unchanged from the source (`KeptTable`) must
only be valid for the result. A row group that was copied unchanged is compared as bytes. Rows that
were encoded again or repaired are read on both sides; here they are repaired in another way than
the worker's.

The columns of a file and the values in its footer are compared as well. Readers rely on them
without reading a row: `datasets` takes types and images from the schema, and readers that filter
rows skip row groups by the least and greatest value in the footer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, IntArray
from leconvert.run.proof.difference import (
    Difference,
    OpenFile,
    Said,
    differences_of,
    differing_bytes,
    first_difference,
    first_differing_row,
    is_as_long,
    same_statistic,
    same_values,
)
from leconvert.run.proof.expected import Expected
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.tables.arrow import array_of, is_list
from leconvert.tables.join import holds_bytes
from leconvert.tables.schemas import HUGGINGFACE_KEY, stored_entries

# Parquet's own numbers of fields, which Arrow shows as metadata.
_FIELD_ID = b"PARQUET:field_id"


class DataSchemas:
    """The schemas that data files of the result may have, derived from the source.

    Episodes whose columns can be converted to those of the others may differ slightly, and the
    result has the schema of most episodes. So a schema is right if any episode of the source gives
    it. The others are looked at only if the file's own first episode does not give it. Threads may
    share it.

    Args:
        expected: The sources.
        list_entry: See `leconvert.tables.output_schema`.
    """

    def __init__(self, expected: Expected, list_entry: str) -> None:
        self._list_entry = list_entry
        self._features = expected.sources.features
        self.expected = expected
        self._lock = threading.Lock()
        self._known: list[_Columns] = []
        self._is_complete = False
        # The source's file that was read last. Many consecutive episodes may be in it, and mostly
        # the next file has the same columns.
        self._last_path: tuple[str, pa.Schema] | None = None
        self._last: tuple[pa.Schema, Repairs, pa.Schema] | None = None
        self._right: tuple[pa.Schema, pa.Schema, bool] | None = None

    def of(self, position: int) -> pa.Schema:
        """Return the schema of a file that is made from one episode."""
        path, last = self.expected.path(DATA_STREAM, position), self._last_path
        if last is not None and last[0] == path:
            return last[1]
        given = self.given(tables.read_data_schema(path), position)
        self._last_path = path, given
        return given

    def given(self, stored: pa.Schema, position: int) -> pa.Schema:
        """Return the schema of a file that is made from one episode, given its source's schema."""
        repairs, last = self.expected.source_of(position).repairs, self._last
        if (
            last is not None
            and last[1] is repairs
            and (stored is last[0] or stored.equals(last[0], check_metadata=True))
        ):
            return last[2]
        source = tables.repaired_schema(stored, repairs)
        given = tables.output_schema(source, self._features, list_entry=self._list_entry)
        self._last = stored, repairs, given
        return given

    def differences(
        self, found: pa.Schema, wanted: pa.Schema, *, is_kept: bool
    ) -> list[tuple[str, object, object]]:
        """Return the differences of a file's columns, given the schema of its first episode.

        Columns of the last right file are not compared again. A kept file may hold its columns in
        another order and form.
        """
        last = self._right
        if (
            last is not None
            and last[1] is wanted
            and last[2] == is_kept
            and (found is last[0] or bool(found.equals(last[0], check_metadata=True)))
        ):
            return []
        differences: list[tuple[str, object, object]] = []
        if is_kept and not tables.holds_columns_of(found, wanted):
            theirs, ours = (
                [f"{each.name}: {each.type}" for each in schema] for schema in (wanted, found)
            )
            differences.append(("columns", theirs, ours))
        elif not is_kept:
            have, demanded = _columns_of(found), _columns_of(wanted)
            if not (_same(have, demanded) or self._allow(have)):
                differences += _schema_differences(demanded, have)
        differences += self._unreadable(found)
        if not differences:
            self._right = found, wanted, is_kept
        return differences

    def _unreadable(self, found: pa.Schema) -> Said:
        """Yield columns that LeRobot would not read as the result's ``info.json`` declares them."""
        for name, feature in self._features.items():
            if feature["dtype"] == "video":
                continue
            what = f"column {name!r} that LeRobot reads"
            wanted = f"{feature['dtype']} of shape {feature.get('shape')}"
            if name not in found.names:
                yield what, wanted, "none"
                continue
            kind = found.field(name).type
            if tables.read_by_lerobot(name, feature, kind).verdict == "refused":
                yield what, wanted, kind
        for name in found.names:
            if name not in self._features or self._features[name]["dtype"] == "video":
                yield f"column {name!r}", "only declared columns", "this column"

    def _allow(self, found: _Columns) -> bool:
        """Return whether episodes of the source give a file's columns, each by any of them.

        If files of the source hold a column in two types, the result has the wider type.
        """
        with self._lock:
            if not self._is_complete:
                for position in range(len(self.expected)):
                    columns = _columns_of(self.of(position))
                    if not any(_same(columns, known) for known in self._known):
                        self._known.append(columns)
                self._is_complete = True
        alike = [known for known in self._known if _same(found, known, but_types=True)]
        return bool(alike) and all(
            any(
                (each.kinds[name], each.told.get(name)) == (kind, found.told.get(name))
                for each in alike
            )
            for name, kind in found.kinds.items()
        )


def compare_footer(
    path: str, file: tables.StoredGroups, schemas: DataSchemas, first: int, stop: int
) -> Iterator[Difference]:
    """Yield differences in a data file's columns and types, and in the positions of its row groups.

    The file holds the episodes from position ``first`` to ``stop``.

    A file whose row groups are not its episodes passes here: `compare_rows` reports it.
    """
    of_columns = schemas.differences(file.schema, schemas.of(first), is_kept=False)
    yield from differences_of(of_columns, path, stream=DATA_STREAM)
    episodes = schemas.expected
    lengths, begins = episodes.length[first:stop].tolist(), episodes.begins[first:stop].tolist()
    if file.rows != lengths:
        return
    groups = zip(range(first, stop), lengths, begins, file.extremes(), strict=True)
    for position, length, begin, stated in groups:
        demanded = {"index": (begin, begin + length - 1), "episode_index": (position, position)}
        if demanded.items() <= stated.items():
            continue
        for column, values in demanded.items():
            if stated.get(column, values) != values:
                what, have = _stated(column), str(stated[column])
                episode = int(episodes.index[position])
                yield Difference(what, path, str(values), have, episode, DATA_STREAM)


def wrong_extremes(group: pq.RowGroupMetaData, rows: pa.Table) -> Said:
    """Yield column, actual and stated extremes if a row group's footer is too narrow."""
    import pyarrow.compute as pc  # takes 50 ms, which conversions without rows need not spend

    for number in range(group.num_columns):
        chunk = group.column(number)
        name, stated = chunk.path_in_schema, chunk.statistics
        at = rows.schema.get_field_index(name)
        kind = None if at < 0 else rows.schema.field(at).type
        is_number = kind is not None and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )
        if stated is None or not stated.has_min_max or not is_number:
            continue
        column, bounds = rows.column(at), (stated.min, stated.max)
        # Arrow cannot compare them, and returns the bounds as bytes
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
            bounds = tuple(np.frombuffer(b"".join(bounds), "<f2").tolist())
        actual = pc.min_max(column).as_py()
        least, greatest = actual["min"], actual["max"]
        # A comparison with NaN, or without values, proves nothing.
        if least is not None and (least < bounds[0] or greatest > bounds[1]):
            yield _stated(name), (least, greatest), bounds


def _stated(column: str) -> str:
    return f"least and greatest {column!r} by the footer"


class _Columns(NamedTuple):
    """The columns of a schema, without the names of list elements and Parquet's own numbers.

    Attributes:
        names: The columns, in order.
        kinds: The type of each column, whether it may be null, and its metadata.
        told: The entries for `datasets`.
        others: Further metadata.
    """

    names: Sequence[str]
    kinds: Mapping[str, tuple[pa.DataType, bool, Mapping[bytes, bytes]]]
    told: Mapping[str, Any]
    others: Mapping[bytes, bytes]


def _columns_of(schema: pa.Schema) -> _Columns:
    kinds = {}
    for field in schema:
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != _FIELD_ID}
        kinds[field.name] = field.type, field.nullable, metadata
    others = {
        key: value for key, value in (schema.metadata or {}).items() if key != HUGGINGFACE_KEY
    }
    return _Columns(schema.names, kinds, stored_entries(schema), others)


def _same(left: _Columns, right: _Columns, *, but_types: bool = False) -> bool:
    if left.names != right.names or left.others != right.others:
        return False
    return left.told.keys() == right.told.keys() if but_types else left == right


def _schema_differences(expected: _Columns, found: _Columns) -> Said:
    if expected.names != found.names:
        yield "columns", expected.names, found.names
        return
    for name, wanted in expected.kinds.items():
        if wanted != found.kinds[name]:
            yield f"type of column {name!r}", _described(*wanted), _described(*found.kinds[name])
    told, tells = expected.told, found.told
    for name in [name for name in {**told, **tells} if told.get(name) != tells.get(name)]:
        yield f"`huggingface` entry of column {name!r}", told.get(name), tells.get(name)
    if expected.others != found.others:
        yield "schema metadata", expected.others, found.others


def _described(kind: pa.DataType, nullable: bool, metadata: Mapping[bytes, bytes]) -> str:
    text = str(kind) if nullable else f"{kind} not null"
    return f"{text} {metadata}" if metadata else text


class RowSpan(NamedTuple):
    """One episode's rows.

    Attributes:
        episode: Its index in the source.
        length: Number of its rows.
        source: The parquet file it came from.
        source_first: Its first row there; None if all rows are its own.
        position: Its position in the result.
        first_index: Position of its first row in the result.
        row_group: Number of its row group in the file.
    """

    episode: int
    length: int
    source: str
    source_first: int | None
    position: int
    first_index: int
    row_group: int


class RowRules(NamedTuple):
    """Rules for rows that are not copies.

    Attributes:
        fps: Frames a second.
        features: The features that the source declares.
        repairs: The changes of the conversion.
        computed_stats: Returns the result's statistics of the episode at a position, as columns
            ``stats/<feature>/<name>``.
        task_of: Returns the result's index of the task that ``episodes.jsonl`` lists for an episode
            of the source; None unless it lists exactly one.
    """

    fps: Fraction
    features: Mapping[str, Mapping[str, Any]]
    repairs: Repairs
    computed_stats: Callable[[int], Mapping[str, Any]]
    task_of: Callable[[int], int | None]

    @property
    def decodes(self) -> bool:
        """Whether rows must be decoded even if they are copies."""
        return bool(self.repairs.change_rows or self.computed_features)

    def computes(self, episode: int) -> bool:
        """Return whether statistics of an episode's rows were computed."""
        computes = self.repairs.computes_stats
        return any(computes(name, episode) for name in self.computed_features)

    @property
    def computed_features(self) -> list[str]:
        """Features whose statistics are computed again from rows."""
        return [
            name
            for name in self.repairs.computed_stats
            if self.features.get(name, {}).get("dtype") != "video"
        ]


class KeptTable:
    """A data file of a result that is unchanged from the source; both files are open.

    The two files show this by themselves: they have the same size and the same footer, so no part
    of the file was rewritten. It remains to compare whether it is valid for the result: its
    columns and the range of ``index``; with ``--bytes``, the number of each row and every byte.

    Args:
        ours: The file of the result.
        theirs: The file of the source, with the same footer.
    """

    def __init__(self, ours: tables.DataFile, theirs: tables.OpenedTable) -> None:
        self._ours = ours
        self._theirs = theirs

    @classmethod
    def found(cls, path: str, source: str, repairs: Repairs) -> Self | None:
        """Return the file at a path if it is the source's, and no repair should change its rows.

        The reader of a file reports that it cannot be read.
        """
        if repairs.change_values:
            return None
        with ExitStack() as opened:
            try:
                if not is_as_long(source, os.stat(path).st_size):  # noqa: PTH116 - for every file
                    return None
                ours = opened.enter_context(tables.DataFile(path))
                theirs = opened.enter_context(tables.OpenedTable(source))
            except (UnreadableSourceError, OSError):
                return None
            if not ours.has_footer_of(theirs):
                return None
            opened.pop_all()
            return cls(ours, theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.table.close()
        self._theirs.close()

    def compare_rows(self, span: RowSpan, rules: RowRules, *, read_bytes: bool) -> Said:
        """Yield differences in the numbers of rows, and in bytes that should be unchanged."""
        file = self._ours
        if read_bytes:
            theirs = OpenFile(self._theirs.descriptor, self._theirs.path)
            yield from differing_bytes(theirs, OpenFile(file.table.descriptor, file.path))
        if file.rows != span.length:
            yield "rows", span.length, file.rows
            return
        try:
            wanted = {
                "index": np.arange(span.first_index, span.first_index + span.length),
                "episode_index": np.full(span.length, span.position),
            }
            columns = [
                column
                for column, numbers in wanted.items()
                if column in file.columns and (read_bytes or not self._has_range(column, numbers))
            ]
            if columns:
                for column, found in zip(columns, file.numbers(*columns), strict=True):
                    yield from _other_numbers(column, wanted[column], found)
            table = None
            if rules.computes(span.episode):
                with closing(tables.open_parquet(file.path)) as rows:
                    table = rows.read_all(use_threads=False)
        except (OSError, UnreadableSourceError, pa.ArrowException) as error:
            raise_storage_trouble(error, getattr(error, "path", None) or file.path)
            yield "readable rows", "rows", error
            return
        if table is not None:
            yield from compare_computed_stats(span, table, rules)

    def _has_range(self, column: str, wanted: IntArray) -> bool:
        """Return whether a column is the source's, with the right extremes in the footer."""
        file = self._ours
        return (
            len(wanted) > 0
            and file.null_count(column) == 0
            and file.extremes.get(column) == (wanted[0], wanted[-1])
            and file.is_column_of(column, self._theirs)
        )

    def compare_columns(self, schemas: DataSchemas, position: int) -> Said:
        """Yield differences if the file's columns are not valid for the result."""
        found = self._ours.schema()
        yield from schemas.differences(found, schemas.given(found, position), is_kept=True)


def _other_numbers(column: str, wanted: IntArray, found: npt.NDArray[Any]) -> Said:
    if len(found) != len(wanted):
        yield f"rows of column {column!r}", len(wanted), len(found)
        return
    wrong = np.flatnonzero(found != wanted)
    if len(wrong):
        row = int(wrong[0])
        yield f"column {column!r}, row {row}", wanted[row], found[row]


def compare_rows(
    path: str,
    table: tables.StoredGroups,
    spans: Iterable[RowSpan],
    rules: RowRules,
    source: SourceRows,
    *,
    read_rows: bool,
) -> Iterator[Difference]:
    """Yield differences in the rows of some episodes of one data file, one row group per episode.

    A row group that was copied unchanged is compared as bytes. Both sides are decoded only if the
    bytes differ, or if a repair changed rows. `leconvert.tables.StoredGroups` describes what equal
    bytes prove. A row group that should be a copy and is not differs even if its values are equal,
    because another reader may see other values.
    """
    for span, said in _differing_rows(table, spans, rules, source, read_rows=read_rows):
        yield from differences_of(said, path, span.episode, DATA_STREAM)


def _differing_rows(
    table: tables.StoredGroups,
    spans: Iterable[RowSpan],
    rules: RowRules,
    source: SourceRows,
    *,
    read_rows: bool,
) -> Iterator[tuple[RowSpan, list[tuple[str, object, object]]]]:
    file: pq.ParquetFile | None = None
    copier: tables.TableCopier | None = None
    with ExitStack() as opened:
        stored = opened.enter_context(tables.OpenedTable(table.path)) if read_rows else None
        for span in spans:
            rows = table.rows[span.row_group]
            if rows != span.length:
                yield span, [("rows", span.length, rows)]
                continue
            if stored is None or (not rules.decodes and _is_copy(table, span, stored)):
                continue
            try:
                file = file or opened.enter_context(pq.ParquetFile(table.path))
                found = file.read_row_group(span.row_group, use_threads=False)
            except (OSError, pa.ArrowException) as error:
                raise_storage_trouble(error, table.path)
                yield span, [("readable row group", "rows", error)]
                continue
            said = [
                *_compare_columns(span, found, rules, source),
                *compare_computed_stats(span, found, rules),
                *wrong_extremes(file.metadata.row_group(span.row_group), found),
            ]
            if (
                not said
                and not rules.decodes
                and span.source_first is None
                # Another version may have decided otherwise.
                and file.metadata.created_by.encode() == tables.CREATED_BY
            ):
                copier = copier or tables.TableCopier(file.schema_arrow)
                if copier.reason_against(span.source, span.length) is None:
                    what = "stored form of the row group"
                    said.append((what, "the source's bytes", "other bytes of equal values"))
            yield span, said


def _is_copy(table: tables.StoredGroups, span: RowSpan, stored: tables.OpenedTable) -> bool:
    """Return whether a row group's bytes are its source's, if the source is a separate file."""
    if span.source_first is not None:
        return False
    with tables.OpenedTable(span.source) as source:
        ranges = table.copied_from(span.row_group, source, stored)
        if ranges is None:
            return False
        files = OpenFile(source.descriptor, source.path), OpenFile(stored.descriptor, stored.path)
        return first_difference(*files, *ranges) is None


def _compare_columns(span: RowSpan, found: pa.Table, rules: RowRules, rows: SourceRows) -> Said:
    expected = expected_rows(span, rules, rows)
    if sorted(expected.column_names) != sorted(found.column_names):
        yield "columns", expected.column_names, found.column_names
        return
    expected = as_stored(expected, found.schema, span.source)
    for name in expected.column_names:
        ours = found.column(name).combine_chunks()
        theirs = expected.column(name).combine_chunks()
        if not same_values(theirs, ours):
            row = first_differing_row(theirs, ours)
            place = f"column {name!r}, row {row}"
            yield place, shown_value(theirs, row), shown_value(ours, row)


def as_stored(rows: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    """Return rows in the types of a schema if that loses nothing, else unchanged.

    An episode that was recorded with narrower types than the others is written with theirs. This
    module compares the types of the result.
    """
    try:
        return tables.align_table(rows, schema, path=path)
    except UnreadableSourceError:
        return rows


_MOST_CHARACTERS = 200


def shown_value(values: pa.Array, row: int) -> str:
    """Return a value as text: the beginning of a long one, a placeholder if it has no text form."""
    if row >= len(values):
        return "no such row"
    try:
        text = str(values[row].as_py())
    except (UnicodeDecodeError, ValueError, OverflowError) as error:
        # Damaged bytes may not be of the column's type.
        return f"no {values.type}: {error}"
    if len(text) > _MOST_CHARACTERS:
        return f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"
    return text


def expected_rows(span: RowSpan, rules: RowRules, rows: SourceRows) -> pa.Table:
    """Return an episode's rows as the source and the repairs demand them."""
    expected = rows.read(span.source, span.source_first, span.length)
    return _repaired(expected, span, rules) if rules.repairs.change_rows else expected


_ROWS_AT_A_TIME = 1024
_IMAGES_AT_A_TIME = 16


class SourceRows:
    """Reads rows of source files; rows of one file mostly in order, in one pass.

    It holds the file that was read last and some of its rows.
    """

    def __init__(self, columns: list[str] | None = None) -> None:
        self._columns = columns
        self._path = ""
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._starts: IntArray = np.zeros(1, dtype=np.int64)
        self._next = 0

    def read(self, path: str, first: int | None, length: int) -> pa.Table:
        """Return the rows of an episode.

        Args:
            path: The file.
            first: The first row; None for all rows of the file, whatever their number.
            length: Number of rows.

        Raises:
            UnreadableSourceError: The file cannot be read.
        """
        try:
            if first is None:
                with pq.ParquetFile(path) as file:
                    return file.read(self._columns, use_threads=False)
            return self._range(path, first, length)
        except (OSError, pa.ArrowException) as error:
            self._path = ""
            raise UnreadableSourceError(
                f"The parquet file {path} cannot be read: {error}.", path=path
            ) from error

    def _range(self, path: str, first: int, length: int) -> pa.Table:
        if path != self._path or self._file is None:
            if self._file is not None:
                self._file.close()
            self._file, self._path = pq.ParquetFile(path), path
            groups = range(self._file.num_row_groups)
            rows = [self._file.metadata.row_group(group).num_rows for group in groups]
            self._starts = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
            self._go_to(first)
        group = int(np.searchsorted(self._starts, first, side="right")) - 1
        if first < self._next or self._starts[group] > self._next:
            self._go_to(first)
        pieces: list[pa.RecordBatch] = []
        stop = first + length
        while self._next < stop:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                break  # there are fewer rows, which the comparison reports
            skipped = min(max(0, first - self._next), len(batch))
            taken = min(len(batch) - skipped, stop - self._next - skipped)
            pieces.append(batch.slice(skipped, taken))
            used = skipped + taken
            self._rest = batch.slice(used) if used < len(batch) else None
            self._next += used
        if pieces:
            return pa.Table.from_batches(pieces)
        nothing = self._file.schema_arrow.empty_table()
        return nothing if self._columns is None else nothing.select(self._columns)

    def _go_to(self, row: int) -> None:
        """Begin again with the row group that holds a row."""
        assert self._file is not None
        group = max(0, int(np.searchsorted(self._starts, row, side="right")) - 1)
        at_a_time = _ROWS_AT_A_TIME
        if any(map(holds_bytes, self._file.schema_arrow.types)):
            at_a_time = _IMAGES_AT_A_TIME
        self._batches = self._file.iter_batches(
            at_a_time,
            row_groups=range(group, self._file.num_row_groups),
            columns=self._columns,
            use_threads=False,
        )
        self._rest, self._next = None, int(self._starts[min(group, len(self._starts) - 1)])


def _repaired(table: pa.Table, span: RowSpan, rules: RowRules) -> pa.Table:
    """Return the rows as the repairs demand them, computed in another way than the worker's."""
    repairs, fps = rules.repairs, rules.fps
    columns = {name: table.column(name) for name in table.column_names}
    for name in repairs.dropped_features:
        columns.pop(name, None)
    new = repairs.renamed_features
    columns = {new.get(name, name): column for name, column in columns.items()}
    for name in repairs.unwrapped_columns:
        if name in columns and is_list(columns[name].type):
            values = [None if row is None else row[0] for row in columns[name].to_pylist()]
            columns[name] = pa.chunked_array([pa.array(values, columns[name].type.value_type)])
    for name in repairs.cast_columns:
        values = columns[name].to_pylist()
        # Other columns stay unchanged, and then differ from the result's.
        if all(value is None or float(value).is_integer() for value in values):
            whole = [None if value is None else int(value) for value in values]
            columns[name] = pa.chunked_array([array_of(whole, pa.int64())])
    rows = range(span.length)
    demanded: dict[str, list[int] | list[float]] = {
        "timestamp": [row * fps.denominator / fps.numerator for row in rows],
        "frame_index": list(rows),
        "episode_index": [span.position] * span.length,
        "index": [span.first_index + row for row in rows],
        "task_index": [repairs.added_task] * span.length,
    }
    if repairs.task_map is not None and "task_index" in columns:
        tasks = columns["task_index"].to_pylist()
        demanded["task_index"] = [repairs.task_map.get(task, -1) for task in tasks]
    own = rules.task_of(span.episode) if repairs.tasks_from else None
    if own is not None:
        demanded["task_index"] = [own] * span.length
    maps = bool(repairs.task_map) or own is not None
    is_trimmed = span.episode in repairs.trimmed_episodes
    computed = repairs.columns_computed(trimmed=is_trimmed)
    changed = [*computed, *(["task_index"] if maps else [])]
    for name in repairs.task_columns:
        task_map = repairs.task_map or {}
        values = [task_map.get(task, -1) for task in columns[name].to_pylist()]
        columns[name] = pa.chunked_array([pa.array(values).cast(columns[name].type, safe=False)])
    for name in changed:
        if name != "timestamp":  # these are the same in any integer type
            columns[name] = pa.chunked_array([array_of(demanded[name], pa.int64())])
            continue
        stored = columns[name].type if name in columns else pa.null()
        # If the stored type cannot hold the times, LeRobot's type is used.
        holds = pa.types.is_floating(stored) and stored.bit_width >= 32
        made = array_of(demanded[name], pa.float64())
        made = made.cast(stored if holds else pa.float32(), safe=False)
        columns[name] = pa.chunked_array([made])
    return pa.table(columns)


def compare_computed_stats(span: RowSpan, found: pa.Table, rules: RowRules) -> Said:
    """Compute the conversion's statistics of these rows again, and yield differences."""
    computes = rules.repairs.computes_stats
    names = [name for name in rules.computed_features if computes(name, span.episode)]
    if not names:
        return
    try:
        stats = rules.computed_stats(span.position)
    except UnreadableSourceError as error:
        yield "statistics", "readable statistics", error.message
        return
    from leconvert.dataset.statistics import (
        table_stats,  # with decoders of images, so only if needed
    )

    expected = table_stats(
        found,
        rules.repairs.features(rules.features),
        names=names,
        quantiles=rules.repairs.quantiles,
    )
    for feature, values in expected.items():
        for name, value in values.items():
            column = f"stats/{feature}/{name}"
            have = stats.get(column)
            if not same_statistic(value, have):
                yield column, value, have
