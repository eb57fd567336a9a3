"""The packer's steps in order, and what each leaves for a successor."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import (
    InterruptedRunError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.leasing import Board, LeaseStore
from leconvert.model import Shard
from leconvert.packer.assembly import Assembly
from leconvert.packer.collection import check_all_done, collect
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import (
    check_source_unchanged,
    check_tables_unchanged,
)
from leconvert.source.info import INFO_PATH
from leconvert.verify import verify_pair
from leconvert.workdir.durable import (
    remove_tree,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import packer_lock
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.swap import (
    SwapOutcome,
    SwapPlan,
    adopt_staging,
    recover_swap,
    swap_into_place,
)
from leconvert.workdir.target import check_target, old_dir

__all__ = ["PackOptions", "PackReport", "is_packed", "pack_run", "swap_has_begun"]

_WAIT_SECONDS = 1.0
_DIFFERENCES_SHOWN = 20
_DEPTHS = ("structure", "bytes", "none")


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a run is packed.

    Attributes:
        verify: ``structure``, ``bytes`` or ``none``: what is proven before the swap.
        force_conversion: Replace a v3.0 dataset at the target; it is kept as ``<target>_old``.
    """

    verify: str = "structure"
    force_conversion: bool = False

    def check_target(self, source: Path, target: Path) -> None:
        """Refuse a target that something stands in, before any work is done.

        Raises:
            UsageError: ``verify`` is no known depth.
            TargetError: Something is in the way; the message says what helps.
        """
        if self.verify not in _DEPTHS:
            raise UsageError(f"--verify takes {', '.join(_DEPTHS)}, not {self.verify!r}.")
        check_target(target, self.old_place(source, target))

    def old_place(self, source: Path, target: Path) -> Path | None:
        """Return where the tree at the target goes, None where the target must be free.

        Raises:
            TargetError: Something is at the target that may not be replaced.
        """
        if source == target:
            return old_dir(target)
        if not os.path.lexists(target):
            return None
        version = _codebase_version(target)
        if version is None or not version.startswith("v3"):
            raise TargetError(
                f"{target} exists and is no v3.0 dataset.",
                path=str(target),
                next_step="Choose another --output, or move it away.",
            )
        if not self.force_conversion:
            raise TargetError(
                f"{target} already holds a {version} dataset.",
                path=str(target),
                next_step="Nothing needs to be done if it is this one; --force-conversion replaces "
                f"it and keeps it as {old_dir(target)}.",
            )
        return old_dir(target)


