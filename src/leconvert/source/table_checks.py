"""What can be wrong with the table of one episode, mostly by what its footer says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.source.seen import Notes, counted, said_of_paths, shown
from leconvert.tables import DataFile

__all__ = ["NOT_KNOWN", "NO_INDEX", "Extremes", "RowFacts", "TableCheck"]

# Column to its least and its greatest value.
Extremes = Mapping[str, tuple[float, float]]
Times = npt.NDArray[np.floating[Any]]

# How far LeRobot lets a frame lie from the timestamp that asks for it.
_LEROBOT_TOLERANCE_SECONDS = 1e-4
_FIRST_FRAMES = 2048
_NO_TENSOR_FROM = 2**63
_BROADCAST_RATES = ("23.976", "29.97", "59.94")
_KEPT_TIMES = 256
# No index or task has these numbers: it is not known; a value is none, such as NaN or 1.5.
NOT_KNOWN = -(2**62)
NO_INDEX = NOT_KNOWN + 1
_VISUAL_DTYPES = frozenset({"video", "image"})


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a table's rows say about their place in the dataset.

    Attributes:
        first_index: ``index`` of the first row, `NOT_KNOWN` where rows are not counted by one.
        tasks: The tasks of its rows, `NO_INDEX` for what can be none; () where there is no such
            column.
        was_looked_at: Whether there were rows to look at.
    """

    first_index: int = NOT_KNOWN
    tasks: tuple[int, ...] = ()
    was_looked_at: bool = False


class TableCheck:
    """Checks tables of one dataset.

    Args:
        fps: Frames a second.
        features: Declared features, without those that are left out.
        has_cameras: Whether timestamps are used to find video frames.
    """

    def __init__(
        self,
        fps: Fraction,
        features: Mapping[str, Mapping[str, Any]],
        *,
        has_cameras: bool,
    ) -> None:
        self._fps = fps
        self._expected: dict[str, Times] = {}
        self._right_times: set[tuple[object, bytes]] = set()
        self._times_severity = "" if has_cameras else "warning"
        # Whatever is declared: a column may be stored as numbers.
        self._stored = [
            name
            for name, feature in features.items()
            if feature["dtype"] != "video" and name not in DEFAULT_COLUMNS
        ]
        self._images = [name for name, feature in features.items() if feature["dtype"] == "image"]
        # Whose statistics may have to be computed, whatever is declared.
        self._computed = [
            name
            for name, feature in features.items()
            if feature["dtype"] not in _VISUAL_DTYPES and name not in DEFAULT_COLUMNS
        ]

    def __call__(self, file: DataFile, extremes: Extremes, notes: Notes) -> RowFacts:
        """Check a table that has as many rows as its episode has frames.

        Args:
            file: It.
            extremes: What its footer says of the extremes of its columns.
            notes: Where to say what is wrong.

        Raises:
            UnreadableSourceError: A column that the footer does not describe cannot be read.
        """
        rows = file.counts.rows
        columns = file.counts.columns
        for name in self._stored:
            greatest = extremes.get(name, (0, 0))[1]
            if greatest >= _NO_TENSOR_FROM and isinstance(greatest, int):
                notes.say(
                    "unloadable-feature",
                    f"{shown(name)} goes up to {greatest} in {shown(notes.path)}, which LeRobot "
                    f"cannot load: no tensor holds numbers from 2^63 on.",
                    feature=name,
                )
        for name in self._images:
            if missing := file.missing_files(name):
                where = f" in {missing} of {counted(rows, 'row')} of {shown(notes.path)}"
                notes.sight("image-paths", said_of_paths(name, where), feature=name)
        for name in self._computed:
            values, empty = file.num_values(name), file.null_count(name)
            what = counted(empty or 0, "empty value")
            if not empty and values is not None and values % rows:
                what = f"lists of different lengths, {values} values in {rows} rows"
            elif not empty:
                continue
            notes.say(
                "uncomputable-stats",
                f"{shown(name)} has {what} in {shown(notes.path)}: no statistics can be computed.",
                feature=name,
            )
        if "episode_index" in columns and not _says_empty(file, "episode_index", notes):
            with _numbers_or_said("episode-index", notes):
                least, greatest = _extremes(file, extremes, "episode_index")
                if (least, greatest) != (notes.episode, notes.episode):
                    notes.say(
                        "episode-index",
                        f"{shown(notes.path)} has rows of episode {_span(least, greatest)}.",
                    )
        if "frame_index" in columns and not _says_empty(file, "frame_index", notes):
            with _numbers_or_said("frame-index", notes):
                least, greatest = _extremes(file, extremes, "frame_index")
                if (least, greatest) != (0, rows - 1):
                    notes.say(
                        "frame-index",
                        f"{shown(notes.path)} counts its {rows} frames {_span(least, greatest)} "
                        f"instead of {_span(0, rows - 1)}.",
                    )
        if "timestamp" in columns:
            empty = file.null_count("timestamp")
            if empty:
                said = f"{shown(notes.path)} has {counted(empty, 'row')} without timestamp."
                notes.say("timestamps", said)
            else:
                with _numbers_or_said("timestamps", notes):
                    self._check_times(file, notes)
        first_index = NOT_KNOWN
        if "index" in columns and not file.null_count("index"):
            with _numbers_or_said("global-index", notes):
                least, greatest = _extremes(file, extremes, "index")
                if greatest - least == rows - 1 and _index(least) != NO_INDEX:
                    first_index = int(least)
        tasks: tuple[int, ...] = ()
        if "task_index" in columns and not _says_empty(file, "task_index", notes):
            # No flag knows which text or list stands for which task.
            with _numbers_or_said("dtype-mismatch", notes):
                least, greatest = _extremes(file, extremes, "task_index")
                found = [least] if least == greatest else file.distinct("task_index")
                tasks = tuple(dict.fromkeys(map(_index, found)))
        return RowFacts(first_index, tasks, was_looked_at=True)

    def _check_times(self, file: DataFile, notes: Notes) -> None:
        # Episodes of one length have the same times, and mostly the same bytes for them.
        raw = file.raw("timestamp")
        if raw is not None and raw in self._right_times:
            return
        times = file.numbers("timestamp")
        expected = self._times(len(times), times.dtype)
        if (times == expected).all():
            if raw is not None:
                if len(self._right_times) >= _KEPT_TIMES:
                    self._right_times.clear()
                self._right_times.add(raw)
            return
        offsets = np.abs(times - expected.astype(np.float64))
        right = offsets < _LEROBOT_TOLERANCE_SECONDS
        if right.all():
            return
        wrong = np.flatnonzero(~right)
        rate = _steady_rate(times)
        worst = float(np.nanmax(offsets)) if not np.isnan(offsets).all() else float("nan")
        notes.say(
            "timestamps",
            f"{shown(notes.path)}: {len(wrong)} of {len(times)} timestamps are not frame / fps, "
            f"first at frame {int(wrong[0])} ({float(times[wrong[0]]):g} s), at worst "
            f"{worst:g} s off." + (f" They are frame / {rate}." if rate else ""),
            severity=self._times_severity,
            helps=(f"--assume-fps {rate}", "--retime") if rate else None,
        )

    def _times(self, length: int, kind: np.dtype[Any]) -> Times:
        """Return frame / fps for the frames of an episode, shape (length,).

        They are rounded as LeRobot rounds them where it stores them in this type: late in long
        episodes that is coarse, but right.
        """
        known = self._expected.get(kind.str)
        if known is None or len(known) < length:
            frames = np.arange(max(length, _FIRST_FRAMES), dtype=np.float64)
            times = frames * self._fps.denominator / self._fps.numerator
            known = times.astype(np.float32) if kind == np.float32 else times
            self._expected[kind.str] = known
        return known[:length]


