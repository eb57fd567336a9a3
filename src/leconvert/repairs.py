"""What a conversion is allowed to change about a dataset, and what one conversion changes.

By default rows, statistics and tables are copied as they stand. `RepairOptions` is what the user
allows; the scan turns it into `Repairs`, which the plan records, workers and packer carry out and
the verification expects. Whatever is not in `Repairs` is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from leconvert.errors import UsageError
from leconvert.text import count

__all__ = [
    "DEFAULT_COLUMNS",
    "NO_REPAIRS",
    "TEXT_DTYPES",
    "DroppedEpisode",
    "RepairOptions",
    "Repairs",
]

# The columns that every v3.0 dataset has, in LeRobot's order, and the types it gives them.
DEFAULT_COLUMNS: Mapping[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
# Features that LeRobot keeps no statistics of.
TEXT_DTYPES = frozenset({"string", "language"})
_ON_BAD_EPISODE = ("fail", "drop")


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What the user allows a conversion to change.

    Attributes:
        on_bad_episode: ``fail`` stops where an episode is damaged, ``drop`` leaves it out and
            numbers the others anew.
        retime: Timestamps become ``frame / fps``.
        reindex: ``frame_index``, ``episode_index`` and ``index`` are counted anew.
        remap_tasks: Tasks are numbered anew, so that a task's row is its index.
        recompute_stats: Statistics of every feature are computed from the data.
        quantiles: Statistics have quantiles, for which those of numeric columns are computed anew.
        drop_features: Features that are left out, columns and video files alike.
        accept: Codes of findings that shall not stop the conversion, as far as it can do without.

    Raises:
        UsageError: ``on_bad_episode`` is neither of the two.
    """

    on_bad_episode: str = "fail"
    retime: bool = False
    reindex: bool = False
    remap_tasks: bool = False
    recompute_stats: bool = False
    quantiles: bool = False
    drop_features: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.on_bad_episode not in _ON_BAD_EPISODE:
            raise UsageError(f"--on-bad-episode takes fail or drop, not {self.on_bad_episode!r}.")

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping of what is not the default."""
        default = asdict(RepairOptions())
        record = {key: value for key, value in asdict(self).items() if value != default[key]}
        return {
            key: sorted(value) if isinstance(value, tuple) else value
            for key, value in record.items()
        }


@dataclass(frozen=True, slots=True)
class DroppedEpisode:
    """An episode that is left out: its index in the source, and the code of the finding why."""

    episode: int
    code: str


@dataclass(frozen=True, slots=True)
class Repairs:
    """What one conversion changes; nothing by default.

    Attributes:
        dropped_episodes: Episodes that are left out, ascending.
        dropped_features: Features that are left out, sorted.
        computed_columns: Default columns that are computed and not copied, in the order of
            `DEFAULT_COLUMNS`: ``timestamp`` is ``frame / fps``, ``frame_index`` the frame,
            ``episode_index`` the episode's place in the result, ``index`` the frame's place in the
            result. ``task_index`` is 0 where it is added, and mapped where ``task_map`` is given.
        added_columns: Those of them that the source lacks; they come last.
        task_map: Source task index to result task index; None leaves tasks as they are.
        computed_stats: Features whose statistics are computed from the data and not copied, sorted.
        quantiles: Whether computed statistics have quantiles.
    """

    dropped_episodes: tuple[DroppedEpisode, ...] = ()
    dropped_features: tuple[str, ...] = ()
    computed_columns: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    task_map: Mapping[int, int] | None = field(default=None)
    computed_stats: tuple[str, ...] = ()
    quantiles: bool = False

    @property
    def change_rows(self) -> bool:
        """Whether rows are anything but copied."""
        return bool(self.dropped_features or self.computed_columns or self.task_map)

    def __bool__(self) -> bool:
        return self != NO_REPAIRS

    def features(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result's features, given those of the source's ``info.json``."""
        kept = {
            key: copy.deepcopy(feature)
            for key, feature in features.items()
            if key not in self.dropped_features
        }
        for name in self.added_columns:
            kept[name] = {"dtype": DEFAULT_COLUMNS[name], "shape": [1], "names": None}
        return kept

    def replaces_stats(self, features: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether no statistics of the source are kept: those of all features are computed.

        Args:
            features: The source's, as in ``info.json``.
        """
        return all(
            name in self.computed_stats or name in self.dropped_features
            for name, feature in features.items()
            if feature["dtype"] not in TEXT_DTYPES
        )

    def tasks(self, tasks: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the result's tasks as (index, text), given those of the source."""
        if self.task_map is None:
            return tasks
        texts = {self.task_map[index]: text for index, text in tasks if index in self.task_map}
        return sorted(texts.items())

    def summary(self) -> list[str]:
        """Return what is changed, a few words each."""
        copied = [name for name in self.computed_columns if name not in self.added_columns]
        parts = {
            f"{count(len(self.dropped_episodes), 'episode')} left out": self.dropped_episodes,
            f"{', '.join(self.dropped_features)} left out": self.dropped_features,
            f"{', '.join(copied)} computed": copied,
            f"{', '.join(self.added_columns)} added": self.added_columns,
            "tasks numbered anew": self.task_map,
            f"statistics of {count(len(self.computed_stats), 'feature')} computed": (
                self.computed_stats
            ),
        }
        return [words for words, changed in parts.items() if changed]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping; `from_record` reads it."""
        record = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        if self.task_map is not None:
            record["task_map"] = [list(entry) for entry in sorted(self.task_map.items())]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Repairs:
        """Return what `as_record` wrote; None, as from plans before there were repairs, is none.

        Raises:
            ValueError: A value is not what `as_record` writes.
            KeyError: A key is missing.
        """
        if not record:
            return cls()
        task_map = record["task_map"]
        repairs = cls(
            dropped_episodes=tuple(
                DroppedEpisode(int(entry["episode"]), str(entry["code"]))
                for entry in record["dropped_episodes"]
            ),
            dropped_features=_names(record, "dropped_features"),
            computed_columns=_names(record, "computed_columns"),
            added_columns=_names(record, "added_columns"),
            task_map=None if task_map is None else {int(old): int(new) for old, new in task_map},
            computed_stats=_names(record, "computed_stats"),
            quantiles=record["quantiles"],
        )
        unknown = {*repairs.computed_columns, *repairs.added_columns} - DEFAULT_COLUMNS.keys()
        if unknown:
            raise ValueError(f"no column {min(unknown)!r} is computed")
        if type(repairs.quantiles) is not bool:
            raise ValueError(f"quantiles is {repairs.quantiles!r}")
        return repairs


def _names(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = record[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} is no list of names")
    return tuple(names)


NO_REPAIRS = Repairs()
