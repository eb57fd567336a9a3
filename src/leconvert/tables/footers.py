"""Parquet footers: the columns of a file, its row groups, and its metadata.

A footer is the schema, the row groups and the key-value metadata, in this order. The footers of a
dataset's files are alike: schema and metadata are mostly the same bytes, and row groups differ only
in integers and in the values of statistics. So the first row groups of a kind are walked field by
field, which gives a *form*: regular expressions in which types, names, encodings and field numbers
are literal and integers are not. A row group that matches a form has the same fields, and :mod:`re`
finds its integers fifty times faster than a walk.

Every new part of a footer is shown to Arrow: schema and metadata without row groups, and a walked
row group with the schema alone. So a footer that Arrow refuses is refused here, although Arrow
never holds a large footer, for which it needs ten times the footer's size. If the entry of a column
chunk contradicts the schema, Arrow ends the process when it is asked for the chunk. Such entries
are refused before Arrow sees them.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property, lru_cache, partial
from itertools import batched
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.support.values import dataclass
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
    ThriftError,
    list_header,
    unzigzag,
)

MAGIC = b"PAR1"
TRAILER_BYTES = 8  # little-endian length of the footer, then the magic
_LENGTH_BYTES = TRAILER_BYTES - len(MAGIC)

_REQUIRED_FIELD, _OPTIONAL_FIELD, _REPEATED_FIELD = range(3)
# Fields of SchemaElement.
_PHYSICAL, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _ID, _LOGICAL = 1, 3, 4, 5, 6, 9, 10

ONLY_LOGICAL = -1
"""Stands for the converted type of values whose meaning exists only as a logical type."""

_BOOL, _INT32, _INT64, _FLOAT, _DOUBLE = 0, 1, 2, 4, 5
_LETTERS = {_BOOL: "?", _INT32: "i", _INT64: "q", _FLOAT: "f", _DOUBLE: "d"}
_UNSIGNED, _SIGNED = range(11, 15), range(15, 19)  # converted types of 8, 16, 32 and 64 bits


class Leaf(NamedTuple):
    """One leaf column of a schema: names from the column down, type, and highest levels.

    Attributes:
        path: The names.
        physical_type: Parquet's number of the stored type.
        repetitions: The highest repetition level.
        definitions: The highest definition level.
        converted_type: Parquet's number of the meaning of the values, such as unsigned integers or
            dates; None if they have no other meaning.
    """

    path: tuple[bytes, ...]
    physical_type: int
    repetitions: int
    definitions: int
    converted_type: int | None

    @property
    def column(self) -> str:
        """Name of the column that the leaf is in."""
        try:
            return self.path[0].decode()
        except UnicodeDecodeError as error:
            raise ThriftError(f"the name of a column is not a text: {error}") from error

    @property
    def letter(self) -> str | None:
        """The format letter of :mod:`struct` for the values; None if they are not numbers."""
        letter = _LETTERS.get(self.physical_type)
        if letter is None or self.converted_type is None or self.converted_type in _SIGNED:
            return letter
        return letter.upper() if self.converted_type in _UNSIGNED else None


@dataclass(frozen=True, eq=False)
class FileSchema:
    """The schema of a parquet file.

    Attributes:
        raw: The footer's first bytes, up to the number of rows.
        leaves: The leaf columns in order.
        structure: Everything that decides how pages are read, without names. If structures and
            Arrow schemas are equal, the pages of one file can stand in the other.
    """

    raw: bytes
    leaves: tuple[Leaf, ...]
    structure: tuple[tuple[object, ...], ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; a nested column has one leaf or more."""
        return tuple(dict.fromkeys(leaf.column for leaf in self.leaves))

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of the leaf of each column that has only one, by name."""
        times = Counter(leaf.column for leaf in self.leaves)
        return {leaf.column: at for at, leaf in enumerate(self.leaves) if times[leaf.column] == 1}

    @cached_property
    def image_files(self) -> dict[str, int]:
        """The number of the leaf ``bytes`` of each column of images, by name."""
        return {
            leaf.column: at for at, leaf in enumerate(self.leaves) if leaf.path[1:] == (b"bytes",)
        }


def parse_schema(footer: bytes) -> FileSchema:
    """Read the schema at the beginning of a footer.

    Raises:
        ThriftError: The schema is damaged.
    """
    reader = CompactReader(footer)
    fields = reader.fields()
    if next(fields, None) != (1, I32):
        raise ThriftError("the footer does not begin with a version")
    reader.integer()
    if next(fields, None) != (2, LIST):
        raise ThriftError("there is no schema behind the version")
    size = _structs(reader)
    if not size:
        raise ThriftError("the schema has no columns")
    elements = [_schema_element(reader) for _ in range(size)]
    leaves: list[Leaf] = []
    root_children = elements[0].children
    position = 1
    # Elements are stored in the order of a walk down the tree. Each entry: name, levels, and
    # children still to come.
    above: list[tuple[bytes, int, int, int]] = [(b"", 0, 0, root_children)]
    while position < size:
        while above and above[-1][3] == 0:
            above.pop()
        if not above:
            raise ThriftError("the schema has too many columns")
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
            kind, meaning = element.physical_type, element.converted_type
            leaves.append(Leaf(names, kind, repetitions, definitions, meaning))
        else:
            raise ThriftError("the schema has a column without a type")
    if any(left for *_, left in above):
        raise ThriftError("the schema has too few columns")
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
    """Read one element; its id is ignored."""
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
    # Arrow would take any other number for "required", and end the process at the histograms of
    # levels.
    if repetition not in (_REQUIRED_FIELD, _OPTIONAL_FIELD, _REPEATED_FIELD):
        raise ThriftError("an element of the schema is neither required, optional nor repeated")
    if physical is not None and not isinstance(physical, int):
        raise ThriftError("an element of the schema has a type that is not a number")
    return _Element(name, physical, converted, repetition, children, tuple(facts.items()))


# Fields of FileMetaData after the row groups.
_KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = 5, 6, 7
_ARROW_SCHEMA_KEY = b"ARROW:schema"
_KEPT_TAILS = 64  # datasets need one or two
# Programs whose pages and statistics are known to agree with their footers.
_KNOWN_WRITERS = (b"parquet-cpp-arrow version ", b"leconvert version ")


class FileTail(NamedTuple):
    """The part of a footer after the row groups.

    Attributes:
        raw: Its bytes.
        key_values: Metadata of the file.
        created_by: The program that wrote the file, by its own name.
        is_of_known_writer: Whether Arrow or leconvert wrote the file.
        key_values_raw: The encoded metadata.
        column_orders_raw: The encoded order for minima and maxima; empty if not stated.
    """

    raw: bytes
    key_values: dict[bytes, bytes]
    created_by: bytes
    is_of_known_writer: bool
    key_values_raw: bytes
    column_orders_raw: bytes

    @property
    def arrow_schema(self) -> bytes | None:
        """The Arrow types of the columns, encoded; they are more exact than parquet's own."""
        return self.key_values.get(_ARROW_SCHEMA_KEY)


