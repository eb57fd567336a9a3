"""Measure conversions with quantiles, which LeRobot needs to resume a recording, and without.

    python scripts/bench.py quantiles DATASET... --repeats 5

Converts each dataset with one thread, in turn without and with ``--quantiles``, whole and without
its cameras, so that columns alone are computed. Processor seconds of the whole program count: other
work on the machine changes them less than the wall clock.
"""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from benches import kit


def bench(source: Path, folder: Path, options: Namespace, arguments: Sequence[str]) -> None:
    """Measure one dataset, keep the rows, and print the medians."""
    info = json.loads((source / "meta/info.json").read_bytes())
    cameras = [name for name, of in info["features"].items() if of["dtype"] == "video"]
    dropped = [f"--drop-feature={name}" for name in cameras]
    variants = {
        "all, by default": [],
        "all, --quantiles": ["--quantiles"],
        "columns, by default": dropped,
        "columns, --quantiles": [*dropped, "--quantiles"],
    }
    words = ["convert", str(source), str(folder / "out"), "--max-workers", "1", "-q"]

    def run(name: str) -> kit.Row:
        command = [*kit.LECONVERT, *words, *variants[name], *options.also]
        row = kit.measured(command, folder)
        shutil.rmtree(folder / "out")
        row["command"] = row["command"].replace(str(source), "DATASET")
        return {"runner": name, **row}

    shape = kit.dataset_shape(source, source.name)
    head = kit.header("bench.py quantiles", arguments, folder, shape)
    log = kit.new_log(options.log_dir, head, "quantiles", source.name)
    rows = kit.rows_in_turns(log, head, tuple(variants), options.repeats, run)
    print(kit.table(rows), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measure each dataset."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("sources", nargs="+", type=Path, metavar="DATASET")
    parser.add_argument("--also", action="append", default=[], metavar="OPTION")
    options = parser.parse_args(arguments)
    for source in options.sources:
        with kit.scratch_folder(options.scratch, "quantiles") as folder:
            bench(source, folder, options, arguments)
    return 0
