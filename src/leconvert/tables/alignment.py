"""Bring the rows of one episode to the schema of the file that they are written to."""

from __future__ import annotations

import shlex

import pyarrow as pa

from leconvert.arrow import is_list
from leconvert.errors import UnreadableSourceError
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.tables.schemas import IMAGE_TYPE

__all__ = ["align_table"]


def align_table(table: pa.Table, schema: pa.Schema, *, path: str) -> pa.Table:
    """Return ``table`` with the columns, order and types of ``schema``.

    Only what loses nothing is done: another column order, nullable flags, variable against fixed
    list length, long against short offsets, views, dictionaries against what is in them, an
    all-null column, wider integers and floats, and image bytes into the storage of an image.

    Args:
        table: Rows of one episode.
        schema: What the file holds; metadata plays no part.
        path: Where the rows come from, for errors.

    Raises:
        UnreadableSourceError: A column is missing, superfluous, or of a type that does not fit; it
            names the column.
    """
    if table.schema.equals(schema, check_metadata=False):
        return table
    names = table.schema.names
    if sorted(names) != sorted(schema.names) or len(set(names)) < len(names):
        missing = sorted(set(schema.names) - set(names))
        extra = sorted(set(names) - set(schema.names))
        said = "; ".join(
            f"{what} {', '.join(columns)}"
            for what, columns in (("missing:", missing), ("not expected:", extra))
            if columns
        )
        raise UnreadableSourceError(
            f"The columns of {path} differ from those of the dataset ({said or 'repeated names'}).",
            path=path,
            next_step="Bring the file to the columns of the others, or leave its episode out.",
        )
    columns = [_align_column(table.column(field.name), field, path) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _align_column(column: pa.ChunkedArray, field: pa.Field, path: str) -> pa.ChunkedArray:
    if not field.nullable and column.null_count:
        raise _misfit(field, column.type, path, "it has empty values")
    if column.type.equals(field.type):
        return column
    if not _fits(column.type, field.type):
        raise _misfit(field, column.type, path, f"{field.type} is expected")
    try:
        if field.type.equals(IMAGE_TYPE):
            return pa.chunked_array([_as_image(chunk) for chunk in column.chunks], IMAGE_TYPE)
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _misfit(field, column.type, path, str(error).splitlines()[0]) from error


def _misfit(field: pa.Field, found: pa.DataType, path: str, reason: str) -> UnreadableSourceError:
    helps = "Bring the column to the type that the other files have"
    if field.name not in DEFAULT_COLUMNS:
        helps += f", or leave it out (--drop-feature {shlex.quote(field.name)})"
    return UnreadableSourceError(
        f"Column {field.name} of {path} is of type {found} and does not fit: {reason.rstrip('.')}.",
        path=path,
        next_step=f"{helps}.",
    )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast can be without loss; the cast itself still checks lengths and ranges."""
    if found.equals(wanted) or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if pa.types.is_dictionary(wanted):
        return _fits(found, wanted.value_type)
    if is_list(found) and is_list(wanted):
        # The cast says so too, but not of a column without rows.
        if len({_list_size(found), _list_size(wanted)} - {None}) > 1:
            return False
        return _fits(found.value_type, wanted.value_type)
    if wanted.equals(IMAGE_TYPE) and _is_binary(found):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        inner = {found.field(i).name: found.field(i).type for i in range(found.num_fields)}
        outer = {wanted.field(i).name: wanted.field(i).type for i in range(wanted.num_fields)}
        if wanted.equals(IMAGE_TYPE):
            return set(inner) <= set(outer) and all(_fits(inner[n], outer[n]) for n in inner)
        return set(inner) == set(outer) and all(_fits(inner[name], outer[name]) for name in outer)
    if pa.types.is_integer(found) and pa.types.is_integer(wanted):
        return True
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    return (_is_binary(found) and _is_binary(wanted)) or (_is_text(found) and _is_text(wanted))


def _list_size(kind: pa.DataType) -> int | None:
    """Return the length that all lists of a column have; None where it may be any."""
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _as_image(array: pa.Array) -> pa.StructArray:
    """Return image bytes, or a struct of bytes and path in any order, as stored images."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), IMAGE_TYPE)
    if pa.types.is_struct(array.type):
        names = {array.type.field(i).name for i in range(array.type.num_fields)}
        parts = {name: array.field(name) for name in names}
    else:
        parts = {"bytes": array}
    children = [
        parts[field.name].cast(field.type)
        if field.name in parts
        else pa.nulls(len(array), field.type)
        for field in IMAGE_TYPE
    ]
    return pa.StructArray.from_arrays(children, fields=list(IMAGE_TYPE), mask=array.is_null())
