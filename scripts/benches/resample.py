"""Measure resampling in several set-ups and keep the raw repeats.

    python scripts/bench.py resample                    # all set-ups
    python scripts/bench.py resample even training --repeats 3

Each set-up is one run of ``leconvert probe resample`` in this process. Rows go to
``bench_logs/<date>-resample.jsonl``: a header line, then a line for each row of each document, with
the seconds of every repeat, and the ratios. Set ``OMP_WAIT_POLICY=passive`` where other work shares
the cores: threads of OpenMP otherwise spin through their share of time while they wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from benches import kit
from leconvert.bench.options import ResampleOptions
from leconvert.bench.resampling import run_resample
from leconvert.bench.results import result_tables
from leconvert.cli.output import table
from leconvert.cli.progress import progress_for

SETUPS: Mapping[str, Mapping[str, Any]] = {
    "even": {"threads": 1},
    "even-all-threads": {},
    "training": {"threads": 1, "batch_sizes": (64,), "loaders": True, "end_to_end": True},
}
"""Changes of the default options."""

PACKAGES = ("torch", "numpy", "h5py")


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
    parser = kit.parser(__doc__, repeats=7)
    parser.add_argument("setups", nargs="*", metavar="SETUP", help=f"of {', '.join(SETUPS)}")
    options = parser.parse_args(arguments)
    names = options.setups or list(SETUPS)
    if set(names) - set(SETUPS):
        parser.error(f"set-ups are {', '.join(SETUPS)}")
    first = kit.header("bench.py resample", arguments, options.scratch, {}, packages=PACKAGES)
    first["environment"] = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY")}
    first["load_average"] = os.getloadavg()
    with kit.rows_kept(kit.new_log(options.log_dir, first, "resample"), first) as keep:
        for name in names:
            wanted = ResampleOptions(**{"repeats": options.repeats, **SETUPS[name]})
            document = run_resample(wanted, progress=progress_for())
            for line in lines_of(name, document):
                keep(line)
            print(f"\n{name}, {document['torch_threads']} threads")
            for title, _, (head, *rows) in result_tables(document):
                print(title, *table(head, rows), sep="\n", flush=True)
    return 0
