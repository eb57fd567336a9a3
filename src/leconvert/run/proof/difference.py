"""Differences that a verification reports, and the comparisons that find them.

There is one comparison each for bytes (`first_difference`), for a column's values (`same_values`),
for JSON values and for statistics. All proofs of this package and of repairs use them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from leconvert.support.values import dataclass
from leconvert.tables.arrow import is_list


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the result and the content that its source demands.

    Attributes:
        what: The property that differs, in a few words.
        path: The file, relative to the result.
        expected: The value that the source demands.
        found: The value in the result.
        episode: Index of the episode, if it concerns one.
        stream: The stream, if it concerns one.
    """

    what: str
    path: str
    expected: str
    found: str
    episode: int | None = None
    stream: str | None = None

    def __str__(self) -> str:
        place = self.path if self.episode is None else f"{self.path}, episode {self.episode}"
        return f"{place}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The outcome of a verification.

    Attributes:
        depth: ``structure`` or ``bytes``.
        differences: All differences; empty for a proven result.
        files: Number of the result's files that were checked.
        episodes: Number of episodes that were compared.
        video_frames: Number of camera frames that were compared.
        rows: Number of table rows that were compared.
        share: Share of the episodes whose files were compared.
        pictures: Number of images that were decoded on both sides.
        samples: Number of samples that were loaded through LeRobot.
    """

    depth: str
    differences: Sequence[Difference]
    files: int
    episodes: int
    video_frames: int
    rows: int
    share: float = 1.0
    pictures: int = 0
    samples: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


type Said = Iterable[tuple[str, object, object]]
"""A property that differs, its expected value and the found one; the caller knows the file."""


def differences_of(
    said: Said, path: str, episode: int | None = None, stream: str | None = None
) -> Iterator[Difference]:
    """Yield the differences of a file, or of one episode in it."""
    for what, expected, found in said:
        yield Difference(what, path, str(expected), str(found), episode, stream)


# Two of these fit together into the cache of a core.
_BLOCK_BYTES = 256 * 1024

type Runs = Sequence[tuple[int, int]]
"""Begin and length in bytes of ranges of a file, read one after another."""


class OpenFile(NamedTuple):
    """A file that is open for reading, and its name for errors."""

    descriptor: int
    path: str


@contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[OpenFile]:
    """Open a file for a comparison."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield OpenFile(descriptor, os.fspath(path))
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add a file's name to errors in the block; the system does not name open files."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def first_difference(
    expected: OpenFile,
    found: OpenFile,
    expected_runs: Runs | None = None,
    found_runs: Runs | None = None,
) -> int | None:
    """Compare ranges of two files as if each were one range, a block at a time.

    Args:
        expected: One file.
        found: The other file.
        expected_runs: The ranges of the first file; None for the whole file.
        found_runs: The ranges of the other file.

    Returns:
        Position of the first different byte, counted from the first byte of the first range; None
        if there is none. If a file or its ranges end early, the position of that end.
    """
    if expected_runs is None and found_runs is None:
        with naming(found.path):
            theirs, ours = os.fstat(expected.descriptor), os.fstat(found.descriptor)
        if os.path.samestat(theirs, ours):
            return None  # two names of one file
        expected_runs, found_runs = [(0, theirs.st_size)], [(0, ours.st_size)]
    left, right = list(expected_runs or ())[::-1], list(found_runs or ())[::-1]
    place = 0
    while left and right:
        (left_at, left_size), (right_at, right_size) = left.pop(), right.pop()
        both = min(left_size, right_size)
        for done in range(0, both, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, both - done)
            wanted = _read(expected, size, left_at + done)
            have = _read(found, size, right_at + done)
            if wanted != have or len(have) != size:
                return place + done + _equal_bytes(wanted, have)
        place += both
        if left_size > both:
            left.append((left_at + both, left_size - both))
        if right_size > both:
            right.append((right_at + both, right_size - both))
    return place if left or right else None


