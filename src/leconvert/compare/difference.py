"""What a verification reports."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.arrow import is_list
from leconvert.model import IntArray

__all__ = [
    "Difference",
    "FloatArray",
    "VerificationReport",
    "floats",
    "integers",
    "nested_floats",
    "read_json_object",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the result is not what its source demands.

    Attributes:
        what: The property that differs, in a few words.
        path: The file of the result, relative to it.
        expected: What the source demands.
        found: What is there.
        episode: Index of the episode, where it is about one.
        stream: The stream, where it is about one.
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
        differences: Everything that is not as it should be; empty for a proven result.
        files: Files of the result that were looked at.
        episodes: Episodes that were compared.
        video_frames: Camera frames that were compared.
        rows: Table rows that were compared.
        share: Share of the episodes whose files were compared.
        pictures: Pictures that were decoded on both sides.
        samples: Samples that were loaded through LeRobot.
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


# ------------------------------------------------------------------------------------------------
# The JSON files of a result, held to what LeRobot's readers take.


# Python shows and compares what is nested less deeply than this, whoever asks it to.
_MOST_LEVELS = 100


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    LeRobot opens these files as UTF-8 text, in which a byte order mark, or UTF-16, is no JSON.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if _is_deeper(content, _MOST_LEVELS):
        raise ValueError("it is nested too deeply")
    return content


def _is_deeper(value: object, levels: int) -> bool:
    level: list[Any] = [value]
    for _ in range(levels):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# ------------------------------------------------------------------------------------------------
# Arrow columns as NumPy arrays, without pandas: numbers, and regular nested lists of numbers.


FloatArray = npt.NDArray[np.float64]


def integers(column: pa.Array) -> IntArray | None:
    """Return a column of integers, shape (rows,); None where it is of another type or has nulls."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    try:
        return _buffer(column.cast(pa.int64()), np.int64)
    except pa.ArrowException:  # unsigned and beyond 2**63
        return None


def floats(column: pa.Array) -> FloatArray | None:
    """Return a column of numbers, shape (rows,); None where it is of another type or has nulls."""
    kind = column.type
    if column.null_count:
        return None
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return None
    return _buffer(column.cast(pa.float64(), safe=False), np.float64)


def nested_floats(column: pa.Array) -> FloatArray | None:
    """Return a column of nested lists, shape (rows, ...); None where they are not regular."""
    shape = [len(column)]
    while is_list(column.type):
        if column.null_count:
            return None
        values = column.flatten()
        size = len(values) // len(column) if len(column) else 0
        if not pa.types.is_fixed_size_list(column.type):
            ends = integers(column.offsets)
            if ends is None or np.any(np.diff(ends) != size):
                return None
        shape.append(size)
        column = values
    numbers = floats(column)
    return None if numbers is None else numbers.reshape(shape)


def _buffer[Number: np.generic](column: pa.Array, dtype: type[Number]) -> npt.NDArray[Number]:
    if not len(column):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)
