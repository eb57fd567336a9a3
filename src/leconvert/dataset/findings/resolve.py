"""From observations of a scan to decisions about repairs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from leconvert.dataset.findings.catalogue import DROP, SOURCE_CATALOGUE, TRIM
from leconvert.model.repairs import (
    DEFAULT_COLUMNS,
    NO_REPAIRS,
    TEXT_DTYPES,
    DroppedEpisode,
    RepairOptions,
    Repairs,
)
from leconvert.model.selection import EpisodeRanges
from leconvert.model.values import NOTHING, Extent, Finding, IntArray, Remedy, camera_of
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.text import count, first_few, shown
from leconvert.support.values import dataclass

# Observations of checks, before any decision.


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a check.

    Attributes:
        code: A code of the catalogue.
        message: The observation, in one sentence.
        episode: The episode's index in the source, if it concerns one.
        stream: The stream, if it concerns one.
        path: The file relative to the source, if it concerns one.
        feature: The feature, if it concerns one.
        severity: The catalogue's, unless the case differs.
        is_acceptable: Whether it can be accepted, if others with its code can.
        helps: The flags of the catalogue that help here; None for all.
        whole_frames: The number of first frames of the episode that are not affected; 0 for none.
    """

    code: str
    message: str
    episode: int | None = None
    stream: str | None = None
    path: str | None = None
    feature: str | None = None
    severity: str = ""
    is_acceptable: bool = True
    helps: tuple[str, ...] | None = None
    whole_frames: int = 0

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", SOURCE_CATALOGUE[self.code].severity)

    @property
    def order(self) -> tuple[int, str, str, str, str, str]:
        """The sort key: observations about the dataset first, then by episode."""
        episode = -1 if self.episode is None else self.episode
        stream, feature, path = self.stream or "", self.feature or "", self.path or ""
        return (episode, stream, self.code, feature, path, self.message)


class ObservedFacts(TypedDict, total=False):
    """The facts of an `Observation` other than its place."""

    feature: str | None
    severity: str
    is_acceptable: bool
    helps: tuple[str, ...] | None
    whole_frames: int


