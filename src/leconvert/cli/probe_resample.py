"""``leconvert probe resample``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from leconvert.cli.output import table
from leconvert.cli.progress import progress_for
from leconvert.support.extras import command_for_extra

if TYPE_CHECKING:
    from leconvert.bench import Method, ResampleOptions

__all__ = []


# ------------------------------------------------------------------------------------------------
# Options of the trajectories that ``leconvert probe resample`` resamples.


def add_trajectory_options(parser: argparse.ArgumentParser) -> None:
    """Add where trajectories come from, and how many."""
    group = parser.add_argument_group("trajectories (default: the synthetic set)")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--synthetic", action="store_true", help="30 to 333 Hz, 1 to 4 s, 7 + 14 columns"
    )
    source.add_argument(
        "--dataset", "--root", metavar="DIR|URL", help="the numeric columns of a v3.0 dataset"
    )
    source.add_argument("--hdf5", metavar="FILE", help="a file of robomimic")
    group.add_argument(
        "--source-hz", type=float, metavar="X",
        help="samples a second in an --hdf5 file that does not say it",
    )  # fmt: skip
    group.add_argument(
        "--revision", metavar="REV", help="branch, tag or commit of a --dataset on the Hub"
    )
    group.add_argument("--columns", nargs="+", metavar="FEATURE", help="take only these")
    group.add_argument(
        "--max-trajectories", type=int, metavar="N",
        help="use the first N, or make N synthetic ones (default: 512, or twice the "
        "largest batch)",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# The options of ``leconvert probe resample``.


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
        "--num-epochs",
        type=int,
        metavar="N",
        help="passes over the set in each repeat (default: 1)",
    )
    group.add_argument(
        "--repeats", type=int, metavar="N", help="number of measurements (default: 7)"
    )
    group.add_argument(
        "--warmup-batches",
        type=int,
        metavar="N",
        help="untimed batches before the timing (default: 3)",
    )
    group.add_argument("--no-preload", action="store_true", help="read trajectories while timing")
    group.add_argument(
        "--threads", type=int, metavar="N", help="threads of torch (default: its own choice)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="random seed (default: 0)")
    group.add_argument("--loaders", action="store_true", help="compare loaders with workers, too")
    group.add_argument(
        "--end-to-end", action="store_true", help="train a small diffusion policy on both paths"
    )
    group.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="workers of --loaders and of --end-to-end (default: 2)",
    )
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
    """Return the options of the measurement; what was left out keeps the library's default."""
    from dataclasses import fields

    from leconvert.bench import ResampleOptions

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


# ------------------------------------------------------------------------------------------------
# ``leconvert probe resample``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_resample_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, write the result, and show it."""
    import importlib.util

    from leconvert.bench import (
        csv_rows,
        draw_resampling,
        everything,
        require_matplotlib,
        run_resample,
        stem_of,
        write_document,
        write_table,
    )

    wanted = resample_options(options)
    if options.all:
        wanted = everything(wanted)
    can_draw = importlib.util.find_spec("matplotlib") is not None
    if options.all and not options.no_plots:
        require_matplotlib()
    document = run_resample(wanted, progress=progress_for(quiet=options.json))
    out_dir = Path(options.out_dir)
    stem = stem_of(document["options"], document["set"]["source"])
    path = write_document(document, out_dir, stem)
    table_path = path.with_name(f"{path.stem}-table.csv")
    write_table(csv_rows(document), table_path)
    written = [path.name, f"{path.stem}.csv", table_path.name]
    if not options.no_plots and can_draw:
        pictures = draw_resampling(document, out_dir, path.stem)
        written += [drawn.name for drawn in pictures]
        if options.all:
            from leconvert.report import write_resampling_report

            report = path.with_suffix(".html")
            write_resampling_report(document, report, command=_command(), pictures=pictures)
            written.append(report.name)
    elif not options.no_plots:
        print(f"No plots: run `{command_for_extra('plots')}` first.", file=sys.stderr)
    print(json.dumps(document, indent=2) if options.json else _told(document))
    print(f"Written to {out_dir}: {', '.join(written)}.", file=sys.stderr)
    return 0


def _told(document: Mapping[str, Any]) -> str:
    """Return the tables of a result, one below the other."""
    from leconvert.bench import result_tables

    return "\n\n".join(f"{title}\n{table(rows)}" for title, _, rows in result_tables(document))


def _command() -> str:
    """Return the command line as it was given, with the program's plain name."""
    return shlex.join(["leconvert", *sys.argv[1:]])