@lru_cache(maxsize=_KEPT_TAILS)
def parse_tail(raw: bytes) -> FileTail:
    """Read the part after the row groups, to the end of a footer.

    Raises:
        ThriftError: It is damaged, or the file is encrypted.
    """
    # Field numbers are differences to the row groups' field, which is number 4: this header
    # restores it.
    shifted = bytes((4 << 4 | BOOL_TRUE,)) + raw
    reader = CompactReader(shifted)
    key_values: dict[bytes, bytes] = {}
    created_by = key_values_raw = column_orders_raw = b""
    for number, kind in reader.fields():
        start = reader.position
        if number == _KEY_VALUES and kind == LIST:
            key_values.update([_key_value(reader) for _ in range(_structs(reader))])
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
    is_known = created_by.startswith(_KNOWN_WRITERS)
    return FileTail(raw, key_values, created_by, is_known, key_values_raw, column_orders_raw)


def _key_value(reader: CompactReader) -> tuple[bytes, bytes]:
    key, value = None, b""
    for number, kind in reader.fields():
        if kind == BINARY and number == 1:
            key = reader.binary()
        elif kind == BINARY and number == 2:
            value = reader.binary()
        else:
            reader.skip(kind)
    if key is None:
        raise ThriftError("an entry of the metadata has no key")
    return key, value