class RepeatedObservations:
    """One observation about many episodes: a single remark with their number.

    The first episode is the example. Memory is bounded by the kinds of observations, not by the
    episodes.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[Observation, int]] = {}

    def add(self, remark: Observation, episodes: int = 1) -> None:
        """Record the observation for further episodes."""
        kind = (remark.code, remark.stream or "", remark.feature or "", remark.helps)
        example, before = self._seen.get(kind, (remark, 0))
        self._seen[kind] = (example, before + episodes)

    def merge(self, later: RepeatedObservations) -> None:
        """Add the observations about later episodes."""
        for remark, episodes in later._seen.values():
            self.add(remark, episodes)

    def remarks(self) -> Iterator[Observation]:
        """Yield a remark for each kind of observation."""
        for example, episodes in self._seen.values():
            more = (
                f" The same holds for {count(episodes, 'episode')} in all." if episodes > 1 else ""
            )
            yield replace(example, message=example.message + more, episode=None)


@dataclass(slots=True)
class ObservationLog:
    """Collects remarks about the slices of some episodes, one slice after the other.

    Attributes:
        remarks: Remarks about single episodes.
        sightings: Observations about many episodes.
        missing_stats: Features whose statistics are missing, with the episodes.
        stale_stats: Features whose statistics are stale, with the episodes.
        episode: Index of the present episode.
        stream: Its stream.
        file: Its file.
        folder_length: Number of characters of the file's name before the relative path.
    """

    remarks: list[Observation] = field(default_factory=list)
    sightings: RepeatedObservations = field(default_factory=RepeatedObservations)
    missing_stats: dict[str, list[int]] = field(default_factory=dict)
    stale_stats: dict[str, list[int]] = field(default_factory=dict)
    episode: int = 0
    stream: str = ""
    file: str = ""
    folder_length: int = 0

    @property
    def path(self) -> str:
        """The file, relative to the source."""
        return self.file[self.folder_length :]

    def merge(self, later: ObservationLog) -> None:
        """Add what was seen of later episodes."""
        self.remarks += later.remarks
        self.sightings.merge(later.sightings)
        for own, theirs in (
            (self.missing_stats, later.missing_stats),
            (self.stale_stats, later.stale_stats),
        ):
            for name, episodes in theirs.items():
                own.setdefault(name, []).extend(episodes)

    def say(self, code: str, message: str, **facts: Unpack[ObservedFacts]) -> None:
        """Add an observation about this slice only."""
        self.remarks.append(
            Observation(code, message, self.episode, self.stream, self.path, **facts)
        )

    def sight(
        self, code: str, message: str, *, path: str | None = None, **facts: Unpack[ObservedFacts]
    ) -> None:
        """Add an observation that may hold for many slices of this stream."""
        seen = Observation(code, message, None, self.stream, path or self.path, **facts)
        self.sightings.add(seen)


def said_of_paths(feature: str, where: str = "") -> str:
    """Return the message about images that are paths."""
    return (
        f"The tables contain no image files of {shown(feature)}{where}, only paths or nothing. "
        'Put the files into the tables first, as described under "Images as paths" in '
        "docs/howto/broken-datasets.md."
    )


def said_of_empty(feature: str, where: str) -> str:
    """Return the message about a column with empty values."""
    return (
        f"{shown(feature)} has empty values in {where}. LeRobot makes no tensor of an empty value, "
        "and a batch with one fails."
    )


# From observations and the user's options to repairs: no I/O.
#
# An error stops the plan. With the flag that repairs it, it becomes ``repaired``. If the user
# accepts it, it becomes a warning. If bad episodes may be dropped, it goes away with its episode.


_REINDEXED = ("frame_index", "episode_index", "index")
_RENUMBERED = ("episode_index", "index")
# Findings about stored columns. They do not hold if the column is computed.
_OF_STORED_TYPES = frozenset(
    {"wrapped-scalar", "unloadable-feature", "dtype-mismatch", "shape-mismatch"}
)
_SHOWN = 20
# With one of these, the rows of an episode may belong to other frames: some in between may be lost.
_OF_LOST_ROWS = frozenset({"timestamps", "uneven-times", "frame-index"})
# Flags that repair every finding that names them. With --assume-fps a finding goes away or stays.
_REPAIRING = frozenset(
    {
        "--assume-version",
        "--declare-features",
        "--fill-stats",
        "--locate-files",
        "--recompute-stats",
        "--reindex",
        "--remap-tasks",
        "--retime",
        "--tasks-from",
        "--unwrap-scalars",
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class SourceFacts:
    """The facts for a decision about a source's findings.

    Attributes:
        episode_index: Index of each episode, ascending, shape (E,).
        length: Number of frames of each, shape (E,).
        features: Declared features.
        tasks: (index, text) pairs as listed, ascending.
        missing_columns: Default columns that are computed because no table has them.
        has_episode_stats: Whether the version stores statistics of episodes.
        corrected: Features with a wrong declaration, as they are stored.
        unsound_stats: Features whose statistics are missing or stale and can be computed, with the
            episodes; None if the source has no statistics at all.
        undeclared: Columns of the tables that are not declared.
        declarations: Declarations for those that can be declared.
        codebase_version: The version that the source is read as.
        reading: The repairs with which the source was read.
        task_columns: Columns of task indices other than ``task_index``.
        selected: The episodes that the user selected; None for all.
        assumed_fps: The assumed frame rate, if ``info.json`` states another.
        trimmed: The first kept frame and the frame after the last kept one, by episode.
        has_quantiles: Whether statistics of episodes have them, so that computed ones shall, too.
        floating_indices: Default integer columns that are stored as floating-point numbers.
        unlisted: The episodes that the source has but does not list.
    """

    episode_index: IntArray
    length: IntArray
    features: Mapping[str, Mapping[str, Any]]
    tasks: Sequence[tuple[int, str]]
    missing_columns: Sequence[str]
    has_episode_stats: bool
    corrected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unsound_stats: Mapping[str, Sequence[int]] | None = None
    undeclared: Sequence[str] = ()
    declarations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    codebase_version: str = ""
    reading: Repairs = NO_REPAIRS
    task_columns: Sequence[str] = ()
    selected: EpisodeRanges | None = None
    assumed_fps: str | None = None
    trimmed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    has_quantiles: bool = False
    floating_indices: Collection[str] = ()
    unlisted: Extent = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedRepairs:
    """The decision about a source.

    Attributes:
        findings: Sorted: those of the dataset first, then by episode.
        repairs: The changes of the conversion.
        kept: Whether each episode stays, shape (E,).
    """

    findings: tuple[Finding, ...]
    repairs: Repairs
    kept: npt.NDArray[np.bool_]


def computes_all_stats(options: RepairOptions, *, has_episode_stats: bool) -> bool:
    """Whether statistics of every feature are computed."""
    return options.recompute_stats or options.quantiles or not has_episode_stats


def check_dropped_features(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse features that cannot be left out."""
    droppable = [name for name in dict.fromkeys(known) if name not in DEFAULT_COLUMNS]
    for name in names:
        if name in DEFAULT_COLUMNS:
            raise UsageError(
                f"--drop-feature {name} is not possible: every v3.0 dataset has this column.",
                next_step="--retime and --reindex compute such columns again.",
            )
        if name not in known:
            raise UsageError(
                f"The dataset has no feature {shown(name)} (--drop-feature).",
                next_step=f"Its features are {', '.join(map(shown, droppable)) or 'none'}.",
            )


