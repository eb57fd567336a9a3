"""Removes the source that a conversion replaced, where the user asked for it and all is proven.

The new dataset is in place by then. What is removed was compared by this very process: the source
with the plan, and the result with the source, byte by byte; and both are as they were then. The old
tree is first renamed to a name of ours, where nobody looks for it, and looked at once more. A crash
before leaves it where it was kept. After it the next process compares what is there again, and
keeps what it cannot compare. `leconvert clean --of DATASET --old` removes by the same steps
(`remove_compared`).
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from leconvert.errors import SourceChangedError, VerificationError
from leconvert.packer.proof import Proof, prove_tree
from leconvert.packer.report import PackReport
from leconvert.progress import Progress
from leconvert.source import check_source_unchanged
from leconvert.verify import reason_to_keep
from leconvert.workdir.durable import storage_errors, sync_dir
from leconvert.workdir.journal import Journal
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.target import old_dir, removed_old_dir
from leconvert.workdir.trees import remove_tree

__all__ = ["kept_source", "remove_compared", "remove_source", "rest_of_removal"]


def kept_source(target: Path) -> Path | None:
    """Return where the source that was replaced at a target lies, None where there is none."""
    # One whose removal was interrupted has a name of ours.
    places = (old_dir(target), removed_old_dir(target))
    return next((place for place in places if place.is_dir()), None)


def rest_of_removal(target: Path) -> str:
    """Say why what an interrupted removal left is kept, and how to remove it."""
    doomed = shlex.quote(str(removed_old_dir(target)))
    return (
        "its removal was interrupted, and what is left of it cannot be compared: remove it by "
        f"`rm -r {doomed}` if {target} is right"
    )


def remove_compared(target: Path, kept: Path, look: Callable[[Path], str | None]) -> str | None:
    """Remove a kept source that this process has just compared with the result.

    Args:
        target: The result.
        kept: The source, as `kept_source` says.
        look: Called with the source once it has a name of ours, under which nobody looks for it:
            says why it must be kept all the same, or None.

    Returns:
        Why it was kept, with its name given back; None where it is gone.

    Raises:
        StorageError: The disk is read-only or fails.
    """
    old, doomed = old_dir(target), removed_old_dir(target)
    if kept != doomed:
        with storage_errors(kept):
            if doomed.exists():
                there = shlex.quote(str(doomed))
                return f"what an earlier removal left is in the way: remove it by `rm -r {there}`"
            kept.rename(doomed)
            sync_dir(doomed.parent)
    reason = look(doomed)
    if reason is None:
        remove_tree(doomed)
    elif not old.exists():
        with storage_errors(doomed):
            doomed.rename(old)
            sync_dir(doomed.parent)
    return reason


def remove_source(
    run: OpenedRun,
    journal: Journal,
    report: PackReport,
    proof: Proof,
    stop: threading.Event,
    progress: Progress,
) -> PackReport:
    """Remove the kept source of a finished conversion, unless something would be lost with it.

    Args:
        run: The run; its swap is done.
        journal: Its journal.
        report: What the packer did.
        proof: What this process compared.
        stop: Set it from another thread to stop a comparison.
        progress: Where to report.

    Returns:
        The report, with what became of the source.

    Raises:
        SourceChangedError: It is not what was planned any more; it is where it was.
        VerificationError: The result does not hold it; nothing was removed.
        StorageError: The disk is read-only or fails.
    """
    target = report.target
    kept, doomed = kept_source(target), removed_old_dir(target)
    if kept is None:
        return replace(report, kept=None, removed=report.kept)
    try:
        check_source_unchanged(run, kept)
        if proof.depth != "bytes" or not proof.still_holds(target):
            proof = prove_tree(run, journal, target, kept, "bytes", None, stop, progress)
    except (SourceChangedError, VerificationError):
        if kept != doomed:
            raise
        return replace(report, kept=kept, kept_because=rest_of_removal(target))
    reason = reason_to_keep(target, kept, run.manifest.repairs)
    if reason is None:
        # Nobody comes by its old name any more; what came to it until then is seen.
        reason = remove_compared(target, kept, lambda tree: _reason(run, target, tree, proof))
    if reason is not None:
        return replace(report, kept=kept_source(target), kept_because=reason)
    return replace(report, kept=None, removed=old_dir(target))


def _reason(run: OpenedRun, target: Path, doomed: Path, proof: Proof) -> str | None:
    reason = reason_to_keep(target, doomed, run.manifest.repairs)
    if reason is None and not proof.still_holds(target):
        return "the result was changed while it was compared"
    if reason is None:
        try:
            check_source_unchanged(run, doomed)
        except SourceChangedError as error:
            return f"it was changed while it was compared: {error.details[0]}"
    return reason
