"""``meta/episodes``: one row an episode, in as many files as the size limit asks for.

Columns are the routing columns, those of each camera, the source's own line of ``episodes.jsonl``,
the episode's statistics and, last, the file that the row itself is in. The types of the source's
values are found while writing: the writer goes by the first block of rows and, where a later row
needs more (an integer column gets a fraction, a new key appears), takes the types of all rows and
starts over. So the types never depend on where blocks end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.formats.episode_stats import StatsBlock
from leconvert.dataset.formats.v3.episodes import LOCATION_COLUMNS, STATS_PREFIX
from leconvert.dataset.formats.v3.info import USUAL_NAMES, FileNames, episodes_path
from leconvert.model.values import FILES_PER_CHUNK, FloatArray, IntArray
from leconvert.support.errors import SourceError
from leconvert.tables.arrow import (
    MixedKindsError,
    array_of,
    array_of_numbers,
    repeated_int64,
    type_of,
    type_of_numbers,
)
from leconvert.tables.schemas import feature_of_type, huggingface_metadata
from leconvert.workdir.fs import make_folders_below

# Columns of a table whose types are found in JSON values.


# Integers below are floats, too, whose quotient is rounded once.
_EXACT_BELOW = 2**53


class _Rows:
    """Rows of `EpisodeRecords` that become columns; a row that lacks a column is null there.

    The order of the columns is that of their first appearance, statistics after all others.
    """

    def __init__(self, records: EpisodeRecords, fps: Fraction, names: FileNames) -> None:
        self._legacy = records.legacy
        self._stats = records.stats
        self._numbers = _routing_columns(records, fps, names)
        first, *others = records.legacy
        own = chain(self._numbers, first, ("length",), chain.from_iterable(others))
        self._names = list(dict.fromkeys(own))
        self._numbers["length"] = records.length
        self._other_stats: dict[str, list[Any]] = {}
        self._add_stats()

    def schema(self) -> pa.Schema:
        """Return the narrowest types that hold the rows.

        Integers and fractions in one column make it float64. Mappings are structs. Values that no
        column type holds together, a number and a text for example, make it text: a text stays as
        it is and everything else is written as JSON.
        """
        fields: list[pa.Field] = []
        for name in self._names:
            numbers = self._numbers.get(name)
            if numbers is not None:
                found = type_of_numbers(numbers)
            elif name in self._other_stats:
                try:
                    found = type_of(self._other_stats[name], truth_counts=True)
                except MixedKindsError as error:
                    raise _no_common_type(name, error) from error
            else:
                try:
                    found = type_of(self._legacy_values(name))
                except MixedKindsError:
                    found = pa.string()
            fields.append(pa.field(name, found))
        return pa.schema(fields)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows in the columns and types of ``schema``, which must hold them."""
        arrays = []
        for field in schema:
            numbers = self._numbers.get(field.name)
            try:
                if numbers is not None:
                    arrays.append(array_of_numbers(numbers, field.type))
                    continue
                if field.name.startswith(STATS_PREFIX):
                    values = self._other_stats.get(field.name) or [None] * len(self._legacy)
                else:
                    values = self._legacy_values(field.name)
                if pa.types.is_string(field.type):
                    values = [_text(value) for value in values]
                arrays.append(array_of(values, field.type))
            except MixedKindsError as error:
                raise _no_common_type(field.name, error) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _legacy_values(self, name: str) -> list[Any]:
        return [line.get(name) for line in self._legacy]

    def _add_stats(self) -> None:
        """Add the columns of the statistics: nearly always they are arrays already."""
        if (found := self._stats.columns) is not None:
            columns = {
                f"{STATS_PREFIX}{feature}/{statistic}": array
                for feature, arrays in found.items()
                for statistic, array in arrays.items()
            }
            # A feature with a slash in its name may give a column the name of another's.
            if len(columns) == sum(map(len, found.values())):
                self._numbers |= columns
                self._names += columns
                return
        flat: list[dict[str, Any]] = [{} for _ in self._legacy]
        for stats, row in zip(self._stats.rows, flat, strict=True):
            if stats is not None:
                _flatten(STATS_PREFIX, stats, row)
        for name in dict.fromkeys(chain.from_iterable(flat)):
            self._names.append(name)
            self._other_stats[name] = [row.get(name) for row in flat]