def _structs(reader: CompactReader) -> int:
    """Return the number of structs in the list that begins here."""
    kind, size = reader.list_header()
    if size and kind != STRUCT:
        raise ThriftError("a list is not made of structs")
    return size


# The number of rows, 0, and the head of the list of row groups, as they follow the schema.
_NO_ROWS = b"\x16\0\x19"
INTEGER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"

_MAX_DEPTH = 8
# Bytes of a statistic by physical type. Byte strings have any length; those of a fixed length can
# be too long.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}

# Fields of RowGroup. Arrow also writes 2, 5, 6 and 7: sizes, the first byte, and the number.
_COLUMNS, _ROWS = 1, 3
_PLAIN_FIELDS = frozenset([1, 2, 3, 5, 6, 7])
# Fields of ColumnChunk; the last three belong to columns in another file, or encrypted ones.
_FILE_OFFSET, _META_DATA, _ELSEWHERE = 2, 3, frozenset([1, 8, 9])
# Fields of ColumnMetaData.
_TYPE, _ENCODINGS, _PATH, _CODEC = 1, 2, 3, 4
_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 6, 7, 9, 11
_STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS = 12, 13, 16
_NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 3, 5, 6
_REPETITIONS, _DEFINITIONS = 2, 3
_LITERAL = frozenset([_TYPE, _ENCODINGS, _PATH, _CODEC])
_IN_ORDER = (_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET)
_NUMBERS = frozenset(_IN_ORDER)
_NOT_STATED = -1
_REQUIRED = _LITERAL | (_NUMBERS - {_DICTIONARY_OFFSET})
_KEPT = _LITERAL | _NUMBERS | {_STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS}


class ChunkEntry(NamedTuple):
    """The entry of one column chunk in a footer.

    Attributes:
        num_values: Values, nulls included; repeated ones count each.
        uncompressed_bytes: Size of the pages before compression, with their headers.
        compressed_bytes: Size of the pages in the file, with their headers.
        data_offset: Offset of the first data page.
        dictionary_offset: Offset of the dictionary page, 0 if there is none.
        start: Offset of the chunk's first byte.
    """

    num_values: int
    uncompressed_bytes: int
    compressed_bytes: int
    data_offset: int
    dictionary_offset: int
    start: int


# The same as ``_make``, without a Python call for each entry.
_CHUNK_ENTRY = partial(tuple.__new__, ChunkEntry)


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupForm:
    """The common part of row groups of one kind.

    Attributes:
        segments: Expressions that match a row group; between two of them is a byte string of any
            length.
        parts: The pieces for rewriting its chunks: bytes, the number of a group, and None for the
            path of the next column.
        rows: Group of the number of rows.
        numbers: Takes the groups, with a zero as the last, and returns the groups of the numbers of
            all chunks: for each chunk all fields of `ChunkEntry` except the last.
        places: Groups of the first data page and of the dictionary page of each chunk; the latter
            is `_NOT_STATED` if no dictionary page is stated.
        null_counts: Group of the number of empty values of each chunk; None if it is not stated.
        codecs: Parquet's numbers of the compressions of its chunks.
        have_statistics: Whether every chunk has statistics.
        is_plain: Whether it has only the fields that Arrow writes by default.
        extreme_columns: Columns that have a least and a greatest value.
        extreme_groups: Groups of the least and the greatest value of each of them in turn.
        extreme_values: Decodes these groups.
    """

    segments: tuple[re.Pattern[bytes], ...]
    parts: tuple[bytes | int | None, ...]
    rows: int
    numbers: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    places: tuple[tuple[int, int], ...]
    null_counts: tuple[int | None, ...]
    codecs: frozenset[int]
    have_statistics: bool
    is_plain: bool
    extreme_columns: tuple[str, ...]
    extreme_groups: tuple[int, ...]
    extreme_values: Struct

    def match(self, footer: bytes, position: int) -> tuple[RowGroupEntry, int] | None:
        """Return the row group at ``position`` and its end; None if it has another form."""
        found = self.segments[0].match(footer, position)
        if found is None:
            return None
        groups = found.groups()
        for segment in self.segments[1:]:
            start = found.end()
            reader = CompactReader(footer, start)
            try:
                reader.binary()
            except ThriftError:
                return None
            found = segment.match(footer, reader.position)
            if found is None:
                return None
            groups += (reader.between(start), *found.groups())
        return RowGroupEntry(self, groups), found.end()


