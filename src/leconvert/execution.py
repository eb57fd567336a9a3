"""Carries a planned run out: workers, as threads or processes, and the packer."""

from __future__ import annotations

import threading
import time
from typing import Literal

from leconvert.crew import Crew, EngineWatcher, LeaseOptions, work_in_threads
from leconvert.engines import Engine
from leconvert.engines.local import LocalEngine
from leconvert.hub.scratch import ScratchOptions
from leconvert.packer import PackOptions, PackReport, pack_run
from leconvert.progress import Progress
from leconvert.workdir.opened import OpenedRun
from leconvert.workforce import auto_workers, handling_seconds, moving_seconds

__all__ = ["work_and_pack"]

# From which work on processes are worth their start; only a guess at which way of working is faster
# hangs on it.
_SECONDS_WORTH_PROCESSES = 1.0
_MOST_THREADS = 4  # more share Python's lock, or wait for the disk


def work_and_pack(
    run: OpenedRun,
    pack_options: PackOptions,
    *,
    orchestrate: bool | None,
    num_workers: int | Literal["auto"] | None,
    max_workers: int | None,
    engine: Engine | None,
    leases: LeaseOptions,
    scratch: ScratchOptions,
    allow_mixed_versions: bool,
    stop: threading.Event,
    progress: Progress,
) -> tuple[PackReport, dict[str, float]]:
    """Do what is left of a run.

    Args:
        run: The run.
        pack_options: What is proven, and what may be replaced.
        orchestrate: Whether to work in processes; None to decide by what there is to do.
        num_workers: Processes; ``auto`` and None for as many as the engine wants, or else as this
            machine feeds well.
        max_workers: Threads; None for as many as this machine feeds well, at most 4.
        engine: What starts processes; None for those of this machine.
        leases: Lease time and attempts.
        scratch: Where workers keep what they fetch of a source on the Hub.
        allow_mixed_versions: What processes are told about differing library versions.
        stop: Ends it when set.
        progress: Where to report.

    Returns:
        What the packer did, and the seconds that ``work`` and ``pack`` took.

    Raises:
        LeconvertError: One of its subclasses.
    """
    seconds: dict[str, float] = {}
    mark = time.monotonic()
    if engine is not None or _in_processes(run, orchestrate, num_workers, max_workers):
        engine = engine or LocalEngine()
        count = None if num_workers == "auto" else num_workers
        arguments = [
            *leases.as_arguments(),
            *(["--allow-mixed-versions"] if allow_mixed_versions else []),
            *(scratch.arguments() if run.manifest.outline else []),
        ]
        with EngineWatcher(
            Crew(run, leases, stop, scratch),
            engine,
            count or engine.workers or auto_workers(run),
            arguments,
            progress,
        ) as watcher:
            packed = pack_run(run, pack_options, watcher=watcher, stop=stop, progress=progress)
        ended = watcher.ended_at or time.monotonic()
        seconds["work"], mark = ended - mark, ended
    else:
        threads = max_workers or min(_MOST_THREADS, auto_workers(run))
        work_in_threads(run, threads, leases, stop, progress, scratch)
        seconds["work"], mark = time.monotonic() - mark, time.monotonic()
        packed = pack_run(run, pack_options, stop=stop, progress=progress)
    seconds["pack"] = time.monotonic() - mark
    return packed, seconds


def _in_processes(
    run: OpenedRun,
    orchestrate: bool | None,
    num_workers: int | Literal["auto"] | None,
    max_workers: int | None,
) -> bool:
    """Tell whether to work in processes: as asked, else by what the work will take its time for."""
    if orchestrate is not None:
        return orchestrate
    if num_workers is not None or max_workers is not None:
        return max_workers is None
    if auto_workers(run) == 1:
        return False
    worth_it = max(moving_seconds(run.manifest), _SECONDS_WORTH_PROCESSES)
    return handling_seconds(run.manifest) > worth_it
