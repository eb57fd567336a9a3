"""``leconvert submit``."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.options import (
    add_added_options,
    add_json,
    add_lease_options,
    add_proof_options,
    add_scratch_options,
    add_slurm_worker_options,
    add_version_option,
    check_whose_options,
    lease_options,
    proof_options,
    scratch_options,
    slurm_options,
)
from leconvert.engines import EngineNames, make_submitter, parse_engine_options
from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines import Submitter

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the run's shared folder")
    parser.add_argument(
        "--engine", choices=EngineNames(("ray", "slurm")), default="slurm", metavar="NAME",
        help="who starts workers: slurm, or what a package adds (default: slurm); ray has no "
        "queue: use `convert --engine ray`, which stays; here: %(choices)s",
    )  # fmt: skip
    add_added_options(parser)
    add_slurm_worker_options(parser)
    add_lease_options(parser, trouble=True)
    add_scratch_options(parser)
    add_proof_options(parser, may_delete=False)
    add_version_option(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print a shell script that submits the same, and submit nothing",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Submit workers and a packer, and say which jobs they are."""
    from leconvert.api import submit_run

    submitted = submit_run(
        options.work_dir,
        _engine(options),
        leases=lease_options(options),
        proof=proof_options(options),
        scratch=scratch_options(options),
        allow_mixed_versions=options.allow_mixed_versions,
        dry_run=options.dry_run,
    )
    if options.json:
        print(json.dumps(submitted.as_record(), indent=2))
    elif submitted.finished:
        print("The result is in place; nothing needs to be done.")
    elif options.dry_run:
        print(submitted.script, end="")
    else:
        if submitted.worker_job is not None:
            print(f"workers  {submitted.workers} as job {submitted.worker_job}")
        print(f"packer   job {submitted.packer_job}, when they have ended")
        print(f"logs     {submitted.logs}")
        print(f"Watch it with: leconvert status {shlex.quote(str(options.work_dir))} --watch")
    return 0


def _engine(options: argparse.Namespace) -> Submitter:
    check_whose_options(options)
    if options.engine == "slurm":
        from leconvert.engines import SlurmEngine

        return SlurmEngine(slurm_options(options))
    if options.engine == "ray":
        raise UsageError(
            "Ray ends the workers of whoever leaves, so there is nothing to submit to.",
            next_step="Use `leconvert convert --engine ray`, which stays; with the run's own "
            "--root, --output and --work-dir it goes on with the run.",
        )
    return make_submitter(options.engine, parse_engine_options(options.engine_option))
