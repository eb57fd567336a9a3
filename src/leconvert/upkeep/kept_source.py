"""Removes the source that a conversion in place kept, once the result is proven to hold it all.

The steps are those of ``convert --delete-source`` (`leconvert.packer.remove_compared`): what a
removal that was interrupted left is compared like any other tree, and kept where it cannot be.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from leconvert.errors import LeconvertError
from leconvert.packer import facts_of_tree, remove_compared, rest_of_removal
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import FileFacts
from leconvert.tables import read_repairs
from leconvert.upkeep.clean import CleanReport, Leftover
from leconvert.verify import reason_to_keep, verify_pair
from leconvert.workdir.target import codebase_version, old_dir, removed_old_dir

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
    removed: list[Leftover] = []
    kept: list[Leftover] = []
    old, doomed = old_dir(target), removed_old_dir(target)
    for place in (doomed, old):
        if place == doomed and not doomed.is_dir():
            continue
        if place == old and (removed or kept) and not old.exists():
            break  # all that there was had the other name
        before = _facts(target, place)
        doubt = _doubt(target, place, progress)
        if doubt is None and not dry_run:
            doubt = remove_compared(target, place, partial(_second_doubt, target, before))
        if doubt is not None:
            if place == doomed and doomed.exists():
                doubt = rest_of_removal(target)
            kept.append(Leftover(place, "kept source", False, doubt))
            continue
        proven = f"every packet, row and other file of it is in {target}"
        removed.append(Leftover(place, "kept source", True, proven))
    return CleanReport(dry_run, tuple(removed), tuple(kept))


def _facts(target: Path, old: Path) -> tuple[dict[str, FileFacts], dict[str, FileFacts]]:
    return facts_of_tree(target), facts_of_tree(old)


def _second_doubt(
    target: Path, before: tuple[dict[str, FileFacts], dict[str, FileFacts]], old: Path
) -> str | None:
    if _facts(target, old) != before:
        return "it or the result was changed while they were compared"
    return reason_to_keep(target, old, read_repairs(target))


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