class RowGroupEntry(NamedTuple):
    """The entry of one row group in a footer; its values are decoded when they are needed.

    It stores no decoded numbers, since large footers have tens of thousands of row groups.

    Attributes:
        form: The part that it shares with others.
        groups: The bytes that differ, for all columns.
    """

    form: RowGroupForm
    groups: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return unzigzag(self.groups[self.form.rows])

    def chunks(self) -> list[ChunkEntry]:
        """Return its chunks, one per leaf column of the schema."""
        numbers = map(unzigzag, self.form.numbers((*self.groups, b"\0")))
        # Some writers state a dictionary at offset 0 if there is none.
        return [
            _CHUNK_ENTRY((values, plain_bytes, chunk_bytes, data, dictionary, dictionary or data))
            for values, plain_bytes, chunk_bytes, data, dictionary in batched(numbers, 5)
        ]

    def null_counts(self) -> list[int | None]:
        """Return the number of empty values of each leaf column; None if it is not stated."""
        groups = self.groups
        return [None if at is None else unzigzag(groups[at]) for at in self.form.null_counts]

    def extremes(self) -> dict[str, tuple[float, float]]:
        """Return the least and the greatest value of each column of numbers that has them."""
        form, groups = self.form, self.groups
        found = form.extreme_values.unpack(b"".join([groups[at] for at in form.extreme_groups]))
        pairs = zip(found[::2], found[1::2], strict=True)
        return dict(zip(form.extreme_columns, pairs, strict=True))


def chunk_outside(chunks: Iterable[ChunkEntry], size_bytes: int) -> int | None:
    """Return the number of a chunk that does not lie within a file of this size; None if all do."""
    for number, (values, plain_bytes, chunk_bytes, _, _, start) in enumerate(chunks):
        first = len(MAGIC) if chunk_bytes else 0
        is_inside = first <= start <= size_bytes - chunk_bytes
        if values < 0 or plain_bytes < 0 or chunk_bytes < 0 or not is_inside:
            return number
    return None


@dataclass(slots=True, eq=False)
class _WalkedChunk:
    """The result of a walk over one column chunk; groups are given by field number."""

    path: tuple[bytes, ...] = ()
    physical_type: int = -1
    codec: int = -1
    fields: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)
    statistics: dict[int, int] = field(default_factory=dict)
    histograms: dict[int, int] = field(default_factory=dict)

    def check(self, leaf: Leaf) -> None:
        """Refuse a chunk that contradicts the schema: Arrow would end the process."""
        if not self.fields >= _REQUIRED:
            raise ThriftError("a column chunk lacks required fields")
        if (self.path, self.physical_type) != (leaf.path, leaf.physical_type):
            raise ThriftError("a column chunk is not the one that the schema names")
        for number, levels in (_REPETITIONS, leaf.repetitions), (_DEFINITIONS, leaf.definitions):
            if self.histograms.get(number, 0) not in (0, levels + 1):
                raise ThriftError("a histogram of levels has another size than the schema says")


