"""Parquet footers, taken apart into what all files of a dataset share and what they do not.

A footer is the schema, the row groups and the key-value metadata, in this order. Schema and
metadata are the same bytes in file after file, so each is parsed once and recognised afterwards.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from leconvert.tables.chunk_shapes import INTEGER, ChunkEntry, ChunkShape, learn_chunk_shape
from leconvert.tables.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ContradictionError,
    ThriftError,
    unzigzag,
)

__all__ = [
    "FileFooter",
    "FileSchema",
    "FileTail",
    "FooterReader",
    "Leaf",
    "RowGroupEntry",
    "uncompressed_sizes",
]

# Known schemas, metadata and shapes a column. Datasets need one or two of each; strange ones must
# not fill the memory of a long scan.
_KEPT_SCHEMAS = 16
_KEPT_TAILS = 64
_KEPT_SHAPES = 16

# Fields of FileMetaData.
_VERSION, _SCHEMA, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = 1, 2, 5, 6, 7
_ROW_GROUPS, _COLUMNS, _META_DATA, _TOTAL_UNCOMPRESSED = 4, 1, 3, 6
_REQUIRED, _REPEATED = 0, 2
_ROWS = re.compile(rb"\x16(%b)\x19" % INTEGER, re.DOTALL)
_SIZES = re.compile(
    rb"\x16(?:%b)\x16(%b)(?:\x26(?:%b)(?:\x16(?:%b))?)?(?:\x14(?:%b))?\x00" % ((INTEGER,) * 5),
    re.DOTALL,
)
_ROW_GROUP_COLUMNS = 0x19


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf column of a schema: names from the column down, type, and highest levels."""

    path: tuple[bytes, ...]
    physical_type: int
    repetitions: int
    definitions: int

    @property
    def repeated(self) -> bool:
        """Whether a row may have any number of values."""
        return self.repetitions > 0


@dataclass(frozen=True, slots=True, eq=False)
class FileSchema:
    """The schema of a parquet file.

    Attributes:
        raw: The footer's first bytes, up to the number of rows.
        leaves: Its leaf columns in order.
        structure: What decides how pages are read: everything but names. Equal structures with
            equal Arrow schemas mean that the pages of one file can stand in the other.
    """

    raw: bytes
    leaves: tuple[Leaf, ...]
    structure: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FileTail:
    """What stands behind the row groups.

    Attributes:
        key_values: Metadata of the file.
        created_by: The program that wrote it, as it calls itself.
        key_values_raw: The metadata as encoded.
        column_orders_raw: The order that minima and maxima go by, as encoded; empty without.
    """

    key_values: dict[bytes, bytes | None]
    created_by: bytes
    key_values_raw: bytes
    column_orders_raw: bytes