def _routing_columns(
    records: EpisodeRecords, fps: Fraction, names: FileNames
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns that say where episodes are, but for their length."""
    start = records.dataset_from_index
    chunk, file = names.indices(records.data_file)
    columns: dict[str, npt.NDArray[Any]] = {
        "episode_index": records.episode_index,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": start,
        "dataset_to_index": start + records.length,
    }
    for spans in records.videos:
        prefix = f"videos/{spans.key}/"
        columns[prefix + "chunk_index"], columns[prefix + "file_index"] = names.indices(spans.file)
        columns[prefix + "from_timestamp"] = _seconds(spans.from_frame, fps)
        columns[prefix + "to_timestamp"] = _seconds(spans.to_frame, fps)
    return columns


def _seconds(frames: IntArray, fps: Fraction) -> FloatArray:
    if max(int(frames.max()) * fps.denominator, fps.numerator) < _EXACT_BELOW:
        return frames * fps.denominator / fps.numerator
    # Python divides integers exactly and rounds once; NumPy's operands would be rounded before.
    return np.array([frame * fps.denominator / fps.numerator for frame in frames.tolist()])


def widened(schema: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """Return a schema that holds what either holds, columns in order of first appearance."""
    if schema is None or schema.equals(other):
        return other
    fields: dict[str, pa.Field] = {field.name: field for field in schema}
    for field in other:
        known = fields.get(field.name)
        if known is None or known.type.equals(field.type):
            fields.setdefault(field.name, field)
            continue
        pair = [known, field]
        if field.name.startswith(STATS_PREFIX):
            pair = [
                known.with_type(_as_number(known.type, field.type)),
                field.with_type(_as_number(field.type, known.type)),
            ]
        try:
            merged = pa.unify_schemas(
                [pa.schema([one]) for one in pair], promote_options="permissive"
            ).field(0)
        except pa.ArrowException as error:
            if field.name.startswith(STATS_PREFIX):
                raise _no_common_type(field.name, error) from error
            merged = pa.field(field.name, pa.string())
        fields[field.name] = merged
    # Statistics stay behind the columns that appear late.
    ordered = sorted(fields.values(), key=lambda field: field.name.startswith(STATS_PREFIX))
    return pa.schema(ordered)


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parquet stores columns of the types found.

    Mappings that are always empty have no column type and become JSON text; statistics that are
    always empty become float64, as NumPy has it.
    """
    fields: list[pa.Field] = []
    for field in schema:
        stored = field.type
        if field.name.startswith(STATS_PREFIX):
            stored = _with_numbers(stored)
        elif _has_empty_struct(stored):
            stored = pa.string()
        fields.append(pa.field(field.name, stored))
    return pa.schema(fields)


def _flatten(prefix: str, stats: Mapping[str, Any], flat: dict[str, Any]) -> None:
    for key, value in stats.items():
        if type(value) is list:
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            _flatten(f"{prefix}{key}/", value, flat)
        else:
            plain = value.tolist() if hasattr(value, "tolist") else value
            # A statistic is an array of one dimension at least.
            flat[f"{prefix}{key}"] = plain if isinstance(plain, list) else [plain]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _with_numbers(found: pa.DataType) -> pa.DataType:
    """Type the innermost values of statistics that are empty everywhere, as NumPy types them."""
    if pa.types.is_list(found):
        return pa.list_(_with_numbers(found.value_type))
    return pa.float64() if pa.types.is_null(found) else found


def _as_number(found: pa.DataType, beside: pa.DataType) -> pa.DataType:
    """Return truth values as the numbers that stand beside them, other types as they are."""
    if pa.types.is_list(found) and pa.types.is_list(beside):
        return pa.list_(_as_number(found.value_type, beside.value_type))
    is_number = pa.types.is_int64(beside) or pa.types.is_float64(beside)
    return beside if pa.types.is_boolean(found) and is_number else found


def _has_empty_struct(found: pa.DataType) -> bool:
    if pa.types.is_list(found):
        return _has_empty_struct(found.value_type)
    if pa.types.is_struct(found):
        children = [found.field(number).type for number in range(found.num_fields)]
        return not children or any(_has_empty_struct(child) for child in children)
    return False


def _no_common_type(column: str, error: Exception) -> SourceError:
    reason = str(error).splitlines()[0]
    return SourceError(
        f"The values of {column} have no common type: {reason}",
        next_step="Correct the values in the metadata of the source.",
    )


# ``meta/episodes``: one row an episode, in as many files as the size limit asks for.


# Rows of a row group.
_GROUP_ROWS = 1000


class VideoSpans(NamedTuple):
    """Where one camera's frames of some episodes are; arrays have shape (n,).

    Attributes:
        key: The video feature.
        file: Number of the camera's output file, from 0.
        from_frame: First frame of the episode within that file.
        to_frame: Frame after the last.
    """

    key: str
    file: IntArray
    from_frame: IntArray
    to_frame: IntArray


class EpisodeRecords(NamedTuple):
    """All that ``meta/episodes`` says about n episodes, one at least; arrays have shape (n,).

    Attributes:
        episode_index: Their indices in the result.
        data_file: Number of the data file that holds the rows of each, from 0.
        dataset_from_index: First of its rows in the whole dataset.
        length: Number of its rows.
        videos: The spans of each camera, sorted by key.
        legacy: The lines of ``episodes.jsonl``; keys keep their order. ``episode_index`` and
            ``length`` above take precedence over what they say.
        stats: The statistics; None for an episode of which the source has none.
    """

    episode_index: IntArray
    data_file: IntArray
    dataset_from_index: IntArray
    length: IntArray
    videos: Sequence[VideoSpans]
    legacy: Sequence[Mapping[str, Any]]
    stats: StatsBlock


def write_episodes(
    root: str | os.PathLike[str],
    episodes: Callable[[], Iterable[EpisodeRecords]],
    *,
    fps: Fraction,
    names: FileNames = USUAL_NAMES,
    file_size_limit_bytes: int = 100 * 1024**2,
) -> list[str]:
    """Write ``meta/episodes`` below ``root``.

    Memory is bounded by one block of rows and one file's footer, not by the number of episodes.

    Args:
        episodes: Gives the records in order, the same ones each time; called once, or three times
            where a later record needs wider types than the first ones.

    Returns:
        The files written, relative to ``root``, in row order.
    """
    writer = _EpisodesWriter(Path(root), file_size_limit_bytes)

    def blocks() -> Iterator[_Rows]:
        return (_Rows(records, fps, names) for records in episodes())

    if not writer.write(blocks(), None):
        schema: pa.Schema | None = None
        for block in blocks():
            schema = widened(schema, block.schema())
        writer.discard()
        complete = writer.write(blocks(), schema)
        assert complete, "the schema of all rows holds every row"
    if not writer.paths:
        raise SourceError(
            f"There is no episode to write below {os.fspath(root)}.",
            path=os.fspath(root),
            next_step="Convert a dataset that has episodes.",
        )
    return writer.paths


class _EpisodesWriter:
    """Writes blocks of rows and starts new files.

    ``write`` says False as soon as a block does not fit the types it goes by; what it wrote until
    then is void and ``discard`` removes it.
    """

    def __init__(self, root: Path, file_size_limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = file_size_limit_bytes
        self._file_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.paths: list[str] = []

    def write(self, blocks: Iterable[_Rows], schema: pa.Schema | None) -> bool:
        group: list[pa.Table] = []
        rows = 0
        try:
            for block in blocks:
                found = block.schema()
                if schema is None:
                    schema = found
                elif widened(schema, found) != schema:
                    return False
                group.append(block.table(storable(schema)))
                rows += group[-1].num_rows
                while rows >= _GROUP_ROWS:
                    together = pa.concat_tables(group)
                    self._append(together.slice(0, _GROUP_ROWS).combine_chunks())
                    rows -= _GROUP_ROWS
                    group = [together.slice(_GROUP_ROWS)]
            if rows:
                self._append(pa.concat_tables(group).combine_chunks())
        finally:
            self._close()
            # The writer held a page for each of a hundred columns; what comes next has none.
            pa.default_memory_pool().release_unused()
        return True

    def discard(self) -> None:
        for path in self.paths:
            (self._root / path).unlink()
        self.paths.clear()

    def _append(self, rows: pa.Table) -> None:
        done = 0
        # The file columns add two integers to each row.
        row_bytes = max(1, -(-rows.nbytes // rows.num_rows)) + 2 * 8
        while done < rows.num_rows:
            fitting = (self._limit_bytes - self._file_bytes) // row_bytes
            if self._writer is not None and fitting < 1:
                self._close()
                continue
            count = min(rows.num_rows - done, max(1, fitting))
            self._write_rows(rows.slice(done, count))
            self._file_bytes += count * row_bytes
            done += count

    def _write_rows(self, rows: pa.Table) -> None:
        if self._writer is None:
            self.paths.append(episodes_path(len(self.paths)))
        chunk, file = divmod(len(self.paths) - 1, FILES_PER_CHUNK)
        for name, number in zip(LOCATION_COLUMNS, (chunk, file), strict=True):
            rows = rows.append_column(
                pa.field(name, pa.int64()), repeated_int64(number, rows.num_rows)
            )
        if self._writer is None:
            features = {field.name: feature_of_type(field.type) for field in rows.schema}
            entries = {name: entry for name, entry in features.items() if entry is not None}
            schema = rows.schema.with_metadata(huggingface_metadata(entries))
            path = self._root / self.paths[-1]
            make_folders_below(self._root, path.parent)
            self._writer = pq.ParquetWriter(str(path), schema, compression="snappy")
        self._writer.write_table(rows.combine_chunks())

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._file_bytes = 0
