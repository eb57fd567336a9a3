"""Options of the commands that hand workers to an engine, spelled and explained once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from leconvert.cli.added_engine_options import add_added_options, check_whose_options
from leconvert.cli.ray_options import add_ray_options, ray_options, refuse_ray_options
from leconvert.cli.slurm_worker_options import (
    add_slurm_worker_options,
    slurm_options,
)
from leconvert.cli.values import whole, worker_count
from leconvert.engines.registry import (
    BUILT_IN,
    EngineNames,
    make_engine,
    parse_engine_options,
)
from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines import Engine

__all__ = [
    "add_engine_options",
    "chosen_engine",
]


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add who starts the workers of a conversion, and how many."""
    parser.add_argument(
        "--engine", choices=EngineNames(BUILT_IN), metavar="NAME",
        help="who starts workers: inline (threads of this process), local (processes of this "
        "machine), slurm, ray, or what a package adds; here: %(choices)s (default: inline, or "
        "local where the work is many small files)",
    )  # fmt: skip
    parser.add_argument(
        "--orchestrate", action=argparse.BooleanOptionalAction,
        help="--orchestrate is --engine local, --no-orchestrate is --engine inline; more workers "
        "can join with `leconvert work`",
    )  # fmt: skip
    parser.add_argument(
        "--num-workers", type=worker_count, metavar="N|auto",
        help="work in N processes; auto, as with --engine local without it: as many as cores and "
        "free memory feed",
    )  # fmt: skip
    parser.add_argument("--max-workers", type=whole(1), metavar="N", help="work in N threads")
    add_added_options(parser)
    add_slurm_worker_options(parser, title="SLURM and Ray")
    add_ray_options(parser)


def chosen_engine(options: argparse.Namespace) -> Engine | None:
    """Return the engine of a conversion; None for threads or processes of this machine.

    Which of these two is in ``options.orchestrate`` afterwards.

    Raises:
        EngineError: A package's engine cannot be used.
        UsageError: Options contradict each other.
    """
    check_whose_options(options)
    refuse_ray_options(options)
    in_processes = _in_processes(options)
    if options.engine is None:
        return None
    options.orchestrate = in_processes
    if options.engine in ("inline", "local"):
        return None
    if options.engine == "slurm":
        from leconvert.engines import SlurmEngine

        return SlurmEngine(slurm_options(options))
    if options.engine == "ray":
        from leconvert.engines import RayEngine

        return RayEngine(ray_options(options))
    return make_engine(options.engine, parse_engine_options(options.engine_option))


def _in_processes(options: argparse.Namespace) -> bool | None:
    """Return whether processes work, or threads; None where nothing says so.

    Raises:
        UsageError: Options contradict each other.
    """
    asked: bool | None = options.orchestrate
    word = "--no-orchestrate" if asked is False else "--orchestrate"
    if options.engine is not None:
        by_engine = options.engine != "inline"
        if asked not in (None, by_engine):
            raise UsageError(f"--engine {options.engine} and {word} contradict each other.")
        asked, word = by_engine, f"--engine {options.engine}"
    if asked and options.max_workers is not None:
        raise UsageError(f"{word} starts processes.", next_step="Write --num-workers N.")
    if asked is False and options.num_workers is not None:
        raise UsageError(f"{word} works in threads.", next_step="Write --max-workers N.")
    if options.num_workers is not None and options.max_workers is not None:
        raise UsageError(
            "--num-workers starts processes and --max-workers threads; give one of them."
        )
    return asked
