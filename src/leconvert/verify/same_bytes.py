"""Byte ranges of two files side by side, a block at a time: nothing hashed, little held."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["first_difference", "naming"]

# Two of these fit into the cache of a core beside each other.
_BLOCK_BYTES = 256 * 1024

type Runs = Sequence[tuple[int, int]]
"""Begin and length in bytes of ranges of a file, read one behind the other."""


def first_difference(
    expected: int,
    expected_runs: Runs,
    found: int,
    found_runs: Runs,
    *,
    paths: tuple[str, str],
) -> int | None:
    """Compare ranges of two open files as if those of each were one.

    Args:
        expected: Descriptor of the one file.
        expected_runs: What of it.
        found: Descriptor of the other.
        found_runs: What of it.
        paths: Both files' names, for an error.

    Returns:
        Place of the first byte that differs, counted from the first byte of the first range; None
        where all are the same. Where a file or its ranges end early, that is the place.

    Raises:
        OSError: A file cannot be read; the error names it.
    """
    left, right = list(expected_runs)[::-1], list(found_runs)[::-1]
    place = 0
    while left and right:
        (left_at, left_size), (right_at, right_size) = left.pop(), right.pop()
        both = min(left_size, right_size)
        for done in range(0, both, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, both - done)
            theirs = _read(expected, size, left_at + done, paths[0])
            ours = _read(found, size, right_at + done, paths[1])
            if theirs != ours or len(ours) != size:
                return place + done + _equal_bytes(theirs, ours)
        place += both
        if left_size > both:
            left.append((left_at + both, left_size - both))
        if right_size > both:
            right.append((right_at + both, right_size - both))
    return place if left or right else None


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an error of the block name a file: the system does not where that is open already."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def _read(descriptor: int, size: int, place: int, path: str) -> bytes:
    """Read so many bytes, fewer only where the file ends."""
    with naming(path):
        data = os.pread(descriptor, size, place)
        while len(data) < size:
            more = os.pread(descriptor, size - len(data), place + len(data))
            if not more:
                break
            data += more
    return data


def _equal_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the longest equal beginning, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
