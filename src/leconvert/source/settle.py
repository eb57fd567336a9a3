"""From what was seen and what the user allows to what is done about it: no I/O.

An error stops the plan. It is ``repaired`` where the user gave the flag that repairs it, a warning
where the user accepts it, and goes away with its episode where bad episodes may be dropped.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import SourceError, UsageError
from leconvert.model import Finding, IntArray
from leconvert.repairs import (
    DEFAULT_COLUMNS,
    TEXT_DTYPES,
    DroppedEpisode,
    RepairOptions,
    Repairs,
)
from leconvert.source.catalogue import CATALOGUE, DROP
from leconvert.source.seen import Remark, shown

__all__ = [
    "Settled",
    "SourceFacts",
    "check_dropped_features",
    "computes_all_stats",
    "settle",
    "task_map_of",
]

_REINDEXED = ("frame_index", "episode_index", "index")
_RENUMBERED = ("episode_index", "index")
_SHOWN = 20


@dataclass(frozen=True, slots=True, eq=False)
class SourceFacts:
    """What a decision about a source's findings rests on.

    Attributes:
        episode_index: Index of each episode, ascending, shape (E,).
        features: Declared features.
        tasks: (index, text) pairs as listed, ascending.
        missing_columns: Default columns that are computed because no table has them.
        has_episode_stats: Whether the version keeps statistics of episodes.
    """

    episode_index: IntArray
    features: Mapping[str, Mapping[str, Any]]
    tasks: Sequence[tuple[int, str]]
    missing_columns: Sequence[str]
    has_episode_stats: bool


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """What becomes of a source.

    Attributes:
        findings: Sorted: the dataset's first, then by episode.
        repairs: What the conversion changes.
        kept: Whether each episode stays, shape (E,).
    """

    findings: tuple[Finding, ...]
    repairs: Repairs
    kept: npt.NDArray[np.bool_]


def computes_all_stats(options: RepairOptions, *, has_episode_stats: bool) -> bool:
    """Whether statistics of every feature are computed.

    Args:
        options: What the user allows.
        has_episode_stats: Whether the source's version keeps statistics of episodes.
    """
    return options.recompute_stats or options.quantiles or not has_episode_stats


def check_dropped_features(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse features that cannot be left out.

    Args:
        names: What ``--drop-feature`` names.
        known: Declared features and columns of the tables.

    Raises:
        UsageError: One is unknown, or a column that v3.0 demands.
    """
    droppable = [name for name in dict.fromkeys(known) if name not in DEFAULT_COLUMNS]
    for name in names:
        if name in DEFAULT_COLUMNS:
            raise UsageError(
                f"--drop-feature {name}: every v3.0 dataset has this column.",
                next_step="--retime and --reindex compute such columns anew.",
            )
        if name not in known:
            raise UsageError(
                f"--drop-feature {shown(name)}: the dataset has no such feature.",
                next_step=f"Its features are {', '.join(map(shown, droppable)) or 'none'}.",
            )


def settle(remarks: Sequence[Remark], options: RepairOptions, facts: SourceFacts) -> Settled:
    """Decide what is done about everything that was seen.

    Args:
        remarks: What was seen, in any order.
        options: What the user allows.
        facts: The source.

    Raises:
        SourceError: Every episode would be dropped.
    """
    dropped: dict[int, str] = {}
    decided: list[tuple[Remark, str]] = []
    for remark in sorted(remarks, key=lambda remark: remark.order):
        severity = _severity(remark, options)
        if severity == "error" and remark.episode is not None and options.on_bad_episode == "drop":
            dropped.setdefault(remark.episode, remark.code)
            severity = "repaired"
        decided.append((remark, severity))
    repairs = _repairs(options, facts, dropped, {remark.code for remark in remarks})
    findings = tuple(
        _finding(remark, _mended(remark, severity, repairs, dropped))
        for remark, severity in decided
    )
    kept = ~np.isin(facts.episode_index, np.fromiter(dropped, np.int64, len(dropped)))
    if not kept.any():
        shown_messages = [finding.message for finding in findings[:_SHOWN]]
        if len(findings) > _SHOWN:
            shown_messages.append(f"... and {len(findings) - _SHOWN} more")
        raise SourceError(
            "No episode would be left: each has a finding that drops it.",
            details=shown_messages,
            next_step="Mend what the findings name, or use the flags that repair it.",
        )
    return Settled(findings, repairs, kept)


