"""The proof of a tree: made in the process that goes by it, and good for that process only."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.compare import reason_to_keep, verify_pair
from leconvert.dataset_files import dataset_with_meta
from leconvert.errors import LeconvertError, SourceChangedError, VerificationError
from leconvert.packer.options import PackReport
from leconvert.progress import Progress
from leconvert.source import FileFacts, check_source_unchanged
from leconvert.text import first_few
from leconvert.workdir.fs import devices_with_fleeting_inodes, remove_tree, sync_dir
from leconvert.workdir.journal import Journal
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.storage_errors import raise_storage_trouble, storage_errors
from leconvert.workdir.swap import TREE_RECORD, old_dir, removed_old_dir

_DIFFERENCES_SHOWN = 20


def as_dataset(run: OpenedRun, tree: Path) -> AbstractContextManager[Path]:
    """Enter what a swap exchanges as a dataset: of an overlay in place it is ``meta/`` alone."""
    if run.manifest.is_overlay_in_place:
        return dataset_with_meta(Path(run.manifest.target), tree)
    return nullcontext(tree)


@dataclass(frozen=True, slots=True)
class Proof:
    """What this process compared.

    Attributes:
        depth: ``structure``, ``bytes``, or ``none`` for nothing.
        outcome: What came of it, for the journal's notes, where a report finds it; None for
            ``none``. No process goes by what it reads there.
        files: Size, time and inode of every file of the tree when the comparison began.
    """

    depth: str = "none"
    outcome: dict[str, Any] | None = None
    files: Mapping[str, FileFacts] = field(default_factory=dict)

    def still_holds(self, tree: Path) -> bool:
        """Say whether the tree, wherever it is now, has the files that were compared."""
        return bool(self.files) and self.files == facts_of_tree(tree)


def prove_tree(
    run: OpenedRun,
    journal: Journal,
    tree: Path,
    place: Path | None,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None,
    stop: threading.Event,
    progress: Progress,
) -> Proof:
    """Compare a finished tree with the run's sources.

    Args:
        tree: The tree, of an overlay in place its ``meta/``.
        place: Where the only source lies now, if not where it was planned; likewise.
    """
    roots = [place or Path(source.root) for source in run.manifest.sources]
    if place is None and run.manifest.is_overlay_in_place:
        roots = [run.manifest.exchanged]
    started = time.monotonic()
    files = facts_of_tree(tree)
    with ExitStack() as opened:
        report = verify_pair(
            opened.enter_context(as_dataset(run, tree)),
            [opened.enter_context(as_dataset(run, root)) for root in roots],
            depth=depth,
            progress=progress,
            clip_digests=clip_digests,
            read_rows=run.manifest.kept_episodes,
            repairs=[source.repairs for source in run.manifest.sources],
            stop=stop,
        )
    outcome: dict[str, Any] = {
        "depth": report.depth,
        "ok": report.ok,
        "files": report.files,
        "episodes": report.episodes,
        "rows": report.rows,
        "video_frames": report.video_frames,
        "seconds": round(time.monotonic() - started, 3),
        "differences": len(report.differences),
    }
    if not report.ok:
        shown = first_few(report.differences, _DIFFERENCES_SHOWN)
        with suppress(OSError, LeconvertError):  # what differs is raised in any case
            state = journal.read()
            noted = {**state.notes, "verification": {**outcome, "shown": shown}}
            journal.write(state.step, notes=noted)
        raise _differs(run, tree, roots, shown)
    return Proof(depth, outcome, files)


def _differs(
    run: OpenedRun, tree: Path, roots: Sequence[Path], shown: list[str]
) -> VerificationError:
    target = run.manifest.exchanged
    source = ", ".join(map(str, roots))
    given = [word for root in roots for word in ("--source", str(root))]
    verify = shlex.join(["leconvert", "verify", str(tree), *given, "--bytes"])
    if tree != target:
        return VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step="The new tree stays for inspection"
            + ("" if run.manifest.is_overlay_in_place else f": {verify}")
            + ". Please report this; --restart converts anew.",
        )
    if run.manifest.in_place:
        moved = shlex.quote(f"{target}_damaged")
        helps = (
            f"`mv {shlex.quote(str(target))} {moved} && mv {shlex.quote(str(source))} "
            f"{shlex.quote(str(target))}` puts the source back; then convert again."
        )
    else:
        helps = "--force-conversion converts anew and keeps what is there beside it."
    return VerificationError(
        f"{target} is not what was put there: it does not match {source}. Nothing was removed.",
        path=str(target),
        details=shown,
        next_step=f"{helps} `{verify}` lists every difference.",
    )


def facts_of_tree(tree: Path) -> dict[str, FileFacts]:
    """Return size, time and inode of every file below a folder, by its name there."""
    fleeting = devices_with_fleeting_inodes()
    found: dict[str, FileFacts] = {}

    def on_error(error: OSError) -> None:
        # A folder that a failing disk does not list is not an empty one.
        raise_storage_trouble(error, tree)

    top = f"{tree}/"
    with storage_errors(tree):
        for folder, subfolders, names in os.walk(tree, onerror=on_error):
            subfolders.sort()
            for name in names:
                path = f"{folder}/{name}"
                if name != TREE_RECORD:
                    try:
                        found[path.removeprefix(top)] = FileFacts.of(path, fleeting)
                    except OSError as error:  # no regular file: the comparison says so
                        raise_storage_trouble(error, path)
    return found


# ------------------------------------------------------------------------------------------------
# Removes the source that a conversion replaced, where the user asked for it and all is proven.
#
# The new dataset is in place by then. What is removed was compared by this very process: the
# source with the plan, and the result with the source, byte by byte; and both are as they were
# then. The old tree is first renamed to a name of ours, where nobody looks for it, and looked at
# once more. A crash before leaves it where it was kept. After it the next process compares what
# is there again, and keeps what it cannot compare. `leconvert clean --of DATASET --old` removes
# by the same steps (`remove_compared`).


def kept_source(target: Path) -> Path | None:
    """Return where the source that was replaced at a target lies, None where there is none."""
    # One whose removal was interrupted has a name of ours.
    places = (old_dir(target), removed_old_dir(target))
    return next((place for place in places if place.is_dir()), None)


def rest_of_removal(target: Path) -> str:
    """Say why what an interrupted removal left is kept, and where."""
    return (
        "its removal was interrupted, and what is left of it cannot be compared: it stays as "
        f"{removed_old_dir(target)}, and nothing reads it"
    )


def remove_compared(target: Path, kept: Path, look: Callable[[Path], str | None]) -> str | None:
    """Remove a kept source that this process has just compared with the result.

    Args:
        look: Called with the source once it has a name of ours, under which nobody looks for it:
            says why it must be kept all the same, or None.

    Returns:
        Why it was kept, with its name given back; None where it is gone.
    """
    old, doomed = old_dir(target), removed_old_dir(target)
    if kept != doomed:
        with storage_errors(kept):
            if doomed.exists():
                return f"what an earlier removal left is in the way: move {doomed} elsewhere"
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

    Returns:
        The report, with what became of the source.
    """
    target = run.manifest.exchanged
    kept, doomed = kept_source(target), removed_old_dir(target)
    if kept is None:
        return replace(report, kept=None, removed=report.kept)
    try:
        check_source_unchanged(run, kept)
    except SourceChangedError:
        if kept != doomed:
            raise
        return replace(report, kept=kept, kept_because=rest_of_removal(target))
    if proof.depth != "bytes" or not proof.still_holds(target):
        proof = prove_tree(run, journal, target, kept, "bytes", None, stop, progress)
    reason = _reason_to_keep(run, target, kept)
    if reason is None:
        # Nobody comes by its old name any more; what came to it until then is seen.
        reason = remove_compared(target, kept, lambda tree: _reason(run, target, tree, proof))
    if reason is not None:
        return replace(report, kept=kept_source(target), kept_because=reason)
    return replace(report, kept=None, removed=old_dir(target))


def _reason(run: OpenedRun, target: Path, doomed: Path, proof: Proof) -> str | None:
    reason = _reason_to_keep(run, target, doomed)
    if reason is None and not proof.still_holds(target):
        return "the result was changed while it was compared"
    if reason is None:
        try:
            check_source_unchanged(run, doomed)
        except SourceChangedError as error:
            return f"it was changed while it was compared: {error.details[0]}"
    return reason


def _reason_to_keep(run: OpenedRun, target: Path, kept: Path) -> str | None:
    with as_dataset(run, target) as result, as_dataset(run, kept) as source:
        return reason_to_keep(result, source, run.manifest.sources[0].repairs)
