"""Removes the source that a conversion in place kept, once the result is proven to hold it all."""

from __future__ import annotations

from pathlib import Path

from leconvert.errors import LeconvertError
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.tables import read_repairs
from leconvert.upkeep.clean import CleanReport, Leftover
from leconvert.verify import reason_to_keep, verify_pair
from leconvert.workdir.target import codebase_version, old_dir
from leconvert.workdir.trees import remove_tree

__all__ = ["clean_kept_source"]


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
    return reason_to_keep(target, old, read_repairs(target))
