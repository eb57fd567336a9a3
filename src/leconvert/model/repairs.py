"""The changes that a user allows, and the changes that one conversion makes.

By default rows, statistics and tables are copied unchanged. `RepairOptions` holds the user's
permissions. The scan turns them into `Repairs`; the plan records these, workers and packer carry
them out, and the verification expects them. Nothing outside `Repairs` is changed.
"""

from __future__ import annotations

import copy
import re
import shlex
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any

from leconvert.model.selection import BoolArray, EpisodeRanges, IntArray
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION
from leconvert.support.errors import UsageError
from leconvert.support.extras import lazy_module
from leconvert.support.flags import flag, flags_of, make_numbers_own, several
from leconvert.support.text import count, numbered
from leconvert.support.values import dataclass

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")

# The columns that every v3.0 dataset has, in LeRobot's order, and the types it gives them.
DEFAULT_COLUMNS: Mapping[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
# Features without statistics in LeRobot.
TEXT_DTYPES = frozenset({"string", "language"})
VISUAL_DTYPES = frozenset({"image", "video"})
# Names that LeRobot adds to every frame beside the columns of `DEFAULT_COLUMNS`.
_OF_FRAMES = frozenset({"task", "subtask"})
_TRIMMED_SHOWN = 10


def is_frame_rate(text: str) -> bool:
    """Return whether a text is a decimal that can be a number of frames a second."""
    return re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", text) is not None and float(text) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """The changes that the user allows a conversion to make.

    Attributes:
        on_bad_episode: ``fail`` stops at a damaged episode; ``drop`` leaves it out and renumbers
            the other episodes; ``trim`` keeps its first frames, as far as its rows and frames
            agree, and drops an episode without such frames.
        retime: Set timestamps to ``frame / fps``.
        reindex: Recount ``frame_index``, ``episode_index`` and ``index``.
        remap_tasks: Renumber tasks, so that a task's row is its index.
        unwrap_scalars: Replace lists of one value by the value, as LeRobot stores such features.
        fill_stats: Compute missing or stale statistics from the data.
        recompute_stats: Compute the statistics of every feature from the data.
        quantiles: Add quantiles to the statistics; for this, statistics of numeric columns are
            recomputed.
        drop_features: Features to leave out, columns and video files alike.
        rename_features: Features to rename, each as ``OLD=NEW``.
        accept: Codes of findings that shall not stop the conversion, if it is possible without
            repairing them.
        declare_features: Declare columns that ``info.json`` does not declare, with their stored
            types.
        locate_files: Take files of episodes from where they are, if not where the template says.
        tasks_from: ``episodes`` gives the rows of an episode the task that ``episodes.jsonl`` lists
            for it; None keeps the tasks of the rows.
        assume_version: The version to assume for a source whose ``codebase_version`` is missing or
            wrong.
        assume_fps: Frames a second, a decimal, if those of ``info.json`` are missing or wrong.
        fetch_unfit: Fetch the files that have to be rewritten or decoded, for a dataset whose files
            otherwise stay on the Hub. The result is the same.

    Raises:
        UsageError: ``on_bad_episode``, ``tasks_from`` or ``assume_version`` is none of its choices,
            ``assume_fps`` is no rate, an item of ``rename_features`` is invalid, or a text is given
            where several values are expected.
    """

    on_bad_episode: str = flag(
        "fail",
        "drop: leave damaged episodes out; trim: keep the sound beginning of damaged episodes "
        "(default: fail)",
        choices=("fail", "drop", "trim"),
    )
    retime: bool = flag(False, "compute every timestamp as frame_index / fps")
    reindex: bool = flag(False, "compute frame_index, episode_index and index again")
    remap_tasks: bool = flag(False, "number tasks from 0 without gaps, and merge duplicates")
    unwrap_scalars: bool = flag(
        False, "store lists of one value as the value itself; LeRobot cannot load such lists"
    )
    fill_stats: bool = flag(
        False, "compute statistics that are missing or do not fit the data; keep the others"
    )
    recompute_stats: bool = flag(False, "compute all statistics from the data")
    quantiles: bool = flag(
        False,
        "add quantiles to the statistics; LeRobot needs quantiles to record more episodes",
    )
    drop_features: tuple[str, ...] = flag(
        (),
        "leave this feature out, with its column and its videos; may be given several times",
        "NAME",
        names=("--drop-feature",),
    )
    rename_features: tuple[str, ...] = flag(
        (),
        "give a feature another name in the result; may be given several times",
        "OLD=NEW",
        names=("--rename-feature",),
    )
    accept: tuple[str, ...] = flag(
        (),
        "convert in spite of this finding, given by its code; may be given several times",
        "FINDING",
    )
    declare_features: bool = flag(
        False, "declare in info.json the columns that are stored but not declared"
    )
    locate_files: bool = flag(
        False, "search for episode files that are not at the path that meta/ gives"
    )
    tasks_from: str | None = flag(
        None,
        "episodes: take the task of every row from the table of episodes",
        "TABLE",
        choices=("episodes",),
    )
    assume_version: str | None = flag(
        None,
        "read the source as this version, if codebase_version in info.json is wrong or missing",
        "VERSION",
        choices=(*SOURCE_VERSIONS, V3_VERSION),
    )
    assume_fps: str | None = flag(
        None,
        "frames per second, such as 15 or 29.97, if fps in info.json is wrong or missing",
        "N",
    )
    fetch_unfit: bool = flag(
        False,
        "for a conversion on the Hub: download, rewrite and upload the files that v3.0 cannot use "
        "unchanged; without this option such files end the conversion with an error",
    )

    def __post_init__(self) -> None:
        make_numbers_own(self)
        for told in flags_of(RepairOptions):
            value = getattr(self, told.field)
            if told.default == ():
                object.__setattr__(self, told.field, several(told.field, value))
            if told.choices is not None and value not in (told.default, *told.choices):
                allowed = " or ".join(told.choices)
                raise UsageError(f"{told.name} takes {allowed}, not {value!r}.")
        if self.assume_fps is not None and not is_frame_rate(self.assume_fps):
            raise UsageError(
                f"--assume-fps takes a number of frames per second, not {self.assume_fps!r}."
            )
        _check_renames(self.rename_features, self.drop_features)

    @property
    def renames(self) -> dict[str, str]:
        """The new name of each renamed feature, by its old name."""
        return {old: new for old, _, new in map(_parted, self.rename_features)}

    @classmethod
    def of_flags(cls, flags: Iterable[str]) -> RepairOptions:
        """Return the options for some flags of the command line.

        Args:
            flags: Each as a user types it, such as ``--drop-feature action``.
        """
        given: dict[str, Any] = {}
        known = {told.name: told for told in flags_of(cls)}
        for name, *values in map(shlex.split, flags):
            key = known[name].field
            if known[name].default == ():
                given[key] = (*given.get(key, ()), *values)
            else:
                given[key] = values[0] if values else True
        return cls(**given)

    def flags(self) -> tuple[str, ...]:
        """Return the flags of the command line for these options; see `of_flags`."""
        flags: list[str] = []
        for told in flags_of(RepairOptions):
            value, name = getattr(self, told.field), told.name
            values = value if isinstance(value, tuple) else (value,)
            if value != told.default:
                flags += [
                    name if each is True else f"{name} {shlex.quote(each)}" for each in values
                ]
        return tuple(flags)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping of what changes a result, without defaults."""
        default = asdict(replace(RepairOptions(), fetch_unfit=self.fetch_unfit))
        record = {key: value for key, value in asdict(self).items() if value != default[key]}
        return {
            key: sorted(value) if isinstance(value, tuple) else value
            for key, value in record.items()
        }

    @property
    def reading(self) -> Repairs:
        """The repairs that decide how ``info.json`` is read."""
        return Repairs(assumed_version=self.assume_version, assumed_fps=self.assume_fps)


def _parted(rename: str) -> tuple[str, str, str]:
    return rename.partition("=")


def _check_renames(renames: Sequence[str], dropped: Collection[str]) -> None:
    """Refuse names that are invalid for any source."""
    taken: set[str] = set()
    for rename in renames:
        old, equals, new = _parted(rename)
        said, helps = f"--rename-feature {rename}", None
        if not (old and equals and new):
            raise UsageError(
                f"{said} is not of the form OLD=NEW.",
                next_step="Write the feature's name, an equals sign and its new name.",
            )
        if old in DEFAULT_COLUMNS or new in DEFAULT_COLUMNS or new in _OF_FRAMES:
            name = old if old in DEFAULT_COLUMNS else new
            raise UsageError(
                f"{said}: {name} is one of LeRobot's own features.",
                next_step="LeRobot's own features keep their names, and no other feature can get "
                "such a name.",
            )
        if "/" in new or "\\" in new or new.startswith(".") or not new.isprintable():
            helps = "Use letters, digits, dots, underscores and hyphens, such as "
            helps += "observation.images.front."
            raise UsageError(
                f"{said}: the new name cannot be the name of a folder.", next_step=helps
            )
        if old in dropped:
            raise UsageError(
                f"{said}: --drop-feature already leaves {old} out.",
                next_step="Give one of the two options.",
            )
        if old in taken or new in taken or old == new:
            raise UsageError(
                f"{said}: {old if old in taken else new} is given twice.",
                next_step="Rename each feature once, to a name that no other feature has.",
            )
        taken |= {old, new}


@dataclass(frozen=True, slots=True)
class DroppedEpisode:
    """An episode that is left out: its index in the source, and the code of the finding."""

    episode: int
    code: str


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file of an episode that is not at the path of its template.

    Attributes:
        stream: The file's stream.
        episode: The episode's index in the source.
        path: Path of the file relative to the source.
    """

    stream: str
    episode: int
    path: str


@dataclass(frozen=True, slots=True)
class Repairs:
    """The changes that one conversion makes; none by default.

    Attributes:
        selected_episodes: The only episodes of the source that were asked for; None for all.
        dropped_episodes: Episodes among them that are left out because of a finding, ascending.
        dropped_features: Features that are left out, sorted.
        computed_columns: Default columns that are computed and not copied, in the order of
            `DEFAULT_COLUMNS`: ``timestamp`` is ``frame / fps``, ``frame_index`` the frame,
            ``episode_index`` the episode's position in the result, ``index`` the frame's position
            in the result. ``task_index`` is `added_task` if it is added, and mapped if ``task_map``
            is given.
        added_columns: Computed columns that the source lacks; they come last.
        task_map: Source task index to result task index; None leaves tasks unchanged.
        unwrapped_columns: Columns whose lists of one value become the value, sorted.
        cast_columns: Default columns of whole numbers that are stored as floating-point numbers and
            become int64, in the order of `DEFAULT_COLUMNS`.
        computed_stats: Features whose statistics are computed from the data and not copied, sorted.
        stats_episodes: For features whose statistics are computed in some episodes only and copied
            in the others: feature to these episodes' indices in the source, ascending.
        quantiles: Whether computed statistics have quantiles; true if copied ones have them.
        assumed_version: The version to read the source as, if its ``codebase_version`` is missing
            or wrong.
        assumed_fps: Frames a second, a decimal, if those of ``info.json`` are missing or wrong.
        declared_features: New declarations of features that the source declares otherwise or not at
            all. Columns are declared as stored, cameras as most of their clips are.
        located_files: Files that are not at the path of their template or, in v3.0, not those that
            ``meta/episodes`` names; sorted.
        path_templates: Path templates of a v3.0 source that find its located files, by their key in
            ``info.json``.
        derived_tables: Tables below ``meta/`` of a v3.0 source that are missing or have the wrong
            form, and are read as they follow from rows and files.
        tasks_from: ``episodes`` if rows of an episode with one task get the task that
            ``episodes.jsonl`` lists for it; None if they keep their own.
        task_columns: Further columns that ``task_map`` maps, sorted.
        trimmed_episodes: The first frame kept of an episode, and the one after the last, by the
            episode's index in the source. ``timestamp`` and ``frame_index`` of a trimmed episode
            are computed, too.
        renamed_features: New name of each renamed feature, by its old name. All other attributes
            use the new names, except ``declared_features`` and ``located_files``.
    """

    dropped_episodes: tuple[DroppedEpisode, ...] = ()
    dropped_features: tuple[str, ...] = ()
    computed_columns: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    task_map: Mapping[int, int] | None = field(default=None)
    unwrapped_columns: tuple[str, ...] = ()
    cast_columns: tuple[str, ...] = ()
    computed_stats: tuple[str, ...] = ()
    stats_episodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    quantiles: bool = False
    assumed_version: str | None = None
    assumed_fps: str | None = None
    declared_features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    located_files: tuple[LocatedFile, ...] = ()
    path_templates: Mapping[str, str] = field(default_factory=dict)
    derived_tables: tuple[str, ...] = ()
    tasks_from: str | None = None
    task_columns: tuple[str, ...] = ()
    selected_episodes: EpisodeRanges | None = None
    trimmed_episodes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    renamed_features: Mapping[str, str] = field(default_factory=dict)

    @property
    def change_rows(self) -> bool:
        """Whether any rows are changed rather than copied."""
        return bool(
            self.dropped_features
            or self.computed_columns
            or self.unwrapped_columns
            or self.cast_columns
            or self.task_map
            or self.tasks_from
            or self.trimmed_episodes
            or self.renamed_features
        )

    @property
    def change_values(self) -> bool:
        """Whether rows change in more than their place in the result.

        Dropped and unwrapped columns show in the columns themselves.
        """
        computed = {*self.computed_columns} - {"episode_index", "index"}
        return bool(computed) or self.task_map is not None or self.tasks_from is not None

    def renamed(self, name: str) -> str:
        """Return the result's name of a feature of the source."""
        return self.renamed_features.get(name, name)

    def columns_computed(self, *, trimmed: bool) -> tuple[str, ...]:
        """Return the columns that are computed in an episode, in the order of `DEFAULT_COLUMNS`.

        Args:
            trimmed: Whether the episode is trimmed.
        """
        rebased = ("timestamp", "frame_index") if trimmed else ()
        return tuple(
            name for name in DEFAULT_COLUMNS if name in self.computed_columns or name in rebased
        )

    def __bool__(self) -> bool:
        return self != NO_REPAIRS

    @property
    def added_task(self) -> int:
        """The result's index of the only task, for rows without ``task_index``."""
        return min((self.task_map or {}).values(), default=0)

    def keeps(self, episode_index: IntArray) -> BoolArray:
        """Return which of a source's episodes are in the result, shape (E,)."""
        dropped = [dropped.episode for dropped in self.dropped_episodes]
        kept: BoolArray = ~np.isin(episode_index, dropped)
        if self.selected_episodes is not None:
            kept &= self.selected_episodes.holds(episode_index)
        return kept

    def features(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result's features, given the source's features from ``info.json``.

        The source's features may have their new names already.
        """
        kept = {
            self.renamed(key): copy.deepcopy(dict(feature))
            for key, feature in self._declared(features).items()
            if key not in self.dropped_features
        }
        for name in self.added_columns:
            kept[name] = {"dtype": DEFAULT_COLUMNS[name], "shape": [1], "names": None}
        return kept

    def _declared(self, features: Mapping[str, Any]) -> dict[str, Any]:
        is_renamed = {old: new for old, new in self.renamed_features.items() if new in features}
        declared = {is_renamed.get(key, key): ft for key, ft in self.declared_features.items()}
        return {**features, **declared}

    def computes_stats(self, feature: str, episode: int) -> bool:
        """Return whether a feature's statistics are computed in an episode of the source."""
        if feature not in self.computed_stats:
            return False
        episodes = self.stats_episodes.get(feature)
        if episodes is None:
            return True
        place = bisect_left(episodes, episode)
        return place < len(episodes) and episodes[place] == episode

    def replaces_stats(self, features: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether all statistics are computed, so that none of the source are kept."""
        return all(
            (name in self.computed_stats and name not in self.stats_episodes)
            or name in self.dropped_features
            for name, feature in features.items()
            if feature["dtype"] not in TEXT_DTYPES
        )

    def tasks(self, tasks: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the result's tasks as (index, text), given those of the source."""
        if self.task_map is None:
            return list(tasks)
        texts = {self.task_map[index]: text for index, text in tasks if index in self.task_map}
        return sorted(texts.items())

    def summary(self) -> list[str]:
        """Return the changes, each in a few words."""
        copied = [name for name in self.computed_columns if name not in self.added_columns]
        trimmed = [
            f"episode {episode} trimmed to its frames {first}:{stop}"
            for episode, (first, stop) in self.trimmed_episodes.items()
        ]
        if len(trimmed) > _TRIMMED_SHOWN:
            trimmed = [f"{count(len(trimmed), 'episode')} trimmed"]
        located = {file.path for file in self.located_files}
        templates = ", ".join(self.path_templates.values())
        parts = {
            f"only {numbered('episode', self.selected_episodes)} converted, as asked": (
                self.selected_episodes
            ),
            ", ".join(trimmed): trimmed,
            f"{count(len(self.dropped_episodes), 'episode')} left out": self.dropped_episodes,
            f"{', '.join(self.dropped_features)} left out": self.dropped_features,
            ", ".join(
                f"{old} renamed to {new}" for old, new in self.renamed_features.items()
            ): self.renamed_features,
            f"{', '.join(copied)} computed": copied,
            f"{', '.join(self.added_columns)} added": self.added_columns,
            "tasks renumbered": self.task_map,
            f"task indices in {', '.join(self.task_columns)} renumbered": self.task_columns,
            "tasks of rows taken from episodes.jsonl": self.tasks_from,
            f"{', '.join(self.unwrapped_columns)} unwrapped": self.unwrapped_columns,
            f"{', '.join(self.cast_columns)} stored as int64": self.cast_columns,
            f"{', '.join(self.declared_features)} declared in info.json": self.declared_features,
            f"{count(len(located), 'file')} found at another place": located,
            f"files found by the template {templates}": templates if not located else None,
            f"{', '.join(self.derived_tables)} derived from rows and files": self.derived_tables,
            f"read as {self.assumed_version}": self.assumed_version,
            f"{self.assumed_fps} frames per second assumed": self.assumed_fps,
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
        record["stats_episodes"] = {
            name: list(episodes) for name, episodes in self.stats_episodes.items()
        }
        # Keys that older records lack are written only if they say something.
        del record["selected_episodes"], record["trimmed_episodes"], record["renamed_features"]
        for name in ("cast_columns", "path_templates", "derived_tables"):
            if not record[name]:
                del record[name]
        if self.renamed_features:
            record["renamed_features"] = dict(sorted(self.renamed_features.items()))
        if self.trimmed_episodes:
            record["trimmed_episodes"] = [
                [episode, *frames] for episode, frames in sorted(self.trimmed_episodes.items())
            ]
        if self.selected_episodes is not None:
            record["selected_episodes"] = [list(ends) for ends in self.selected_episodes.ranges]
        if self.task_map is not None:
            record["task_map"] = [list(entry) for entry in sorted(self.task_map.items())]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Repairs:
        """Return the repairs of a record by `as_record`; None, as in old plans, gives none."""
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
            unwrapped_columns=_names(record, "unwrapped_columns", optional=True),
            cast_columns=_names(record, "cast_columns", optional=True),
            computed_stats=_names(record, "computed_stats"),
            stats_episodes={
                str(name): tuple(map(int, episodes))
                for name, episodes in record.get("stats_episodes", {}).items()
            },
            quantiles=record["quantiles"],
            assumed_fps=_frame_rate(record),
            assumed_version=_one_of(record, "assumed_version", (*SOURCE_VERSIONS, V3_VERSION)),
            declared_features=_features(record.get("declared_features", {})),
            located_files=tuple(
                LocatedFile(str(entry["stream"]), int(entry["episode"]), str(entry["path"]))
                for entry in record.get("located_files", ())
            ),
            path_templates=_texts(record.get("path_templates", {}), "path_templates"),
            derived_tables=_names(record, "derived_tables", optional=True),
            tasks_from=_one_of(record, "tasks_from", ("episodes",)),
            task_columns=_names(record, "task_columns", optional=True),
            selected_episodes=_ranges(record.get("selected_episodes")),
            trimmed_episodes=_intervals(record.get("trimmed_episodes", [])),
            renamed_features=_texts(record.get("renamed_features", {}), "renamed_features"),
        )
        computed = {*repairs.computed_columns, *repairs.added_columns, *repairs.cast_columns}
        unknown = computed - DEFAULT_COLUMNS.keys()
        if unknown:
            raise ValueError(f"no column {min(unknown)!r} is computed")
        if type(repairs.quantiles) is not bool:
            raise ValueError(f"quantiles is {repairs.quantiles!r}")
        return repairs


def _names(record: Mapping[str, Any], key: str, *, optional: bool = False) -> tuple[str, ...]:
    names = record.get(key, []) if optional else record[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} is not a list of names")
    return tuple(names)


def _ranges(record: Any) -> EpisodeRanges | None:
    if record is None:
        return None
    ranges = EpisodeRanges(tuple((int(first), int(last)) for first, last in record))
    if not ranges.ranges or any(first > last for first, last in ranges.ranges):
        raise ValueError(f"selected_episodes is {record!r}")
    if ranges != EpisodeRanges.of(ranges.ranges):
        raise ValueError(f"selected_episodes is {record!r}")
    return ranges


def _intervals(record: Any) -> dict[int, tuple[int, int]]:
    found = {int(episode): (int(first), int(stop)) for episode, first, stop in record}
    if len(found) != len(record) or any(not 0 <= first < stop for first, stop in found.values()):
        raise ValueError(f"trimmed_episodes is {record!r}")
    return found


def _texts(record: Any, key: str) -> dict[str, str]:
    if not isinstance(record, dict) or not all(isinstance(text, str) for text in record.values()):
        raise ValueError(f"{key} is {record!r}")
    return dict(record)


def _one_of(record: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    value = record.get(key)
    if value is not None and value not in choices:
        raise ValueError(f"{key} is {value!r}")
    return value


def _frame_rate(record: Mapping[str, Any]) -> str | None:
    value = record.get("assumed_fps")
    if value is not None and not (isinstance(value, str) and is_frame_rate(value)):
        raise ValueError(f"assumed_fps is {value!r}")
    return value


def _features(features: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(features, dict) or not all(
        isinstance(feature, dict) and isinstance(feature.get("dtype"), str)
        for feature in features.values()
    ):
        raise ValueError("declared_features is not a table of features")
    return features


NO_REPAIRS = Repairs()