def _steady_rate(times: npt.NDArray[Any]) -> str | None:
    """Return the rate at which timestamps step from 0 on as LeRobot demands it; None for none."""
    seconds = float(times[-1])
    if not 0 < seconds < np.inf:
        return None
    found = (len(times) - 1) / seconds
    rate = next((text for text in _BROADCAST_RATES if abs(found - float(text)) < 1e-3), None)
    rate = rate or f"{found:.4g}"
    expected = np.arange(len(times)) / float(rate)
    return rate if (np.abs(times - expected) < _LEROBOT_TOLERANCE_SECONDS).all() else None


@contextmanager
def _numbers_or_said(code: str, notes: Notes) -> Iterator[None]:
    """Say of a column that has no number a row that it is wrong, whatever its values are."""
    try:
        yield
    except UnreadableSourceError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        said = f"{shown(notes.path)} cannot be used as it is: {shown(str(error.__cause__))}."
        notes.say(code, said, severity="error", is_acceptable=False)


def _says_empty(file: DataFile, column: str, notes: Notes) -> bool:
    """Say of how many rows a column tells nothing; False where it tells it of every row."""
    empty = file.null_count(column)
    if empty:
        code = column.replace("_", "-")
        notes.say(code, f"{shown(notes.path)} has {counted(empty, 'row')} without {column}.")
    return bool(empty)


def _extremes(file: DataFile, extremes: Extremes, column: str) -> tuple[float, float]:
    """Return the least and the greatest number of a column of at least one row."""
    found = extremes.get(column)
    # A footer passes over NaN; a column of indices that are no integers is rare enough to be read.
    if found is None or isinstance(found[0], float):
        values = file.numbers(column)
        found = values.min().item(), values.max().item()
    return found


def _index(value: float) -> int:
    """Return a number as an index, `NO_INDEX` where it cannot be one."""
    is_index = -NO_INDEX > value > NO_INDEX and value == int(value)
    return int(value) if is_index else NO_INDEX


def _span(least: float, greatest: float) -> str:
    said = [f"{value:g}" if isinstance(value, float) else str(value) for value in (least, greatest)]
    return said[0] if least == greatest else " to ".join(said)
