"""``leconvert probe submit``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from leconvert.cli.options import add_slurm_options, given_resources, passed_on, site
from leconvert.cli.output import show, table
from leconvert.cli.parser import Parser
from leconvert.cli.probe import (
    DEFAULT_OUT_DIR,
    USUAL_OPTIONS,
    add_run_options,
    run_options,
)
from leconvert.support.errors import UsageError

if TYPE_CHECKING:
    from leconvert.bench import Job

_RUN = ("probe", "run")
_OF_THE_MATRIX = {"source", "mode", "decode_device"}


def add_arguments(parser: Parser) -> None:
    """Declare the options: its own, and those of ``probe run``, which every job gets."""
    parser.usual_options = USUAL_OPTIONS | {
        "--devices", "--dry-run", "--modes", "--root-of", "--scenarios", "--slurm", "--sources",
    }  # fmt: skip
    group = parser.add_argument_group("jobs")
    group.add_argument(
        "--scenarios",
        metavar="A,B,…",
        help="the scenarios to measure, in this order (default: all)",
    )
    group.add_argument(
        "--sources", metavar="A,B,…",
        help="measure all combinations of --sources, --modes and --devices (a matrix) instead of "
        "scenarios; sources: local, hub, bucket, "
        "warmed_bucket",
    )  # fmt: skip
    group.add_argument(
        "--modes", metavar="A,B,…", help="modes of the matrix (default: the value of --mode)"
    )
    group.add_argument(
        "--devices", metavar="A,B,…",
        help="decoding devices of the matrix, cpu and cuda (default: the value of --decode-device)",
    )  # fmt: skip
    group.add_argument(
        "--root-of", action="append", default=[], metavar="SOURCE=URL",
        help="the URL or folder of the dataset for a source: local, hub, bucket or warmed_bucket "
        "(default: for local, --root; for hub, hf://datasets/REPO_ID)",
    )  # fmt: skip
    group.add_argument(
        "--no-summary", action="store_true", help="do not run `probe summarize` after the last job"
    )
    add_slurm_options(parser, named=True)
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Submit the chain of jobs, or print the script that would."""
    from leconvert.bench import chain_script, submit_chain

    out_dir = str(options.out_dir or DEFAULT_OUT_DIR)
    jobs = _jobs(options, out_dir)
    where, log_dir = site(options), f"{out_dir}/logs"
    if options.dry_run:
        print(chain_script(jobs, where, log_dir=log_dir), end="")
        return 0
    submitted = submit_chain(jobs, where, log_dir=log_dir)
    rows = [("job", "name", "log"), *((job.job_id, job.name, job.log) for job in submitted)]
    return show(options, {"jobs": [asdict(job) for job in submitted]}, [table(rows)])


def _jobs(options: argparse.Namespace, out_dir: str) -> tuple[Job, ...]:
    from leconvert.bench import parse_places, plan_matrix, plan_scenarios, summary_job

    of_run = argparse.ArgumentParser(add_help=False)
    add_run_options(of_run)
    places = parse_places(
        options.root_of,
        repo_id=options.repo_id,
        root=str(options.root) if options.root else None,
        data_files_root=options.data_files_root,
    )
    as_matrix = any((options.sources, options.modes, options.devices))
    named = options.scenarios or options.scenario
    if as_matrix and named:
        raise UsageError(
            "Scenarios and a matrix (--sources, --modes, --devices) exclude each "
            "other. Give one of them."
        )
    own = {"root", "scenario", "json", "out_dir"} | (_OF_THE_MATRIX if as_matrix else set())
    shared = (*passed_on(options, of_run, without=sorted(own)), f"--out-dir={out_dir}")
    if as_matrix:
        jobs = plan_matrix(
            options.sources or options.source or "local",
            options.modes or options.mode or "single",
            options.devices or options.decode_device or "cpu",
            places=places,
            passed_on=shared,
            resources=given_resources(options),
        )
    else:
        jobs = plan_scenarios(
            named, places=places, passed_on=shared, resources=given_resources(options)
        )
    for job in jobs:
        # Refuse what `probe run` would refuse, before a job waits in a queue for it.
        run_options(of_run.parse_args(job.arguments[len(_RUN) :]))
    return jobs if options.no_summary else (*jobs, summary_job(out_dir))
