"""The options of ``leconvert probe resample``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from leconvert.cli.resample_trajectory_options import add_trajectory_options

if TYPE_CHECKING:
    from leconvert.probe.resampling.methods import Method
    from leconvert.probe.resampling.options import ResampleOptions

__all__ = ["DEFAULT_OUT_DIR", "add_resample_options", "resample_options"]

DEFAULT_OUT_DIR = "probe-results"

_METHODS = ("linear", "previous", "nearest", "slerp")
_LISTS = {
    "columns": "columns",
    "batch_sizes": "batch_sizes",
    "dtype": "dtypes",
    "device": "devices",
}


def add_resample_options(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    add_trajectory_options(parser)
    group = parser.add_argument_group("what is measured")
    group.add_argument("--mode", metavar="NAME", help="baseline, batched or compare (default)")
    group.add_argument(
        "--hz", type=float, metavar="X", help="rate to bring everything to (default: 50)"
    )
    for method in _METHODS:
        group.add_argument(
            f"--{method}", action="append", default=[], metavar="COLUMN",
            help=f"resample FEATURE, FEATURE[COLUMN] or FEATURE[START:STOP] by {method}",
        )  # fmt: skip
    group.add_argument("--baseline", help="columns, rows or auto, the faster one (default)")
    group.add_argument("--dtype", nargs="+", help="fp32 (default), bf16")
    group.add_argument("--device", nargs="+", metavar="DEVICE", help="cpu (default), cuda, cuda:N")
    group.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="trajectories (default: 16 32 64 128)",
    )
    group.add_argument(
        "--num-epochs", type=int, metavar="N", help="passes of a repeat (default: 1)"
    )
    group.add_argument(
        "--repeats", type=int, metavar="N", help="measure so many times (default: 7)"
    )
    group.add_argument(
        "--warmup-batches", type=int, metavar="N", help="before the timing (default: 3)"
    )
    group.add_argument("--no-preload", action="store_true", help="read trajectories while timing")
    group.add_argument("--threads", type=int, metavar="N", help="of torch (its own choice)")
    group.add_argument("--seed", type=int, metavar="N", help="of whatever is random (default: 0)")
    group.add_argument("--loaders", action="store_true", help="compare loaders with workers, too")
    group.add_argument(
        "--end-to-end", action="store_true", help="train a small diffusion policy on both paths"
    )
    group.add_argument("--num-workers", type=int, metavar="N", help="of these two (default: 2)")
    group.add_argument(
        "--train-epochs", type=int, metavar="N", help="passes of the training (default: 3)"
    )
    group.add_argument(
        "--all", action="store_true",
        help="everything: both types, a GPU if there is one, loaders, training, and a report",
    )  # fmt: skip
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--out-dir", default=DEFAULT_OUT_DIR, metavar="DIR",
        help=f"where results go (default: {DEFAULT_OUT_DIR})",
    )  # fmt: skip
    group.add_argument("--no-plots", action="store_true", help="draw nothing, write no report")
    group.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def resample_options(options: argparse.Namespace) -> ResampleOptions:
    """Return the options of the measurement; what was left out keeps the library's default.

    Raises:
        UsageError: They make no sense.
    """
    from dataclasses import fields

    from leconvert.probe.resampling.options import ResampleOptions

    given = {
        field.name: getattr(options, field.name)
        for field in fields(ResampleOptions)
        if getattr(options, field.name, None) is not None
    }
    for name, field_name in _LISTS.items():
        given.pop(name, None)
        if getattr(options, name) is not None:
            given[field_name] = tuple(getattr(options, name))
    given["preload"] = not options.no_preload
    given["methods"] = {
        column: cast("Method", method) for method in _METHODS for column in getattr(options, method)
    }
    return ResampleOptions(**given)