def check_renamed_features(
    renames: Mapping[str, str], known: Sequence[str], task_indices: Sequence[str]
) -> None:
    """Refuse features that cannot have their new names."""
    for old, new in renames.items():
        said = f"--rename-feature {shown(f'{old}={new}')}"
        if old not in known:
            others = [shown(name) for name in dict.fromkeys(known) if name not in DEFAULT_COLUMNS]
            raise UsageError(
                f"The dataset has no such feature ({said}).",
                next_step=f"Its features are {', '.join(others) or 'none'}.",
            )
        if new in known:
            raise UsageError(
                f"The dataset already has a feature of the new name ({said}).",
                next_step="Use another name, or rename the other feature first, in a "
                "separate conversion.",
            )
        if old in task_indices:
            raise UsageError(
                f"This feature cannot be renamed ({said}): meta/modality.json uses its name "
                "for task indices.",
                next_step="Leave this --rename-feature out.",
            )


def redeclared(
    features: Mapping[str, Mapping[str, Any]], corrected: Mapping[str, Mapping[str, Any]]
) -> set[str]:
    """Return columns whose statistics do not fit: of another shape, or of a text column."""
    return {
        name
        for name, feature in corrected.items()
        if feature["shape"] != features[name].get("shape") or features[name]["dtype"] in TEXT_DTYPES
    }


def whole_frames_of(remarks: Sequence[Observation]) -> dict[int, int]:
    """Return how many first frames of damaged episodes have rows and frames that agree.

    An episode counts only if its other rows and frames are right as far as anybody can tell.
    """
    found: dict[int, int] = {}
    in_doubt = {remark.episode for remark in remarks if remark.code in _OF_LOST_ROWS}
    for remark in remarks:
        if remark.episode is not None and remark.whole_frames:
            known = found.get(remark.episode, remark.whole_frames)
            found[remark.episode] = min(known, remark.whole_frames)
    return {episode: frames for episode, frames in found.items() if episode not in in_doubt}


def resolve_repairs(
    remarks: Sequence[Observation], options: RepairOptions, facts: SourceFacts
) -> ResolvedRepairs:
    """Decide about all observations."""
    dropped: dict[int, str] = {}
    decided: list[tuple[Observation, str]] = []
    for remark in sorted(remarks, key=lambda remark: remark.order):
        severity = _severity(remark, options)
        if severity == "error" and remark.episode is not None and options.on_bad_episode != "fail":
            is_trimmed = remark.whole_frames and remark.episode in facts.trimmed
            if not (options.on_bad_episode == "trim" and is_trimmed):
                dropped.setdefault(remark.episode, remark.code)
            severity = "repaired"
        decided.append((remark, severity))
    repairs = _repairs(options, facts, dropped, remarks)
    mended = [(remark, _fixed(remark, severity, repairs, dropped)) for remark, severity in decided]
    kept = ~np.isin(facts.episode_index, np.fromiter(dropped, np.int64, len(dropped)))
    features = {*facts.features, *facts.undeclared}.difference(repairs.dropped_features)
    left = Extent(int(np.count_nonzero(kept)), int(facts.length[kept].sum()), len(features))
    errors = [remark for remark, severity in mended if severity == "error"]
    remedies = _Remedies(facts, left, kept, errors, whole_frames_of(remarks))
    # A feature that cannot stay needs no other repair.
    lost = {error.feature for error in errors if error.feature and _is_lost(remedies(error))}
    mended = [
        (replace(remark, helps=("--drop-feature",)), severity)
        if severity == "error" and remark.feature in lost and not _is_lost(remedies(remark))
        else (remark, severity)
        for remark, severity in mended
    ]
    findings = tuple(
        _finding(remark, severity, remedies(remark) if severity == "error" else ())
        for remark, severity in mended
    )
    if not kept.any():
        raise SourceError(
            "Every episode would be left out, since every episode has an error.",
            details=first_few([finding.message for finding in findings], _SHOWN),
            next_step="Correct what the findings name, or add the options that repair it.",
        )
    return ResolvedRepairs(findings, repairs, kept)


