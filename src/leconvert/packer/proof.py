"""The proof of a new tree before it takes its place, and the note that is left of it."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import LeconvertError, VerificationError
from leconvert.progress import Progress
from leconvert.verify import verify_pair
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.opened import OpenedRun

__all__ = ["prove_tree"]

_DIFFERENCES_SHOWN = 20


def prove_tree(
    run: OpenedRun,
    journal: Journal,
    tree: Path,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]],
    stop: threading.Event,
    progress: Progress,
) -> dict[str, Any]:
    """Compare a finished tree with the run's source.

    Args:
        run: The run.
        journal: Keeps what differs, for a report.
        tree: The new tree.
        depth: ``structure`` or ``bytes``.
        clip_digests: What `leconvert.media.order_digest` gave workers for each clip, by stream.
        stop: Set it from another thread to stop between two pieces.
        progress: Where to report.

    Returns:
        The outcome for the journal's notes, where a report finds it.

    Raises:
        VerificationError: The tree does not match the source; it stays for inspection.
        InterruptedRunError: ``stop`` was set.
    """
    source = Path(run.manifest.source)
    started = time.monotonic()
    report = verify_pair(
        tree,
        source,
        depth=depth,
        progress=progress,
        clip_digests=clip_digests,
        repairs=run.manifest.repairs,
        proven_in=run.paths.proven_dir,
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
            journal.write(PackStep.PACKING, notes={"verification": {**outcome, "shown": shown}})
        raise VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step="The new tree stays for inspection: "
            f"leconvert verify {shlex.quote(str(tree))} --source {shlex.quote(str(source))} "
            "--bytes. Please report this; --restart converts anew.",
        )
    return outcome
