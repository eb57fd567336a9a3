"""The commands of the probe that start jobs: ``submit``, ``train`` and ``train-lerobot``."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import add_flags, filled, site
from leconvert.cli.output import show, table
from leconvert.cli.parser import Parser, Settings, hide
from leconvert.cli.probe import (
    DEFAULT_OUT_DIR,
    USUAL_OPTIONS,
    add_run_options,
    add_train_options,
    run_options,
    start_with_ffmpeg,
)
from leconvert.cli.progress import progress_for
from leconvert.run.engines.options import Site
from leconvert.support.errors import ProbeError, UsageError
from leconvert.support.flags import as_arguments, flags_of

if TYPE_CHECKING:
    from leconvert.bench import Job, StepFacts, TrainReport

# Options of the jobs.


def add_slurm_options(parser: argparse.ArgumentParser, *, named: bool) -> None:
    """Add the resources of a job, and its account."""
    from leconvert.bench import Resources

    group = parser.add_argument_group("SLURM", argument_default=argparse.SUPPRESS)
    of_one = "; with NAME= for one job; may be given several times" if named else ""
    asked = [
        group.add_argument(
            each.name, action="append", default=[], help=f"{each.help}{of_one}",
            metavar=f"[NAME=]{each.metavar}" if named else each.metavar,
        )
        for each in flags_of(Resources)
    ]  # fmt: skip
    asked += add_flags(group, Site)
    group.add_argument(
        "--slurm",
        action=Settings,
        actions=asked,
        help="a resource of a SLURM job",
    )
    # Without --submit, a training starts on GPUs of this machine.
    hide(*(each for each in asked if named or each.dest != "gpus"))
    group.add_argument(
        "--dry-run", action="store_true", default=False,
        help="print a shell script that would submit the same; submit nothing",
    )  # fmt: skip


def given_resources(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Return the values that were given for the resources of jobs, by resource."""
    from leconvert.bench import Resources

    return {each.field: getattr(options, each.field) for each in flags_of(Resources)}


def refuse_slurm_options(options: argparse.Namespace) -> None:
    """Refuse resources if nothing is submitted."""
    for name, values in given_resources(options).items():
        if values:
            raise UsageError(f"--{name} works only with --submit.")


# ``leconvert probe submit``.


_OF_THE_MATRIX = ("source", "mode", "decode_device")


def add_submit_arguments(parser: Parser) -> None:
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


def run_submit(options: argparse.Namespace) -> int:
    """Submit the chain of jobs, or print the script that would."""
    from leconvert.bench import chain_script, submit_chain

    out_dir = str(options.out_dir or DEFAULT_OUT_DIR)
    jobs = _jobs(options, out_dir)
    where, log_dir = site(options), f"{out_dir}/logs"
    if options.dry_run:
        print(chain_script(jobs, where, log_dir=log_dir), end="")
        return 0
    submitted = submit_chain(jobs, where, log_dir=log_dir)
    lines = table(("job", "name", "log"), ((job.job_id, job.name, job.log) for job in submitted))
    return show(options, {"jobs": [asdict(job) for job in submitted]}, lines)


def _jobs(options: argparse.Namespace, out_dir: str) -> tuple[Job, ...]:
    from leconvert.bench import parse_places, plan_matrix, plan_scenarios, summary_job

    places = parse_places(
        options.root_of,
        repo_id=options.repo_id,
        root=options.root,
        data_files_root=options.data_files_root,
    )
    as_matrix = any((options.sources, options.modes, options.devices))
    named = options.scenarios or options.scenario
    if as_matrix and named:
        raise UsageError(
            "Scenarios and a matrix (--sources, --modes, --devices) exclude each "
            "other. Give one of them."
        )
    # Each job has these of its own.
    own = dict.fromkeys(("scenario", *(_OF_THE_MATRIX if as_matrix else ())))
    root = options.root or next(iter(places.values()), None)
    wanted = run_options(argparse.Namespace(**{**vars(options), **own, "root": root}))
    passed_on = [f"--out-dir={out_dir}", *(["--plots"] if options.plots else [])]
    resources = given_resources(options)
    if as_matrix:
        jobs = plan_matrix(
            options.sources or options.source or "local",
            options.modes or options.mode or "single",
            options.devices or options.decode_device or "cpu",
            wanted,
            places=places,
            passed_on=passed_on,
            resources=resources,
        )
    else:
        jobs = plan_scenarios(
            named, wanted, places=places, passed_on=passed_on, resources=resources
        )
    return jobs if options.no_summary else (*jobs, summary_job(out_dir))


# ``leconvert probe train``.


def add_train_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS | {
        "--dry-run", "--dummy", "--gpus", "--resume-from", "--save-every", "--slurm", "--steps",
        "--submit",
    }  # fmt: skip
    add_train_options(parser)
    parser.add_argument("--submit", action="store_true", help="run this training as a SLURM job")
    add_slurm_options(parser, named=False)


