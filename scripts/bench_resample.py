"""Measure resampling in several set-ups and keep the raw repeats.

    python scripts/bench_resample.py                    # all set-ups
    python scripts/bench_resample.py even jitter --repeats 3

Each set-up is one run of ``leconvert probe resample`` in this process. Rows go to
``bench_logs/<date>-resample.jsonl``: a header line, then a line for each row of each document, with
the seconds of every repeat, and the ratios. Set ``OMP_WAIT_POLICY=passive`` where other work shares
the cores: threads of OpenMP otherwise spin through their share of time while they wait.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_common
from leconvert.cli.progress import progress_for
from leconvert.cli.text import table
from leconvert.probe.resampling.options import ResampleOptions
from leconvert.probe.resampling.run import run_resample
from leconvert.probe.resampling.tables import (
    loader_table,
    result_table,
    speedup_table,
    training_table,
)

SETUPS: Mapping[str, Mapping[str, Any]] = {
    "even": {"threads": 1},
    "even-all-threads": {},
    "jitter": {"threads": 1, "jitter": 0.2, "batch_sizes": (128,)},
    "gripper": {"threads": 1, "methods": {"action[6]": "previous"}, "batch_sizes": (128,)},
    "bf16": {"threads": 1, "dtypes": ("bf16",), "batch_sizes": (128,)},
    "no-preload": {"threads": 1, "preload": False, "batch_sizes": (128,)},
    "training": {"threads": 1, "batch_sizes": (64,), "loaders": True, "end_to_end": True},
}
"""What is changed in the default options."""


def header(document: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the first line of the log."""
    passive = os.environ.get("OMP_WAIT_POLICY")
    return {
        "format": "leconvert-bench",
        "version": 1,
        "started": document["started"],
        "command": " ".join(
            ["python scripts/bench_resample.py", *map(bench_common.without_path, arguments)]
        ),
        "environment": {"OMP_WAIT_POLICY": passive},
        "commit": bench_common.commit(),
        "host": {key: document["host"][key] for key in ("cpu", "cores", "memory_bytes", "kernel")},
        "versions": document["versions"],
        "load_average": os.getloadavg(),
    }


def lines_of(name: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of one document."""
    about = {"setup": name, "torch_threads": document["torch_threads"]}
    lines = [{**about, "options": document["options"], "baseline": document["baseline"],
              "set": document["set"], "load_average": os.getloadavg()}]  # fmt: skip
    for kind, key in (("result", "results"), ("speedup", "speedups"), ("loader", "loaders"),
                      ("training", "end_to_end")):  # fmt: skip
        lines += [{**about, "kind": kind, **row} for row in document[key] or ()]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setups", nargs="*", metavar="SETUP", help=f"of {', '.join(SETUPS)}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--log-dir", default=bench_common.REPOSITORY / "bench_logs", type=Path)
    options = parser.parse_args(arguments)
    names = options.setups or list(SETUPS)
    if set(names) - set(SETUPS):
        parser.error(f"set-ups are {', '.join(SETUPS)}")
    log: Path | None = None
    for name in names:
        wanted = ResampleOptions(**{"repeats": options.repeats, **SETUPS[name]})
        document = run_resample(wanted, progress=progress_for())
        if log is None:
            log = bench_common.new_log(options.log_dir, f"{document['started'][:10]}-resample")
            log.write_text(json.dumps(header(document, arguments)) + "\n", encoding="utf-8")
        with log.open("a", encoding="utf-8") as file:
            for line in lines_of(name, document):
                file.write(json.dumps(line) + "\n")
        print(f"\n{name}, {document['torch_threads']} threads")
        for show in (result_table, speedup_table, loader_table, training_table):
            if show(document)[1:]:
                print(table(show(document)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
