"""What lies in a result besides the files of its episodes: its tables, and what came along."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from leconvert.dataset_files import files_below
from leconvert.repairs import Repairs
from leconvert.source import SourcePaths
from leconvert.source.modality import MODALITY_PATH, feature_of_entry, read_modality
from leconvert.source.survey import extra_files
from leconvert.tables.paths import (
    EPISODES_DIR,
    INFO_PATH,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    episodes_path,
)
from leconvert.verify.difference import Difference
from leconvert.verify.hub_files import GIT_FILES, README_PATH, is_pushed_card
from leconvert.verify.same_bytes import naming
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["compare_other_files", "special_files"]

_EPISODE_FOLDERS = ("data/", "videos/")
_BLOCK_BYTES = 1 << 20


def special_files(root: Path) -> Iterator[str]:
    """Yield pipes, sockets and devices below a dataset's folder, and links to such.

    Who opens a pipe may wait for ever, and some devices never end.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    for path, is_file in files_below(root):
        if not is_file:
            with suppress(OSError):  # a link that leads to nothing
                if not stat.S_ISDIR((root / path).stat().st_mode):
                    yield path


def compare_other_files(
    result: Path, source: Path, paths: SourcePaths, repairs: Repairs, *, read_bytes: bool
) -> Iterator[Difference]:
    """Yield what is missing, left over, or not as the source has it.

    Of the files of episodes this only says which are links into the source: whether they are there
    and hold what they should is for others to say.

    Args:
        result: The v3.0 dataset.
        source: The v2.x dataset.
        paths: Where its episodes' files are.
        repairs: What the conversion changed.
        read_bytes: Compare what is in the files that came along, not only their sizes.
    """
    along = [path for path in extra_files(source, paths.slice_of) if path not in GIT_FILES]
    wanted = {INFO_PATH, STATS_PATH, TASKS_PATH, *along, *([REPAIRS_PATH] if repairs else [])}
    found = {path: at for path, at in files_below(result) if path not in GIT_FILES}
    if is_pushed_card(result):
        found.pop(README_PATH, None)
        wanted.discard(README_PATH)
    tables = sorted(
        path for path in found if path.startswith(f"{EPISODES_DIR}/") and path.endswith(".parquet")
    )
    wanted.update(episodes_path(number) for number in range(max(1, len(tables))))
    for path in sorted(found):
        # Elsewhere a link may lead: downloads from the Hub are links into a cache.
        if (result / path).is_symlink() and _leads_into(result / path, source):
            yield Difference("file", path, "a file of its own", "a link into the source")
        if path not in wanted and not path.startswith(_EPISODE_FOLDERS):
            yield Difference("file", path, "no such file", "a file that the source does not give")
    for path in sorted(wanted):
        if not found.get(path):
            there = "a folder" if (result / path).is_dir() else "nothing"
            there = "a link that leads to no file" if path in found else there
            yield Difference("file", path, "a file", there)
    named = {path for path in along if repairs.dropped_features and _names_features(path)}
    for path in sorted(named):
        if found.get(path):
            yield from _compare_extension(result, source, path, set(repairs.dropped_features))
    both = [path for path in along if found.get(path) and path not in named]
    yield from _compare_contents(result, source, both, read_bytes=read_bytes)


def _names_features(path: str) -> bool:
    name = path.removeprefix("meta/")
    return name in ("modality.json", "stats_gr00t.json") or (
        name.startswith("relative_stats") and name.endswith(".json")
    )


def _compare_extension(
    result: Path, source: Path, path: str, dropped: set[str]
) -> Iterator[Difference]:
    """Compare a file of GR00T's, entry by entry: those of features that were left out are gone."""
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
    if json.dumps(expected, sort_keys=True) != json.dumps(found, sort_keys=True):
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
            elif read_bytes:
                expected, found = _sha256(theirs), _sha256(ours)
                if expected != found:
                    yield Difference("content (SHA-256)", path, expected, found)
        except OSError as error:
            raise_storage_trouble(error, ours)
            yield Difference("readable file", path, "the source's content", str(error))


def _leads_into(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link that leads in circles
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file, naming(path):
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
