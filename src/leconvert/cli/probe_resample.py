"""``leconvert probe resample``."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leconvert.cli.options import add_flags, filled
from leconvert.cli.output import show, table
from leconvert.cli.parser import Parser, Settings, add_output, hide
from leconvert.cli.probe import DEFAULT_OUT_DIR, can_draw
from leconvert.cli.progress import progress_for

if TYPE_CHECKING:
    from leconvert.bench import ResampleOptions
    from leconvert.loading import Method

_METHODS = ("linear", "previous", "nearest", "slerp")
_OF_THE_MEASUREMENT = (
    "num_epochs", "repeats", "warmup_batches", "preload", "threads", "seed", "loaders",
    "end_to_end", "num_workers", "train_epochs",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = frozenset({
        "--all", "--batch-sizes", "--columns", "--dataset", "--device", "--dtype", "--hdf5",
        "--help", "--help-all", "--hz", "--json", "--loaders", "--method", "--mode", "--out-dir",
        "--synthetic",
    })  # fmt: skip
    from leconvert.bench import ResampleOptions

    group = parser.add_argument_group("trajectories (default: the synthetic set)")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--synthetic",
        action="store_true",
        help="use synthetic trajectories of 30 to 333 Hz and 1 to 4 s, with 7 + 14 columns",
    )
    add_flags(source, ResampleOptions, ("dataset", "hdf5"))
    add_flags(group, ResampleOptions, ("source_hz", "revision"))
    group.add_argument("--columns", nargs="+", metavar="FEATURE", help="use only these columns")
    add_flags(group, ResampleOptions, ("max_trajectories",))
    group = parser.add_argument_group("what is measured")
    add_flags(group, ResampleOptions, ("mode", "hz"))
    methods = [
        group.add_argument(
            f"--{method}", action="append", default=[], metavar="COLUMN",
            help=f"resample FEATURE, FEATURE[COLUMN] or FEATURE[START:STOP] by {method}",
        )
        for method in _METHODS
    ]  # fmt: skip
    group.add_argument(
        "--method", action=Settings, actions=methods, metavar="METHOD=COLUMN",
        help="resample COLUMN with this method; COLUMN is FEATURE, FEATURE[COLUMN] or "
            "FEATURE[START:STOP]",
    )  # fmt: skip
    hide(*methods)
    group.add_argument(
        "--dtype",
        dest="dtypes",
        nargs="+",
        metavar="DTYPE",
        help="number type: fp32 (default) or bf16",
    )
    group.add_argument(
        "--device",
        dest="devices",
        nargs="+",
        metavar="DEVICE",
        help="the device: cpu (default), cuda or cuda:N",
    )
    group.add_argument(
        "--batch-sizes", type=int, nargs="+", metavar="N",
        help="numbers of trajectories in a batch (default: 16 32 64 128)",
    )  # fmt: skip
    add_flags(group, ResampleOptions, _OF_THE_MEASUREMENT)
    group.add_argument(
        "--all", action="store_true",
        help="measure everything: both number types, a GPU if there is one, loaders and training; "
        "write a report",
    )  # fmt: skip
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--out-dir", default=DEFAULT_OUT_DIR, metavar="DIR",
        help=f"the folder for results (default: {DEFAULT_OUT_DIR})",
    )  # fmt: skip
    group.add_argument("--no-plots", action="store_true", help="draw no plots and write no report")
    add_output(group)


def resample_options(options: argparse.Namespace) -> ResampleOptions:
    """Return the options of the measurement; others have the library's defaults."""
    from leconvert.bench import ResampleOptions

    methods = {
        column: cast("Method", method) for method in _METHODS for column in getattr(options, method)
    }
    return filled(ResampleOptions, options, methods=methods)


def run(options: argparse.Namespace) -> int:
    """Measure, write the result, and print it."""
    from leconvert.bench import (
        draw_resampling,
        everything,
        require_matplotlib,
        result_tables,
        run_resample,
        write_document,
    )

    wanted = resample_options(options)
    if options.all:
        wanted = everything(wanted)
    if options.all and not options.no_plots:
        require_matplotlib()
    document = run_resample(wanted, progress=progress_for(quiet=options.json))
    out_dir = Path(options.out_dir)
    paths = write_document(document, out_dir)
    path, written = paths[0], [each.name for each in paths]
    if not options.no_plots and can_draw():
        pictures = draw_resampling(document, out_dir, path.stem)
        written += [drawn.name for drawn in pictures]
        if options.all:
            from leconvert.report import write_resampling_report

            report = path.with_suffix(".html")
            write_resampling_report(document, report, command=_command(), pictures=pictures)
            written.append(report.name)
    tables = (f"{title}\n{table(rows)}" for title, _, rows in result_tables(document))
    show(options, document, ["\n\n".join(tables)])
    print(f"Wrote to {out_dir}: {', '.join(written)}.", file=sys.stderr)
    return 0


def _command() -> str:
    """Return the command line as it was given, with the program's plain name."""
    return shlex.join(["leconvert", *sys.argv[1:]])
