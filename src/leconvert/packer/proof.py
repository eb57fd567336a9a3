"""The proof of a tree: made in the process that goes by it, and good for that process only."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import LeconvertError, VerificationError
from leconvert.progress import Progress
from leconvert.source import FileFacts
from leconvert.verify import verify_pair
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.journal import Journal
from leconvert.workdir.mounts import devices_with_fleeting_inodes
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.staging import TREE_RECORD

__all__ = ["Proof", "facts_of_tree", "prove_tree"]

_DIFFERENCES_SHOWN = 20


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
    source: Path,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None,
    stop: threading.Event,
    progress: Progress,
) -> Proof:
    """Compare a finished tree with the run's source.

    Args:
        run: The run.
        journal: Keeps what differs, for a report.
        tree: The new tree, beside its target or in its place.
        source: Where the source lies now.
        depth: ``structure`` or ``bytes``.
        clip_digests: What `leconvert.media.order_digest` gave workers for each clip, by stream;
            None where that is not known any more.
        stop: Set it from another thread to stop between two pieces.
        progress: Where to report.

    Raises:
        VerificationError: The tree does not match the source; it stays for inspection.
        InterruptedRunError: ``stop`` was set.
    """
    started = time.monotonic()
    files = facts_of_tree(tree)
    report = verify_pair(
        tree,
        source,
        depth=depth,
        progress=progress,
        clip_digests=clip_digests,
        repairs=run.manifest.repairs,
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
        shown = [str(difference) for difference in report.differences[:_DIFFERENCES_SHOWN]]
        if len(report.differences) > len(shown):
            shown.append(f"... and {len(report.differences) - len(shown)} more")
        with suppress(OSError, LeconvertError):  # what differs is raised in any case
            state = journal.read()
            noted = {**state.notes, "verification": {**outcome, "shown": shown}}
            journal.write(state.step, notes=noted)
        raise _differs(run, tree, source, shown)
    return Proof(depth, outcome, files)


def _differs(run: OpenedRun, tree: Path, source: Path, shown: list[str]) -> VerificationError:
    target = Path(run.manifest.target)
    verify = (
        f"leconvert verify {shlex.quote(str(tree))} --source {shlex.quote(str(source))} --bytes"
    )
    if tree != target:
        return VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step=f"The new tree stays for inspection: {verify}. Please report this; --restart "
            "converts anew.",
        )
    if Path(run.manifest.source) == target:
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
    with storage_errors(tree):
        for folder, subfolders, names in os.walk(tree):
            subfolders.sort()
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - for every file of a dataset
                if name != TREE_RECORD:
                    with suppress(OSError):  # no regular file: the comparison says so
                        found[os.path.relpath(path, tree)] = FileFacts.of(path, fleeting)
    return found
