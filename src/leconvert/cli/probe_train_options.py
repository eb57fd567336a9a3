"""The options of ``leconvert probe train``, which ``--submit`` hands on to its job."""

from __future__ import annotations

import argparse
from typing import Any

from leconvert.cli.probe_dataset_options import add_dataset_options
from leconvert.cli.probe_loader_options import add_loader_options

__all__ = ["DEFAULT_OUT_DIR", "add_train_options", "training_given"]

DEFAULT_OUT_DIR = "probe-train"
_OF_TRAINING = ("steps", "learning_rate", "log_every", "save_every", "resume_from", "dummy")


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add every option but those of the job that ``--submit`` sends."""
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
        "--out-dir", metavar="DIR", help=f"checkpoints and log (default: {DEFAULT_OUT_DIR})"
    )
    group.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")


def training_given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the training that the user gave."""
    given = {name: getattr(options, name) for name in _OF_TRAINING}
    return {name: value for name, value in given.items() if value is not None}
