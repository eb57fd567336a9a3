"""Rows of one episode as an explicit repair wants them; everything else in them stays.

Computed columns follow from the episode's place in the result alone, so that whoever writes the
episode, in whatever batch, writes the same.
"""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from leconvert.model.repairs import DEFAULT_COLUMNS, Repairs
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.arrow import int64_array, int64_values, is_list, list_length, list_values


def repaired_schema(schema: pa.Schema, repairs: Repairs) -> pa.Schema:
    """Return the schema of rows after a repair: without dropped columns, with added ones last.

    Columns may have their new names already.
    """
    computed = set(repairs.columns_computed(trimmed=bool(repairs.trimmed_episodes)))
    if repairs.tasks_from is not None:
        computed.add("task_index")
    kept: list[pa.Field] = []
    for stored in schema:
        field = stored.with_name(repairs.renamed(stored.name))
        if field.name in computed:
            kept.append(pa.field(field.name, _computed_type(field.name, field.type)))
        elif field.name in repairs.cast_columns:
            kept.append(pa.field(field.name, pa.int64()))
        elif field.name in repairs.unwrapped_columns and is_list(field.type):
            kept.append(pa.field(field.name, field.type.value_type))
        elif field.name not in repairs.dropped_features:
            kept.append(field)
    added = [
        pa.field(name, pa.type_for_alias(DEFAULT_COLUMNS[name])) for name in repairs.added_columns
    ]
    return pa.schema([*kept, *added], metadata=schema.metadata)


def frame_times(length: int, fps: Fraction, kind: pa.DataType) -> pa.Array:
    """Return the timestamps of an episode's frames in seconds: frame / fps, shape (length,).

    Each is the exact quotient rounded once to float64 and then, for a float32 column, to float32,
    as LeRobot computes them when it records.
    """
    # Both factors are whole numbers far below 2**53, so that only the division rounds.
    times = np.arange(length, dtype=np.float64) * fps.denominator / fps.numerator
    return pa.Array.from_buffers(pa.float64(), length, [None, pa.py_buffer(times)]).cast(
        kind, safe=False
    )


class RowRepair(NamedTuple):
    """What becomes of the rows of one episode.

    Attributes:
        repairs: What is changed.
        fps: Frames a second.
        position: The episode's place in the result, which is its index there.
        first_index: Place of its first frame in the result.
        task: Result index of the task that all its rows have; None where they have their own.
        is_trimmed: Whether the rows are some of the episode's in the source.
    """

    repairs: Repairs
    fps: Fraction
    position: int
    first_index: int
    task: int | None = None
    is_trimmed: bool = False

    def __call__(self, table: pa.Table, *, path: str) -> pa.Table:
        """Return the repaired rows."""
        repairs = self.repairs
        computed = repairs.columns_computed(trimmed=self.is_trimmed)
        table = table.drop_columns(
            [name for name in repairs.dropped_features if name in table.column_names]
        )
        if repairs.renamed_features:
            table = table.rename_columns([repairs.renamed(name) for name in table.column_names])
        for name in repairs.unwrapped_columns:
            place = table.schema.get_field_index(name)
            # Of the dataset's files some may hold the value itself.
            if is_list(table.schema.field(place).type) and name not in computed:
                values = _unwrapped(table.column(place), name, path)
                table = table.set_column(place, pa.field(name, values.type), values)
        replaced = {*computed, *(["task_index"] if self.task is not None else [])}
        for name in repairs.cast_columns:
            if name not in replaced:
                place = table.schema.get_field_index(name)
                # The scan refuses values that are no whole numbers, and Arrow raises at them.
                values = table.column(place).cast(pa.int64())
                table = table.set_column(place, pa.field(name, values.type), values)
        for name in computed:
            place = table.schema.get_field_index(name)
            kind = _computed_type(name, table.schema.field(place).type if place >= 0 else None)
            values = self._computed(name, table.num_rows, kind)
            field = pa.field(name, kind)
            if place >= 0:
                table = table.set_column(place, field, values)
            else:
                table = table.append_column(field, values)
        if self.task is not None:
            if "task_index" not in computed:
                place = table.schema.get_field_index("task_index")
                kind = _computed_type("task_index", table.schema.field(place).type)
                values = self._computed("task_index", table.num_rows, kind)
                table = table.set_column(place, pa.field("task_index", kind), values)
        elif repairs.task_map is not None and "task_index" not in computed:
            table = self._with_mapped_tasks(table, "task_index", path)
        for name in repairs.task_columns:
            table = self._with_mapped_tasks(table, name, path)
        return table

    def _computed(self, name: str, length: int, kind: pa.DataType) -> pa.Array:
        if name == "timestamp":
            return frame_times(length, self.fps, kind)
        if name in ("episode_index", "task_index"):
            task = self.repairs.added_task if self.task is None else self.task
            value = self.position if name == "episode_index" else task
            numbers = np.full(length, value, dtype=np.int64)
        else:
            first = self.first_index if name == "index" else 0
            numbers = np.arange(first, first + length, dtype=np.int64)
        return int64_array(numbers).cast(kind)

    def _with_mapped_tasks(self, table: pa.Table, name: str, path: str) -> pa.Table:
        task_map = self.repairs.task_map or {}
        place = table.schema.get_field_index(name)
        column = table.column(place)
        values = int64_values(column.cast(pa.int64()))
        distinct, inverse = np.unique(values, return_inverse=True)
        unknown = [value for value in distinct.tolist() if value not in task_map]
        if unknown:
            raise UnreadableSourceError(
                f"{path} has rows with {name} {unknown[0]}, which tasks.jsonl does not list.",
                path=path,
                next_step="Add the task, or leave the episode out with --on-bad-episode drop.",
            )
        mapped = np.array([task_map[value] for value in distinct.tolist()], dtype=np.int64)
        numbers = int64_array(mapped[inverse]).cast(column.type)
        return table.set_column(place, pa.field(name, column.type), numbers)


def _unwrapped(column: pa.ChunkedArray, name: str, path: str) -> pa.Array:
    """Return the values of a column of lists of one value; a row without a list has none."""
    array = column.combine_chunks()
    there = array.drop_null() if array.null_count else array
    try:
        if len(there) and list_length(there) != 1:
            raise ValueError("its lists have several entries")
    except ValueError as error:
        raise UnreadableSourceError(
            f"Column {name} of {path} cannot be unwrapped: {error}.",
            path=path,
            next_step="Leave the episode out (--on-bad-episode drop), or the feature "
            f"(--drop-feature {shlex.quote(name)}).",
        ) from error
    if not array.null_count:
        return list_values(array)
    import pyarrow.compute as pc  # costs 50 ms, for rows without a list only

    return pc.list_element(array, 0)


def _computed_type(name: str, stored: pa.DataType | None) -> pa.DataType:
    """Return the type of a computed column: the stored one if it can hold it, else LeRobot's."""
    holds = pa.types.is_floating if name == "timestamp" else pa.types.is_integer
    if stored is not None and holds(stored) and stored.bit_width >= 32:
        return stored
    return pa.type_for_alias(DEFAULT_COLUMNS[name])
