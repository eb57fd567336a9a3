"""Statistics of an episode against what the footer of its table says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from leconvert.repairs import TEXT_DTYPES
from leconvert.source.info import STATS_PATH
from leconvert.source.seen import Notes, shown
from leconvert.source.table_checks import Extremes

__all__ = ["StatsCheck"]

_VISUAL_DTYPES = frozenset({"video", "image"})
# Extremes of these are compared by another order than the footer's bytes are read in.
_UNSIGNED_DTYPES = frozenset({"uint32", "uint64"})
# Statistics are often computed and written in single precision.
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-5, 1e-6
_MAX_DEPTH = 8


class StatsCheck:
    """Checks lines of ``episodes_stats.jsonl``.

    Args:
        features: Declared features, without those that are left out or have no data.
    """

    def __init__(self, features: Mapping[str, Mapping[str, Any]]) -> None:
        self._numeric: list[tuple[str, int]] = []
        self._visual: list[str] = []
        self._not_compared: set[str] = set()
        self._known = {
            name for name, feature in features.items() if feature["dtype"] not in TEXT_DTYPES
        }
        for name, feature in features.items():
            dtype, shape = feature["dtype"], feature.get("shape")
            if dtype in TEXT_DTYPES:
                continue
            if dtype in _VISUAL_DTYPES:
                self._visual.append(name)
            else:
                if dtype in _UNSIGNED_DTYPES:
                    self._not_compared.add(name)
                is_vector = isinstance(shape, list) and len(shape) == 1
                size = shape[0] if is_vector and shape and type(shape[0]) is int else 0
                self._numeric.append((name, size))

    @property
    def features(self) -> list[str]:
        """Features that have statistics."""
        return [*(name for name, _ in self._numeric), *self._visual]

    def __call__(
        self, line: Mapping[str, Any] | None, rows: int, found: Extremes, notes: Notes
    ) -> tuple[list[str], list[str]]:
        """Check one line; return the features whose statistics are missing, and are stale.

        Args:
            line: It; None where the episode has none.
            rows: Rows of the episode's table.
            found: Extremes of its columns; only what is there is compared.
            notes: Where to say what is wrong.
        """
        stats = None if line is None else line.get("stats")
        if not isinstance(stats, dict):
            what = "no statistics" if line is None else "a line without statistics"
            notes.sight(
                "missing-stats",
                f"{STATS_PATH} has {what} of episode {notes.episode}.",
                path=STATS_PATH,
            )
            return self.features, []
        missing: list[str] = []
        stale: list[str] = []
        for name, size in self._numeric:
            try:
                entry = stats[name]
                low, high, counts = entry["min"], entry["max"], entry["count"]
                mean, std = entry["mean"], entry["std"]
                sound = (
                    len(low) == len(high) == len(mean) == len(std) > 0
                    and _is_count(counts)
                    and (not size or len(low) == size)
                    and all(map(_is_of_numbers, (low, high, mean, std)))
                )
            except (KeyError, TypeError):
                sound = False
            if not sound:
                self._say_unsound(stats, name, notes)
                missing.append(name)
                continue
            extremes = found.get(name)
            if extremes is None or name in self._not_compared:
                continue
            try:
                if min(low) == extremes[0] and max(high) == extremes[1] and counts[0] == rows:
                    continue
            except TypeError:
                pass  # nested
            if self._compare(name, entry, extremes, rows, notes):
                stale.append(name)
        for name in self._visual:
            try:
                entry = stats[name]
                sound = (
                    _is_of_channels(entry["min"])
                    and _is_of_channels(entry["max"])
                    and _is_of_channels(entry["mean"])
                    and _is_of_channels(entry["std"])
                    and _is_count(entry["count"])
                )
            except (KeyError, TypeError):
                sound = False
            if not sound:
                self._say_unsound(stats, name, notes)
                missing.append(name)
        # Those of what is not declared are copied, too.
        for name in stats.keys() - self._known:
            if not _can_be_copied(stats[name]):
                self._say_unsound(stats, name, notes, helps=("--recompute-stats",))
        return missing, stale

    def _say_unsound(
        self,
        stats: Mapping[str, Any],
        name: str,
        notes: Notes,
        helps: tuple[str, ...] | None = None,
    ) -> None:
        what = "not numbers in the right shape" if name in stats else "not there"
        notes.sight(
            "missing-stats",
            f"Statistics of {shown(name)} are {what} in {STATS_PATH} for episode {notes.episode}.",
            feature=name,
            path=STATS_PATH,
            helps=helps,
        )

    def _compare(
        self,
        name: str,
        entry: Mapping[str, Any],
        extremes: tuple[float, float],
        rows: int,
        notes: Notes,
    ) -> bool:
        """Say where statistics are stale; return whether they are."""
        lows = [value for value in _numbers(entry["min"]) if math.isfinite(value)]
        highs = [value for value in _numbers(entry["max"]) if math.isfinite(value)]
        least, greatest = min(lows, default=math.nan), max(highs, default=math.nan)
        if _differ(least, extremes[0]) or _differ(greatest, extremes[1]):
            said = f"from {least:g} to {greatest:g}, the data goes from {extremes[0]:g} to "
            said += f"{extremes[1]:g}"
        elif entry["count"][0] != rows:
            said = f"of {shown(entry['count'][0])} frames, the table has {rows}"
        else:
            return False
        notes.sight(
            "stale-stats",
            f"Statistics of {shown(name)} are stale: for episode {notes.episode} {STATS_PATH} has "
            f"them {said}.",
            feature=name,
            path=STATS_PATH,
        )
        return True


def _differ(stated: float, found: float) -> bool:
    """Whether two extremes differ by more than rounding; NaN says nothing."""
    if math.isnan(stated) or not math.isfinite(found):
        return False
    return not math.isclose(stated, found, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)


def _numbers(value: object, depth: int = 0) -> Iterator[float]:
    """Yield the numbers in a nested list."""
    if isinstance(value, int | float):
        try:
            yield float(value)
        except OverflowError:
            yield math.inf
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        items: Iterable[object] = value
        for item in items:
            yield from _numbers(item, depth + 1)


def _is_of_channels(value: Any) -> bool:
    """Whether a value looks like (3, 1, 1) or (1, 1, 1) numbers: as far as its last channel."""
    return (
        len(value) in (1, 3) and len(value[-1]) == 1 == len(value[-1][0]) and _is_of_numbers(value)
    )


def _can_be_copied(values: object) -> bool:
    """Whether the statistics of anything are such as the result's can be added up from.

    Mappings below them are statistics of names with a slash, which are rare and not looked at.
    """
    if not isinstance(values, dict):
        return False
    found: Mapping[str, object] = values
    if any(isinstance(value, dict) for value in found.values()):
        return True
    return all(
        isinstance(found.get(key), int | float) or _is_of_numbers(found.get(key))
        for key in ("min", "max", "mean", "std", "count")
    ) and _is_count(found["count"] if isinstance(found["count"], list) else [found["count"]])


def _is_count(value: Any) -> bool:
    """Whether a value is a list of one number that can count frames: none or more."""
    return len(value) == 1 and isinstance(value[0], int | float) and value[0] >= 0


def _is_of_numbers(value: object, depth: int = 0) -> bool:
    """Whether a value is a list, nested or not, that holds numbers and nothing else."""
    if not isinstance(value, list) or depth > _MAX_DEPTH:
        return False
    items: list[Any] = value
    try:
        sum(items)  # knows numbers from anything else, and is fast: most lists hold only these
    except TypeError:
        return all(_is_of_numbers(item, depth + 1) for item in items)
    return True