def _read(file: OpenFile, size: int, place: int) -> bytes:
    """Read this many bytes; fewer only at the end of the file."""
    with naming(file.path):
        data = os.pread(file.descriptor, size, place)
        while len(data) < size:
            more = os.pread(file.descriptor, size - len(data), place + len(data))
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


def differing_bytes(source: OpenFile, result: OpenFile) -> Said:
    """Yield a difference if a file of the result is not byte for byte the source's."""
    place = first_difference(source, result)
    if place is not None:
        yield "bytes of the file", "the source's", f"other bytes from byte {place} on"


def is_as_long(path: str, size_bytes: int) -> bool:
    """Return whether a file has this size; False if its size cannot be read."""
    try:
        return os.stat(path).st_size == size_bytes  # noqa: PTH116 - for every file
    except OSError:
        return False


def same_bytes(one: Path, other: Path) -> bool:
    """Return whether two regular files have the same bytes now: both are read, or are one file.

    Raises:
        OSError: One of them cannot be read.
    """
    if not all(stat.S_ISREG(path.stat().st_mode) for path in (one, other)):
        return False
    with open_file(one) as theirs, open_file(other) as ours:
        return first_difference(theirs, ours) is None


def same_values(expected: pa.Array, found: pa.Array) -> bool:
    """Return whether two arrays have the same values, bit by bit.

    Floats are compared by their bits, so NaN equals NaN, and 0.0 does not equal -0.0. A list of
    fixed size equals a list of variable size with the same values.
    """
    if len(expected) != len(found) or expected.null_count != found.null_count:
        return False
    if expected.null_count:
        if not expected.is_null().equals(found.is_null()):
            return False
        expected, found = expected.drop_null(), found.drop_null()
    if isinstance(expected, pa.ExtensionArray) and isinstance(found, pa.ExtensionArray):
        return expected.type == found.type and same_values(expected.storage, found.storage)
    if is_list(expected.type):
        import pyarrow.compute as pc  # takes 50 ms, which conversions without rows need not spend

        return bool(
            is_list(found.type)
            and pc.list_value_length(expected)
            .cast(pa.int64())
            .equals(pc.list_value_length(found).cast(pa.int64()))
            and same_values(pc.list_flatten(expected), pc.list_flatten(found))
        )
    if pa.types.is_struct(expected.type):
        names = [field.name for field in expected.type]
        return bool(
            pa.types.is_struct(found.type)
            and names == [field.name for field in found.type]
            and all(
                same_values(left, right)
                for left, right in zip(expected.flatten(), found.flatten(), strict=True)
            )
        )
    if expected.type != found.type:
        return False
    if pa.types.is_floating(expected.type):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[expected.type.bit_width]
        expected, found = expected.view(bits), found.view(bits)
    return bool(expected.equals(found))


def first_differing_row(expected: pa.Array, found: pa.Array) -> int:
    """Return the first row in which two columns differ, by bisection."""
    low, high = 0, max(len(expected), len(found))
    while low < high:
        middle = (low + high + 1) // 2
        if same_values(expected.slice(0, middle), found.slice(0, middle)):
            low = middle
        else:
            high = middle - 1
    return low


_sorted_json = json.JSONEncoder(sort_keys=True).encode


def same_json(expected: object, found: object) -> bool:
    """Return whether two JSON values are the same: 1 is neither 1.0 nor true."""
    return _sorted_json(expected) == _sorted_json(found)


def differing_keys(expected: Mapping[str, object], found: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of two JSON objects whose values differ, or that one of them lacks."""
    for key in {**expected, **found}:
        is_in_both = key in expected and key in found
        if not is_in_both or not same_json(expected[key], found[key]):
            yield key


def same_statistic(expected: object, found: object) -> bool:
    """Return whether nested mappings and lists hold the same numbers; NaN equals NaN."""
    if expected == found:  # mostly True, and many times faster than the loops below
        return True
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(
            same_statistic(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same_statistic, expected, found))
    return expected != expected and found != found  # noqa: PLR0124
