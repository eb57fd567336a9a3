"""Hands a planned run to a scheduler: workers, a packer after them, and nobody who waits."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.crew import Crew, LeaseOptions
from leconvert.engines import Handover, Submitter
from leconvert.errors import OneHostOnlyError
from leconvert.hub.scratch import ScratchOptions
from leconvert.packer import PackOptions
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.opened import OpenedRun, open_run

__all__ = ["Submission", "submit_run"]


@dataclass(frozen=True, slots=True)
class Submission:
    """What was submitted, or would be.

    Attributes:
        run_id: The run.
        finished: Whether the result is in place already; then nothing is submitted.
        workers: Workers that were asked for.
        worker_job: The scheduler's id for them; None if there are none, or for a dry run.
        packer_job: The packer's id; likewise.
        logs: The folder of the logs.
        script: A shell script that submits the same.
    """

    run_id: str
    finished: bool
    workers: int
    worker_job: str | None
    packer_job: str | None
    logs: str
    script: str

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def submit_run(
    work_dir: str | os.PathLike[str],
    engine: Submitter | None = None,
    *,
    leases: LeaseOptions | None = None,
    pack: PackOptions | None = None,
    scratch: ScratchOptions | None = None,
    allow_mixed_versions: bool = False,
    dry_run: bool = False,
) -> Submission:
    """Submit workers for what is left of a run, and a packer that begins when they have ended.

    The same call again joins the same run: it submits workers for what is left by then.

    Args:
        work_dir: The folder that all hosts share; every node must see it, the source and the
            target under the same paths.
        engine: Who starts them, and how; None for SLURM with its defaults.
        leases: Lease time and attempts, the same for all workers of a run.
        pack: What the packer proves, and whether it may replace a v3.0 dataset.
        scratch: Where workers keep files that they fetch, where the source is on the Hub.
        allow_mixed_versions: Let nodes work whose library versions differ from the planner's.
        dry_run: Submit nothing.

    Returns:
        What was asked for, or would be; nothing where all batches are done and packed.

    Raises:
        EngineError: There is no scheduler here, or it refused a job.
        OneHostOnlyError: One host alone may work on the run.
        WorkDirError: There is no run, or its records cannot be used.
    """
    if engine is None:
        from leconvert.engines.slurm import SlurmEngine

        engine = SlurmEngine()
    pack = pack or PackOptions()
    leases = leases or LeaseOptions(trouble_seconds=120.0)
    root = Path(work_dir).resolve()
    run = open_run(root, allow_mixed_versions=True, only_look=True)
    if run.one_host is not None:
        raise OneHostOnlyError(
            f"Only {run.one_host.host.name} may work on {root}, so it cannot be submitted.",
            path=str(root),
            next_step="Plan again in a work dir on a file system with hard links.",
        )
    run_id, logs = run.manifest.run_id, str(run.paths.logs_dir)
    if _is_finished(run):
        return Submission(run_id, True, 0, None, None, logs, "")
    workers = min(engine.workers, _batches_left(run, leases))
    mixed = ["--allow-mixed-versions"] if allow_mixed_versions else []
    fetched = (scratch or ScratchOptions()).arguments() if run.manifest.outline else []
    handover = Handover(
        workers,
        work_arguments=[str(root), *leases.as_arguments(), *fetched, *mixed],
        pack_arguments=[
            str(root),
            f"--verify={pack.depth}",
            *(["--force-conversion"] if pack.force_conversion else []),
            *mixed,
        ],
    )
    script = engine.script(handover, run.paths)
    if dry_run:
        return Submission(run_id, False, workers, None, None, logs, script)
    worker_job, packer_job = engine.submit(handover, run.paths)
    return Submission(run_id, False, workers, worker_job, packer_job, logs, script)


def _is_finished(run: OpenedRun) -> bool:
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.step in {PackStep.SWAPPED, PackStep.FINISHED}


def _batches_left(run: OpenedRun, leases: LeaseOptions) -> int:
    board = Crew(run, leases, threading.Event()).look()
    return run.manifest.num_batches - len(board.done_ids())
