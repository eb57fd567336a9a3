"""Sources made of plain lists, for tests of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from leconvert.model.values import MEBIBYTE, FileTable, IntArray, SourceScan, StreamScan


def of_whole_files(
    stream: str, files: FileTable, *, frames: IntArray, roll_bytes: IntArray, group: IntArray
) -> StreamScan:
    """The scan of a stream with one file per episode, in order."""
    zeros = np.zeros(len(files), dtype=np.int64)
    file = np.arange(len(files))
    return StreamScan(
        stream, files, file, zeros, frames, files.size_bytes, roll_bytes, group, lead=zeros
    )


def stream_of(
    name: str,
    mebibytes: Sequence[float],
    *,
    groups: Sequence[int] | None = None,
    stored_bytes: Sequence[int] | None = None,
) -> StreamScan:
    """A stream of one episode a size; what counts and what is stored are the same by default."""
    sizes = np.array([int(size * MEBIBYTE) for size in mebibytes], dtype=np.int64)
    zeros = np.zeros_like(sizes)
    stored = sizes if stored_bytes is None else np.array(stored_bytes, dtype=np.int64)
    group = zeros if groups is None else np.array(groups, dtype=np.int64)
    files = FileTable(np.arange(len(sizes)), stored, zeros, zeros)
    return of_whole_files(name, files, frames=zeros, roll_bytes=sizes, group=group)


def source_of(lengths: Sequence[int], *streams: StreamScan) -> SourceScan:
    """A source of episodes of so many frames, 30 a second."""
    length = np.array(lengths, dtype=np.int64)
    index = np.arange(len(length))
    return SourceScan((), Fraction(30), index, length, streams, b"", ())
