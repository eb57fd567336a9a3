"""One data file as a check looks at it: what its footer says, and columns only where it must.

The numbers that a footer states for a column cost nothing further. A column whose values all
differ, as times do, lies in its dictionary page: that is read without Arrow, which takes ten times
as long to open a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.arrow import innermost_type, is_list, list_length
from leconvert.errors import UnreadableSourceError
from leconvert.tables.chunk_shapes import INTEGER, ChunkEntry, ChunkShape
from leconvert.tables.file_footers import FooterReader
from leconvert.tables.file_schema import FileSchema, Leaf
from leconvert.tables.footers import DataFooter, data_footer, open_parquet
from leconvert.tables.lerobot_reader import list_sizes
from leconvert.tables.opened import OpenedTable, unreadable
from leconvert.tables.thrift import ThriftError, unzigzag

__all__ = ["DataFile", "row_group_extremes"]

_BOOL, _INT32, _INT64, _FLOAT, _DOUBLE = 0, 1, 2, 4, 5
_FORMS = {_BOOL: "?", _INT32: "i", _INT64: "q", _FLOAT: "f", _DOUBLE: "d"}
_UNSIGNED, _SIGNED = range(11, 15), range(15, 19)  # 8, 16, 32 and 64 bits
_DTYPES: dict[str, np.dtype[Any]] = {form: np.dtype(f"<{form}") for form in "iIqQfd"}
_PLAIN_CODEC, _SNAPPY_CODEC = 0, 1
# A dictionary page whose values are plain, in the order in which they first appear.
_DICTIONARY_PAGE = re.compile(
    rb"\x15\x04\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x3c|\x4c)\x15(%(i)b)\x15[\x00\x04]\x12?\x00\x00"
    % {b"i": INTEGER},
    re.DOTALL,
)
_HEADER_BYTES = 64
_HAS_EMPTY_VALUES = "empty values in its lists"
_KEPT_LAYOUTS = 16

Number = int | float | bool
Numbers = npt.NDArray[np.integer[Any] | np.floating[Any]]


class DataFile:
    """An open data file.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        counts: What its footer says.
    """

    __slots__ = ("_chunks", "_columns", "_table", "counts", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._table = OpenedTable(path)
        try:
            self.counts: DataFooter = data_footer(self._table)
        except BaseException:
            self._table.close()
            raise
        self._chunks: tuple[ChunkEntry, ...] = ()
        self._columns = _NO_COLUMNS
        parts = self.counts.parts
        # Files of several row groups are rare, and read whole where anything is asked of them.
        if parts is not None and len(parts.row_groups) == 1:
            self._chunks = parts.row_groups[0].chunks
            self._columns = _columns_of(parts.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    @property
    def schema_key(self) -> tuple[bytes, bytes | None] | None:
        """What equal schemas have in common; None where the footer is of an unknown kind.

        Lists of one length and of any are stored alike, and texts and dictionaries of texts: only
        what Arrow adds to the file tells them apart.
        """
        parts = self.counts.parts
        return None if parts is None else (parts.schema.raw, parts.tail.arrow_schema)

    @property
    def extremes(self) -> dict[str, tuple[Number, Number]]:
        """The least and the greatest value of each column, elements of lists alike.

        Columns of which the footer does not say it, or which are no numbers, are not in it. NaN
        and empty values take no part.
        """
        return _extremes(self._chunks, self._columns)

    def num_values(self, column: str) -> int | None:
        """Return the values of a column, elements of lists and nulls alike; None if not known."""
        leaf = self._columns.places.get(column)
        return None if leaf is None else self._chunks[leaf].num_values

    def null_count(self, column: str) -> int | None:
        """Return the empty values of a column, elements of lists alike; None if not known."""
        leaf = self._columns.places.get(column)
        return None if leaf is None else self._chunks[leaf].null_count

    def missing_files(self, column: str) -> int | None:
        """Return how many images of a column have no bytes, but a path at best; None if not known.

        Only of columns that hold bytes and path of each image.
        """
        leaf = self._columns.files.get(column)
        return None if leaf is None else self._chunks[leaf].null_count

    def raw(self, column: str) -> tuple[object, bytes] | None:
        """Return a column as it stands in a small file; None where that is not at hand.

        Columns of different files with equal raw forms have equal values.
        """
        leaf = self._columns.places.get(column)
        whole, parts = self._table.whole, self.counts.parts
        if leaf is None or whole is None or parts is None:
            return None
        chunk = self._chunks[leaf]
        pages = whole[chunk.start : chunk.start + chunk.compressed_bytes]
        return (parts.schema, chunk.shape), pages

    def lengths(self, schema: pa.Schema) -> dict[str, tuple[int, ...] | str]:
        """Return the lengths of the lists in columns whose type does not say them.

        Such columns are read, and those of lists that may hold empty values. Rows without a list
        take no part.

        Args:
            schema: The file's Arrow schema.

        Returns:
            Column to lengths, the outer list's first, or to what forbids that all rows become
            arrays of one shape.

        Raises:
            UnreadableSourceError: A column cannot be read.
        """
        found: dict[str, tuple[int, ...] | str] = {}
        for name, kind in zip(schema.names, schema.types, strict=True):
            sizes = list_sizes(kind)
            if not sizes or pa.types.is_struct(innermost_type(kind)):
                continue
            if None in sizes or self.null_count(name) != 0:
                lengths = _lengths_of(self._read(name))
                if lengths is not None:
                    found[name] = lengths
        return found

    def numbers(self, column: str) -> Numbers:
        """Return a column of one number a row, shape (rows,); a list of one counts as its number.

        Where as many values stand in the dictionary as there are rows, that is the column: Arrow's
        dictionaries hold values in the order of their first appearance, so each row is the first,
        and only, appearance of its value.

        Raises:
            UnreadableSourceError: It cannot be read, has empty values, or is no such column.
        """
        found = self._dictionary(column)
        if found is not None and len(found) == self.counts.rows:
            return found
        values = self._read(column)
        if is_list(values.type) and _lengths_of(values) == (1,):
            values = values.combine_chunks().flatten()
        kind = values.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            error = TypeError(f"column {column} is {kind}, no number a row")
            raise unreadable(self.path, error) from error
        if values.null_count:
            raise unreadable(self.path, ValueError(f"column {column} has empty values"))
        numbers: Numbers = values.to_numpy()
        return numbers

    def distinct(self, column: str) -> list[Number]:
        """Return the different values of a column of one number a row, ascending.

        Raises:
            UnreadableSourceError: As `numbers`.
        """
        found = self._dictionary(column)
        if found is None or not self._chunks[self._columns.places[column]].is_all_dictionary:
            found = self.numbers(column)
        distinct: list[Number] = np.unique(found).tolist()
        return distinct

    def _dictionary(self, column: str) -> Numbers | None:
        """Return the values in a column's dictionary page; None where there is none to be had.

        Nor is there one of a writer whose dictionaries may be sorted, or hold what is in no row.
        """
        leaf, parts = self._columns.places.get(column), self.counts.parts
        if leaf is None or parts is None or not parts.tail.is_of_known_writer:
            return None
        chunk = self._chunks[leaf]
        shape = chunk.shape
        dtype = _DTYPES.get(self._columns.forms[leaf] or "")
        if (
            dtype is None
            or chunk.dictionary_offset is None
            or chunk.num_values != self.counts.rows
            or len(shape.path) != 1
            or shape.codec not in (_PLAIN_CODEC, _SNAPPY_CODEC)
        ):
            return None
        size = chunk.data_offset - chunk.dictionary_offset
        if not 0 < size <= chunk.compressed_bytes:
            return None
        buffer, at = self._table.window(chunk.dictionary_offset, size)
        header = _DICTIONARY_PAGE.match(buffer, at, at + min(size, _HEADER_BYTES))
        if header is None:
            return None
        plain_bytes, body_bytes, num_values = map(unzigzag, header.groups())
        if (
            not 0 < num_values <= self.counts.rows
            or plain_bytes != num_values * dtype.itemsize
            or body_bytes != size - (header.end() - at)
        ):
            return None
        body = buffer[header.end() : header.end() + body_bytes]
        if shape.codec == _SNAPPY_CODEC:
            try:
                body = bytes(_SNAPPY.decompress(body, plain_bytes, asbytes=True))
            except (OSError, pa.ArrowException):
                return None  # Arrow says what is wrong with it
        if len(body) != plain_bytes:
            return None
        values: Numbers = np.frombuffer(body, dtype)
        return values

    def _read(self, column: str) -> pa.ChunkedArray:
        reader = open_parquet(self.path)
        try:
            leaf = {path[0]: number for number, path in enumerate(reader.column_paths)}.get(column)
            if leaf is None:
                raise UnreadableSourceError(f"{self.path} has no column {column}.", path=self.path)
            return reader.read_all(column_indices=[leaf], use_threads=False).column(0)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error
        finally:
            reader.close()


def _lengths_of(column: pa.ChunkedArray) -> tuple[int, ...] | str | None:
    """Return the lengths of lists, or why they have none in common; None without any list."""
    kind, chunks = column.type, column.chunks
    # Before they become one: not every version of pyarrow joins chunks of an extension type.
    if isinstance(kind, pa.BaseExtensionType):
        kind, chunks = kind.storage_type, [chunk.storage for chunk in chunks]
    array = pa.chunked_array(chunks, kind).combine_chunks()
    try:
        array = array.drop_null() if array.null_count else array
    except pa.ArrowNotImplementedError:  # of views, in some versions of pyarrow
        return _HAS_EMPTY_VALUES
    lengths: list[int] = []
    while is_list(array.type):
        if array.null_count:
            return _HAS_EMPTY_VALUES
        if not len(array):
            return None
        try:
            lengths.append(list_length(array))
        except ValueError:
            return "lists that are empty, or of different lengths"
        array = array.flatten()
    return _HAS_EMPTY_VALUES if array.null_count else tuple(lengths)


def row_group_extremes(
    path: str, columns: Sequence[str]
) -> Iterator[dict[str, tuple[Number, Number]]]:
    """Yield the least and the greatest value of columns, as `DataFile.extremes`, a row group.

    One row group is held at a time. What the footer of a file says in an unusual way is not told:
    there may be fewer of them than row groups.

    Args:
        path: A parquet file.
        columns: Their names; what the file does not have is left out.

    Raises:
        UnreadableSourceError: It is missing, or the file system fails.
    """
    with OpenedTable(path) as table, suppress(ThriftError):
        footer = table.footer()
        known = _columns_of(_FOOTERS.schema(footer))
        leaves = {name: known.places[name] for name in columns if name in known.places}
        wanted = _Columns(
            {name: place for place, name in enumerate(leaves)},
            tuple([known.forms[leaf] for leaf in leaves.values()]),
        )
        for chunks in _FOOTERS.row_groups(footer, list(leaves.values())):
            yield _extremes(tuple(chunks), wanted)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns that have but one leaf.

    Attributes:
        places: The place of each one's leaf, by the column's name.
        forms: How the values of each leaf are packed, of all columns; None where they are no
            numbers.
        files: The place of the leaf ``bytes`` of columns of images.
    """

    places: dict[str, int]
    forms: tuple[str | None, ...]
    files: Mapping[str, int] = field(default_factory=dict)