class _Walk:
    """Walks one row group field by field and records its form.

    Args:
        footer: The footer.
        position: Offset of the row group.
        schema: The columns that it must have.

    Attributes:
        end: Offset of its end.
        patterns: The expressions of its form.
    """

    def __init__(self, footer: bytes, position: int, schema: FileSchema) -> None:
        self._footer = footer
        self._reader = CompactReader(footer, position)
        self._schema = schema
        self._pattern = bytearray()
        self.patterns: tuple[bytes, ...] = ()
        self._parts: list[bytes | int | None] = []
        # Begin and end of each group, and the number of the open group that is rewritten as a
        # whole.
        self._groups: list[tuple[int, int]] = []
        self._whole: int | None = None
        self._chunks: list[_WalkedChunk] = []
        self._rows = -1
        self._is_plain = True
        for number, kind in self._fields():
            self._is_plain &= number in _PLAIN_FIELDS
            if number == _COLUMNS and kind == LIST:
                self._columns()
            elif number == _ROWS and kind == I64:
                self._rows = self._captured(INTEGER, self._reader.unsigned)
            else:
                self._value(kind)
        self._end_segment()
        if self._rows < 0 or len(self._chunks) != len(schema.leaves):
            raise ThriftError("a row group lacks required fields")
        self.end = self._reader.position

    def entry(self, *, is_compiled: bool) -> RowGroupEntry:
        """Return the row group; only a compiled form can match others."""
        chunks = self._chunks
        columns: list[str] = []
        groups: list[int] = []
        letters = "<"
        for name, at in self._schema.places.items():
            statistics, letter = chunks[at].statistics, self._schema.leaves[at].letter
            if letter is not None and statistics.keys() >= {_MIN_VALUE, _MAX_VALUE}:
                columns.append(name)
                groups += [statistics[_MIN_VALUE], statistics[_MAX_VALUE]]
                letters += 2 * letter
        numbers = [
            chunk.numbers.get(number, _NOT_STATED) for chunk in chunks for number in _IN_ORDER
        ]
        expressions = self.patterns if is_compiled else ()
        form = RowGroupForm(
            segments=tuple(re.compile(expression, re.DOTALL) for expression in expressions),
            parts=tuple(self._parts),
            rows=self._rows,
            numbers=itemgetter(*numbers) if numbers else lambda _: (),
            places=tuple(
                (
                    chunk.numbers[_DATA_OFFSET],
                    chunk.numbers.get(_DICTIONARY_OFFSET, _NOT_STATED),
                )
                for chunk in chunks
            ),
            null_counts=tuple(chunk.statistics.get(_NULL_COUNT) for chunk in chunks),
            codecs=frozenset(chunk.codec for chunk in chunks),
            have_statistics=all(_STATISTICS in chunk.fields for chunk in chunks),
            is_plain=self._is_plain,
            extreme_columns=tuple(columns),
            extreme_groups=tuple(groups),
            extreme_values=Struct(letters),
        )
        return RowGroupEntry(form, tuple(self._footer[start:stop] for start, stop in self._groups))

    def _columns(self) -> None:
        start = self._reader.position
        if _structs(self._reader) != len(self._schema.leaves):
            raise ThriftError("a row group has other columns than the schema")
        self._pattern += re.escape(self._reader.between(start))
        for leaf in self._schema.leaves:
            chunk = _WalkedChunk()
            self._parts.append(bytes((_FILE_OFFSET << 4 | I64, 0, 1 << 4 | STRUCT)))
            for number, kind in self._fields():
                self._is_plain &= number not in _ELSEWHERE
                if number == _META_DATA and kind == STRUCT:
                    self._meta_data(chunk)
                else:
                    self._value(kind)
            self._parts.append(b"\0")
            chunk.check(leaf)
            self._chunks.append(chunk)

    def _meta_data(self, chunk: _WalkedChunk) -> None:
        before = 0
        for number, kind in self._fields():
            chunk.fields.add(number)
            if number not in _KEPT:
                self._value(kind)
                continue
            if not before and number != _TYPE:  # the next header may not fit a byte
                raise ThriftError("a column chunk lacks required fields")
            self._parts.append(bytes(((number - before) << 4 | kind,)))
            before = number
            if number in _LITERAL:
                self._literal(number, kind, chunk)
            elif number in _NUMBERS:
                if kind != I64:
                    raise ThriftError("the size of a column chunk is not an integer")
                chunk.numbers[number] = self._captured(INTEGER, self._reader.unsigned)
                self._parts.append(chunk.numbers[number])
            else:
                self._open_whole()
                if number == _STATISTICS and kind == STRUCT:
                    self._statistics(chunk)
                elif number == _SIZE_STATISTICS and kind == STRUCT:
                    self._size_statistics(chunk)
                else:
                    self._value(kind)
                self._close_whole()
        self._parts.append(b"\0")

    def _literal(self, number: int, kind: int, chunk: _WalkedChunk) -> None:
        reader = self._reader
        start = reader.position
        if number == _TYPE and kind == I32:
            chunk.physical_type = reader.integer()
        elif number == _CODEC and kind == I32:
            chunk.codec = reader.integer()
        elif number == _PATH and kind == LIST:
            element, size = reader.list_header()
            if element != BINARY:
                raise ThriftError("a column's path is not made of names")
            chunk.path = tuple(reader.binary() for _ in range(size))
        elif number == _ENCODINGS and kind == LIST:
            reader.skip(kind)
        else:
            raise ThriftError("a field of a column chunk has another type")
        raw = reader.between(start)
        self._pattern += re.escape(raw)
        self._parts.append(None if number == _PATH else raw)

    def _statistics(self, chunk: _WalkedChunk) -> None:
        reader, width = self._reader, _WIDTHS.get(chunk.physical_type)
        for number, kind in self._fields():
            start = reader.position
            if kind == BINARY and len(reader.binary()) == width:
                reader.position = start
                self._pattern += re.escape(bytes((reader.byte(),)))
                chunk.statistics[number] = self._captured(b".{%d}" % width, reader.take, width)
            elif number == _NULL_COUNT and kind == I64:
                chunk.statistics[number] = self._captured(INTEGER, reader.unsigned)
            else:
                reader.position = start
                self._value(kind)

    def _size_statistics(self, chunk: _WalkedChunk) -> None:
        for number, kind in self._fields():
            if kind == LIST:
                start = self._reader.position
                chunk.histograms[number] = self._reader.list_header()[1]
                self._reader.position = start
            self._value(kind)

    def _value(self, kind: int, depth: int = 0) -> None:
        """Record a value whose integers may differ in other row groups."""
        reader = self._reader
        if depth > _MAX_DEPTH:
            raise ThriftError("values are nested too deep")
        if kind in INTEGERS:
            reader.unsigned()
            self._pattern += INTEGER
        elif kind == BINARY:
            self._variable_bytes()
        elif kind == STRUCT:
            for _, inner in self._fields():
                self._value(inner, depth + 1)
        elif kind == LIST:
            start = reader.position
            inner, size = reader.list_header()
            self._pattern += re.escape(reader.between(start))
            for _ in range(size):
                # In a list, a truth value takes a byte of its own.
                self._value(BYTE if inner in (BOOL_TRUE, BOOL_FALSE) else inner, depth + 1)
        elif kind in (BYTE, DOUBLE):
            width = 1 if kind == BYTE else 8
            reader.take(width)
            self._pattern += b".{%d}" % width
        elif kind not in (BOOL_TRUE, BOOL_FALSE):
            raise ThriftError(f"values of type {kind} are not expected here")

    def _fields(self) -> Iterator[tuple[int, int]]:
        reader = self._reader
        start = reader.position
        for number, kind in reader.fields():
            self._pattern += re.escape(reader.between(start))
            yield number, kind
            start = reader.position
        self._pattern += rb"\x00"

    def _captured(self, pattern: bytes, read: Callable[..., object], *args: int) -> int:
        """Read a value that is a group of its own, and return the group's number."""
        start = self._reader.position
        read(*args)
        self._pattern += b"(%b)" % pattern
        self._groups.append((start, self._reader.position))
        return len(self._groups) - 1

    def _open_whole(self) -> None:
        """Begin a group that is rewritten as a whole, with the groups inside it."""
        self._pattern += b"("
        self._whole = len(self._groups)
        self._parts.append(self._whole)
        self._groups.append((self._reader.position, -1))

    def _close_whole(self) -> None:
        assert self._whole is not None
        self._pattern += b")"
        self._groups[self._whole] = self._groups[self._whole][0], self._reader.position
        self._whole = None

    def _variable_bytes(self) -> None:
        """Skip a byte string of any length, which no pattern describes."""
        is_written = self._whole is not None
        if is_written:
            self._close_whole()
        self._end_segment()
        start = self._reader.position
        self._reader.binary()
        if is_written:
            self._parts.append(len(self._groups))
        self._groups.append((start, self._reader.position))
        if is_written:
            self._open_whole()

    def _end_segment(self) -> None:
        self.patterns += (bytes(self._pattern),)
        self._pattern.clear()


