"""``leconvert probe train``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.probe_options import add_dataset_options, add_loader_options, run_options
from leconvert.cli.progress import progress_for
from leconvert.cli.signals import stop_on_signals
from leconvert.cli.slurm_options import (
    add_slurm_options,
    passed_on,
    refuse_slurm_options,
    resource_changes,
    site,
)

if TYPE_CHECKING:
    from leconvert.probe.train import TrainReport

__all__ = ["add_arguments", "run"]

_DEFAULT_OUT_DIR = "probe-train"
_OF_TRAINING = ("steps", "learning_rate", "log_every", "save_every", "resume_from", "dummy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _declare(parser)
    parser.add_argument("--submit", action="store_true", help="send this training to SLURM")
    add_slurm_options(parser, named=False)


def run(options: argparse.Namespace) -> int:
    """Train here, or send a job that does."""
    if options.submit or options.dry_run:
        return _submit(options)
    refuse_slurm_options(options)
    # First, since it says what to install where torch is missing.
    from leconvert.probe import StreamLoader  # noqa: F401
    from leconvert.probe.train import TrainOptions, train
    from leconvert.probe.train_data import open_stream_loader

    wanted = run_options(options)
    given = {name: getattr(options, name) for name in _OF_TRAINING}
    with stop_on_signals() as stop:
        loader, windows = open_stream_loader(wanted)
        report = train(
            loader,
            TrainOptions(
                Path(options.out_dir or _DEFAULT_OUT_DIR),
                windows=windows,
                device=wanted.device,
                seed=wanted.seed,
                **{name: value for name, value in given.items() if value is not None},
            ),
            stop=stop.is_set,
            progress=progress_for(quiet=options.json or loader.stream.rank != 0),
        )
    if loader.stream.rank == 0:
        print(json.dumps(asdict(report), indent=2) if options.json else _told(report))
    return 0


def _declare(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dataset")
    add_dataset_options(group)
    group.add_argument(
        "--max-episodes", type=int, metavar="N", help="use the first N episodes only"
    )
    group.add_argument("--mode", metavar="NAME", help="single (default), sarm or sarm-action")
    group.add_argument(
        "--deltas", metavar="FILE", help="windows as JSON, feature to list of seconds"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="of the order of samples and the weights (default: 0)"
    )
    group.add_argument(
        "--rank", type=int, metavar="N", help="this process, from 0 (default: from the launcher)"
    )
    group.add_argument(
        "--world-size", type=int, metavar="N", help="processes in all (default: from the launcher)"
    )
    add_loader_options(parser.add_argument_group("loader"))
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=int, metavar="N", help="steps in all (default: 200)")
    group.add_argument(
        "--learning-rate", type=float, metavar="X", help="of the optimizer (default: 0.001)"
    )
    group.add_argument("--log-every", type=int, metavar="N", help="log every N steps (default: 10)")
    group.add_argument(
        "--save-every", type=int, metavar="N", help="write a checkpoint every N steps (default: 50)"
    )
    group.add_argument(
        "--resume-from", metavar="DIR|last",
        help="a checkpoint, or the newest one of --out-dir if it has any",
    )  # fmt: skip
    group.add_argument("--dummy", action="store_true", help="only load, and log how fast")
    group.add_argument(
        "--out-dir", metavar="DIR", help=f"checkpoints and log (default: {_DEFAULT_OUT_DIR})"
    )
    group.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")


def _submit(options: argparse.Namespace) -> int:
    from leconvert.probe.launchers import chain_script
    from leconvert.probe.slurm import submit_chain
    from leconvert.probe.submit import training_job

    run_options(options)  # what would be refused is refused before it has waited in a queue
    declared = argparse.ArgumentParser(add_help=False)
    _declare(declared)
    out_dir = options.out_dir or _DEFAULT_OUT_DIR
    job = training_job(
        passed_on(options, declared, without=("json", "out_dir", "resume_from")),
        out_dir=out_dir,
        resume_from=None if options.dummy else options.resume_from or "last",
        changes=resource_changes(options, []),
    )
    where, log_dir = site(options), f"{out_dir}/logs"
    if options.dry_run:
        print(chain_script([job], where, log_dir=log_dir), end="")
        return 0
    (sent,) = submit_chain([job], where, log_dir=log_dir)
    print(json.dumps(asdict(sent), indent=2) if options.json else f"{sent.job_id} {sent.log}")
    return 0


def _told(report: TrainReport) -> str:
    ranks = "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"
    by = f"{report.engine} on {report.device}" if report.device else "only loaded"
    lines = [
        f"steps        {report.steps}, {report.first_step} of them before; {ranks}, {by}",
        f"throughput   {report.samples_per_s:,.1f} samples/s of a rank",
        f"waiting      {report.wait_pct:.0f} % of the time for data; first batch after "
        f"{report.first_batch_s:.2f} s",
    ]
    if report.loss is not None:
        lines.append(f"loss         {report.loss:.6f}")
    if report.checkpoint is not None:
        lines.append(f"checkpoint   {report.checkpoint}")
    return "\n".join(lines)
