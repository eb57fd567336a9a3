"""A result against its sources without the files of episodes: its tables, and its other files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from leconvert.dataset.files import CARD_BEGIN, GIT_FILES, files_below, special_files
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    Sources,
    SourceView,
    differing_subtasks,
    has_provenance,
    v3,
)
from leconvert.dataset.formats.v3 import REPAIRED_PATH, REPAIRS_PATH, read_json_object
from leconvert.dataset.scan.changes import extra_files
from leconvert.dataset.scan.modality import MODALITY_PATH, feature_of_entry, read_modality
from leconvert.model.repairs import Repairs
from leconvert.run.proof.difference import Difference, naming, same_bytes, same_json
from leconvert.run.proof.expected import Expected
from leconvert.run.proof.metadata import (
    ResultTables,
    Routes,
    compare_provenance,
    compare_repairs,
    tables_of,
)
from leconvert.run.proof.statistics import compare_aggregate_form
from leconvert.support.errors import LeconvertError, SourceError, UnreadableSourceError
from leconvert.support.storage_errors import raise_storage_trouble


class MetadataComparison(NamedTuple):
    """The comparison of everything except the files of episodes.

    Attributes:
        of_info: Differences in the records, ``info.json``, the tasks and the form of the tables.
        of_others: All other differences.
        content: The content that the files of episodes must hold, and the positions of the episodes
            in the result's tables; None if these files cannot be compared.
    """

    of_info: list[Difference]
    of_others: list[Difference]
    content: tuple[Expected, Routes] | None = None


def compare_metadata(
    tables: ResultTables,
    sources: Sources,
    told: Sequence[Repairs] | None,
    *,
    read_bytes: bool,
    keeps_further: bool,
) -> MetadataComparison:
    """Compare everything except the files of episodes."""
    result, differences, others = tables.root, list[Difference](), list[Difference]()
    found = MetadataComparison(differences, others)
    try:
        differences += [
            Difference("file", path, "a file", "a pipe, a socket or a device")
            for path in sorted(special_files(result))
        ]
        if differences:
            return found
        if len(sources) == 1:
            known = None if told is None else told[0]
            differences += compare_repairs(v3.read_repairs(result), known, sources[0].dataset)
        expected = Expected.of(sources)
        differences += compare_provenance(result, expected)
        differences += tables.compare_info(expected)
        differences += tables.compare_tasks(expected)
        unusable = [*tables.unusable(expected.streams)]
        differences += unusable
        if unusable:
            return found
        differences += tables.compare_form()
        routes = tables.routes(expected.streams)
        of_episodes = [*tables.compare_episodes(expected)]
    except (OSError, KeyError, ValueError, pa.ArrowException, SourceError) as error:
        differences.append(_held_against(result, error))
        return found
    others += compare_other_files(
        tables, expected, read_bytes=read_bytes, keeps_further=keeps_further
    )
    others += of_episodes
    if read_bytes:
        try:
            others += tables.compare_stats(expected)
        except UnreadableSourceError as error:
            others.append(_held_against(result, error, "statistics"))
    else:
        others += compare_aggregate_form(result)
    if not len(expected):
        others.append(Difference("episodes", "meta/episodes", "one at least", "none"))
    if tables.num_episodes != len(expected) or not len(expected):
        return found
    if any(len(numbers) != len(expected) for numbers in routes.file_number.values()):
        # A folder that could not be listed looks like an empty one.
        what = "other episodes than when they were counted"
        others.append(Difference("episodes", "meta/episodes", str(len(expected)), what))
        return found
    return found._replace(content=(expected, routes))


def compare_tables(result: Path, sources: Sources) -> list[Difference]:
    """Compare a result's files that belong to no episode with those that a conversion writes.

    These are ``info.json``, statistics, the tables of episodes, and the source's further files, to
    the byte. No video is opened, and rows of data files are read only for quantiles. Tasks, records
    of repairs and other files are not compared.
    """
    tables, expected = tables_of(result), Expected.of(sources)
    found = [
        *tables.compare_info(expected),
        *compare_other_files(tables, expected, read_bytes=True, keeps_further=True),
        *tables.compare_episodes(expected),
        *tables.compare_stats(expected),
    ]
    return [each for each in found if each.path not in {v3.REPAIRS_PATH, PROVENANCE_PATH}]


def _held_against(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference for an unreadable table of the result; raise errors of the source.

    The same functions read both sides, so their errors look like errors of a source.
    """
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    is_ours = path is not None and Path(path).is_relative_to(result)
    if isinstance(error, SourceError) and not is_ours:
        raise error
    raise_storage_trouble(error, getattr(error, "path", None) or result)
    place = Path(path).relative_to(result).as_posix() if path and is_ours else "meta/"
    said = str(error) if isinstance(error, LeconvertError | OSError) else repr(error)
    return Difference("readable metadata", place, expected, said)


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
