"""Removes the source that a conversion in place kept, once the result is proven to hold it all.

It is first renamed to a name of ours, **the commit point**: a crash before leaves it whole, and
after it the next call removes the rest.
"""

from __future__ import annotations

from pathlib import Path

from leconvert.errors import LeconvertError
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.tables import read_repairs
from leconvert.upkeep.clean import CleanReport, Leftover
from leconvert.verify import reason_to_keep, verify_pair
from leconvert.workdir.durable import storage_errors, sync_dir
from leconvert.workdir.target import codebase_version, old_dir, removed_old_dir
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
    old, doomed = old_dir(target), removed_old_dir(target)
    removed: list[Leftover] = []
    if doomed.is_dir():
        removed.append(Leftover(doomed, "kept source", True, "its removal was interrupted"))
        if not dry_run:
            remove_tree(doomed)
        if not old.exists():
            return CleanReport(dry_run, tuple(removed), ())
    doubt = _doubt(target, old, progress)
    if doubt is not None:
        kept = Leftover(old, "kept source", False, doubt)
        return CleanReport(dry_run, tuple(removed), (kept,))
    proven = f"every packet, row and other file of it is in {target}"
    removed.append(Leftover(old, "kept source", True, proven))
    if not dry_run:
        with storage_errors(old):
            old.rename(doomed)
            sync_dir(doomed.parent)
        remove_tree(doomed)
    return CleanReport(dry_run, tuple(removed), ())


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
