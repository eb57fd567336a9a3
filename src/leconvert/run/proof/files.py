"""A result's files that belong to no episode, and files of the source that it lacks.

The tables of a result and its other files are compared. Before a source is removed,
`reason_to_keep` names files that would be lost.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from leconvert import media, tables
from leconvert.dataset.files import CARD_BEGIN, GIT_FILES, files_below, names_to_keep
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    Dataset,
    SourceView,
    differing_subtasks,
    has_provenance,
    open_dataset,
)
from leconvert.dataset.formats.v3 import REPAIRED_PATH, REPAIRS_PATH, read_json_object
from leconvert.dataset.scan.changes import extra_files
from leconvert.dataset.scan.modality import MODALITY_PATH, feature_of_entry, read_modality
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, TARGET_VERSIONS
from leconvert.run.proof.difference import Difference, naming, same_bytes, same_json
from leconvert.run.proof.expected import Expected
from leconvert.run.proof.metadata import ResultTables
from leconvert.support.errors import LeconvertError
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.support.text import numbered


def was_repaired(result: Path) -> bool:
    """Return whether a result's own record says that it was repaired after its conversion."""
    try:
        return read_json_object(result / REPAIRED_PATH).get("format") == "leconvert/repaired"
    except (OSError, ValueError):
        return False


README_PATH = "README.md"


def is_pushed_card(result: Path) -> bool:
    """Return whether a dataset's ``README.md`` is the card that a push wrote from the source's.

    Its text is partly the user's and partly leconvert's, and changes with every push. Nothing of
    the dataset depends on it, so it is not compared with the source's.
    """
    card = result / README_PATH
    try:
        return card.is_file() and CARD_BEGIN in card.read_text("utf-8")
    except (OSError, ValueError):
        return False


_EPISODE_FOLDERS = ("data/", "videos/")


def compare_other_files(
    tables: ResultTables, expected: Expected, *, read_bytes: bool, keeps_further: bool = False
) -> Iterator[Difference]:
    """Yield files that are missing, superfluous, or differ from the source.

    Among the files of episodes, this only finds links into the source. Other functions compare
    their presence and content.

    Args:
        tables: The tables of the result.
        expected: The sources.
        read_bytes: Compare contents, not only sizes.
        keeps_further: Whether the result may have further files, as after an append.
    """
    result = tables.root
    along: dict[str, SourceView] = {}
    for source in expected.sources:
        for path in extra_files(source.root, source.dataset.slice_of):
            if path not in GIT_FILES:
                along.setdefault(path, source)
    repairs = len(expected.sources) == 1 and expected.sources[0].repairs
    found = {path: at for path, at in files_below(result) if path not in GIT_FILES}
    wanted = {*tables.own_files(found), *along, *([REPAIRS_PATH] if repairs else [])}
    # Older results with selected episodes do not have this table.
    if has_provenance(expected.sources) and (len(expected.sources) > 1 or PROVENANCE_PATH in found):
        wanted.add(PROVENANCE_PATH)
    if is_pushed_card(result):
        found.pop(README_PATH, None)
        wanted.discard(README_PATH)
    folder = f"{result}/"
    for path in sorted(found):
        # A link may lead elsewhere: downloads from the Hub are links into a cache.
        if os.path.islink(folder + path) and any(  # noqa: PTH114 - for every file
            _leads_into(result / path, source.root) for source in expected.sources
        ):
            yield Difference("file", path, "a file of its own", "a link into the source")
        if path == REPAIRED_PATH and was_repaired(result):
            continue  # by `leconvert repair`; its changes are compared like everything else
        if keeps_further or path in wanted:
            continue
        if not path.startswith(_EPISODE_FOLDERS):
            yield Difference("file", path, "no such file", "a file that the source does not give")
    roots = [source.root for source in expected.sources]
    subtasks = differing_subtasks([source.features for source in expected.sources], roots)
    if subtasks:
        path, _, row = subtasks[0].partition(", ")
        yield Difference(f"{row} of the sources", path, "one text", ", ".join(subtasks[1:]))
    for path in sorted(wanted):
        if not found.get(path):
            there = "a folder" if (result / path).is_dir() else "nothing"
            there = "a link that leads to no file" if path in found else there
            yield Difference("file", path, "a file", there)
    for path, source in along.items():
        dropped = set(source.repairs.dropped_features)
        if found.get(path) and dropped and _names_features(path):
            yield from _compare_extension(result, source.root, path, dropped)
    for path, source in along.items():
        if found.get(path) and not (source.repairs.dropped_features and _names_features(path)):
            yield from _compare_contents(result, source.root, [path], read_bytes=read_bytes)


def _names_features(path: str) -> bool:
    name = path.removeprefix("meta/")
    return name in ("modality.json", "stats_gr00t.json") or (
        name.startswith("relative_stats") and name.endswith(".json")
    )


def _compare_extension(
    result: Path, source: Path, path: str, dropped: set[str]
) -> Iterator[Difference]:
    """Compare a file of GR00T entry by entry: entries of dropped features must be gone."""
    try:
        expected, found = (json.loads((root / path).read_bytes()) for root in (source, result))
        if not isinstance(expected, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        yield from _compare_contents(result, source, [path], read_bytes=True)
        return
    except OSError as error:
        raise_storage_trouble(error, result / path)
        yield Difference("readable file", path, "the source's content", str(error))
        return
    modality = read_modality(source) or {}
    gone = {
        kind: [name for name in names if feature_of_entry(kind, name, names[name]) in dropped]
        for kind, names in modality.items()
    }
    if path == MODALITY_PATH:
        expected = {
            kind: {name: value for name, value in names.items() if name not in gone[kind]}
            if kind in gone
            else names
            for kind, names in expected.items()
        }
    elif path.endswith("stats_gr00t.json"):
        expected = {name: value for name, value in expected.items() if name not in dropped}
    else:
        groups = {*gone.get("state", ()), *gone.get("action", ())}
        expected = {name: value for name, value in expected.items() if name not in groups}
    if not same_json(expected, found):
        yield Difference("entries", path, "the source's, without features left out", "others")


def _compare_contents(
    result: Path, source: Path, along: Iterable[str], *, read_bytes: bool
) -> Iterator[Difference]:
    for path in along:
        ours, theirs = result / path, source / path
        try:
            expected_bytes, found_bytes = theirs.stat().st_size, ours.stat().st_size
            if expected_bytes != found_bytes:
                yield Difference("size in bytes", path, str(expected_bytes), str(found_bytes))
            elif read_bytes and not same_bytes(theirs, ours):
                yield Difference("content (SHA-256)", path, _sha256(theirs), _sha256(ours))
        except OSError as error:
            raise_storage_trouble(error, ours)
            yield Difference("readable file", path, "the source's content", str(error))


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as file, naming(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def _leads_into(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circular link
        return False


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
    source = dataset.root
    compared = {path for stream in dataset.streams for path in dataset.slices(stream).paths}
    # Links to folders of episodes; their targets stay.
    on_the_way = {str(folder) for path in compared for folder in PurePosixPath(path).parents}
    # The tables are replaced by files in another form; `verify_pair` compares their content.
    known = {*compared, *on_the_way, *dataset.tables()}
    return sorted(name for name in names_to_keep(source) if name not in known)


def _same(one: Path, other: Path) -> bool:
    try:
        return same_bytes(one, other)
    except OSError:
        return False
