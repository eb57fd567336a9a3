"""The removal of a dataset that a result replaced, which this process has just compared with it.

`reason_to_keep` names files that would be lost. `TreePair` notices changes since the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from leconvert import media, tables
from leconvert.dataset.files import names_to_keep
from leconvert.dataset.formats import Dataset, open_dataset
from leconvert.dataset.scan import FileFacts, meta_digest
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, TARGET_VERSIONS
from leconvert.run.proof.difference import same_bytes
from leconvert.support.errors import LeconvertError, UnreadableSourceError
from leconvert.support.file_calls import devices_with_fleeting_inodes
from leconvert.support.storage_errors import raise_storage_trouble, storage_errors
from leconvert.support.text import numbered, shown
from leconvert.support.values import dataclass
from leconvert.workdir.former import TreeFacts
from leconvert.workdir.fs import remove_tree, sync_dir
from leconvert.workdir.swap import codebase_version, old_dir, removed_dir, removed_old_dir


def facts_of_tree(tree: Path, *, gets_links: bool = False) -> dict[str, FileFacts]:
    """Return the facts of every name that would be lost with a dataset's folder or ``meta/``.

    Args:
        tree: The folder.
        gets_links: Ignore the times of the last change, because this process gives the files
            further names before it looks again.
    """
    fleeting = devices_with_fleeting_inodes()
    found: dict[str, FileFacts] = {}
    try:
        for name in names_to_keep(tree):
            path = f"{tree}/{name}"
            try:
                facts = FileFacts.of(path, fleeting)
            except OSError as error:
                raise_storage_trouble(error, path)
                facts = FileFacts(0, 0, 0)  # no regular file: the comparison reports it
            found[name] = replace(facts, ctime_ns=0) if gets_links else facts
    except UnreadableSourceError as error:
        # A failing disk that cannot list a folder must not make it look empty.
        raise_storage_trouble(error, tree)
        raise
    return found


@dataclass(frozen=True, slots=True)
class TreePair:
    """A result and its source as they are when their comparison begins.

    A process that deletes one of them, or moves both, must find the same facts again after the
    comparison. The time of a file's last change is one of these facts. Nobody can set it, so a file
    that was overwritten and got its times back is noticed. Meanwhile, this process may rename the
    folders, but must not add or remove names of files.

    Two changes are not noticed: one that follows another within a tick of the file system's clock
    (1 to 10 ms before Linux 6.13), and one through an open file between the last look and the
    removal.
    """

    result: Mapping[str, FileFacts]
    source: Mapping[str, FileFacts]

    @classmethod
    def now(cls, result: Path, source: Path) -> TreePair:
        """Read the facts of two trees at their current places."""
        return cls(facts_of_tree(result), facts_of_tree(source))

    def changed(self, result: Path, source: Path) -> str | None:
        """Return a clause that names the first changed file; None if nothing changed."""
        trees = ("the result's", self.result, result), ("its", self.source, source)
        for whose, before, tree in trees:
            if (name := first_change(before, tree)) is not None:
                return f"{whose} {shown(name)} was changed during the comparison"
        return None


def first_change(before: Mapping[str, FileFacts], tree: Path) -> str | None:
    """Return the first name whose facts differ from an earlier `facts_of_tree`, or None."""
    now = facts_of_tree(tree)
    names = sorted(before.keys() | now.keys())
    return next((name for name in names if before.get(name) != now.get(name)), None)


def tree_facts(tree: Path) -> TreeFacts:
    """Return the facts that distinguish a dataset that is put aside from any other."""
    return TreeFacts.of(tree, meta_digest(tree, codebase_version(tree) or ""))


def kept_source(target: Path) -> Path | None:
    """Return the folder of the source that was replaced at a target; None if there is none."""
    # A source whose removal was interrupted has a name of leconvert's own.
    places = (old_dir(target), removed_old_dir(target))
    return next((place for place in places if place.is_dir()), None)


def rest_of_removal(doomed: Path) -> str:
    """Return why the rest of an interrupted removal is kept, and where."""
    return (
        f"its removal was interrupted; the remaining part {doomed} cannot be compared and stays, "
        "and no program reads it"
    )


def remove_compared(
    result: Path, old: Path, compared: TreePair, *, kept: Path | None = None
) -> str | None:
    """Remove a replaced dataset that this process has just compared with the result.

    Its facts are checked after it has got a name of leconvert's own, under which no other program
    looks for it.

    Args:
        result: The result.
        old: The folder of the replaced dataset.
        compared: Both, as they were when their comparison began.
        kept: Its current folder, if its removal had begun; None for ``old``.

    Returns:
        The reason why it was kept, under its old name again; None if it is gone.
    """
    kept, doomed = kept or old, removed_dir(old)
    if kept != doomed:
        with storage_errors(kept):
            if doomed.exists():
                return f"{doomed}, the rest of an earlier removal, is in the way: move it elsewhere"
            kept.rename(doomed)
            sync_dir(doomed.parent)
    reason = compared.changed(result, doomed)
    if reason is None:
        remove_tree(doomed)
    elif not old.exists():
        with storage_errors(doomed):
            doomed.rename(old)
            sync_dir(doomed.parent)
    return reason


_SHOWN = 3


def reason_to_keep(result: Path, source: Path, repairs: Repairs) -> str | None:
    """Return a clause that names a file that would be lost with a source; else None.

    Files that `verify_pair` compares to the byte are not read again. Every other file of the
    source, including superfluous ones, must be in the result with the same bytes. The files of
    episodes must be completely in the result: a source with rows or frames of no episode, or with
    sound, is kept.

    Returns:
        A clause such as ``2 episodes of it are not in the result``; None if the result holds
        everything.
    """
    if repairs.selected_episodes is not None:
        return f"the result has only its {numbered('episode', repairs.selected_episodes)}"
    if repairs.trimmed_episodes:
        shown = ", ".join(map(str, repairs.trimmed_episodes))
        return f"these of its episodes were trimmed: {shown}"
    if repairs.dropped_episodes:
        count = len(repairs.dropped_episodes)
        verb = "episode of it is" if count == 1 else "episodes of it are"
        return f"{count} {verb} not in the result"
    if repairs.dropped_features:
        shown = ", ".join(repairs.dropped_features)
        return f"features of it are not in the result: {shown}"
    try:
        dataset = open_dataset(source, repairs)
        if dataset.version == TARGET_VERSIONS[0] != open_dataset(result).version:
            return "v2.1 cannot store everything that the tables of v3.0 contain"
        others = _other_files(dataset)
        missing = [name for name in others if not _same(source / name, result / name)]
        partly = [] if missing else _partly_held(dataset)
    except (LeconvertError, OSError, ValueError, KeyError, TypeError) as error:
        return f"its files could not be listed: {error}"
    if not missing and not partly:
        return None
    names = missing or partly
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    verb = "is" if len(names) == 1 else "are"
    is_not = f"{verb} not in the result" if missing else f"{verb} not completely in the result"
    shown = ", ".join(names[:_SHOWN]) + (" and others" if len(names) > _SHOWN else "")
    return f"{files} {is_not}: {shown}"


def _partly_held(dataset: Dataset) -> list[str]:
    """Return the files with rows or frames of no episode, or with other tracks than video."""
    found = []
    for stream in dataset.streams:
        slices = dataset.slices(stream)
        if stream == DATA_STREAM and slices.whole:
            continue  # the number of rows was compared
        held = np.zeros(len(slices.paths), dtype=np.int64)
        np.add.at(held, slices.file, dataset.episodes.length)
        for path, frames in zip(slices.paths, held.tolist(), strict=True):
            file = dataset.root / path
            if stream == DATA_STREAM:
                is_held = sum(tables.row_group_rows(file)) == frames
            else:
                is_held = media.count_tracks_and_frames(file) == (1, frames)
            if not is_held:
                found.append(path)
    return found


def _other_files(dataset: Dataset) -> list[str]:
    """Return all files, except those whose content `verify_pair` compares."""
    compared = {path for stream in dataset.streams for path in dataset.slices(stream).paths}
    # Links to folders of episodes; their targets stay.
    on_the_way = {str(folder) for path in compared for folder in PurePosixPath(path).parents}
    return [name for name in dataset.other_files() if name not in on_the_way]


def _same(one: Path, other: Path) -> bool:
    try:
        return same_bytes(one, other)
    except OSError:
        return False
