"""Parquet footers, taken apart into what all files of a dataset share and what they do not.

A footer is the schema, the row groups and the key-value metadata, in this order. Schema and
metadata are the same bytes in file after file, so each is parsed once and recognised afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from operator import add, itemgetter, lt
from typing import NamedTuple

from leconvert.tables.thrift import (
    BINARY,
    BOOL_FALSE,
    BOOL_TRUE,
    BYTE,
    DOUBLE,
    I32,
    I64,
    INTEGERS,
    LIST,
    STRUCT,
    CompactReader,
    ContradictionError,
    ThriftError,
    binary,
    list_header,
    unzigzag,
    varint,
)

__all__ = [
    "INTEGER",
    "ChunkEntry",
    "ChunkShape",
    "FileFooter",
    "FileSchema",
    "FileTail",
    "FooterReader",
    "Leaf",
    "RowGroupEntry",
    "RowGroupKind",
    "parse_schema",
    "parse_tail",
    "uncompressed_sizes",
]


# ------------------------------------------------------------------------------------------------
# Column chunks in a parquet footer, recognised by the shape of their bytes.
#
# The footers of a dataset's files are alike: in a column's entry only integers and the
# statistics' values differ. So the first entry of a kind is walked field by field, which gives a
# *shape*: regular expressions in which types, names, encodings and field numbers are literal and
# integers are not. An entry that a shape matches has the same fields, and :mod:`re` finds its
# integers many times faster than a walk. A shape also knows how the entry is written again for
# another place in another file.


INTEGER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"

_MAX_SHAPE_DEPTH = 8
# Bytes of a statistic of a physical type; byte strings have any length, and fixed ones too many.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}

# Fields of ColumnMetaData.
_TYPE, _ENCODINGS, _PATH, _CODEC = 1, 2, 3, 4
_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 6, 7, 9, 11
_STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS = 12, 13, 16
_NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 3, 5, 6
# A chunk begins with its dictionary, where it has one.
_IN_ORDER = (_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET)
# Fields of PageEncodingStats.
_PAGE_TYPE, _ENCODING, _PAGES = 1, 2, 3
_DATA_PAGES = frozenset([0, 3])
_DICTIONARY_ENCODINGS = frozenset([2, 8])
_REPETITIONS, _DEFINITIONS = 2, 3
_LITERAL = frozenset([_TYPE, _ENCODINGS, _PATH, _CODEC])
_NUMBERS = frozenset([_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET])
_REQUIRED = _LITERAL | {_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET}
_KEPT = _LITERAL | _NUMBERS | {_STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS}

# Fields of ColumnChunk: what is in another file or encrypted is none of ours.
_FILE_PATH, _FILE_OFFSET, _META_DATA, _CRYPTO, _ENCRYPTED = 1, 2, 3, 8, 9


class ChunkEntry(NamedTuple):
    """One column chunk as a footer states it.

    Attributes:
        shape: What it has in common with others.
        groups: The bytes that differ.
        num_values: Values, nulls included; repeated ones count each.
        uncompressed_bytes: Size of the pages before compression, with their headers.
        compressed_bytes: Size of the pages in the file, with their headers.
        data_offset: First data page.
        dictionary_offset: Dictionary page, None without; some writers say 0 then.
        start: First byte of the chunk in its file.
    """

    shape: ChunkShape
    groups: tuple[bytes, ...]
    num_values: int
    uncompressed_bytes: int
    compressed_bytes: int
    data_offset: int
    dictionary_offset: int | None
    start: int

    @property
    def null_count(self) -> int | None:
        """Values that are empty; None where the footer does not say how many."""
        at = self.shape.null_count
        return None if at is None else unzigzag(self.groups[at])

    @property
    def is_all_dictionary(self) -> bool:
        """Whether the footer says that every value is in the dictionary.

        Writers give up a dictionary that grows large, and store further values plainly.
        """
        at = self.shape.page_encodings
        return at is not None and _are_all_dictionary(self.groups[at])


@dataclass(frozen=True, slots=True, eq=False)
class ChunkShape:
    """What column chunk entries of one kind have in common.

    Attributes:
        path: Names from the column down to the leaf.
        physical_type: Parquet's number of the type.
        codec: Parquet's number of the compression.
        has_statistics: Whether there are statistics.
        histograms: Sizes of the histograms of repetition and definition levels, 0 without.
        extremes: Groups of the smallest and the largest value, where both are there in fixed width.
        null_count: Group of the number of empty values, where it is there.
        page_encodings: Group of what the pages are encoded in, where it is there.
    """

    path: tuple[bytes, ...]
    physical_type: int
    codec: int
    has_statistics: bool
    histograms: tuple[int, int]
    extremes: tuple[int, int] | None
    null_count: int | None
    page_encodings: int | None
    _segments: tuple[re.Pattern[bytes], ...]
    _format: bytes
    _path_at: int
    _numbers: dict[int, int]

    def match(self, footer: bytes, position: int) -> tuple[ChunkEntry, int] | None:
        """Return the entry at ``position`` and where it ends; None where it has another shape."""
        found = self._segments[0].match(footer, position)
        if found is None:
            return None
        groups = found.groups()
        position = found.end()
        for segment in self._segments[1:]:
            reader = CompactReader(footer, position)
            try:
                reader.binary()
            except ThriftError:
                return None
            found = segment.match(footer, reader.position)
            if found is None:
                return None
            groups += (footer[position : reader.position], *found.groups())
            position = found.end()
        return self.entry(groups), position

    @property
    def pattern(self) -> re.Pattern[bytes] | None:
        """What matches a whole entry; None where byte strings of any length are among it."""
        return self._segments[0] if len(self._segments) == 1 else None

    def number_at(self, number: int) -> int:
        """Return which group a field is; of a chunk without dictionary this is its first page."""
        return self._numbers.get(number, self._numbers[_DATA_OFFSET])

    def dictionary_offset(self, groups: tuple[bytes, ...], first: int = 0) -> int | None:
        """Return where the dictionary is, given the groups from ``first`` on; None without."""
        at = self._numbers.get(_DICTIONARY_OFFSET)
        return None if at is None else unzigzag(groups[first + at]) or None

    def entry(self, groups: tuple[bytes, ...]) -> ChunkEntry:
        """Return the entry with these groups."""
        numbers = self._numbers
        values = unzigzag(groups[numbers[_NUM_VALUES]])
        uncompressed = unzigzag(groups[numbers[_UNCOMPRESSED]])
        compressed = unzigzag(groups[numbers[_COMPRESSED]])
        data = unzigzag(groups[numbers[_DATA_OFFSET]])
        dictionary = self.dictionary_offset(groups)
        start = data if dictionary is None else dictionary
        return ChunkEntry(self, groups, values, uncompressed, compressed, data, dictionary, start)

    @property
    def has_dictionary_offset(self) -> bool:
        """Whether the place of a dictionary is stated; 0 where a writer had none."""
        return _DICTIONARY_OFFSET in self._numbers

    def template(self, path: tuple[bytes, ...]) -> bytes:
        """Return the format that writes entries of this shape for a column with these names."""
        names = list_header(BINARY, len(path)) + b"".join(map(binary, path))
        at = self._path_at
        return self._format[:at] + names.replace(b"%", b"%%") + self._format[at:]


@lru_cache(maxsize=1 << 10)
def _are_all_dictionary(page_encodings: bytes) -> bool:
    """Tell whether all data pages hold places in a dictionary."""
    reader = CompactReader(page_encodings)
    _, size = reader.list_header()
    for _ in range(size):
        facts: dict[int, int] = {}
        for number, kind in reader.fields():
            if kind == I32:
                facts[number] = reader.integer()
            else:
                reader.skip(kind)
        if (
            facts.get(_PAGE_TYPE) in _DATA_PAGES
            and facts.get(_ENCODING) not in _DICTIONARY_ENCODINGS
            and facts.get(_PAGES) != 0
        ):
            return False
    return size > 0


def learn_chunk_shape(footer: bytes, position: int) -> ChunkShape:
    """Return the shape of the column chunk entry at ``position``."""
    return _Learner(footer, position).shape()


@dataclass(slots=True)
class _Learner:
    """Walks one entry and writes down its pattern, and the format that writes it again."""

    footer: bytes
    position: int
    reader: CompactReader = field(init=False)
    pattern: bytearray = field(default_factory=bytearray)
    segments: list[re.Pattern[bytes]] = field(default_factory=list)
    template: bytearray = field(default_factory=bytearray)
    num_groups: int = 0
    capturing: bool = False
    numbers: dict[int, int] = field(default_factory=dict)
    extremes: dict[int, int] = field(default_factory=dict)
    histograms: dict[int, int] = field(default_factory=dict)
    null_count: int | None = None
    page_encodings: int | None = None
    seen: set[int] = field(default_factory=set)
    path: tuple[bytes, ...] = ()
    path_at: int = 0
    physical_type: int = -1
    codec: int = -1

    def shape(self) -> ChunkShape:
        self.reader = CompactReader(self.footer, self.position)
        self.template += bytes((_FILE_OFFSET << 4 | I64, 0, 1 << 4 | STRUCT))
        for number, kind in self._fields():
            if number in (_FILE_PATH, _CRYPTO, _ENCRYPTED):
                raise ThriftError("a column is in another file, or encrypted")
            if number == _META_DATA and kind == STRUCT:
                self._meta_data()
            else:
                self._value(kind, 0)
        self.template += b"\0"
        if not self.seen >= _REQUIRED:
            raise ThriftError("a column chunk lacks required fields")
        self._end_segment()
        extremes = None
        if self.extremes.keys() >= {_MIN_VALUE, _MAX_VALUE}:
            extremes = (self.extremes[_MIN_VALUE], self.extremes[_MAX_VALUE])
        return ChunkShape(
            self.path,
            self.physical_type,
            self.codec,
            _STATISTICS in self.seen,
            (self.histograms.get(_REPETITIONS, 0), self.histograms.get(_DEFINITIONS, 0)),
            extremes,
            self.null_count,
            self.page_encodings,
            tuple(self.segments),
            bytes(self.template),
            self.path_at,
            self.numbers,
        )

    def _meta_data(self) -> None:
        before = 0
        for number, kind in self._fields():
            self.seen.add(number)
            if number in _KEPT:
                self.template += bytes(((number - before) << 4 | kind,)).replace(b"%", b"%%")
                before = number
            if number in _LITERAL:
                self._literal(number, kind)
            elif number in _NUMBERS:
                if kind != I64:
                    raise ThriftError("a column chunk's size is no integer")
                self.numbers[number] = self.num_groups
                self._open(b"%b")
                self._value(kind, 0)
                self._close()
            elif number in _KEPT:
                if number == _ENCODING_STATS and kind == LIST:
                    self.page_encodings = self.num_groups
                self._open(b"%b")
                if number == _STATISTICS and kind == STRUCT:
                    self._statistics()
                elif number == _SIZE_STATISTICS and kind == STRUCT:
                    self._size_statistics()
                else:
                    self._value(kind, 0)
                self._close()
            else:
                self._value(kind, 0)
        self.template += b"\0"

    def _literal(self, number: int, kind: int) -> None:
        start = self.reader.position
        if number in (_TYPE, _CODEC) and kind == I32:
            value = self.reader.integer()
            if number == _TYPE:
                self.physical_type = value
            else:
                self.codec = value
        elif number == _PATH and kind == LIST:
            element, size = self.reader.list_header()
            if element != BINARY:
                raise ThriftError("a column's path is not made of names")
            self.path = tuple(self.reader.binary() for _ in range(size))
        elif number == _ENCODINGS and kind == LIST:
            self.reader.skip(kind)
        else:
            raise ThriftError("a field of a column chunk has another type")
        raw = self.footer[start : self.reader.position]
        self.pattern += re.escape(raw)
        if number == _PATH:
            self.path_at = len(self.template)
        else:
            self.template += raw.replace(b"%", b"%%")

    def _statistics(self) -> None:
        width = _WIDTHS.get(self.physical_type)
        for number, kind in self._fields():
            if kind == BINARY and width is not None:
                start = self.reader.position
                if len(self.reader.binary()) != width:
                    raise ThriftError("a statistic is not as wide as its column")
                length = self.reader.position - start - width
                self.pattern += re.escape(self.footer[start : start + length])
                # A group within the one that is copied.
                self.extremes[number] = self.num_groups
                self.num_groups += 1
                self.template += b"%.0b"
                self.pattern += b"(.{%d})" % width
            elif number == _NULL_COUNT and kind == I64:
                self.reader.unsigned()
                self.null_count = self.num_groups
                self.num_groups += 1
                self.template += b"%.0b"
                self.pattern += b"(%b)" % INTEGER
            else:
                self._value(kind, 0)

    def _size_statistics(self) -> None:
        for number, kind in self._fields():
            if kind == LIST:
                self.histograms[number] = CompactReader(
                    self.footer, self.reader.position
                ).list_header()[1]
            self._value(kind, 0)

    def _value(self, kind: int, depth: int) -> None:
        """Write down a value whose integers may be any others."""
        if depth > _MAX_SHAPE_DEPTH:
            raise ThriftError("values are nested too deep")
        reader = self.reader
        if kind in INTEGERS:
            reader.unsigned()
            self.pattern += INTEGER
        elif kind == BINARY:
            self._variable_bytes()
        elif kind == STRUCT:
            for _, inner in self._fields():
                self._value(inner, depth + 1)
        elif kind == LIST:
            start = reader.position
            inner, size = reader.list_header()
            self.pattern += re.escape(self.footer[start : reader.position])
            for _ in range(size):
                if inner in (BOOL_TRUE, BOOL_FALSE):
                    reader.byte()
                    self.pattern += b"."
                else:
                    self._value(inner, depth + 1)
        elif kind in (BYTE, DOUBLE):
            width = 1 if kind == BYTE else 8
            reader.take(width)
            self.pattern += b".{%d}" % width
        elif kind not in (BOOL_TRUE, BOOL_FALSE):
            raise ThriftError(f"values of type {kind} are not expected here")

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while header := self.reader.byte():
            if not header >> 4:
                raise ThriftError("a field is not numbered from the one before it")
            number += header >> 4
            self.pattern += re.escape(bytes((header,)))
            yield number, header & 0xF
        self.pattern += rb"\x00"

    def _variable_bytes(self) -> None:
        """Pass over a byte string of any length, which no pattern describes."""
        self.reader.binary()
        capturing = self.capturing
        if capturing:
            self._close()
        self._end_segment()
        self.num_groups += 1
        self.template += b"%b" if capturing else b"%.0b"
        if capturing:
            self._open(b"%b")

    def _open(self, written: bytes) -> None:
        self.pattern += b"("
        self.template += written
        self.num_groups += 1
        self.capturing = True

    def _close(self) -> None:
        self.pattern += b")"
        self.capturing = False

    def _end_segment(self) -> None:
        self.segments.append(re.compile(bytes(self.pattern), re.DOTALL))
        self.pattern.clear()


# ------------------------------------------------------------------------------------------------
# What footers of a dataset's files share: the schema, and what stands behind the row groups.


# Fields of FileMetaData.
_VERSION, _SCHEMA, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = 1, 2, 5, 6, 7
_REQUIRED_FIELD, _REPEATED_FIELD = 0, 2
# Fields of SchemaElement.
_PHYSICAL, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _ID, _LOGICAL = 1, 3, 4, 5, 6, 9, 10

ONLY_LOGICAL = -1
"""Instead of a converted type, where the meaning of values has come up since there are these."""
_ARROW_SCHEMA_KEY = b"ARROW:schema"
# Programs whose pages and statistics are known to be what their footers say.
_KNOWN_WRITERS = (b"parquet-cpp-arrow version ", b"leconvert version ")


class Leaf(NamedTuple):
    """One leaf column of a schema: names from the column down, type, and highest levels.

    Attributes:
        path: The names.
        physical_type: Parquet's number of the type of what is stored.
        repetitions: The highest repetition level.
        definitions: The highest definition level.
        converted_type: Parquet's number of what that stands for: unsigned integers, dates; None
            where it stands for itself.
    """

    path: tuple[bytes, ...]
    physical_type: int
    repetitions: int
    definitions: int
    converted_type: int | None

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


class FileTail(NamedTuple):
    """What stands behind the row groups.

    Attributes:
        raw: Its bytes.
        key_values: Metadata of the file.
        created_by: The program that wrote it, as it calls itself.
        key_values_raw: The metadata as encoded.
        column_orders_raw: The order that minima and maxima go by, as encoded; empty without.
    """

    raw: bytes
    key_values: dict[bytes, bytes | None]
    created_by: bytes
    key_values_raw: bytes
    column_orders_raw: bytes

    @property
    def arrow_schema(self) -> bytes | None:
        """The types that Arrow gives the columns, where those of the file say less."""
        return self.key_values.get(_ARROW_SCHEMA_KEY)

    @property
    def is_of_known_writer(self) -> bool:
        """Whether Arrow wrote it, or this program did."""
        return self.created_by.startswith(_KNOWN_WRITERS)


def parse_schema(footer: bytes) -> FileSchema:
    """Read the schema at the beginning of a footer."""
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
        repetitions += element.repetition == _REPEATED_FIELD
        definitions += element.repetition != _REQUIRED_FIELD
        if element.children:
            above.append((element.name, repetitions, definitions, element.children))
        elif element.physical_type is not None:
            names = (*(name for name, *_ in above[1:]), element.name)
            leaves.append(
                Leaf(
                    names,
                    element.physical_type,
                    repetitions,
                    definitions,
                    element.converted_type,
                )
            )
        else:
            raise ThriftError("the schema has a column without a type")
    if any(left for *_, left in above):
        raise ThriftError("the schema has columns too few")
    structure = tuple(element.structure for element in elements[1:])
    return FileSchema(footer[: reader.position], tuple(leaves), ((root_children,), *structure))


class _Element(NamedTuple):
    name: bytes
    physical_type: int | None
    converted_type: int | None
    repetition: int
    children: int
    structure: tuple[object, ...]


def _schema_element(reader: CompactReader) -> _Element:
    """Read one element; its id says nothing."""
    facts: dict[int, object] = {}
    name = b""
    for number, kind in reader.fields():
        start = reader.position
        if number == _NAME and kind == BINARY:
            name = reader.binary()
        elif kind == I32:
            facts[number] = reader.integer()
        else:
            reader.skip(kind)
            facts[number] = (kind, reader.between(start))
    facts.pop(_ID, None)
    physical, converted = facts.get(_PHYSICAL), facts.get(_CONVERTED)
    repetition, children = facts.get(_REPETITION, 0), facts.get(_CHILDREN, 0)
    if not isinstance(converted, int):
        converted = ONLY_LOGICAL if converted is not None or _LOGICAL in facts else None
    if not isinstance(repetition, int) or not isinstance(children, int) or children < 0:
        raise ThriftError("an element of the schema has fields of other types")
    if physical is not None and not isinstance(physical, int):
        raise ThriftError("an element of the schema has a type that is no number")
    return _Element(name, physical, converted, repetition, children, tuple(facts.items()))


def parse_tail(raw: bytes) -> FileTail:
    """Read what stands behind the row groups, to the end of a footer."""
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
    return FileTail(raw, key_values, created_by, key_values_raw, column_orders_raw)


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


# ------------------------------------------------------------------------------------------------
# Parquet footers, taken apart into what all files of a dataset share and what they do not.


# Known schemas, metadata and shapes a column. Datasets need one or two of each; strange ones must
# not fill the memory of a long scan.
_KEPT_SCHEMAS = 16
_KEPT_TAILS = 64
_KEPT_SHAPES = 16
_KEPT_KINDS = 8

_ROWS = re.compile(rb"\x16(%b)\x19" % INTEGER, re.DOTALL)
_SIZES = re.compile(
    rb"\x16(?:%b)\x16(%b)(?:\x26(?:%b)(?:\x16(?:%b))?)?(?:\x14(?:%b))?\x00" % ((INTEGER,) * 5),
    re.DOTALL,
)
_ROW_GROUP_COLUMNS = 0x19


class ChunkNumbers(NamedTuple):
    """The numbers of the column chunks of a row group, see `ChunkEntry`; one a column in each."""

    num_values: list[int]
    uncompressed_bytes: list[int]
    compressed_bytes: list[int]
    data_offset: list[int]
    start: list[int]


class RowGroupKind:
    """What row groups of one kind have in common.

    Attributes:
        shapes: Each column's shape.
        edges: Each column's first group among the groups of all, and how many these are.
    """

    __slots__ = ("_numbers", "edges", "shapes")

    def __init__(self, shapes: tuple[ChunkShape, ...], edges: tuple[int, ...]) -> None:
        self.shapes = shapes
        self.edges = edges
        places = [
            edge + shape.number_at(number)
            for number in _IN_ORDER
            for shape, edge in zip(shapes, edges[:-1], strict=True)
        ]
        self._numbers: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] = (
            itemgetter(*places) if places else lambda _: ()
        )

    def writer(self, paths: Iterable[tuple[bytes, ...]]) -> ChunksWriter:
        """Return what writes the entries of such row groups for columns of these names."""
        shapes, edges = self.shapes, self.edges
        columns = list(zip(shapes, edges[:-1], strict=True))
        return ChunksWriter(
            b"".join(shape.template(path) for shape, path in zip(shapes, paths, strict=True)),
            edges[-1],
            tuple(edge + shape.number_at(_DATA_OFFSET) for shape, edge in columns),
            tuple(
                edge + shape.number_at(_DICTIONARY_OFFSET) if shape.has_dictionary_offset else None
                for shape, edge in columns
            ),
        )

    def numbers(self, groups: tuple[bytes, ...]) -> list[int]:
        """Return the numbers in some groups, those of `ChunkNumbers` one behind the other."""
        flat = list(map(unzigzag, self._numbers(groups)))
        size = len(self.shapes)
        starts = flat[4 * size :]
        # Some writers say 0 where there is no dictionary.
        if 0 in starts:
            data = flat[3 * size : 4 * size]
            flat[4 * size :] = [start or at for start, at in zip(starts, data, strict=True)]
        return flat


@dataclass(slots=True, eq=False)
class RowGroupEntry:
    """One row group as a footer states it; what is asked of its chunks is read when it is asked.

    Attributes:
        rows: Its rows.
        kind: What it has in common with others.
        groups: The bytes that differ, those of all columns.
    """

    rows: int
    kind: RowGroupKind
    groups: tuple[bytes, ...]
    # Not as `ChunkNumbers`: large footers have thousands of row groups.
    _numbers: list[int] | None = field(default=None, init=False, repr=False)
    _chunks: tuple[ChunkEntry, ...] | None = field(default=None, init=False, repr=False)

    @property
    def numbers(self) -> ChunkNumbers:
        """The numbers of its chunks."""
        flat, one = self._flat(), len(self.kind.shapes)
        two, three, four = 2 * one, 3 * one, 4 * one
        return ChunkNumbers(
            flat[:one], flat[one:two], flat[two:three], flat[three:four], flat[four:]
        )

    def _flat(self) -> list[int]:
        if self._numbers is None:
            self._numbers = self.kind.numbers(self.groups)
        return self._numbers

    def num_values(self, leaf: int) -> int:
        """Return `ChunkEntry.num_values` of one leaf column."""
        return self._flat()[leaf]

    def pages(self, leaf: int) -> slice:
        """Return which bytes of its file one leaf column is."""
        flat, columns = self._flat(), len(self.kind.shapes)
        start = flat[4 * columns + leaf]
        return slice(start, start + flat[2 * columns + leaf])

    @property
    def chunks(self) -> tuple[ChunkEntry, ...]:
        """Its chunks, one a leaf column of the schema."""
        if self._chunks is None:
            self._chunks = tuple(self.chunks_of(range(len(self.kind.shapes))))
        return self._chunks

    def chunks_of(self, leaves: Iterable[int]) -> list[ChunkEntry]:
        """Return the chunks of some leaf columns."""
        groups, shapes, edges = self.groups, self.kind.shapes, self.kind.edges
        values, uncompressed, compressed, data, start = self.numbers
        return [
            ChunkEntry(
                shapes[leaf],
                groups[edges[leaf] : edges[leaf + 1]],
                values[leaf],
                uncompressed[leaf],
                compressed[leaf],
                data[leaf],
                start[leaf]
                if start[leaf] != data[leaf]
                else shapes[leaf].dictionary_offset(groups, edges[leaf]),
                start[leaf],
            )
            for leaf in leaves
        ]

    def null_count(self, leaf: int) -> int | None:
        """Return `ChunkEntry.null_count` of one leaf column."""
        at = self.kind.shapes[leaf].null_count
        return None if at is None else unzigzag(self.groups[self.kind.edges[leaf] + at])

    def uncompressed_within(self, size_bytes: int) -> int | None:
        """Return the uncompressed bytes of all chunks; None where not all are in such a file."""
        _, uncompressed, compressed, data, start = self.numbers
        if not start:
            return 0
        if (
            min(self._flat()) < 0
            or max(map(add, start, compressed)) > size_bytes
            or any(map(lt, data, start))
        ):
            return None
        return sum(uncompressed)


@dataclass(frozen=True, slots=True)
class ChunksWriter:
    """Writes the entries of the chunks of one kind of row groups again, for another place."""

    _template: bytes
    _num_groups: int
    _data_at: tuple[int, ...]
    _dictionary_at: tuple[int | None, ...]

    def write(self, group: RowGroupEntry, position: int) -> bytes:
        """Return the entries of a row group's chunks that lie one behind the other from there."""
        numbers = group.numbers
        groups = list(group.groups[: self._num_groups])
        for start, size, data, data_at, dictionary_at in zip(
            numbers.start,
            numbers.compressed_bytes,
            numbers.data_offset,
            self._data_at,
            self._dictionary_at,
            strict=True,
        ):
            groups[data_at] = varint((data - start + position) << 1)
            # Where there is a dictionary the chunk begins with it.
            if dictionary_at is not None and unzigzag(groups[dictionary_at]):
                groups[dictionary_at] = varint(position << 1)
            position += size
        return self._template % tuple(groups)


