"""Removes the source that a conversion in place kept, once the result is proven to hold it all."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path

from leconvert.errors import LeconvertError
from leconvert.model import DATA_STREAM, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import SourcePaths, load_info
from leconvert.upkeep.clean import CleanReport, Leftover
from leconvert.verify import verify_pair
from leconvert.workdir.durable import remove_tree
from leconvert.workdir.target import codebase_version, old_dir

__all__ = ["clean_kept_source"]

_SHOWN = 3
# What a conversion replaces by files of another form; `verify` compares their content.
_CONVERTED = {
    "meta/info.json",
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    "meta/stats.json",
    "meta/tasks.jsonl",
}


def clean_kept_source(
    target: Path, *, dry_run: bool = False, progress: Progress = NO_PROGRESS
) -> CleanReport:
    """Remove ``<target>_old`` if the dataset at the target provably holds everything in it.

    The proof is made here and now: every coded packet and every row are compared, and every other
    file must be in the result with the same bytes.

    Args:
        target: The v3.0 dataset.
        dry_run: Make the proof, remove nothing.
        progress: Where to report.
    """
    old = old_dir(target)
    doubt = _doubt(target, old, progress)
    if doubt is not None:
        return CleanReport(dry_run, (), (Leftover(old, "kept source", False, doubt),))
    proven = f"every packet, row and other file of it is in {target}"
    if not dry_run:
        remove_tree(old, inside=old.parent)
    return CleanReport(dry_run, (Leftover(old, "kept source", True, proven),), ())


def _doubt(target: Path, old: Path, progress: Progress) -> str | None:
    if old.is_symlink() or not old.is_dir():
        return "it is not there"
    versions = codebase_version(target), codebase_version(old)
    if versions[0] != "v3.0" or versions[1] != "v2.1":
        found = f"{versions[1]} and {versions[0]} are here"
        return f"only a v2.1 source of a v3.0 result can be proven; {found}"
    try:
        report = verify_pair(target, old, depth="bytes", progress=progress)
    except (LeconvertError, OSError) as error:
        return f"the two could not be compared: {error}"
    if not report.ok:
        return f"the result differs from it: {report.differences[0]}"
    try:
        others = _other_files(old)
    except (LeconvertError, OSError, ValueError, KeyError) as error:
        return f"its files could not be listed: {error}"
    missing = [name for name in others if not _same(old / name, target / name)]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (" and others" if len(missing) > _SHOWN else "")
        return f"{len(missing)} files are not in the result: {shown}"
    return None


def _other_files(old: Path) -> list[str]:
    """Return every file but those whose content `verify` compares; strays among them included."""
    with (old / "meta/episodes.jsonl").open("rb") as lines:
        episodes = [int(json.loads(line)["episode_index"]) for line in lines if line.strip()]
    info = load_info(old)
    paths = SourcePaths(old, info)
    streams = [DATA_STREAM, *map(stream_of_camera, info.camera_keys)]
    compared = {path for stream in streams for path in map(str, paths.absolute(stream, episodes))}
    return sorted(
        name
        for path in old.rglob("*")
        if not path.is_dir() and str(path) not in compared
        if (name := path.relative_to(old).as_posix()) not in _CONVERTED
    )


def _same(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