def task_map_of(tasks: Sequence[tuple[int, str]]) -> dict[int, int] | None:
    """Return result indices of source task indices: without gaps, one for equal texts.

    Returns:
        A mapping; None if every index stays and every text is listed once.
    """
    places: dict[str, int] = {}
    task_map: dict[int, int] = {}
    for index, text in sorted(tasks):
        task_map.setdefault(index, places.setdefault(text, len(places)))
    unchanged = len(places) == len(tasks) and all(old == new for old, new in task_map.items())
    return None if unchanged else task_map


def _severity(remark: Observation, options: RepairOptions) -> str:
    """Return a remark's severity as far as it depends only on the options."""
    if remark.severity not in ("error", "warning"):
        return remark.severity
    if any(_is_given(flag, remark, options) for flag in _flags(remark)):
        return "repaired"
    kind = SOURCE_CATALOGUE[remark.code]
    if remark.code in options.accept and kind.acceptable and remark.is_acceptable:
        return "warning"
    return remark.severity


def _flags(remark: Observation) -> tuple[str, ...]:
    """Return the flags that repair a remark, as the catalogue names them."""
    return SOURCE_CATALOGUE[remark.code].repairs if remark.helps is None else remark.helps


def _is_given(flag: str, remark: Observation, options: RepairOptions) -> bool:
    """Return whether the user gave a flag for a remark. Dropped episodes are decided later."""
    if flag in (DROP, TRIM):
        return remark.episode is None and options.on_bad_episode != "fail"
    option, _, _ = flag.partition(" ")
    if option == "--drop-feature":
        return remark.feature in options.drop_features
    if option == "--recompute-stats" and options.quantiles:
        return True
    # The field of the options has the name of the flag.
    return option in _REPAIRING and bool(getattr(options, option[2:].replace("-", "_")))


def _fixed(remark: Observation, severity: str, repairs: Repairs, dropped: Mapping[int, str]) -> str:
    """Return the severity after other repairs: some repairs correct more than they name."""
    if severity not in ("error", "warning"):
        return severity
    if remark.episode in dropped:
        return "repaired"
    if remark.feature is not None and remark.feature in repairs.dropped_features:
        return "repaired"
    if (
        remark.code in ("missing-stats", "stale-stats")
        and remark.feature in repairs.computed_stats
        and remark.feature not in repairs.stats_episodes
    ):
        return "repaired"
    if remark.code in _OF_STORED_TYPES and remark.feature in repairs.computed_columns:
        return "repaired"
    if remark.code == "global-index" and "index" in repairs.computed_columns:
        return "repaired"
    return severity