class FileFooter(NamedTuple):
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


class FooterOutline(NamedTuple):
    """A footer's row groups: rows of each, where each entry begins, and where the last ends."""

    schema: FileSchema
    rows: list[int]
    places: list[int]


class FooterReader:
    """Reads footers and remembers what it saw, to read the next one faster.

    What it returns depends on the footer alone, never on what it saw before. Threads may share it:
    at worst two learn the same thing.
    """

    def __init__(self) -> None:
        self._schemas: tuple[FileSchema, ...] = ()
        self._tails: dict[bytes, FileTail] = {}
        self._shapes: dict[tuple[bytes, ...], tuple[ChunkShape, ...]] = {}
        # With each kind what finds all its groups at once, and the number of rows behind them.
        self._kinds: dict[FileSchema, tuple[tuple[re.Pattern[bytes], RowGroupKind], ...]] = {}

    def read(self, footer: bytes) -> FileFooter:
        """Take a footer apart."""
        schema, rows, size, position = self._begin(footer)
        groups: list[RowGroupEntry] = []
        for _ in range(size):
            group, position = self._row_group(footer, position, schema)
            groups.append(group)
        if rows != sum(group.rows for group in groups):
            raise _rows_disagree()
        return FileFooter(schema, rows, tuple(groups), self._tail(footer[position:]))

    def row_groups(self, footer: bytes) -> Iterator[RowGroupEntry]:
        """Yield each row group; one is held at a time."""
        schema, _, size, position = self._begin(footer)
        for _ in range(size):
            group, position = self._row_group(footer, position, schema)
            yield group

    def rows(self, footer: bytes) -> list[int]:
        """Return the rows of each row group; holds little else, however many there are."""
        return self.outline(footer).rows

    def row_group_at(self, footer: bytes, place: int, schema: FileSchema) -> RowGroupEntry:
        """Return the row group whose entry begins at a place of an outline."""
        return self._row_group(footer, place, schema)[0]

    def outline(self, footer: bytes) -> FooterOutline:
        """Return where each row group's entry is; the entries themselves are not kept."""
        schema, rows, size, position = self._begin(footer)
        counts: list[int] = []
        places: list[int] = []
        for _ in range(size):
            places.append(position)
            known = self._known_group(footer, position, schema)
            if known is not None:
                found = known[1]
                counts.append(_row_count(found[found.re.groups]))
                position = found.end()
            else:
                group, position = self._row_group(footer, position, schema)
                counts.append(group.rows)
        if rows != sum(counts):
            raise _rows_disagree()
        self._tail(footer[position:])
        return FooterOutline(schema, counts, [*places, position])

    def _begin(self, footer: bytes) -> tuple[FileSchema, int, int, int]:
        """Return schema, rows and row groups of a footer, and where the first row group is."""
        schema = self.schema(footer)
        position = len(schema.raw)
        found = _ROWS.match(footer, position)
        if found is None:
            raise ThriftError("there is no number of rows behind the schema")
        reader = CompactReader(footer, found.end())
        kind, size = reader.list_header()
        if kind != STRUCT and size:
            raise ThriftError("the row groups are no structs")
        return schema, unzigzag(found[1]), size, reader.position

    def schema(self, footer: bytes) -> FileSchema:
        """Return the columns of a footer."""
        for known in self._schemas:
            if footer.startswith(known.raw):
                return known
        schema = parse_schema(footer)
        self._schemas = (schema, *self._schemas)[:_KEPT_SCHEMAS]
        return schema

    def _tail(self, raw: bytes) -> FileTail:
        known = self._tails.get(raw)
        if known is None:
            if len(self._tails) >= _KEPT_TAILS:
                self._tails.clear()
            known = self._tails[raw] = parse_tail(raw)
        return known

    def _known_group(
        self, footer: bytes, position: int, schema: FileSchema
    ) -> tuple[RowGroupKind, re.Match[bytes]] | None:
        """Return the kind of the row group at ``position`` and what it matched; None if new."""
        known = self._kinds.get(schema, ())
        for place, (pattern, kind) in enumerate(known):
            match = pattern.match(footer, position)
            if match is not None:
                if place:
                    self._kinds[schema] = (known[place], *known[:place], *known[place + 1 :])
                return kind, match
        return None

    def _row_group(
        self, footer: bytes, position: int, schema: FileSchema
    ) -> tuple[RowGroupEntry, int]:
        known = self._known_group(footer, position, schema)
        if known is not None:
            kind, match = known
            groups = match.groups()
            return RowGroupEntry(_row_count(groups[-1]), kind, groups), match.end()
        reader = CompactReader(footer, position)
        if reader.byte() != _ROW_GROUP_COLUMNS:
            raise ThriftError("a row group does not begin with its columns")
        element, size = reader.list_header()
        if element != STRUCT or size != len(schema.leaves):
            raise ThriftError("a row group has other columns than the schema")
        head, position = footer[position : reader.position], reader.position
        chunks: list[ChunkEntry] = []
        for leaf in schema.leaves:
            entry, position = self._chunk(footer, position, leaf)
            chunks.append(entry)
        found = _SIZES.match(footer, position)
        if found is None:
            raise ThriftError("a row group is not followed by its sizes")
        rows = _row_count(found[1])
        edges = tuple(accumulate((len(chunk.groups) for chunk in chunks), initial=0))
        kind = RowGroupKind(tuple(chunk.shape for chunk in chunks), edges)
        self._remember(schema, head, kind)
        groups = tuple(chain.from_iterable(chunk.groups for chunk in chunks))
        return RowGroupEntry(rows, kind, groups), found.end()

    def _remember(self, schema: FileSchema, head: bytes, kind: RowGroupKind) -> None:
        """Keep what finds row groups like this one, all columns at once.

        Only the first few kinds: where columns vary freely there are too many, and each takes
        milliseconds to learn.
        """
        known = self._kinds.get(schema, ())
        if len(known) >= _KEPT_KINDS:
            return
        expression = re.escape(head)
        for shape in kind.shapes:
            if shape.pattern is None:
                return
            expression += shape.pattern.pattern
        pattern = re.compile(expression + _SIZES.pattern, re.DOTALL)
        if len(self._kinds) >= _KEPT_SCHEMAS and schema not in self._kinds:
            self._kinds.clear()
        self._kinds[schema] = (*known, (pattern, kind))

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


