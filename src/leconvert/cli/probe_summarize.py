"""``leconvert probe summarize``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.options import add_json
from leconvert.cli.output import table
from leconvert.support.errors import UsageError
from leconvert.support.extras import command_for_extra

if TYPE_CHECKING:
    from leconvert.bench import SummaryLine

_HEAD = (
    "set-up", "host", "runs", "samples/s", "frames/s", "% limit", "first s", "p99 ms", "PSS GB",
    "random", "flags",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder of results; folders below it count too"
    )
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write ``summary.csv`` and the plots into the folder, and show the table."""
    import importlib.util

    from leconvert.bench import draw_plots, results_below, summarize, write_table

    documents = [document for _, document in results_below(options.folder)]
    lines = summarize(documents)
    if not lines:
        raise UsageError(
            f"{options.folder} holds no results of `leconvert probe run`.",
            path=str(options.folder),
        )
    write_table([line.as_record() for line in lines], options.folder / "summary.csv")
    written = ["summary.csv"]
    if not options.no_plots and importlib.util.find_spec("matplotlib") is not None:
        written += [path.name for path in draw_plots(lines, options.folder, "summary")]
    elif not options.no_plots:
        print(f"No plots: run `{command_for_extra('plots')}` first.", file=sys.stderr)
    if options.json:
        print(json.dumps([line.as_record() for line in lines], indent=2))
    else:
        print(table([_HEAD, *map(_row, lines)]))
    print(f"Written to {options.folder}: {', '.join(written)}.", file=sys.stderr)
    return 0


def _row(line: SummaryLine) -> list[object]:
    return [
        line.label,
        line.host,
        line.runs,
        f"{line.samples_per_s:.1f}",
        f"{line.frames_per_s_node:.0f}",
        _shown(line.pct_of_limit, ".0f"),
        _shown(line.first_batch_latency_s, ".2f"),
        _shown(line.p99_batch_wait_ms, ".0f"),
        _shown(line.peak_pss_gb, ".2f"),
        _shown(line.shuffle_randomness_frac, ".2f"),
        ", ".join(line.flags) or "-",
    ]


def _shown(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)