def _repairs(
    options: RepairOptions,
    facts: SourceFacts,
    dropped: Mapping[int, str],
    remarks: Sequence[Observation],
) -> Repairs:
    codes = {remark.code for remark in remarks}
    computed = set(facts.missing_columns)
    if options.retime:
        computed.add("timestamp")
    if options.reindex:
        computed.update(_REINDEXED)
    if options.on_bad_episode != "fail" and (dropped or "episode-gap" in codes):
        computed.update(_RENUMBERED)
    if facts.selected is not None and facts.selected.ranges != ((0, len(facts.length) - 1),):
        computed.update(_RENUMBERED)
    trimmed = {
        episode: frames for episode, frames in facts.trimmed.items() if episode not in dropped
    }
    if trimmed:
        computed.add("index")
    remappable = options.remap_tasks and "task-conflict" not in codes
    task_map = task_map_of(facts.tasks) if remappable else None
    if task_map is not None and "task_index" in facts.missing_columns:
        # Every row has the only task, whatever its index was.
        task_map = {index: 0 for index, _ in facts.tasks}
    stale = set(computed)
    if task_map is not None or options.tasks_from is not None:
        stale.add("task_index")
    gone = set(options.drop_features)
    task_columns = [] if task_map is None else sorted(set(facts.task_columns) - gone)
    stale.update(name for name in task_columns if name in facts.features)
    features = {**facts.features, **facts.corrected}
    declared = {name: ft for name, ft in facts.corrected.items() if name not in gone}
    stale.update(redeclared(facts.features, declared))
    if options.declare_features:
        added = {name: ft for name, ft in facts.declarations.items() if name not in gone}
        declared |= added
        features |= added
        stale.update(added)
    texts = {name for name, feature in features.items() if feature["dtype"] in TEXT_DTYPES}
    if computes_all_stats(options, has_episode_stats=facts.has_episode_stats):
        stale.update(features)
    some: dict[str, tuple[int, ...]] = {}
    if options.fill_stats:
        left = set(facts.episode_index.tolist()) - dropped.keys()
        if facts.unsound_stats is None:
            stale.update(features)
        for name, episodes in (facts.unsound_stats or {}).items():
            wanted = tuple(sorted(left.intersection(episodes)))
            if len(wanted) == len(left):
                stale.add(name)
            elif wanted and name not in stale | gone | texts:
                some[name] = wanted
    for name in features if trimmed else ():
        if name not in stale | gone | texts:
            some[name] = tuple(sorted({*some.get(name, ()), *trimmed}))
    wrapped = {remark.feature for remark in remarks if remark.code == "wrapped-scalar"}
    computed_stats = tuple(sorted((stale | some.keys()) - gone - texts))
    return Repairs(
        selected_episodes=facts.selected,
        trimmed_episodes=trimmed,
        dropped_episodes=tuple(
            DroppedEpisode(episode, code) for episode, code in sorted(dropped.items())
        ),
        dropped_features=tuple(sorted(gone)),
        computed_columns=tuple(name for name in DEFAULT_COLUMNS if name in computed),
        added_columns=tuple(name for name in DEFAULT_COLUMNS if name in facts.missing_columns),
        task_map=task_map,
        unwrapped_columns=tuple(sorted(name for name in wrapped - gone - computed if name))
        if options.unwrap_scalars
        else (),
        cast_columns=tuple(
            name
            for name in DEFAULT_COLUMNS
            if name in facts.floating_indices and name not in computed
        ),
        computed_stats=computed_stats,
        stats_episodes=dict(sorted(some.items())),
        quantiles=options.quantiles or (bool(computed_stats) and facts.has_quantiles),
        assumed_version=facts.codebase_version if "codebase-version" in codes else None,
        declared_features=dict(sorted(declared.items())),
        tasks_from=options.tasks_from,
        task_columns=tuple(task_columns),
        assumed_fps=facts.assumed_fps,
        located_files=facts.reading.located_files,
        path_templates=facts.reading.path_templates,
        derived_tables=facts.reading.derived_tables,
    )


def _finding(remark: Observation, severity: str, remedies: tuple[Remedy, ...]) -> Finding:
    flags = [_written(flag, remark) for flag in _flags(remark)]
    remedy = remedies[0].flag if remedies else None
    if severity == "warning":
        remedy = next((flag for flag in flags if flag is not None), None)
    return Finding(
        remark.code,
        severity,
        remark.message,
        episode=remark.episode,
        stream=remark.stream,
        path=remark.path,
        remedy=remedy,
        remedies=remedies,
    )


def _is_lost(remedies: Sequence[Remedy]) -> bool:
    return bool(remedies) and remedies[0].flag.startswith("--drop-feature ")


def _written(flag: str, remark: Observation) -> str | None:
    """Return a flag as a user types it; None if it does not help with the remark."""
    if flag == "--assume-fps":
        return None  # nobody knows which
    if flag != "--drop-feature":
        return flag
    name = _feature(remark)
    if name is None or name in DEFAULT_COLUMNS:
        return None
    return f"{flag} {shlex.quote(shown(name))}"


