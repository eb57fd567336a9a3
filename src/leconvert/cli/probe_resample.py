"""``leconvert probe resample``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leconvert.cli.progress import progress_for
from leconvert.cli.resample_options import add_resample_options, resample_options
from leconvert.cli.text import table

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_resample_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, write the result, and show it; or only write the trajectories."""
    import importlib.util

    from leconvert.probe.measured import require_packages

    require_packages("torch")
    from leconvert.probe.resampling.run import everything, open_source, run_resample, stem_of
    from leconvert.probe.resampling.tables import csv_rows
    from leconvert.probe.results import write_document, write_table

    wanted = resample_options(options)
    if options.write_hdf5 is not None:
        return _write_trajectories(open_source(wanted), Path(options.write_hdf5), options)
    if options.all:
        wanted = everything(wanted)
    can_draw = importlib.util.find_spec("matplotlib") is not None
    if options.all and not options.no_plots:
        from leconvert.probe.plots import require_matplotlib

        require_matplotlib()
    document = run_resample(wanted, progress=progress_for(quiet=options.json))
    out_dir = Path(options.out_dir)
    stem = stem_of(document["options"], document["set"]["source"])
    path = write_document(document, out_dir, stem)
    table_path = path.with_name(f"{path.stem}-table.csv")
    write_table(csv_rows(document), table_path)
    written = [path.name, f"{path.stem}.csv", table_path.name]
    if not options.no_plots and can_draw:
        from leconvert.probe.resampling.plots import draw_resampling

        written += [drawn.name for drawn in draw_resampling(document, out_dir, path.stem)]
        if options.all:
            from leconvert.probe.resampling.report import write_report

            report = path.with_suffix(".html")
            write_report(document, report, command=_command())
            written.append(report.name)
    elif not options.no_plots:
        print("No plots: pip install 'leconvert[plots]' brings matplotlib.", file=sys.stderr)
    print(json.dumps(document, indent=2) if options.json else _told(document))
    print(f"Written to {out_dir}: {', '.join(written)}.", file=sys.stderr)
    return 0


def _write_trajectories(source: Any, path: Path, options: argparse.Namespace) -> int:
    from leconvert.probe.resampling.hdf5 import write_hdf5

    write_hdf5(source, path)
    if options.json:
        print(json.dumps({"path": str(path), "trajectories": len(source)}))
    else:
        print(f"{len(source)} trajectories in {path}")
    return 0


def _told(document: Mapping[str, Any]) -> str:
    """Return the tables of a result, one below the other."""
    from leconvert.probe.resampling.tables import (
        loader_table,
        result_table,
        speedup_table,
        training_table,
    )

    parts = [table(result_table(document))]
    for title, rows in (
        ("times as fast as the baseline", speedup_table(document)),
        ("loaders", loader_table(document)),
        ("training", training_table(document)),
    ):
        if rows[1:]:
            parts.append(f"{title}\n{table(rows)}")
    return "\n\n".join(parts)


def _command() -> str:
    """Return the command line as it was given, with the program's plain name."""
    return shlex.join(["leconvert", *sys.argv[1:]])