@dataclass(frozen=True, slots=True)
class PackReport:
    """What the packer did.

    Attributes:
        target: The v3.0 dataset.
        kept: Where the replaced dataset is, or None.
        linked: Files that were linked into the tree.
        copied: Shards that had to be copied, because the work dir is on another file system.
        joined: Files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that they copied.
        verified: The depth of the check.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["target"] = str(self.target)
        record["kept"] = None if self.kept is None else str(self.kept)
        return record


def pack_run(
    run: OpenedRun,
    options: PackOptions | None = None,
    *,
    wait: bool = True,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> PackReport:
    """Assemble a run's result and swap it into place.

    Args:
        run: The run.
        options: What to prove, and whether a v3.0 target may be replaced.
        wait: Wait for workers until every batch is done; otherwise say what is missing.
        stop: Set it from another thread to stop between two steps.
        progress: Where to report.

    Raises:
        BusyError: Another process packs this run.
        IncompleteError: Batches are missing and ``wait`` is false, or their shards were lost.
        BatchesFailedError: Batches were set aside.
        SourceChangedError: The source changed since it was planned.
        VerificationError: The new tree does not match the source; it stays for inspection.
        TargetError: Something stands at the target.
    """
    options = options or PackOptions()
    stop = stop or threading.Event()
    manifest = run.manifest
    source, target = Path(manifest.source), Path(manifest.target)
    with packer_lock(run.paths, manifest.run_id):
        journal = Journal(run.paths, manifest.run_id)
        before = journal.begin()
        if before.step is PackStep.FINISHED or recover_swap(journal) is SwapOutcome.COMPLETED:
            return _finish(run, journal)
        options.check_target(source, target)
        _wait_until_done(run, wait=wait, stop=stop)
        check_tables_unchanged(run)
        collected = collect(run)
        tree = adopt_staging(target, journal)
        if tree is None:
            raise AssertionError("a staging tree is made where there is none")
        assembly = _assemble(run, tree, collected.shards, stop, progress)
        if options.verify != "none":
            _verify(tree, source, options.verify, collected.clip_digests, progress)
        _check_stop(stop)
        old = options.old_place(source, target)
        notes = {
            "linked": assembly.linked,
            "copied": assembly.copied,
            "joined": assembly.joined,
            "cloned_bytes": collected.cloned_bytes,
            "copied_bytes": collected.copied_bytes,
            "verified": options.verify,
        }
        journal.write(PackStep.PACKING, notes=notes)
        swap_into_place(
            SwapPlan(target, tree, old),
            journal,
            before_exchange=lambda: check_source_unchanged(run),
        )
        return _finish(run, journal)


def _assemble(
    run: OpenedRun,
    tree: Path,
    shards: Mapping[tuple[str, int], list[tuple[Shard, Path]]],
    stop: threading.Event,
    progress: Progress,
) -> Assembly:
    assembly = Assembly(run, tree)
    source, extra_files = Path(run.manifest.source), run.manifest.extra_files
    files = [layout.file(n) for layout in run.manifest.streams for n in range(layout.num_files)]
    with progress.stage("pack", len(files) + len(extra_files) + 1, "files") as stage:
        for file in files:
            _check_stop(stop)
            assembly.add_file(file, shards[file.stream, file.number])
            stage.advance(1)
        assembly.add_meta()
        stage.advance(1)
        for relative in extra_files:
            _check_stop(stop)
            assembly.add_copy(source / relative, relative)
            stage.advance(1)
    return assembly


def _finish(run: OpenedRun, journal: Journal) -> PackReport:
    """Remove what only the swap needed, and say what was done; harmless to repeat."""
    state = journal.read()
    if run.paths.attempts_dir.exists():
        remove_tree(run.paths.attempts_dir, inside=run.paths.root)
    journal.write(PackStep.FINISHED)
    old = (state.swap or {}).get("old")
    return PackReport(
        target=Path(run.manifest.target),
        kept=None if old is None else Path(old),
        linked=state.notes.get("linked", 0),
        copied=state.notes.get("copied", 0),
        joined=state.notes.get("joined", 0),
        cloned_bytes=state.notes.get("cloned_bytes", 0),
        copied_bytes=state.notes.get("copied_bytes", 0),
        verified=state.notes.get("verified", "none"),
    )


def is_packed(run: OpenedRun) -> bool:
    """Tell whether the run's result is in place."""
    return Journal(run.paths, run.manifest.run_id).read().step in {
        PackStep.SWAPPED,
        PackStep.FINISHED,
    }


def swap_has_begun(run: OpenedRun) -> bool:
    """Tell whether the run's swap began, so that the source may no longer be at its place."""
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.swap is not None or state.step is not PackStep.PACKING


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "Packing was interrupted.", next_step="Run the same command again to go on."
        )


def _wait_until_done(run: OpenedRun, *, wait: bool, stop: threading.Event) -> None:
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    while wait and not board.all_settled():
        # Other hosts publish files; nothing notifies of them over a network file system.
        if stop.wait(_WAIT_SECONDS):
            _check_stop(stop)
        board.refresh()
    check_all_done(run, board)


def _verify(
    tree: Path,
    source: Path,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]],
    progress: Progress,
) -> None:
    report = verify_pair(tree, source, depth=depth, progress=progress, clip_digests=clip_digests)
    if not report.ok:
        shown = [str(difference) for difference in report.differences[:_DIFFERENCES_SHOWN]]
        if len(report.differences) > len(shown):
            shown.append(f"... and {len(report.differences) - len(shown)} more")
        raise VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step=f"The new tree stays in {tree} for inspection; please report this.",
        )


def _codebase_version(root: Path) -> str | None:
    try:
        version = json.loads((root / INFO_PATH).read_bytes()).get("codebase_version")
    except (OSError, ValueError, AttributeError):
        return None
    return version if isinstance(version, str) else None