def _extremes(
    chunks: tuple[ChunkEntry, ...], columns: _Columns
) -> dict[str, tuple[Number, Number]]:
    if not chunks:
        return {}
    shapes = tuple([chunk.shape for chunk in chunks])
    plan = _PLANS.get((shapes, columns.forms))
    if plan is None:
        plan = _plan_for(shapes, columns)
    found = plan.form.unpack(b"".join([chunks[at].groups[group] for at, group in plan.places]))
    return dict(zip(plan.columns, zip(found[::2], found[1::2], strict=True), strict=True))


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the extremes of all columns stand in entries of some shapes, and how to read them.

    Attributes:
        columns: Columns that have extremes.
        places: Entry and group of the least and the greatest value of each in turn.
        form: Reads all of them, one after the other.
    """

    columns: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    form: Struct


def _plan_for(shapes: tuple[ChunkShape, ...], columns: _Columns) -> _Plan:
    names: list[str] = []
    places: list[tuple[int, int]] = []
    form = "<"
    for name, leaf in columns.places.items():
        extremes, letter = shapes[leaf].extremes, columns.forms[leaf]
        if extremes is not None and letter is not None:
            names.append(name)
            places += [(leaf, extremes[0]), (leaf, extremes[1])]
            form += 2 * letter
    if len(_PLANS) >= _KEPT_LAYOUTS:
        _PLANS.clear()
    plan = _Plan(tuple(names), tuple(places), Struct(form))
    _PLANS[shapes, columns.forms] = plan
    return plan


# Files of a dataset are alike: what the first took time to learn, the others are read by.
_FOOTERS = FooterReader()
_SNAPPY = pa.Codec("snappy")
_PLANS: dict[tuple[tuple[ChunkShape, ...], tuple[str | None, ...]], _Plan] = {}
_COLUMNS: dict[FileSchema, _Columns] = {}
_NO_COLUMNS = _Columns({}, ())


def _columns_of(schema: FileSchema) -> _Columns:
    known = _COLUMNS.get(schema)
    if known is not None:
        return known
    leaves: dict[str, int] = {}
    several: set[str] = set()
    for place, leaf in enumerate(schema.leaves):
        name = leaf.path[0].decode(errors="replace")
        if name in leaves:
            several.add(name)
        leaves[name] = place
    places = {name: place for name, place in leaves.items() if name not in several}
    files = {
        leaf.path[0].decode(errors="replace"): place
        for place, leaf in enumerate(schema.leaves)
        if leaf.path[1:] == (b"bytes",)
    }
    found = _Columns(places, tuple(map(_form_of, schema.leaves)), files)
    if len(_COLUMNS) >= _KEPT_LAYOUTS:
        _COLUMNS.clear()
    _COLUMNS[schema] = found
    return found


def _form_of(leaf: Leaf) -> str | None:
    """Return how the values of a leaf are packed; None where they are no numbers."""
    form = _FORMS.get(leaf.physical_type)
    if leaf.converted_type is None or form is None:
        return form
    if leaf.converted_type in _SIGNED:
        return form
    return form.upper() if leaf.converted_type in _UNSIGNED else None
