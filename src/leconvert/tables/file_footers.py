"""Parquet footers, taken apart into what all files of a dataset share and what they do not.

A footer is the schema, the row groups and the key-value metadata, in this order. Schema and
metadata are the same bytes in file after file, so each is parsed once and recognised afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leconvert.tables.chunk_shapes import INTEGER, ChunkEntry, ChunkShape, learn_chunk_shape
from leconvert.tables.file_schema import (
    FileSchema,
    FileTail,
    Leaf,
    parse_schema,
    parse_tail,
)
from leconvert.tables.thrift import (
    STRUCT,
    CompactReader,
    ContradictionError,
    ThriftError,
    unzigzag,
)

__all__ = [
    "FileFooter",
    "FooterOutline",
    "FooterReader",
    "RowGroupEntry",
]

# Known schemas, metadata and shapes a column. Datasets need one or two of each; strange ones must
# not fill the memory of a long scan.
_KEPT_SCHEMAS = 16
_KEPT_TAILS = 64
_KEPT_SHAPES = 16
_KEPT_GROUP_SHAPES = 8

_ROWS = re.compile(rb"\x16(%b)\x19" % INTEGER, re.DOTALL)
_SIZES = re.compile(
    rb"\x16(?:%b)\x16(%b)(?:\x26(?:%b)(?:\x16(?:%b))?)?(?:\x14(?:%b))?\x00" % ((INTEGER,) * 5),
    re.DOTALL,
)
_ROW_GROUP_COLUMNS = 0x19


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


class FooterOutline(NamedTuple):
    """A footer's row groups: rows of each, where each entry begins, and where the last ends."""

    schema: FileSchema
    rows: list[int]
    places: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _GroupShape:
    """What row groups of one kind have in common: one expression finds all their numbers.

    Attributes:
        pattern: It; its last group is the number of rows.
        parts: Each column's shape, and its first group and the one after its last.
    """

    pattern: re.Pattern[bytes]
    parts: tuple[tuple[ChunkShape, int, int], ...]


class FooterReader:
    """Reads footers and remembers what it saw, to read the next one faster.

    What it returns depends on the footer alone, never on what it saw before. Threads may share it:
    at worst two learn the same thing.
    """

    def __init__(self) -> None:
        self._schemas: tuple[FileSchema, ...] = ()
        self._tails: dict[bytes, FileTail] = {}
        self._shapes: dict[tuple[bytes, ...], tuple[ChunkShape, ...]] = {}
        self._group_shapes: dict[FileSchema, tuple[_GroupShape, ...]] = {}

    def read(self, footer: bytes) -> FileFooter:
        """Take a footer apart.

        Args:
            footer: Its bytes, without the length and the magic behind it.

        Raises:
            ThriftError: It is damaged, or holds what files of datasets do not, such as encryption.
            ContradictionError: It must not be shown to Arrow.
        """
        schema, rows, size, position = self._begin(footer)
        groups: list[RowGroupEntry] = []
        for _ in range(size):
            group, position = self._row_group(footer, position, schema)
            groups.append(group)
        if rows != sum(group.rows for group in groups):
            raise _rows_disagree()
        return FileFooter(schema, rows, tuple(groups), self._tail(footer[position:]))

    def row_groups(self, footer: bytes, leaves: Sequence[int]) -> Iterator[list[ChunkEntry]]:
        """Yield some columns of each row group; holds one group at a time, however many there are.

        Args:
            footer: As for `read`.
            leaves: The places of the columns among the leaves of the schema.

        Raises:
            ThriftError: As for `read`, in the midst of it.
            ContradictionError: As for `read`, in the midst of it.
        """
        schema, _, size, position = self._begin(footer)
        for _ in range(size):
            known = self._known_group(footer, position, schema)
            if known is None:
                group, position = self._row_group(footer, position, schema)
                yield [group.chunks[leaf] for leaf in leaves]
                continue
            shape, match = known
            groups, position = match.groups(), match.end()
            parts = [shape.parts[leaf] for leaf in leaves]
            yield [column.entry(groups[first:stop]) for column, first, stop in parts]

    def rows(self, footer: bytes) -> list[int]:
        """Return the rows of each row group; holds little else, however many there are.

        Args:
            footer: As for `read`.

        Raises:
            ThriftError: As for `read`.
            ContradictionError: As for `read`.
        """
        return self.outline(footer).rows

    def row_group_at(self, footer: bytes, place: int, schema: FileSchema) -> RowGroupEntry:
        """Return the row group whose entry begins at a place of an outline."""
        return self._row_group(footer, place, schema)[0]

    def outline(self, footer: bytes) -> FooterOutline:
        """Return where each row group's entry is; the entries themselves are not kept.

        Args:
            footer: As for `read`.

        Raises:
            ThriftError: As for `read`.
            ContradictionError: As for `read`.
        """
        schema, rows, size, position = self._begin(footer)
        counts: list[int] = []
        places: list[int] = []
        for _ in range(size):
            places.append(position)
            known = self._known_group(footer, position, schema)
            if known is not None:
                shape, found = known
                counts.append(_row_count(found[shape.pattern.groups]))
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
        """Return the columns of a footer.

        Raises:
            ThriftError: As for `read`.
        """
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
    ) -> tuple[_GroupShape, re.Match[bytes]] | None:
        """Return the kind of the row group at ``position`` and what it matched; None if new."""
        known = self._group_shapes.get(schema, ())
        for place, shape in enumerate(known):
            match = shape.pattern.match(footer, position)
            if match is not None:
                if place:
                    front = (shape, *known[:place], *known[place + 1 :])
                    self._group_shapes[schema] = front
                return shape, match
        return None

    def _row_group(
        self, footer: bytes, position: int, schema: FileSchema
    ) -> tuple[RowGroupEntry, int]:
        known = self._known_group(footer, position, schema)
        if known is not None:
            shape, match = known
            groups = match.groups()
            entries = [column.entry(groups[first:stop]) for column, first, stop in shape.parts]
            return RowGroupEntry(_row_count(groups[-1]), tuple(entries)), match.end()
        reader = CompactReader(footer, position)
        if reader.byte() != _ROW_GROUP_COLUMNS:
            raise ThriftError("a row group does not begin with its columns")
        kind, size = reader.list_header()
        if kind != STRUCT or size != len(schema.leaves):
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
        self._remember(schema, head, chunks)
        return RowGroupEntry(rows, tuple(chunks)), found.end()

    def _remember(self, schema: FileSchema, head: bytes, chunks: list[ChunkEntry]) -> None:
        """Keep what finds row groups like this one, all columns at once.

        Only the first few kinds: where columns vary freely there are too many, and each takes
        milliseconds to learn.
        """
        known = self._group_shapes.get(schema, ())
        if len(known) >= _KEPT_GROUP_SHAPES:
            return
        expressions = [chunk.shape.pattern for chunk in chunks]
        pattern = re.escape(head)
        parts: list[tuple[ChunkShape, int, int]] = []
        first = 0
        for chunk, expression in zip(chunks, expressions, strict=True):
            if expression is None:
                return
            pattern += expression.pattern
            parts.append((chunk.shape, first, first + expression.groups))
            first += expression.groups
        shape = _GroupShape(re.compile(pattern + _SIZES.pattern, re.DOTALL), tuple(parts))
        if len(self._group_shapes) >= _KEPT_SCHEMAS and schema not in self._group_shapes:
            self._group_shapes.clear()
        self._group_shapes[schema] = (*known, shape)

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
