"""What footers of a dataset's files share: the schema, and what stands behind the row groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leconvert.tables.thrift import BINARY, I32, LIST, STRUCT, CompactReader, ThriftError

__all__ = ["ONLY_LOGICAL", "FileSchema", "FileTail", "Leaf", "parse_schema", "parse_tail"]

# Fields of FileMetaData.
_VERSION, _SCHEMA, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = 1, 2, 5, 6, 7
_REQUIRED, _REPEATED = 0, 2
# Fields of SchemaElement.
_PHYSICAL, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _ID, _LOGICAL = 1, 3, 4, 5, 6, 9, 10

ONLY_LOGICAL = -1
"""Instead of a converted type, where the meaning of values has come up since there are these."""
_ARROW_SCHEMA_KEY = b"ARROW:schema"
# Programs whose pages and statistics are known to be what their footers say.
_KNOWN_WRITERS = (b"parquet-cpp-arrow version ", b"leconvert version ")


@dataclass(frozen=True, slots=True)
class Leaf:
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

    @property
    def arrow_schema(self) -> bytes | None:
        """The types that Arrow gives the columns, where those of the file say less."""
        return self.key_values.get(_ARROW_SCHEMA_KEY)

    @property
    def is_of_known_writer(self) -> bool:
        """Whether Arrow wrote it, or this program did."""
        return self.created_by.startswith(_KNOWN_WRITERS)


def parse_schema(footer: bytes) -> FileSchema:
    """Read the schema at the beginning of a footer.

    Raises:
        ThriftError: It is damaged.
    """
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


@dataclass(frozen=True, slots=True)
class _Element:
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
    """Read what stands behind the row groups, to the end of a footer.

    Raises:
        ThriftError: It is damaged, or the file is encrypted.
    """
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