def _row_count(raw: bytes) -> int:
    rows = unzigzag(raw)
    if rows < 0:
        raise ThriftError("a row group has a negative number of rows")
    return rows


def _rows_disagree() -> ThriftError:
    return ThriftError("the row groups have other rows in all than the file")


def _check_histograms(shape: ChunkShape, leaf: Leaf) -> None:
    for size, levels in zip(shape.histograms, (leaf.repetitions, leaf.definitions), strict=True):
        if size and size != levels + 1:
            raise ContradictionError("a histogram of levels has another size than the schema says")


# ------------------------------------------------------------------------------------------------
# Sizes of row groups from any parquet footer, also one that `FooterReader` does not take apart.


# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _CHUNK_META_DATA, _TOTAL_UNCOMPRESSED = 4, 1, 3, 6


def uncompressed_sizes(footer: bytes) -> Iterator[int]:
    """Yield the uncompressed bytes of each row group of any footer, whatever else is in it."""
    reader = CompactReader(footer)
    for _ in _structs(reader, _ROW_GROUPS):
        total = 0
        for _ in _structs(reader, _COLUMNS):
            for number, kind in reader.fields():
                if (number, kind) != (_CHUNK_META_DATA, STRUCT):
                    reader.skip(kind)
                    continue
                for inner, inner_kind in reader.fields():
                    if (inner, inner_kind) == (_TOTAL_UNCOMPRESSED, I64):
                        total += reader.integer()
                    else:
                        reader.skip(inner_kind)
        yield total


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
