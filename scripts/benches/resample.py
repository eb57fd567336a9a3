"""Measure resampling in several set-ups and keep the raw repeats.

    python scripts/bench.py resample                    # all set-ups
    python scripts/bench.py resample even gripper --repeats 3

Each set-up is one run of ``leconvert probe resample`` in this process, and a plain copy of as many
bytes as its largest batch has, which packing cannot do without. Rows go to
``bench_logs/<date>-resample.jsonl``: a header line, then a line for each row of each document, with
the seconds of every repeat, and the ratios. Set ``OMP_WAIT_POLICY=passive`` where other work shares
the cores: threads of OpenMP otherwise spin through their share of time while they wait.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benches import kit
from leconvert.bench.options import ResampleOptions
from leconvert.bench.resampling import open_source, run_resample
from leconvert.bench.results import result_tables
from leconvert.cli.output import table
from leconvert.cli.progress import progress_for
from leconvert.loading.resampling import pack

SETUPS: Mapping[str, Mapping[str, Any]] = {
    "even": {"threads": 1},
    "even-all-threads": {},
    "gripper": {"threads": 1, "methods": {"action[6]": "previous"}, "batch_sizes": (128,)},
    "bf16": {"threads": 1, "dtypes": ("bf16",), "batch_sizes": (128,)},
    "training": {"threads": 1, "batch_sizes": (64,), "loaders": True, "end_to_end": True},
}
"""Changes of the default options."""

COPIES = 200
PACKAGES = ("torch", "numpy", "h5py")


def lines_of(
    name: str, document: Mapping[str, Any], copied: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the lines of one document, and of the plain copy beside it."""
    about = {"setup": name, "torch_threads": document["torch_threads"]}
    lines = [{**about, "options": document["options"], "baseline": document["baseline"],
              "set": document["set"], "load_average": os.getloadavg()}]  # fmt: skip
    for kind, key in (("result", "results"), ("speedup", "speedups"), ("loader", "loaders"),
                      ("training", "end_to_end")):  # fmt: skip
        lines += [{**about, "kind": kind, **row} for row in document[key] or ()]
    return [*lines, {**about, **copied}]


def plain_copy(options: ResampleOptions, batch_size: int, threads: int) -> dict[str, Any]:
    """Return how long a plain copy takes of as many bytes as a batch has: packing copies them too.

    It reads from a random place of the whole set, which is larger than the caches of a core, as
    packing does; but in one piece.
    """
    source = open_source(options)
    packed = pack([source.load(index) for index in range(len(source))])
    tables = [packed.times, *packed.rows.values()]
    rows = len(packed.times) * batch_size // len(source)
    rooms = [torch.empty_like(one[:rows]) for one in tables]
    random = np.random.default_rng(options.seed)
    seconds = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(COPIES):
            start = int(random.integers(len(packed.times) - rows + 1))
            began = time.perf_counter()
            for room, one in zip(rooms, tables, strict=True):
                room.copy_(one[start : start + rows])
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return {
        "kind": "copy",
        "batch_size": batch_size,
        "bytes": sum(room.nbytes for room in rooms),
        "median_ms": 1e3 * statistics.median(seconds),
        "raw_s": seconds,
    }


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
            largest, threads = max(document["options"]["batch_sizes"]), document["torch_threads"]
            copied = plain_copy(wanted, largest, threads)
            for line in lines_of(name, document, copied):
                keep(line)
            print(f"\n{name}, {threads} threads")
            for title, _, rows in result_tables(document):
                print(f"{title}\n{table(rows)}", flush=True)
            size, ms = copied["bytes"] / 1e6, copied["median_ms"]
            print(f"a plain copy of a batch of {largest}, {size:.1f} MB: {ms:.3f} ms", flush=True)
    return 0
