"""Columns of a table whose types are found in JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.errors import SourceError
from leconvert.tables.arrays import (
    MixedKindsError,
    array_of,
    array_of_numbers,
    type_of,
    type_of_numbers,
)

__all__ = ["RowBlock", "storable", "widened"]

_STATS_PREFIX = "stats/"


class RowBlock:
    """Some rows of Python values that become columns; a row that lacks a column is null there.

    The order of the columns is that of their first appearance, statistics after all others.
    """

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._stats: list[Mapping[str, Any] | None] = []
        self._stats_columns: dict[str, list[Any]] | None = None
        # Statistics are most of the values and nearly always regular: one conversion gives a
        # column's type and its numbers.
        self._numbers: dict[str, npt.NDArray[Any]] = {}

    def add(self, row: Mapping[str, Any], stats: Mapping[str, Any] | None) -> None:
        """Append a row.

        Args:
            row: Column to value.
            stats: Nested statistics; each innermost value becomes a column whose name is the path
                to it, joined by slashes, below ``stats/``.
        """
        self._rows.append(row)
        self._stats.append(stats)
        self._stats_columns = None

    def schema(self) -> pa.Schema:
        """Return the narrowest types that hold the rows.

        Integers and fractions in one column make it float64. Mappings are structs. Values that no
        column type holds together, a number and a text for example, make it text: a text stays as
        it is and everything else is written as JSON.

        Raises:
            SourceError: Values of a statistic do not go together.
        """
        fields: list[pa.Field] = []
        for name in _names(self._rows):
            try:
                found = type_of([row.get(name) for row in self._rows])
            except MixedKindsError:
                found = pa.string()
            fields.append(pa.field(name, found))
        for name, values in self._statistics().items():
            numbers = _numbers(values)
            if numbers is not None:
                self._numbers[name] = numbers
                found = type_of_numbers(numbers)
            else:
                try:
                    found = type_of(values, truth_counts=True)
                except MixedKindsError as error:
                    raise _no_common_type(name, error) from error
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
                if field.name.startswith(_STATS_PREFIX):
                    values = self._statistics().get(field.name) or [None] * len(self._rows)
                else:
                    values = [row.get(field.name) for row in self._rows]
                if pa.types.is_string(field.type):
                    values = [_text(value) for value in values]
                arrays.append(array_of(values, field.type))
            except MixedKindsError as error:
                raise _no_common_type(field.name, error) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _statistics(self) -> dict[str, list[Any]]:
        """Return the columns of the statistics."""
        if self._stats_columns is None:
            columns = _regular_columns(self._stats)
            if columns is None:
                flat: list[dict[str, Any]] = [{} for _ in self._stats]
                for stats, row in zip(self._stats, flat, strict=True):
                    if stats is not None:
                        _flatten(_STATS_PREFIX, stats, row)
                columns = {name: [row.get(name) for row in flat] for name in _names(flat)}
            self._stats_columns = columns
        return self._stats_columns


def widened(schema: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """Return a schema that holds what either holds, columns in order of first appearance.

    Raises:
        SourceError: Statistics have types that do not go together. Truth values and numbers do.
    """
    if schema is None or schema.equals(other):
        return other
    fields: dict[str, pa.Field] = {field.name: field for field in schema}
    for field in other:
        known = fields.get(field.name)
        if known is None or known.type.equals(field.type):
            fields.setdefault(field.name, field)
            continue
        pair = [known, field]
        if field.name.startswith(_STATS_PREFIX):
            pair = [
                known.with_type(_as_number(known.type, field.type)),
                field.with_type(_as_number(field.type, known.type)),
            ]
        try:
            merged = pa.unify_schemas(
                [pa.schema([one]) for one in pair], promote_options="permissive"
            ).field(0)
        except pa.ArrowException as error:
            if field.name.startswith(_STATS_PREFIX):
                raise _no_common_type(field.name, error) from error
            merged = pa.field(field.name, pa.string())
        fields[field.name] = merged
    # Statistics stay behind the columns that appear late.
    ordered = sorted(fields.values(), key=lambda field: field.name.startswith(_STATS_PREFIX))
    return pa.schema(ordered)


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parquet stores columns of the types found.

    Mappings that are always empty have no column type and become JSON text; statistics that are
    always empty become float64, as NumPy has it.
    """
    fields: list[pa.Field] = []
    for field in schema:
        stored = field.type
        if field.name.startswith(_STATS_PREFIX):
            stored = _with_numbers(stored)
        elif _has_empty_struct(stored):
            stored = pa.string()
        fields.append(pa.field(field.name, stored))
    return pa.schema(fields)


def _regular_columns(
    rows: Sequence[Mapping[str, Any] | None],
) -> dict[str, list[Any]] | None:
    """Return the columns of statistics that all rows have, as lists, two levels deep.

    Nearly all do, and then nothing is flattened row by row. None where they do not.
    """
    columns: dict[str, list[Any]] = {}
    first = rows[0] if rows else None
    if first is None or any(row is None or row.keys() != first.keys() for row in rows):
        return None
    for feature, example in first.items():
        values = [row[feature] for row in rows if row is not None]
        if set(map(type, values)) != {dict} or any(
            value.keys() != example.keys() for value in values
        ):
            return None
        for statistic in example:
            column = [value[statistic] for value in values]
            name = f"{_STATS_PREFIX}{feature}/{statistic}"
            if set(map(type, column)) != {list} or name in columns:
                return None
            columns[name] = column
    return columns


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


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return regular lists of numbers as an array; None where they are not that."""
    try:
        numbers = np.array(values)
    except (ValueError, OverflowError):
        return None
    # Object arrays hold None among the values; empty lists have no type of their own.
    return numbers if numbers.dtype.kind in "bif" and numbers.ndim > 1 and numbers.size else None


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
