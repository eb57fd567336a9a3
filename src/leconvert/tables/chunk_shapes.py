"""Column chunks in a parquet footer, recognised by the shape of their bytes.

The footers of a dataset's files are alike: in a column's entry only integers and the statistics'
values differ. So the first entry of a kind is walked field by field, which gives a *shape*: regular
expressions in which types, names, encodings and field numbers are literal and integers are not. An
entry that a shape matches has the same fields, and :mod:`re` finds its integers many times faster
than a walk. A shape also knows how the entry is written again for another place in another file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
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
    ThriftError,
    binary,
    list_header,
    unzigzag,
    varint,
)

__all__ = ["INTEGER", "ChunkEntry", "ChunkShape", "learn_chunk_shape"]

INTEGER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"

_MAX_DEPTH = 8
# Bytes of a statistic of a physical type; byte strings have any length, and fixed ones too many.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}

# Fields of ColumnMetaData.
_TYPE, _ENCODINGS, _PATH, _CODEC = 1, 2, 3, 4
_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 6, 7, 9, 11
_STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS = 12, 13, 16
_NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 3, 5, 6
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
        groups: The bytes that differ, for :meth:`ChunkShape.write`.
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

    def entry(self, groups: tuple[bytes, ...]) -> ChunkEntry:
        """Return the entry with these groups."""
        numbers = self._numbers
        values = unzigzag(groups[numbers[_NUM_VALUES]])
        uncompressed = unzigzag(groups[numbers[_UNCOMPRESSED]])
        compressed = unzigzag(groups[numbers[_COMPRESSED]])
        data = unzigzag(groups[numbers[_DATA_OFFSET]])
        at = numbers.get(_DICTIONARY_OFFSET)
        dictionary = None if at is None else unzigzag(groups[at]) or None
        start = data if dictionary is None else dictionary
        return ChunkEntry(self, groups, values, uncompressed, compressed, data, dictionary, start)

    def writer(self, path: tuple[bytes, ...]) -> ChunkWriter:
        """Return what writes entries of this shape for a column with the names ``path``."""
        names = list_header(BINARY, len(path)) + b"".join(map(binary, path))
        template = (
            self._format[: self._path_at]
            + names.replace(b"%", b"%%")
            + self._format[self._path_at :]
        )
        return ChunkWriter(
            template, self._numbers[_DATA_OFFSET], self._numbers.get(_DICTIONARY_OFFSET)
        )


@dataclass(frozen=True, slots=True)
class ChunkWriter:
    """Writes the entries of one shape again, for chunks that lie elsewhere."""

    _template: bytes
    _data_at: int
    _dictionary_at: int | None

    def write(self, entry: ChunkEntry, shift: int) -> bytes:
        """Return the entry of a chunk that lies ``shift`` bytes further on."""
        groups = list(entry.groups)
        groups[self._data_at] = varint((entry.data_offset + shift) << 1)
        if self._dictionary_at is not None and entry.dictionary_offset is not None:
            groups[self._dictionary_at] = varint((entry.dictionary_offset + shift) << 1)
        return self._template % tuple(groups)


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
    """Return the shape of the column chunk entry at ``position``.

    Raises:
        ThriftError: It is damaged, encrypted, refers to another file, or lacks what an entry needs.
    """
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
        if depth > _MAX_DEPTH:
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
