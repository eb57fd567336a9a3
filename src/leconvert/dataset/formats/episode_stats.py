"""The statistics of some consecutive episodes, as rows and as columns.

Nearly always all episodes have the same statistics of the same shapes. Then a column of them is one
array, which is made once for all who look at it, and nobody walks through Python's lists.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

# Episodes whose parsed JSON is held at a time: Python's numbers in nested lists take ten times the
# room of arrays.
BLOCK_EPISODES = 125

Row = Mapping[str, Any] | None
"""What one episode has: feature to statistic to value; None where it is no table of them."""
Columns = Mapping[str, Mapping[str, npt.NDArray[Any]]]
"""Feature to statistic to array of shape (episodes, ...); int64, float64 or bool."""

_JOINED_EPISODES = 1000
_FORMATS = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}


class StatsBlock:
    """The statistics of some episodes, one at least."""

    __slots__ = ("_columns", "_has_columns", "_length", "_rows")

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: Sequence[Row] | None = rows
        self._columns: Columns | None = None
        self._has_columns = False
        self._length = len(rows)

    @classmethod
    def of_columns(cls, columns: Columns, length: int) -> StatsBlock:
        """Return a block of columns, whose rows are made when they are asked for."""
        block = cls(())
        block._rows, block._columns, block._has_columns = None, columns, True
        block._length = length
        return block

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> Sequence[Row]:
        """What each episode has, as JSON has it."""
        if self._rows is None:
            assert self._columns is not None
            listed = [
                (feature, tuple(own), zip(*(array.tolist() for array in own.values()), strict=True))
                for feature, own in self._columns.items()
            ]
            self._rows = [
                {
                    feature: dict(zip(names, next(row), strict=True))
                    for feature, names, row in listed
                }
                for _ in range(self._length)
            ]
        return self._rows

    @property
    def columns(self) -> Columns | None:
        """The same as arrays; None where episodes differ in what they have, its shape or type.

        No value changes: rows that are made of the columns are the rows that these are made of.
        """
        if not self._has_columns:
            assert self._rows is not None
            try:
                self._columns = _columns(self._rows)
            except (TypeError, ValueError, struct.error):
                self._columns = None
            self._has_columns = True
        return self._columns

    def select(self, chosen: npt.NDArray[np.bool_]) -> StatsBlock:
        """Return the block of some of the episodes."""
        if chosen.all():
            return self
        if self._rows is not None:
            return StatsBlock(list(compress(self._rows, chosen.tolist())))
        assert self._columns is not None
        columns = {
            feature: {name: array[chosen] for name, array in arrays.items()}
            for feature, arrays in self._columns.items()
        }
        return StatsBlock.of_columns(columns, int(np.count_nonzero(chosen)))

    def __getitem__(self, part: slice) -> StatsBlock:
        """Return the block of consecutive episodes."""
        if self._columns is None:
            assert self._rows is not None
            return StatsBlock(self._rows[part])
        columns = {
            feature: {name: array[part] for name, array in own.items()}
            for feature, own in self._columns.items()
        }
        return StatsBlock.of_columns(columns, len(range(self._length)[part]))

    def without(self, features: Collection[str]) -> StatsBlock:
        """Return the block without some features."""
        if self._rows is None:
            assert self._columns is not None
            return StatsBlock.of_columns(_without(self._columns, features), self._length)
        return StatsBlock([None if row is None else _without(row, features) for row in self._rows])

    def renamed(self, names: Mapping[str, str]) -> StatsBlock:
        """Return the block with new names for some features."""
        if not names:
            return self
        if self._rows is None:
            assert self._columns is not None
            return StatsBlock.of_columns(_renamed(self._columns, names), self._length)
        return StatsBlock([None if row is None else _renamed(row, names) for row in self._rows])


def rows_of(blocks: Iterable[StatsBlock]) -> Iterator[Row]:
    """Yield what each episode of some blocks has."""
    return chain.from_iterable(block.rows for block in blocks)


def joined(blocks: Iterable[StatsBlock]) -> Iterator[StatsBlock]:
    """Yield blocks as fewer large ones, as far as they have the same columns."""
    alike: list[Columns] = []
    length = 0
    for block in blocks:
        columns = block.columns
        is_full = length + len(block) > _JOINED_EPISODES
        if alike and (columns is None or is_full or _form(columns) != _form(alike[0])):
            yield StatsBlock.of_columns(_together(alike), length)
            alike, length = [], 0
        if columns is None:
            yield block
        else:
            alike.append(columns)
            length += len(block)
    if alike:
        yield StatsBlock.of_columns(_together(alike), length)


def _form(columns: Columns) -> list[object]:
    """Return what columns have, in order, and of which type and shape."""
    return [
        (feature, [(name, array.dtype, array.shape[1:]) for name, array in own.items()])
        for feature, own in columns.items()
    ]


def _together(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {
        feature: {name: np.concatenate([part[feature][name] for part in parts]) for name in own}
        for feature, own in parts[0].items()
    }


def _without[Item](items: Mapping[str, Item], names: Collection[str]) -> dict[str, Item]:
    return {name: item for name, item in items.items() if name not in names}


def _renamed[Item](items: Mapping[str, Item], names: Mapping[str, str]) -> dict[str, Item]:
    return {names.get(name, name): item for name, item in items.items()}


def _columns(rows: Sequence[Row]) -> Columns | None:
    """Return rows as columns; None, or any error of a wrong type, where they are not regular."""
    columns: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for feature, found in _transposed(rows):
        own = columns[feature] = {}
        for name, values in _transposed(found):
            array = _array(values)
            if array is None:
                return None
            own[name] = array
        if not own:
            return None
    return columns


def _transposed(tables: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each key with the values that mappings have of it, which have the same keys in order.

    Raises:
        TypeError: There is something else than a dictionary.
        ValueError: Keys differ, or their order.
    """
    keys = tuple(tables[0])
    if set(map(tuple, tables)) != {keys}:
        raise ValueError("the keys differ")
    return zip(keys, zip(*map(dict.values, tables), strict=True), strict=True)


def _array(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return lists of numbers of one type as an array; NumPy would not tell 1 from 1.0."""
    flat, shape, value = values, [len(values)], values[0]
    while type(value) is list:
        if not value or not _have_length(flat, len(value)):
            return None
        shape.append(len(value))
        # What is no list gives its keys or characters, which are no numbers either.
        flat, value = list(chain.from_iterable(flat)), value[0]
    form = _FORMATS.get(type(value))
    if len(shape) == 1 or form is None or set(map(type, flat)) != {type(value)}:
        return None
    return np.frombuffer(struct.pack(f"{len(flat)}{form.char}", *flat), form).reshape(shape)


def _have_length(values: Iterable[Any], length: int) -> bool:
    return set(map(len, values)) == {length}
