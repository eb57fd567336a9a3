"""The commands of a run on many hosts: ``leconvert work``, ``submit`` and ``pack``."""

from __future__ import annotations

import argparse
import shlex
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import (
    add_added_options,
    add_flags,
    add_group,
    add_proof_options,
    add_report_option,
    add_slurm_worker_options,
    check_whose_options,
    controlled,
    filled,
    lease_options,
    report_place,
    slurm_options,
)
from leconvert.cli.output import show
from leconvert.cli.parser import add_output
from leconvert.run.conversion import LeaseOptions, PlanOptions, ProofOptions
from leconvert.run.engines import EngineNames, make_submitter, parse_engine_options
from leconvert.support.errors import UsageError
from leconvert.support.flags import seconds, whole
from leconvert.support.text import amount, count
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.records import WorkDir

if TYPE_CHECKING:
    from leconvert.api import Submission
    from leconvert.run.engines import Submitter
    from leconvert.run.packer import PackReport
    from leconvert.support.progress import Progress
    from leconvert.workdir.run import OpenedRun

# ``leconvert work``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the shared folder of a run or a fleet"
    )
    add_group(parser, LeaseOptions)
    parser.add_argument("--max-batches", type=whole(1), metavar="N", help="stop after N batches")
    parser.add_argument(
        "--max-idle-seconds",
        type=seconds,
        metavar="S",
        help="stop after S seconds without work",
    )
    add_group(parser, ScratchOptions)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_output(parser, quiet=True)


def _work_on_fleet(options: argparse.Namespace) -> int:
    from leconvert.fleet import work_on_fleet

    if options.max_batches is not None:
        raise UsageError(
            f"--max-batches does not work for a fleet; {options.work_dir} is the work dir of a "
            "fleet.",
            next_step="Use --max-idle-seconds S, or end the worker with SIGTERM.",
        )
    with controlled(options) as control:
        summary = work_on_fleet(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            stop=control.stop,
        )
    said = (
        f"This worker converted {count(summary.converted, 'dataset')}, set {summary.set_aside:,} "
        f"aside and helped with others {count(summary.joined, 'time')}, in {summary.seconds:.1f} s."
    )
    return show(options, asdict(summary), [said])


def run(options: argparse.Namespace) -> int:
    """Work until nothing is left, and print the outcome."""
    from leconvert.api import run_worker

    if WorkDir(options.work_dir.resolve()).is_fleet():
        return _work_on_fleet(options)
    with controlled(options) as control:
        summary = run_worker(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_batches=options.max_batches,
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            command=control.command,
            stop=control.stop,
            progress=control.progress,
        )
    failed = count(summary.batches_failed, "failed attempt")
    said = (
        f"This worker finished {count(summary.batches_done, 'batch', 'batches')}, "
        f"{amount(summary.written_bytes)}, in {summary.seconds:.1f} s; "
        f"{failed if summary.batches_failed else 'no failed attempts'}."
    )
    return show(options, asdict(summary), [said])


# ``leconvert submit``.


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the shared folder of a run or of a fleet"
    )
    parser.add_argument(
        "--engine", choices=EngineNames(("ray", "slurm")), default="slurm", metavar="NAME",
        help="how the workers are started: slurm, or an engine that a separate Python package "
        "adds (default: slurm); ray does not work here: use `leconvert convert --engine ray`; "
        "installed engines: %(choices)s",
    )  # fmt: skip
    add_added_options(parser)
    add_slurm_worker_options(parser)
    add_group(parser, LeaseOptions)
    add_group(parser, ScratchOptions)
    add_proof_options(parser, may_delete=False)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_output(parser, dry_run="print a shell script that would submit the same; submit nothing")


def run_submit(options: argparse.Namespace) -> int:
    """Submit workers and a packer, for a fleet only workers, and print the jobs."""
    is_fleet = WorkDir(options.work_dir.resolve()).is_fleet()
    engine = _engine(options, is_fleet=is_fleet)
    submitted = _submit(options, engine, is_fleet=is_fleet)
    return show(
        options, submitted.as_record(), _submitted_lines(options, submitted, is_fleet=is_fleet)
    )


