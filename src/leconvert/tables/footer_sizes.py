"""Sizes of row groups from any parquet footer, also one that `FooterReader` does not take apart."""

from __future__ import annotations

from collections.abc import Iterator

from leconvert.tables.thrift import I64, LIST, STRUCT, CompactReader, ThriftError

__all__ = ["uncompressed_sizes"]

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _META_DATA, _TOTAL_UNCOMPRESSED = 4, 1, 3, 6


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
