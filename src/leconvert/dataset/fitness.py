"""The source files that are fit to be taken unchanged, and why others are not; from numbers only.

The scan reads a file's header or footer and knows only the facts of that file (`Misfit`). This
module decides the rest: the file's rows must state the episode's place in the result, and no repair
may change the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from leconvert.model.repairs import Repairs
from leconvert.model.values import BoolArray, IntArray, Misfit

MISFIT_SAID: Mapping[Misfit, str] = {
    Misfit.SHARED: "does not contain exactly one episode",
    Misfit.LATE_START: "does not show its first frame at time 0",
    Misfit.UNEVEN_TIMES: "shows frames for different lengths of time",
    Misfit.OTHER_RATE: "has another frame rate than fps",
    Misfit.OTHER_TRACKS: "has sound or other further tracks",
    Misfit.REMUXED: "has an index that cannot be used as it is",
    Misfit.OTHER_COLUMNS: "has other columns or types than the result",
    Misfit.CHANGED_ROWS: "has rows that a repair changes",
    Misfit.OTHER_NUMBERS: "has another index or episode_index than the result",
}
"""The reason in words why a file is not fit."""

# Numbers of rows that only state their place in the result.
_RENUMBERED = frozenset({"episode_index", "index"})


def changes_rows(repairs: Repairs) -> bool:
    """Return whether a conversion changes more of the rows than their place in the result.

    Dropped and unwrapped columns show in the columns themselves.
    """
    return bool(
        set(repairs.computed_columns) - _RENUMBERED
        or repairs.task_map is not None
        or repairs.tasks_from is not None
    )


def data_misfits(
    of_files: IntArray,
    *,
    has_other_columns: BoolArray,
    first_index: IntArray,
    episode_index: IntArray,
    length: IntArray,
    repairs: Repairs,
) -> IntArray:
    """Return why data files cannot be taken unchanged, a sum of `Misfit` for each; shape (E,).

    Args:
        of_files: The facts of each file alone, shape (E,).
        has_other_columns: Whether its columns differ from the result's, shape (E,).
        first_index: ``index`` of its first row, from which the other rows count, shape (E,).
        episode_index: ``episode_index`` of its rows, shape (E,).
        length: Frames of each episode, shape (E,).
        repairs: The changes of the conversion.
    """
    found = of_files.copy()
    found[has_other_columns] |= Misfit.OTHER_COLUMNS
    if changes_rows(repairs):
        found |= Misfit.CHANGED_ROWS
    begins = np.cumsum(length) - length
    is_elsewhere = (first_index != begins) | (episode_index != np.arange(len(length)))
    found[is_elsewhere] |= Misfit.OTHER_NUMBERS
    return found


def misfit_counts(misfits: IntArray) -> Sequence[tuple[Misfit, int, int]]:
    """Return each reason with its number of files, and the position of the first of them."""
    found = []
    for reason in Misfit:
        positions = np.flatnonzero(misfits & int(reason))
        if len(positions):
            found.append((reason, len(positions), int(positions[0])))
    return found