def _submitted_lines(
    options: argparse.Namespace, submitted: Submission, *, is_fleet: bool
) -> Iterator[str]:
    if submitted.finished:
        done = "Every dataset is converted or set aside" if is_fleet else "The result is in place"
        yield f"{done}. There is nothing to submit."
    elif options.dry_run:
        yield submitted.script.removesuffix("\n")
    else:
        if submitted.worker_job is not None:
            yield f"workers  {submitted.workers} as job {submitted.worker_job}"
        if submitted.packer_job is not None:
            yield f"packer   job {submitted.packer_job}, which starts when the workers have ended"
        yield f"logs     {submitted.logs}"
        watch = f"leconvert status {shlex.quote(str(options.work_dir))} --watch"
        yield f"Watch the progress with: {watch}"


def _submit(options: argparse.Namespace, engine: Submitter, *, is_fleet: bool) -> Submission:
    proof = filled(ProofOptions, options)
    shared: dict[str, Any] = {
        "leases": lease_options(options),
        "scratch": filled(ScratchOptions, options),
        "allow_mixed_versions": options.allow_mixed_versions,
        "dry_run": options.dry_run,
    }
    if not is_fleet:
        from leconvert.api import submit_run

        return submit_run(options.work_dir, engine, proof=proof, **shared)
    from leconvert.fleet import submit

    if proof != ProofOptions(max_wait_seconds=proof.max_wait_seconds):
        raise UsageError(
            "`leconvert submit` takes no --verify, --force-conversion or --delete-source for a "
            "fleet.",
            next_step="Give these options to `leconvert fleet`, or after a dataset in its list.",
        )
    return submit(options.work_dir, engine, **shared)


def _engine(options: argparse.Namespace, *, is_fleet: bool) -> Submitter:
    check_whose_options(options)
    if options.engine == "slurm":
        from leconvert.run.engines import SlurmEngine

        return SlurmEngine(slurm_options(options))
    if options.engine == "ray":
        raise UsageError(
            "Ray cannot run workers after the command that started them has ended, so nothing can "
            "be submitted to it.",
            next_step=(
                "Give the `leconvert fleet` command again with --engine ray; it waits until "
                "all is done."
            )
            if is_fleet
            else "Use `leconvert convert --engine ray` with the --root, --output and --work-dir of "
            "this run; it continues the run and waits until all is done.",
        )
    return make_submitter(options.engine, parse_engine_options(options.engine_option))


# ``leconvert pack``.


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the work dir of the run")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="do not wait for workers: say what is missing, and end",
    )
    add_proof_options(parser, may_wait=True)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_report_option(parser)
    add_output(parser, quiet=True)


def _say_what_it_waits_for(run: OpenedRun, progress: Progress) -> None:
    """Print how many batches are not done. Without workers they would never be."""
    from leconvert.run.worker_pool import WorkerPool

    board = WorkerPool(run, LeaseOptions(), threading.Event()).look()
    if board.all_settled():
        return
    progress.say(
        f"Waiting for workers: {len(board.done_ids()):,} of {run.manifest.num_batches:,} batches "
        "are done. Start a worker on any host with: leconvert work "
        f"{shlex.quote(str(run.work_dir.root))}"
    )


def run_pack(options: argparse.Namespace) -> int:
    """Pack, and print the place of the result."""
    from leconvert.api import report_on_exit
    from leconvert.remote.provenance import note_result
    from leconvert.run.packer import pack_run
    from leconvert.workdir.activity import record_invocation
    from leconvert.workdir.run import open_run

    opened = open_run(options.work_dir.resolve(), allow_mixed_versions=options.allow_mixed_versions)
    page = report_place(options.report, Path(opened.manifest.target))
    with report_on_exit(opened, page), controlled(options) as control:
        record_invocation(opened.paths, "pack", control.command)
        if not options.no_wait:
            _say_what_it_waits_for(opened, control.progress)
        packed = pack_run(
            opened,
            filled(ProofOptions, options),
            wait=not options.no_wait,
            stop=control.stop,
            progress=control.progress,
        )
        note_result(opened, packed.kept, for_push=False, progress=control.progress)
    return show(options, packed.as_record(), _packed_lines(packed, page))


def _packed_lines(packed: PackReport, page: Path | None) -> Iterator[str]:
    yield f"made          {packed.target}"
    if packed.kept is not None:
        reason = f": {packed.kept_because}" if packed.kept_because else ""
        yield f"kept          {packed.kept}{reason}"
    if packed.removed is not None:
        yield f"removed       {packed.removed}: every byte of it is proven to be in the result"
    because = f": {packed.verified_because}" if packed.verified_because else ""
    yield (
        f"files         {packed.linked} taken from the work dir (hard links), {packed.copied} "
        f"copied, {packed.joined} joined"
    )
    yield f"checked       {packed.verified} compared with the source{because}"
    if page is not None:
        yield f"report        {page}"
