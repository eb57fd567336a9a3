"""Where ``meta/episodes`` of a result says that each episode lies, as plain arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import tables
from leconvert.arrow import int64_values
from leconvert.model import FILES_PER_CHUNK, IntArray, camera_of

__all__ = ["FloatArray", "Routes", "file_runs", "read_routes"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The columns that lead to files, by stream; arrays of shape (E,).

    Attributes:
        file_number: Number of the output file.
        from_timestamp: Start in a video file, in seconds; none for data.
        to_timestamp: End in it.
    """

    file_number: dict[str, IntArray]
    from_timestamp: dict[str, FloatArray]
    to_timestamp: dict[str, FloatArray]


def read_routes(table: tables.EpisodesReader, streams: Sequence[str]) -> Routes:
    """Read the routing columns of some streams, a block of rows at a time.

    Raises:
        UnreadableSourceError: The table cannot be read.
        KeyError: A column is missing.
        ValueError: A file number is no integer.
    """
    names = {
        f"{stream}/{name}"
        for stream in streams
        for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    }
    numbers: dict[str, list[IntArray]] = {stream: [] for stream in streams}
    begins: dict[str, list[FloatArray]] = {s: [] for s in streams if camera_of(s) is not None}
    ends: dict[str, list[FloatArray]] = {s: [] for s in begins}
    for rows in table.blocks(names.__contains__):
        for stream in streams:
            chunk = int64_values(rows.column(f"{stream}/chunk_index"))
            file = int64_values(rows.column(f"{stream}/file_index"))
            numbers[stream].append(chunk * FILES_PER_CHUNK + file)
        for stream, times in begins.items():
            times.append(_seconds(rows.column(f"{stream}/from_timestamp")))
            ends[stream].append(_seconds(rows.column(f"{stream}/to_timestamp")))
    none = [np.empty(0, np.int64)]
    return Routes(
        {stream: np.concatenate(parts or none) for stream, parts in numbers.items()},
        {stream: np.concatenate(parts or none) for stream, parts in begins.items()},
        {stream: np.concatenate(parts or none) for stream, parts in ends.items()},
    )


def file_runs(numbers: IntArray) -> Iterator[tuple[int, int]]:
    """Yield first and stop of each run of episodes in one file."""
    edges = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    yield from itertools.pairwise([0, *edges, len(numbers)])


def _seconds(column: pa.ChunkedArray) -> FloatArray:
    # A time that is missing becomes NaN, which equals no time.
    return np.array(column.to_pylist(), np.float64)
