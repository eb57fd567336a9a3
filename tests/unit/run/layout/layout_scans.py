"""Sources made of plain lists, for tests of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from leconvert.model.values import MEBIBYTE, FileTable, SourceScan, StreamScan


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
    return StreamScan.of_whole_files(name, files, frames=zeros, roll_bytes=sizes, group=group)


def source_of(lengths: Sequence[int], *streams: StreamScan, fps: str = "30") -> SourceScan:
    """A source of episodes of so many frames."""
    length = np.array(lengths, dtype=np.int64)
    index = np.arange(len(length))
    return SourceScan((), Fraction(fps), index, length, streams, b"", ())
