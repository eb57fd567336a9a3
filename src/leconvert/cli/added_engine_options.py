"""What engines of other packages are told, and whose options go with which engine."""

from __future__ import annotations

import argparse

from leconvert.cli.slurm_worker_options import refuse_slurm_worker_options
from leconvert.engines.registry import BUILT_IN
from leconvert.errors import UsageError

__all__ = ["add_added_options", "check_whose_options"]


def add_added_options(parser: argparse.ArgumentParser) -> None:
    """Add what engines of other packages are told."""
    parser.add_argument(
        "--engine-option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of an engine that a package adds; may be given again",
    )  # fmt: skip


def check_whose_options(options: argparse.Namespace) -> None:
    """Fail if an engine is told what is another one's.

    Raises:
        UsageError: It is.
    """
    if options.engine != "slurm":
        refuse_slurm_worker_options(options)
    if options.engine_option and options.engine in (None, *BUILT_IN):
        raise UsageError(
            f"--engine-option {options.engine_option[0]} goes with an engine that a package adds.",
            next_step=f"--engine {options.engine} has options of its own; see --help."
            if options.engine
            else "Write --engine NAME too.",
        )