# The pieces in which a large footer is read, and the largest entry of a row group in them.
_PIECE_BYTES = 256 * 1024
_MOST_PART_BYTES = 64 * 1024

# Datasets need one or two of each; unusual ones must not fill the memory of a long scan.
_KEPT_SCHEMAS = 16
_KEPT_FORMS = 16
_KEPT_WALKS = 256

_ROWS_BEGIN = re.compile(rb"\x16(%b)\x19" % INTEGER, re.DOTALL)


class FileFooter(NamedTuple):
    """A parquet footer.

    Attributes:
        schema: The columns.
        rows: Rows of each row group.
        places: Offset of each row group's entry in the footer, and the end of the last one.
        row_groups: The row groups; empty if only rows and offsets were asked for.
        tail: The part after the row groups.
    """

    schema: FileSchema
    rows: list[int]
    places: array[int]
    row_groups: tuple[RowGroupEntry, ...]
    tail: FileTail

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the file."""
        return arrow_schema(self.schema.raw, self.tail.raw)

    @property
    def schema_key(self) -> tuple[FileSchema, bytes | None]:
        """A key that is the same for files with equal schemas.

        Lists of one length and of any length are stored alike, and so are texts and dictionaries
        of texts; only the Arrow schema inside the file distinguishes them.
        """
        return self.schema, self.tail.arrow_schema


class FooterReader:
    """Reads footers, and remembers their forms to read the next ones faster.

    The result depends on the footer alone, never on earlier ones. Threads may share a reader: at
    worst two learn the same form.
    """

    def __init__(self) -> None:
        self._schemas: tuple[FileSchema, ...] = ()
        # Parts of tails that Arrow has read without error.
        self._right_tails: set[object] = set()
        self._forms: dict[FileSchema, tuple[RowGroupForm, ...]] = {}
        # Row groups that were walked once. Compiling a form takes as long as ten walks.
        self._walked: set[tuple[FileSchema, tuple[bytes, ...]]] = set()

    def read(self, footer: bytes) -> FileFooter:
        """Parse a footer, without length and magic.

        Raises:
            ThriftError: It is damaged, contradicts itself, or Arrow does not read it.
        """
        return self._parsed(lambda place: (footer, place), [])

    def outline(self, size_bytes: int, read: Callable[[int, int], bytes]) -> FileFooter:
        """Parse a footer and return it without the row groups; little of it is in memory at a time.

        Args:
            size_bytes: Size of the footer, without length and magic.
            read: Returns the bytes of the footer from an offset on, given the offset and a size.

        Raises:
            ThriftError: It is damaged, contradicts itself, or Arrow does not read it.
        """
        held, first = read(0, min(_PIECE_BYTES, size_bytes)), 0

        def piece(place: int) -> tuple[bytes, int]:
            nonlocal held, first
            stop = first + len(held)
            left = size_bytes - place
            if stop < size_bytes and (stop - place < _MOST_PART_BYTES or left <= _PIECE_BYTES):
                held, first = read(place, min(_PIECE_BYTES, left)), place
            return held, place - first

        try:
            return self._parsed(piece)
        except ThriftError:
            if len(held) == size_bytes:
                raise
        # It is damaged, or one of its parts is unusually large.
        whole = read(0, size_bytes)
        return self._parsed(lambda place: (whole, place))

    def _parsed(
        self,
        piece: Callable[[int], tuple[bytes, int]],
        groups: list[RowGroupEntry] | None = None,
    ) -> FileFooter:
        """Parse a footer.

        Args:
            piece: Given an offset of the footer, returns bytes that hold the part that begins
                there, and the offset in them.
            groups: Takes the row groups; None to return none.
        """
        footer, _ = piece(0)
        schema = self._schema(footer)
        found = _ROWS_BEGIN.match(footer, len(schema.raw))
        if found is None:
            raise ThriftError("there is no number of rows behind the schema")
        reader = CompactReader(footer, found.end())
        size = _structs(reader)
        position = reader.position
        rows: list[int] = []
        places = array("q", [position])
        for _ in range(size):
            footer, at = piece(position)
            group, end = self._row_group(footer, at, schema)
            if groups is not None:
                groups.append(group)
            rows.append(group.rows)
            position += end - at
            places.append(position)
        if min(rows, default=0) < 0 or sum(rows) != unzigzag(found[1]):
            raise ThriftError("the row groups do not have as many rows as the file")
        footer, at = piece(position)
        tail = self._tail(schema, footer[at:])
        return FileFooter(schema, rows, places, tuple(groups or ()), tail)

    def row_group(self, footer: bytes, place: int, schema: FileSchema) -> RowGroupEntry:
        """Return the row group whose entry begins at an offset of a footer."""
        return self._row_group(footer, place, schema)[0]

    def _schema(self, footer: bytes) -> FileSchema:
        for known in self._schemas:
            if footer.startswith(known.raw):
                return known
        schema = parse_schema(footer)
        self._schemas = (schema, *self._schemas)[:_KEPT_SCHEMAS]
        return schema

    def _tail(self, schema: FileSchema, raw: bytes) -> FileTail:
        tail = parse_tail(raw)
        # pandas adds the number of rows to the metadata, so every file may have another tail.
        told = (schema, tail.created_by, tail.column_orders_raw, tail.arrow_schema)
        if told not in self._right_tails:
            arrow_schema(schema.raw, raw)
            if len(self._right_tails) >= _KEPT_TAILS:
                self._right_tails.clear()
            self._right_tails.add(told)
        return tail

    def _row_group(
        self, footer: bytes, position: int, schema: FileSchema
    ) -> tuple[RowGroupEntry, int]:
        forms = self._forms.get(schema, ())
        for place, form in enumerate(forms):
            found = form.match(footer, position)
            if found is not None:
                if place:
                    self._forms[schema] = (form, *forms[:place], *forms[place + 1 :])
                return found
        walk = _Walk(footer, position, schema)
        shown_to_arrow(schema.raw, [footer[position : walk.end]], b"\0")
        key = (schema, walk.patterns)
        is_known = key in self._walked and len(forms) < _KEPT_FORMS
        entry = walk.entry(is_compiled=is_known)
        if is_known:
            if len(self._forms) >= _KEPT_SCHEMAS and schema not in self._forms:
                self._forms.clear()
            self._forms[schema] = (entry.form, *forms)
        else:
            if len(self._walked) >= _KEPT_WALKS:
                self._walked.clear()
            self._walked.add(key)
        return entry, walk.end


FOOTERS = FooterReader()
"""Reads all footers of a process, since files of a dataset are alike."""


def shown_to_arrow(schema: bytes, row_groups: Sequence[bytes], tail: bytes) -> pq.ParquetReader:
    """Let Arrow open a file that consists of a footer with these parts."""
    head = list_header(STRUCT, len(row_groups))
    footer = b"".join([schema, _NO_ROWS, head, *row_groups, tail])
    file = MAGIC + footer + len(footer).to_bytes(_LENGTH_BYTES, "little") + MAGIC
    reader = pq.ParquetReader()
    try:
        reader.open(pa.BufferReader(file))
    except (OSError, pa.ArrowException) as error:
        raise ThriftError(str(error)) from error
    if reader.metadata.num_row_groups != len(row_groups):
        raise ThriftError("Arrow finds another number of row groups")
    return reader


@lru_cache(maxsize=1 << 4)
def arrow_schema(schema: bytes, tail: bytes) -> pa.Schema:
    """Return the Arrow schema of files whose footers have this schema and this tail.

    Arrow reads a footer of these parts without row groups, since the schema does not depend on
    them.

    Raises:
        ThriftError: Arrow cannot read it.
    """
    return shown_to_arrow(schema, (), tail).schema_arrow
