"""``leconvert submit``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import (
    add_added_options,
    add_group,
    add_proof_options,
    add_slurm_worker_options,
    add_version_option,
    check_whose_options,
    filled,
    lease_options,
    slurm_options,
)
from leconvert.cli.output import show
from leconvert.cli.parser import add_output
from leconvert.run.conversion import LeaseOptions, ProofOptions
from leconvert.run.engines import EngineNames, make_submitter, parse_engine_options
from leconvert.support.errors import UsageError
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.records import WorkDir

if TYPE_CHECKING:
    from leconvert.api import Submission
    from leconvert.run.engines import Submitter


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    add_version_option(parser)
    add_output(parser, dry_run="print a shell script that would submit the same; submit nothing")


def run(options: argparse.Namespace) -> int:
    """Submit workers and a packer, for a fleet only workers, and print the jobs."""
    is_fleet = WorkDir(options.work_dir.resolve()).is_fleet()
    engine = _engine(options, is_fleet=is_fleet)
    submitted = _submit(options, engine, is_fleet=is_fleet)
    return show(options, submitted.as_record(), _lines(options, submitted, is_fleet=is_fleet))


def _lines(options: argparse.Namespace, submitted: Submission, *, is_fleet: bool) -> Iterator[str]:
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
