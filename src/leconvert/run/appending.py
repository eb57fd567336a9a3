"""Appending: episodes that a source has gained are added to its existing v3.0 result.

The result's data and video files stay unchanged; the new episodes get further files with the next
numbers. LeRobot reads every table below ``data``, whether an episode names it or not, so no file
can be added to a dataset that somebody may read. Therefore a new tree is made beside the target, as
in every conversion, and put in its place in one step. Existing files are linked into it, or copied
without hard links. The previous tree is kept as a former state (`leconvert.workdir.former`), for
`undo`.

No record says which source a result has, or how its files looked. The new tree, with old and new
episodes, is compared with the source and with the dataset at the target before it takes its place.
No record lists the user's changes in a result either. Everything that a conversion of the old
episodes would not have written counts as the user's. A further file stays; if anything else
differs, nothing is appended.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from leconvert.dataset.files import EPISODE_FOLDERS
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    TARGETS,
    Sources,
    SourceView,
    open_sources,
    v3,
)
from leconvert.model.selection import EpisodeRanges
from leconvert.model.values import OVERLAY, IntArray, LayoutOptions, SourceScan, StreamLayout
from leconvert.model.versions import V3_VERSION
from leconvert.run.conversion import Conversion, Places
from leconvert.run.layout import layout_streams
from leconvert.run.proof import (
    Difference,
    compare_tables,
    same_bytes,
    same_json,
    same_statistic,
)
from leconvert.support.errors import LeconvertError, StorageError, TargetError, UsageError
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.support.text import first_few, shown
from leconvert.workdir.former import stands_as_left
from leconvert.workdir.swap import is_converted, old_dir

_EPISODE_FOLDERS = tuple(f"{folder}/" for folder in EPISODE_FOLDERS)
_DIFFERENCES_SHOWN = 20
# Differences in info.json that separate old episodes from new ones.
_OF_EPISODES = re.compile(r"fps\Z|robot_type\Z|features\Z|.*\bfeature '")


def check_can_append(places: Places, conversion: Conversion) -> None:
    """Refuse to append with options with which nothing can be appended."""
    layout = conversion.layout
    if not layout.append:
        return
    wrong = {
        "several datasets": len(places.sources) > 1,
        "a conversion in place (give --output)": places.in_place,
        "a selection of episodes": bool(conversion.selection),
        f"--to {layout.to}": layout.to != V3_VERSION,
        f"--layout {OVERLAY}": layout.layout == OVERLAY,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise UsageError(
                "--append adds new episodes of one dataset to its v3.0 result in another folder. "
                f"It does not work with {what}.",
                next_step="Leave --append out.",
            )


def former_episodes(target: Path) -> int:
    """Return the number of episodes of the dataset at a target; 0 if there is none."""
    return v3.EpisodesReader(target).num_rows if is_converted(target) else 0


def layout_appended(
    scan: SourceScan, target: Path, options: LayoutOptions
) -> tuple[list[StreamLayout], int]:
    """Return the output files for a source with appended episodes, and how many episodes are old.

    The first episodes keep their files.

    Raises:
        TargetError: Nothing can be appended to the target.
    """
    former = v3.Dataset(target)
    kept = len(former.episodes)
    _check_former(scan, former)
    tail = np.arange(kept, scan.num_episodes)
    if options.layout == "streaming":
        # Loader workers share whole datasets; a few episodes each would be too little.
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


def _check_former(scan: SourceScan, former: v3.Dataset) -> None:
    target, source = former.root, scan.only.root
    kept, there = len(former.episodes), scan.num_episodes
    if kept == there:
        raise TargetError(
            f"{target} already has all {kept} episodes of {source}.",
            path=str(target),
            next_step=f"There is nothing to append. `leconvert verify {shlex.quote(str(target))} "
            f"--source {shlex.quote(source)}` compares the two.",
        )
    if kept > there:
        raise _refusal(target, f"it has {kept} episodes, but {source} has only {there}")
    lengths = former.episodes.length
    differing = np.flatnonzero(lengths != scan.length[:kept])
    if len(differing):
        at = int(differing[0])
        raise _refusal(
            target,
            f"its episode {at} has {lengths[at]} frames, but {scan.length[at]} in {source}",
        )
    (view,) = open_sources(scan.sources)
    if list(former.task_table) != view.tasks[: len(former.task_table)]:
        raise _refusal(target, f"its tasks are not the first tasks of {source}")
    strays = [name for name in other_files(target) if name.startswith(_EPISODE_FOLDERS)]
    if strays:
        raise _refusal(target, f"{shown(strays[0])} does not belong to an episode")
    if found := _of_the_user(former, view):
        names = dict.fromkeys(
            f"{each.what} in {each.path}" if each.path == v3.INFO_PATH else each.path
            for each in found
        )
        refused = _refusal(
            target,
            f"it contains changes that would be lost, since a conversion of {source} does "
            f"not write them: {', '.join(names)}",
            f"If you changed the result, make the same change in {source}. If {source} was "
            f"changed, make the same change in {target}. Or convert",
        )
        refused.details = tuple(first_few(list(map(str, found)), _DIFFERENCES_SHOWN))
        raise refused


def _of_the_user(former: v3.Dataset, view: SourceView) -> list[Difference]:
    """Return the parts of a dataset that a conversion of its episodes would not have written.

    If a record proves that the dataset is as a run left it, differences in most of info.json and in
    files of no episode come from the source, and are taken from there.
    """
    first = EpisodeRanges.of_episodes(view.index[: len(former.episodes)])
    own = replace(view.repairs, selected_episodes=first)
    found = compare_tables(former.root, Sources([SourceView(view.dataset, own)]))
    if stands_as_left(former.root):
        tables = former.tables()
        found = [
            each
            for each in found
            if each.path in tables and (each.path != v3.INFO_PATH or _OF_EPISODES.search(each.what))
        ]
    said = former.info
    # Tasks were counted for fewer episodes; splits may be given to all episodes alike.
    usual = {"total_tasks": len(former.task_table), "splits": view.dataset.info.get("splits")}
    return [
        each
        for each in found
        if each.path != v3.INFO_PATH
        or each.what not in usual
        or not same_json(said.get(each.what), usual[each.what])
    ]


def _starts(former: v3.Dataset, stream: str) -> IntArray:
    """Return the first position of each file of a stream, and the number of episodes at the end."""
    slices, path = former.slices(stream), TARGETS[V3_VERSION].names.path
    steps = np.diff(slices.file)
    usual = [path(stream, number) for number in range(len(slices.paths))]
    if list(slices.paths) != usual or int(slices.file[0]) or not np.isin(steps, (0, 1)).all():
        raise _refusal(
            former.root, f"the files of {stream} are not numbered in the order of the episodes"
        )
    return np.concatenate(([0], np.flatnonzero(steps) + 1, [len(slices.file)]))


_CHANGED = "Episodes of the source or the result were changed or removed. Convert"


def _refusal(target: Path, why: str, helps: str = _CHANGED) -> TargetError:
    return TargetError(
        f"Nothing can be appended to {target}: {why}.",
        path=str(target),
        next_step=f"{helps} everything again with --force-conversion instead of --append. The "
        f"present result is then kept as {old_dir(target)}.",
    )


def not_as_planned(target: Path, why: str) -> TargetError:
    """Return the error for a target that has changed since the append was planned."""
    return TargetError(
        f"Nothing can be appended to {target}: {why}. It was not changed.",
        path=str(target),
        next_step="Give the command that planned the append again, with --restart. It plans for "
        "the dataset that is there now.",
    )


# Whether a dataset holds everything of its state before episodes were appended.


# Records of a conversion, which the append writes again if the new result has them.
_DERIVED = frozenset({v3.REPAIRS_PATH, PROVENANCE_PATH})


# Keys of `info.json` about all episodes together, and the size limits of new files.
_OF_ALL_EPISODES = frozenset(
    {
        "total_episodes",
        "total_frames",
        "total_tasks",
        "data_files_size_in_mb",
        "video_files_size_in_mb",
    }
)


def what_is_lost(new: Path, old: Path, *, others: bool = True) -> str | None:
    """Return a clause about the first part of an old dataset that the new one lacks; else None.

    Every file of an episode, and every other file, must be there under its name: the same file, or
    one with the same bytes. The table of episodes must begin with the same rows, statistics
    included, and the table of tasks with the same tasks. Values of info.json must be equal, except
    totals.

    Args:
        new: The dataset with appended episodes.
        old: The dataset before.
        others: Whether to compare files of no episode, and all of info.json.

    Raises:
        StorageError: The disk fails, so the answer is unknown.
    """
    try:
        before, after = v3.Dataset(old), v3.Dataset(new)
        kept, now = len(before.episodes), len(after.episodes)
        if kept >= now:
            return f"it has {kept} episodes, but {new} has {now}"
        if (before.fps, before.features) != (after.fps, after.features):
            return "its info.json differs"
        if others and (changed := _changed_keys(before, after)):
            return f"its info.json differs: {', '.join(changed)}"
        if list(before.task_table) != list(after.task_table)[: len(before.task_table)]:
            return "its tasks differ"
        if (episode := _other_row(before, after, kept)) is not None:
            return f"its table of episodes differs at episode {episode}"
        names = [path for stream in before.streams for path in before.slices(stream).paths]
        names += other_files(old) if others else []
        for name in names:
            if not _same_file(old / name, new / name):
                return f"{name} differs"
    except StorageError:
        raise
    except (LeconvertError, OSError) as error:
        raise_storage_trouble(error, old)  # a failing disk proves nothing about its content
        return f"it cannot be compared: {error}"
    return None


def _changed_keys(before: v3.Dataset, after: v3.Dataset) -> list[str]:
    """Return the keys of info.json whose value is lost."""
    first = np.arange(len(before.episodes))
    return [
        key
        for key, said in before.info.items()
        if key not in _OF_ALL_EPISODES
        and not same_json(said, after.info.get(key))
        and not (key == "splits" and same_json(said, v3.kept_splits(after.info.get(key), first)))
    ]


def other_files(root: Path) -> list[str]:
    """Return a v3.0 dataset's files that are neither its tables nor files of episodes."""
    return [name for name in v3.Dataset(root).other_files() if name not in _DERIVED]


def _same_file(one: Path, other: Path) -> bool:
    try:
        return same_bytes(one, other)
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
