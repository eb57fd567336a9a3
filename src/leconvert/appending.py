"""Appending: the episodes that a source has gained, added to the v3.0 result that it has already.

The result's data and video files stay as they are; the new episodes get files behind them, by the
next numbers. LeRobot reads every table below ``data``, whether an episode names it or not, so no
file can be added to a dataset that somebody may read. Therefore the new tree is made as in every
conversion, beside the target, and put in its place in one step; the files that are there already
get a second name in it (where there are no hard links: a copy). What it was before is kept at
``<target>_old``, for `undo`; the next appending removes that, once it has seen that the dataset
still holds all of it (`what_is_lost`).

Nothing remembers which source a result is of, or how its files looked: the new tree, old episodes
and new ones, is compared with the source before it takes its place, and with what stands there.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from leconvert.compare import same_bytes, same_statistic
from leconvert.dataset_files import names_to_keep
from leconvert.errors import LeconvertError, StorageError, TargetError, UsageError
from leconvert.formats import TARGETS, Totals, open_sources, v3
from leconvert.layout import layout_streams
from leconvert.model import OVERLAY, IntArray, LayoutOptions, SourceScan, StreamLayout
from leconvert.versions import V3_VERSION
from leconvert.workdir.storage_errors import raise_storage_trouble
from leconvert.workdir.swap import is_converted, old_dir

__all__ = [
    "check_can_append",
    "former_episodes",
    "layout_appended",
    "not_as_planned",
    "other_files",
    "what_is_lost",
]

_VERSION = V3_VERSION


def check_can_append(
    num_sources: int, layout: LayoutOptions, *, in_place: bool, selects: bool
) -> None:
    """Refuse what has no end to append to."""
    wrong = {
        "several datasets": num_sources > 1,
        "the dataset itself, without --output": in_place,
        "a selection of episodes": selects,
        f"--to {layout.to}": layout.to != _VERSION,
        f"--layout {OVERLAY}": layout.layout == OVERLAY,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise UsageError(
                "--append adds the new episodes of one dataset to its v3.0 result in another "
                f"folder, and does not go with {what}.",
                next_step="Leave --append out.",
            )


def former_episodes(target: Path) -> int:
    """Return how many episodes the dataset at a target has; 0 where nothing stands there."""
    return v3.EpisodesReader(target).num_rows if is_converted(target) else 0


def layout_appended(
    scan: SourceScan, target: Path, options: LayoutOptions
) -> tuple[list[StreamLayout], int]:
    """Return the output files of a source whose first episodes have theirs, and how many have."""
    former = v3.Dataset(target)
    kept = len(former.episodes)
    _check_former(scan, former, options)
    tail = np.arange(kept, scan.num_episodes)
    if options.layout == "streaming":
        # Loader workers share out whole datasets; of a few episodes each would get next to nothing.
        options = replace(options, loader_workers=1)
    rest = replace(
        scan,
        episode_index=scan.episode_index[tail],
        length=scan.length[tail],
        streams=[stream.select(tail) for stream in scan.streams],
        source=scan.source[tail],
    )
    return [
        StreamLayout(
            new.stream, np.concatenate((_starts(former, new.stream)[:-1], new.starts + kept))
        )
        for new in layout_streams(rest, options)
    ], kept


def _check_former(scan: SourceScan, former: v3.Dataset, options: LayoutOptions) -> None:
    target, source = former.root, scan.only.root
    kept, there = len(former.episodes), scan.num_episodes
    if kept == there:
        raise TargetError(
            f"{target} has {kept} episodes already, as many as {source}.",
            path=str(target),
            next_step="There is nothing to append. `leconvert verify "
            f"{shlex.quote(str(target))} --source {shlex.quote(source)}` compares them.",
        )
    if kept > there:
        raise _refusal(target, f"it has {kept} episodes, and {source} {there}")
    sources = open_sources(scan.sources)
    totals = Totals(
        fps=scan.fps, episodes=there, frames=int(scan.length.sum()), tasks=len(sources.tasks)
    )
    wanted = TARGETS[_VERSION].info(sources.info, totals, asdict(options))
    changed = [name for name in ("fps", "robot_type") if former.info.get(name) != wanted.get(name)]
    features = wanted["features"]
    changed += [
        name
        for name in {**features, **former.features}
        if features.get(name) != former.features.get(name)
    ]
    if changed:
        raise _refusal(target, f"its info.json says otherwise than {source}: {', '.join(changed)}")
    lengths = former.episodes.length
    differing = np.flatnonzero(lengths != scan.length[:kept])
    if len(differing):
        at = int(differing[0])
        raise _refusal(
            target,
            f"its episode {at} has {lengths[at]} frames, and in {source} {scan.length[at]}",
        )
    if list(former.task_table) != sources.tasks[: len(former.task_table)]:
        raise _refusal(target, f"its tasks are not the first tasks of {source}")


def _starts(former: v3.Dataset, stream: str) -> IntArray:
    """Return the first position of each file of a stream and, last, the number of episodes."""
    slices, path = former.slices(stream), TARGETS[_VERSION].path
    steps = np.diff(slices.file)
    usual = [path(stream, number) for number in range(len(slices.paths))]
    if list(slices.paths) != usual or int(slices.file[0]) or not np.isin(steps, (0, 1)).all():
        raise _refusal(
            former.root, f"files of {stream} are not numbered in the order of the episodes"
        )
    return np.concatenate(([0], np.flatnonzero(steps) + 1, [len(slices.file)]))


def _refusal(target: Path, why: str) -> TargetError:
    return TargetError(
        f"Nothing can be appended to {target}: {why}.",
        path=str(target),
        next_step="Episodes were changed or removed, or the result was; with --force-conversion "
        f"in place of --append all of it is converted anew, and what is there kept as "
        f"{old_dir(target)}.",
    )


def not_as_planned(target: Path, why: str) -> TargetError:
    """Return the error for a target that is not what episodes were to be appended to."""
    error = _refusal(target, why)
    return TargetError(
        f"{error.message} It stands as it was.", path=error.path, next_step=error.next_step
    )


# ------------------------------------------------------------------------------------------------
# Whether a dataset holds all of what it was before episodes were appended.


_DERIVED = frozenset({v3.REPAIRS_PATH})


def what_is_lost(new: Path, old: Path, *, along: Collection[str] | None = ()) -> str | None:
    """Say what of a dataset is not in the one that episodes were appended to; None for nothing.

    Every file of an episode, and every other file, is there under its name: the same file, or one
    of the same bytes. The table of episodes begins with the same rows, statistics included, and the
    table of tasks with the same tasks; fps and features are equal.

    Args:
        along: Files that come from the source and may be others now; None to look at those of
            episodes alone.

    Returns:
        Half a sentence about the first difference.

    Raises:
        StorageError: The disk fails, so that nobody knows.
    """
    try:
        before, after = v3.Dataset(old), v3.Dataset(new)
        kept, now = len(before.episodes), len(after.episodes)
        if kept >= now:
            return f"it has {kept} episodes, and {new} {now}"
        if (before.fps, before.features) != (after.fps, after.features):
            return "its info.json says otherwise"
        if list(before.task_table) != list(after.task_table)[: len(before.task_table)]:
            return "its tasks are others"
        if (episode := _other_row(before, after, kept)) is not None:
            return f"what its table says of episode {episode} is something else"
        names = [path for stream in before.streams for path in before.slices(stream).paths]
        names += [] if along is None else other_files(old, along=along)
        for name in names:
            if not _same_file(old / name, new / name):
                return f"{name} is not the same"
    except StorageError:
        raise
    except (LeconvertError, OSError) as error:
        raise_storage_trouble(error, old)  # a disk that fails tells nothing of what is on it
        return f"it cannot be compared: {error}"
    return None


def other_files(root: Path, *, along: Collection[str]) -> list[str]:
    """Return what a v3.0 dataset's folder holds besides its tables and the files of episodes."""
    dataset = v3.Dataset(root)
    known = {*dataset.tables(), *_DERIVED, *along}
    known |= {path for stream in dataset.streams for path in dataset.slices(stream).paths}
    return sorted(name for name in names_to_keep(root) if name not in known)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or same_bytes(one, other)
    except OSError as error:
        raise_storage_trouble(error, one)
        return False


def _other_row(before: v3.Dataset, after: v3.Dataset, kept: int) -> int | None:
    rows = chain.from_iterable(
        block.to_pylist()
        for block in v3.EpisodesReader(after.root).rows(0, kept, _is_of_an_episode)
    )
    for episode, (one, other) in enumerate(zip(_rows(before), rows, strict=True)):
        if not same_statistic(one, other):
            return episode
    return None


def _rows(dataset: v3.Dataset) -> Iterator[Mapping[str, Any]]:
    for block in v3.EpisodesReader(dataset.root).blocks(_is_of_an_episode):
        yield from block.to_pylist()


def _is_of_an_episode(column: str) -> bool:
    return column not in v3.LOCATION_COLUMNS