def run_train(options: argparse.Namespace) -> int:
    """Train here, or submit a job that does."""
    # A job gets the environment of its submission: the libraries of this machine must not be in it.
    if options.submit or options.dry_run:
        return _submit(options)
    if options.gpus:
        return _start_one_a_gpu(options)
    refuse_slurm_options(options)
    start_with_ffmpeg()
    from leconvert.bench import TrainOptions, open_stream_loader, train

    wanted = run_options(options)
    with stop_on_signals() as stop:
        loader, windows = open_stream_loader(wanted)
        asked = filled(TrainOptions, options, windows=windows)
        progress = progress_for(quiet=options.json or loader.stream.rank != 0)
        with progress.stage("train", asked.steps, "steps") as stage:
            done = 0

            def show(facts: StepFacts) -> None:
                nonlocal done
                stage.advance(facts.step - done)
                done = facts.step

            report = train(loader, asked, watch=show, stop=stop.is_set)
    if loader.stream.rank == 0:
        print(json.dumps(asdict(report), indent=2) if options.json else _told(report))
    return 0


def _start_one_a_gpu(options: argparse.Namespace) -> int:
    """Become torchrun, which starts this command once for each GPU, without ``--gpus``."""
    from leconvert.bench import Resources, TrainOptions, asked_resources, usable_gpus
    from leconvert.loading import find_rank

    gpus = asked_resources(given_resources(options), Resources()).gpus
    options.gpus = []
    refuse_slurm_options(options)
    if options.device != "cuda":
        raise UsageError("--gpus needs --device cuda.", next_step="Add --device cuda.")
    if find_rank(options.rank, options.world_size)[1] > 1:
        raise UsageError(
            "--gpus starts a process for each GPU, but this process is already one of several "
            "ranks (from torchrun, accelerate, SLURM or --world-size).",
            next_step="Leave --gpus out.",
        )
    if not 1 <= gpus <= usable_gpus():
        raise ProbeError(
            f"--gpus {gpus} is too many: torch can use {usable_gpus()} GPUs of this machine.",
            next_step="Give a smaller number, or install a CUDA build of torch.",
        )
    words = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
    given = as_arguments(run_options(options)) + as_arguments(filled(TrainOptions, options))
    command = ("-m", "leconvert", "probe", "train", *given, *(["--json"] if options.json else []))
    # torchrun passes signals on.
    os.execv(sys.executable, [sys.executable, *words, *command])  # noqa: S606


def _submit(options: argparse.Namespace) -> int:
    from leconvert.bench import TrainOptions, chain_script, submit_chain, training_job

    asked = filled(TrainOptions, options)
    job = training_job(run_options(options), asked, resources=given_resources(options))
    where, log_dir = site(options), f"{asked.out_dir}/logs"
    if options.dry_run:
        print(chain_script([job], where, log_dir=log_dir), end="")
        return 0
    (sent,) = submit_chain([job], where, log_dir=log_dir)
    print(json.dumps(asdict(sent), indent=2) if options.json else f"{sent.job_id} {sent.log}")
    return 0


def _told(report: TrainReport) -> str:
    ranks = "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"
    by = f"on {report.device}" if report.device else "only loaded"
    begun = f"resumed from step {report.first_step}" if report.first_step else "from step 0"
    lines = [
        f"steps        {report.steps}, {begun}; {ranks}, {by}",
        f"throughput   {report.samples_per_s:,.1f} samples/s in each rank",
        f"waiting      {report.wait_pct:.0f} % of the time for data; first batch after "
        f"{report.first_batch_s:.2f} s",
    ]
    if report.loss is not None:
        lines.append(f"loss         {report.loss:.6f}")
    if report.checkpoint is not None:
        lines.append(f"checkpoint   {report.checkpoint}")
    return "\n".join(lines)


# ``leconvert probe train-lerobot``.


def add_train_lerobot_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="DATASET=SHARE",
        help="also train on this dataset (a folder or URL), with this share of all samples, such "
        "as 0.3; put it before --; may be given several times",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="the arguments for lerobot-train, after --",
    )


def run_train_lerobot(options: argparse.Namespace) -> int:
    """Train."""
    start_with_ffmpeg()
    from leconvert.bench import train_with_lerobot

    train_with_lerobot(options.arguments, also=[_share(text) for text in options.also])
    return 0


def _share(text: str) -> tuple[str, float]:
    dataset, _, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not dataset or not 0 < value < 1:
        raise UsageError(
            f"--also takes DATASET=SHARE with a share between 0 and 1, such as my_dataset=0.3, not "
            f"{text!r}."
        )
    return dataset, value