def task_map_of(tasks: Sequence[tuple[int, str]]) -> dict[int, int] | None:
    """Return result indices of source task indices: dense, equal texts one task.

    Args:
        tasks: (index, text) pairs.

    Returns:
        A mapping; None where every index stays as it is and every text stands there once.
    """
    places: dict[str, int] = {}
    task_map: dict[int, int] = {}
    for index, text in sorted(tasks):
        task_map.setdefault(index, places.setdefault(text, len(places)))
    unchanged = len(places) == len(tasks) and all(old == new for old, new in task_map.items())
    return None if unchanged else task_map


def _severity(remark: Remark, options: RepairOptions) -> str:
    """Return a remark's severity as far as it depends on the options alone."""
    if remark.severity not in ("error", "warning"):
        return remark.severity
    kind = CATALOGUE[remark.code]
    if _is_allowed(kind.repair, remark, options):
        return "repaired"
    if remark.code in options.accept and kind.acceptable and remark.is_acceptable:
        return "warning"
    return remark.severity


def _is_allowed(repair: str | None, remark: Remark, options: RepairOptions) -> bool:
    """Whether the user gave a flag that repairs it; dropped episodes are decided later."""
    if repair == "--retime":
        return options.retime
    if repair == "--reindex":
        return options.reindex
    if repair == "--remap-tasks":
        return options.remap_tasks
    if repair == "--recompute-stats":
        return options.recompute_stats or options.quantiles
    if repair == "--drop-feature":
        return remark.feature in options.drop_features
    return repair == DROP and remark.episode is None and options.on_bad_episode == "drop"


def _mended(remark: Remark, severity: str, repairs: Repairs, dropped: Mapping[int, str]) -> str:
    """Return the severity, given what else is repaired: some repairs mend more than they name."""
    if severity not in ("error", "warning"):
        return severity
    if remark.episode in dropped:
        return "repaired"
    if remark.feature is not None and remark.feature in repairs.dropped_features:
        return "repaired"
    if remark.code == "stale-stats" and remark.feature in repairs.computed_stats:
        return "repaired"
    if remark.code == "global-index" and "index" in repairs.computed_columns:
        return "repaired"
    return severity


def _repairs(
    options: RepairOptions, facts: SourceFacts, dropped: Mapping[int, str], codes: set[str]
) -> Repairs:
    computed = set(facts.missing_columns)
    if options.retime:
        computed.add("timestamp")
    if options.reindex:
        computed.update(_REINDEXED)
    if options.on_bad_episode == "drop" and (dropped or "episode-gap" in codes):
        computed.update(_RENUMBERED)
    remappable = options.remap_tasks and "task-conflict" not in codes
    task_map = task_map_of(facts.tasks) if remappable else None
    if task_map is not None and "task_index" in facts.missing_columns:
        # Every row is of the only task, whatever its index was.
        task_map = {index: 0 for index, _ in facts.tasks}
    stale = set(computed) if task_map is None else {*computed, "task_index"}
    gone = set(options.drop_features)
    if computes_all_stats(options, has_episode_stats=facts.has_episode_stats):
        stale.update(
            name for name, feature in facts.features.items() if feature["dtype"] not in TEXT_DTYPES
        )
    return Repairs(
        dropped_episodes=tuple(
            DroppedEpisode(episode, code) for episode, code in sorted(dropped.items())
        ),
        dropped_features=tuple(sorted(gone)),
        computed_columns=tuple(name for name in DEFAULT_COLUMNS if name in computed),
        added_columns=tuple(name for name in DEFAULT_COLUMNS if name in facts.missing_columns),
        task_map=task_map,
        computed_stats=tuple(sorted(stale - gone)),
        quantiles=options.quantiles,
    )


def _finding(remark: Remark, severity: str) -> Finding:
    return Finding(
        remark.code,
        severity,
        remark.message,
        episode=remark.episode,
        stream=remark.stream,
        path=remark.path,
        remedy=_remedy(remark) if severity in ("error", "warning") else None,
    )


def _remedy(remark: Remark) -> str | None:
    repair = CATALOGUE[remark.code].repair
    if repair != "--drop-feature":
        return repair
    if remark.feature is None or remark.feature in DEFAULT_COLUMNS:
        return None
    return f"{repair} {shlex.quote(shown(remark.feature))}"