class RowGroupEntry(NamedTuple):
    """One row group as a footer states it."""

    rows: int
    chunks: tuple[ChunkEntry, ...]


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A parquet footer.

    Attributes:
        schema: The columns.
        rows: Rows of all row groups, as the footer counts them.
        row_groups: One entry a row group.
        tail: The rest.
    """

    schema: FileSchema
    rows: int
    row_groups: tuple[RowGroupEntry, ...]
    tail: FileTail


class FooterReader:
    """Reads footers and remembers what it saw, to read the next one faster.

    What it returns depends on the footer alone, never on what it saw before. Threads may share it:
    at worst two learn the same thing.
    """

    def __init__(self) -> None:
        self._schemas: tuple[FileSchema, ...] = ()
        self._tails: OrderedDict[bytes, FileTail] = OrderedDict()
        self._shapes: dict[tuple[bytes, ...], tuple[ChunkShape, ...]] = {}

    def read(self, footer: bytes) -> FileFooter:
        """Take a footer apart.

        Args:
            footer: Its bytes, without the length and the magic behind it.

        Raises:
            ThriftError: It is damaged, or holds what files of datasets do not, such as encryption.
            ContradictionError: It must not be shown to Arrow.
        """
        schema = self._schema(footer)
        position = len(schema.raw)
        found = _ROWS.match(footer, position)
        if found is None:
            raise ThriftError("there is no number of rows behind the schema")
        rows = unzigzag(found[1])
        reader = CompactReader(footer, found.end())
        kind, size = reader.list_header()
        if kind != STRUCT and size:
            raise ThriftError("the row groups are no structs")
        position = reader.position
        groups: list[RowGroupEntry] = []
        for _ in range(size):
            group, position = self._row_group(footer, position, schema)
            groups.append(group)
        if rows != sum(group.rows for group in groups):
            raise ThriftError("the row groups have other rows in all than the file")
        return FileFooter(schema, rows, tuple(groups), self._tail(footer[position:]))

    def _schema(self, footer: bytes) -> FileSchema:
        for known in self._schemas:
            if footer.startswith(known.raw):
                return known
        schema = _parse_schema(footer)
        self._schemas = (schema, *self._schemas)[:_KEPT_SCHEMAS]
        return schema

    def _tail(self, raw: bytes) -> FileTail:
        known = self._tails.get(raw)
        if known is None:
            known = self._tails[raw] = _parse_tail(raw)
            while len(self._tails) > _KEPT_TAILS:
                try:
                    self._tails.popitem(last=False)
                except KeyError:
                    break  # Another thread was faster.
        return known

    def _row_group(
        self, footer: bytes, position: int, schema: FileSchema
    ) -> tuple[RowGroupEntry, int]:
        reader = CompactReader(footer, position)
        if reader.byte() != _ROW_GROUP_COLUMNS:
            raise ThriftError("a row group does not begin with its columns")
        kind, size = reader.list_header()
        if kind != STRUCT or size != len(schema.leaves):
            raise ThriftError("a row group has other columns than the schema")
        position = reader.position
        chunks: list[ChunkEntry] = []
        for leaf in schema.leaves:
            entry, position = self._chunk(footer, position, leaf)
            chunks.append(entry)
        found = _SIZES.match(footer, position)
        if found is None:
            raise ThriftError("a row group is not followed by its sizes")
        rows = unzigzag(found[1])
        if rows < 0:
            raise ThriftError("a row group has a negative number of rows")
        return RowGroupEntry(rows, tuple(chunks)), found.end()

    def _chunk(self, footer: bytes, position: int, leaf: Leaf) -> tuple[ChunkEntry, int]:
        known = self._shapes.get(leaf.path, ())
        for place, shape in enumerate(known):
            found = shape.match(footer, position)
            if found is not None:
                if shape.physical_type != leaf.physical_type:
                    break
                _check_histograms(shape, leaf)
                if place:
                    self._shapes[leaf.path] = (shape, *known[:place], *known[place + 1 :])
                return found
        shape = learn_chunk_shape(footer, position)
        if shape.path != leaf.path or shape.physical_type != leaf.physical_type:
            raise ThriftError("a column chunk is not the one that the schema names")
        _check_histograms(shape, leaf)
        found = shape.match(footer, position)
        if found is None:
            raise ThriftError("a column chunk is encoded in an unusual way")
        self._shapes[leaf.path] = (shape, *known)[:_KEPT_SHAPES]
        return found


def _check_histograms(shape: ChunkShape, leaf: Leaf) -> None:
    for size, levels in zip(shape.histograms, (leaf.repetitions, leaf.definitions), strict=True):
        if size and size != levels + 1:
            raise ContradictionError("a histogram of levels has another size than the schema says")


def _parse_schema(footer: bytes) -> FileSchema:
    reader = CompactReader(footer)
    fields = reader.fields()
    if next(fields, None) != (_VERSION, I32):
        raise ThriftError("the footer does not begin with a version")
    reader.integer()
    if next(fields, None) != (_SCHEMA, LIST):
        raise ThriftError("there is no schema behind the version")
    kind, size = reader.list_header()
    if kind != STRUCT or not size:
        raise ThriftError("the schema has no columns")
    elements = [_schema_element(reader) for _ in range(size)]
    leaves: list[Leaf] = []
    root_children = elements[0].children
    position = 1
    # Elements stand in the order of a walk down the tree: names above, children still to come.
    above: list[tuple[bytes, int, int, int]] = [(b"", 0, 0, root_children)]
    while position < size:
        while above and above[-1][3] == 0:
            above.pop()
        if not above:
            raise ThriftError("the schema has columns too many")
        name, repetitions, definitions, left = above[-1]
        above[-1] = (name, repetitions, definitions, left - 1)
        element = elements[position]
        position += 1
        repetitions += element.repetition == _REPEATED
        definitions += element.repetition != _REQUIRED
        if element.children:
            above.append((element.name, repetitions, definitions, element.children))
        elif element.physical_type is not None:
            names = (*(name for name, *_ in above[1:]), element.name)
            leaves.append(Leaf(names, element.physical_type, repetitions, definitions))
        else:
            raise ThriftError("the schema has a column without a type")
    if any(left for *_, left in above):
        raise ThriftError("the schema has columns too few")
    structure = tuple(element.structure for element in elements[1:])
    return FileSchema(footer[: reader.position], tuple(leaves), ((root_children,), *structure))


@dataclass(frozen=True, slots=True)
class _Element:
    name: bytes
    physical_type: int | None
    repetition: int
    children: int
    structure: tuple[object, ...]


def _schema_element(reader: CompactReader) -> _Element:
    """Read one element: 1 type, 3 repetition, 4 name, 5 children; 9 is an id that says nothing."""
    facts: dict[int, object] = {}
    name = b""
    for number, kind in reader.fields():
        start = reader.position
        if number == 4 and kind == BINARY:
            name = reader.binary()
        elif kind == I32:
            facts[number] = reader.integer()
        else:
            reader.skip(kind)
            facts[number] = (kind, reader.between(start))
    facts.pop(9, None)
    physical, repetition, children = facts.get(1), facts.get(3, 0), facts.get(5, 0)
    if not isinstance(repetition, int) or not isinstance(children, int) or children < 0:
        raise ThriftError("an element of the schema has fields of other types")
    if physical is not None and not isinstance(physical, int):
        raise ThriftError("an element of the schema has a type that is no number")
    return _Element(name, physical, repetition, children, tuple(facts.items()))


def _parse_tail(raw: bytes) -> FileTail:
    # The fields go on from the row groups, which are number 4: a header of its own restores that.
    shifted = bytes((4 << 4 | 1,)) + raw
    reader = CompactReader(shifted)
    key_values: dict[bytes, bytes | None] = {}
    created_by = key_values_raw = column_orders_raw = b""
    for number, kind in reader.fields():
        start = reader.position
        if number == _KEY_VALUES and kind == LIST:
            _read_list(reader, lambda: key_values.update([_key_value(reader)]))
            key_values_raw = reader.between(start)
        elif number == _CREATED_BY and kind == BINARY:
            created_by = reader.binary()
        elif number == _COLUMN_ORDERS and kind == LIST:
            reader.skip(kind)
            column_orders_raw = reader.between(start)
        elif number > _COLUMN_ORDERS:
            raise ThriftError("the file is encrypted, or of a kind that is not known")
        else:
            reader.skip(kind)
    if reader.position != len(shifted):
        raise ThriftError("there are bytes behind the footer")
    return FileTail(key_values, created_by, key_values_raw, column_orders_raw)


def _read_list(reader: CompactReader, element: Callable[[], None]) -> None:
    kind, size = reader.list_header()
    if kind != STRUCT:
        raise ThriftError("the metadata is no list of pairs")
    for _ in range(size):
        element()


def _key_value(reader: CompactReader) -> tuple[bytes, bytes | None]:
    key, value = b"", None
    for number, kind in reader.fields():
        if kind == BINARY and number == 1:
            key = reader.binary()
        elif kind == BINARY and number == 2:
            value = reader.binary()
        else:
            reader.skip(kind)
    return key, value


def uncompressed_sizes(footer: bytes) -> list[int]:
    """Return the uncompressed bytes of each row group of any footer, whatever else is in it.

    Raises:
        ThriftError: It is damaged.
    """
    reader = CompactReader(footer)
    sizes: list[int] = []
    for _ in _structs(reader, _ROW_GROUPS):
        total = 0
        for _ in _structs(reader, _COLUMNS):
            for number, kind in reader.fields():
                if (number, kind) != (_META_DATA, STRUCT):
                    reader.skip(kind)
                    continue
                for inner, inner_kind in reader.fields():
                    if (inner, inner_kind) == (_TOTAL_UNCOMPRESSED, I64):
                        total += reader.integer()
                    else:
                        reader.skip(inner_kind)
        sizes.append(total)
    return sizes


def _structs(reader: CompactReader, wanted: int) -> Iterator[None]:
    """Stop at each struct in the list of one field of a struct, for the caller to read it."""
    for number, kind in reader.fields():
        if (number, kind) != (wanted, LIST):
            reader.skip(kind)
            continue
        element, size = reader.list_header()
        if size and element != STRUCT:
            raise ThriftError("a list is not made of structs")
        for _ in range(size):
            yield
