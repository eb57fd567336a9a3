"""The statistics of some consecutive episodes, as rows and as columns.

Nearly always all episodes have the same statistics of the same shapes. Then a column of them is one
array, which is made once for all who look at it, and nobody walks through Python's lists.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_EPISODES", "Columns", "Row", "StatsBlock", "rows_of"]

# Episodes whose parsed JSON is held at a time: Python's numbers in nested lists take ten times the
# room of arrays.
BLOCK_EPISODES = 125

Row = Mapping[str, Any] | None
"""What one episode has: feature to statistic to value; None where it is no table of them."""
Columns = Mapping[str, Mapping[str, npt.NDArray[Any]]]
"""Feature to statistic to array of shape (episodes, ...); int64, float64 or bool."""

_UNSIGNED_FROM = 2.0**63


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
    def has_rows(self) -> bool:
        """Whether there are rows already."""
        return self._rows is not None

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
        """The same as arrays; None where episodes differ in what they have, or in its shape.

        An array has the type and the values that NumPy gives the lists of all rows.
        """
        if not self._has_columns:
            assert self._rows is not None
            try:
                self._columns = _columns(self._rows)
            except (TypeError, KeyError, ValueError, OverflowError, struct.error):
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

    def renamed(self, names: Mapping[str, str]) -> StatsBlock:
        """Return the block with new names for some features."""
        if self._rows is None:
            assert self._columns is not None
            return StatsBlock.of_columns(_renamed(self._columns, names), self._length)
        return StatsBlock([None if row is None else _renamed(row, names) for row in self._rows])


def rows_of(blocks: Iterable[StatsBlock]) -> Iterator[Row]:
    """Yield what each episode of some blocks has."""
    return chain.from_iterable(block.rows for block in blocks)


def _renamed[Item](items: Mapping[str, Item], names: Mapping[str, str]) -> dict[str, Item]:
    return {names.get(name, name): item for name, item in items.items()}


def _columns(rows: Sequence[Row]) -> Columns | None:
    """Return rows as columns; None, or any error of a wrong type, where they are not regular."""
    whole: list[Any] = list(rows)
    first = whole[0]
    if set(map(type, whole)) != {dict} or not _have_length(whole, len(first)):
        return None
    columns: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for feature, example in first.items():
        # A key that one lacks is a KeyError; with as many keys none has another.
        found = list(map(itemgetter(feature), whole))
        if type(example) is not dict or not _have_length(found, len(example)):
            return None
        own = columns[feature] = {}
        for name, value in example.items():
            array = _array(list(map(itemgetter(name), found)), value)
            if array is None:
                return None
            own[name] = array
    return columns


def _array(values: list[Any], example: Any) -> npt.NDArray[Any] | None:
    """Return lists of numbers as an array, as NumPy would but three times as fast."""
    flat, shape, value = values, [len(values)], example
    while type(value) is list:
        if not value or not _have_length(flat, len(value)):
            return None
        shape.append(len(value))
        # What is no list gives its keys or characters, which are no numbers either.
        flat, value = list(chain.from_iterable(flat)), value[0]
    if len(shape) == 1:
        return None
    if type(value) is float:
        numbers = np.frombuffer(struct.pack(f"{len(flat)}d", *flat), np.float64)
        # NumPy makes other types of larger integers, which may stand beside fractions.
        if np.abs(numbers).max() < _UNSIGNED_FROM:
            return numbers.reshape(shape)
    elif set(map(type, flat)) == {int}:
        return np.frombuffer(struct.pack(f"{len(flat)}q", *flat), np.int64).reshape(shape)
    array = np.array(values)
    return array if array.dtype.kind in "bif" and list(array.shape) == shape else None


def _have_length(values: Iterable[Any], length: int) -> bool:
    return set(map(len, values)) == {length}