def _feature(remark: Observation) -> str | None:
    return remark.feature or camera_of(remark.stream or "")


class _Remedies:
    """The rest of a dataset after each remedy of its errors.

    A flag repairs all errors with one code in one stream or feature together.
    """

    def __init__(
        self,
        facts: SourceFacts,
        base: Extent,
        kept: npt.NDArray[np.bool_],
        errors: Sequence[Observation],
        whole_frames: Mapping[int, int],
    ) -> None:
        self._facts = facts
        self._base = base
        self._kept = kept
        self._episodes: dict[tuple[str, str | None, str | None], set[int]] = {}
        self._whole_frames = whole_frames
        for remark in errors:
            bad = self._episodes.setdefault(_matter(remark), set())
            if remark.episode is not None:
                bad.add(remark.episode)
        self._known: dict[tuple[object, ...], tuple[Remedy, ...]] = {}

    def __call__(self, remark: Observation) -> tuple[Remedy, ...]:
        """Return the remedies of an error; the one that loses least comes first."""
        matter = _matter(remark)
        key = (*matter, _flags(remark))
        if key not in self._known:
            bad = np.isin(self._facts.episode_index, list(self._episodes[matter])) & self._kept
            rest = self._kept & ~bad
            rated = []
            whole = self._whole_frames_in(bad)
            for place, flag in enumerate(_flags(remark)):
                written = _written(flag, remark)
                if written is None or (flag == TRIM and not whole):
                    continue
                if flag == DROP and not rest.any():
                    continue
                keeps, lost = self._left(flag, remark, rest, whole if flag == TRIM else ())
                if flag == DROP and self._whole_frames and not whole:
                    written = TRIM  # leaves the episode out, too, and others need it
                of = self._base if flag not in (DROP, TRIM) else self._with_unlisted()
                rated.append((lost, place, Remedy(written, keeps, of)))
            self._known[key] = tuple(remedy for _, _, remedy in sorted(rated, key=lambda r: r[:2]))
        return self._known[key]

    def _with_unlisted(self) -> Extent:
        more = self._facts.unlisted
        episodes, frames = self._base.episodes + more.episodes, self._base.frames + more.frames
        return replace(self._base, episodes=episodes, frames=frames)

    def _whole_frames_in(self, bad: npt.NDArray[np.bool_]) -> list[int]:
        """Return the number of frames that remain of some episodes after a trim."""
        episodes = self._facts.episode_index[bad].tolist()
        return [self._whole_frames[each] for each in episodes if each in self._whole_frames]

    def _left(
        self, flag: str, remark: Observation, rest: npt.NDArray[np.bool_], whole: Sequence[int]
    ) -> tuple[Extent, float]:
        """Return the rest after a flag, and the loss as `frames_lost` counts it."""
        base, frames = self._base, int(self._facts.length[rest].sum())
        features = self._facts.features
        if flag in (DROP, TRIM):
            frames += sum(whole)
            left = Extent(int(np.count_nonzero(rest)) + len(whole), frames, base.features)
            return left, frames_lost(features, (), base.frames, frames)
        if flag == "--drop-feature":
            # If an error names episodes, the feature is useless in these episodes.
            gone = (_feature(remark) or "",)
            left = replace(base, features=base.features - 1)
            return left, frames_lost(features, gone, frames, frames)
        return base, 0.0


def frames_lost(
    features: Mapping[str, Mapping[str, Any]], dropped: Collection[str], of: int, kept: int
) -> float:
    """Return what a result lacks, in frames of one camera.

    A table counts as much as a camera's clips, and its columns count alike.

    Args:
        features: The features of the source.
        dropped: The features that the result lacks.
        of: Number of frames of the source.
        kept: Number of frames of the result.
    """
    cameras = {name for name, feature in features.items() if feature["dtype"] == "video"}
    a_column = 1 / max(1, len(features) - len(cameras))
    gone = sum(1.0 if name in cameras else a_column for name in dropped)
    return (of - kept) * (1 + len(cameras)) + kept * gone


def _matter(remark: Observation) -> tuple[str, str | None, str | None]:
    return remark.code, remark.stream, remark.feature
