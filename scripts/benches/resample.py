"""Resampling in several set-ups."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from benches import kit
from leconvert.bench.options import ResampleOptions
from leconvert.bench.resampling import run_resample
from leconvert.bench.results import result_tables
from leconvert.cli.output import ShownProgress, table

SETUPS: Mapping[str, Mapping[str, Any]] = {
    "even": {"threads": 1},
    "even-all-threads": {},
    "training": {"threads": 1, "batch_sizes": (64,), "loaders": True, "end_to_end": True},
}
"""Changes of the default options."""


def resample(case: kit.Case) -> None:
    """Measure resampling in several set-ups and keep the raw repeats.

        python scripts/bench.py resample --repeats 15

    Each set-up is one run of ``leconvert probe resample`` in this process. The log has a line for
    each row of each document, with the seconds of every repeat, and the ratios. Set
    ``OMP_WAIT_POLICY=passive`` where other work shares the cores: threads of OpenMP otherwise spin
    through their share of time while they wait.
    """
    options = case.parse(repeats=7)
    with case.log(
        options.scratch, "resample", packages=("torch", "numpy", "h5py"),
        environment={"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY")},
    ) as keep:  # fmt: skip
        for name, changes in SETUPS.items():
            wanted = ResampleOptions(**{"repeats": options.repeats, **changes})
            document = run_resample(wanted, progress=ShownProgress(sys.stderr))
            about = {"setup": name, "torch_threads": document["torch_threads"]}
            kept = {key: document[key] for key in ("options", "baseline", "set")}
            keep({**about, **kept, "load_average": os.getloadavg()})
            for kind, key in (("result", "results"), ("speedup", "speedups"),
                              ("loader", "loaders"), ("training", "end_to_end")):  # fmt: skip
                for row in document[key] or ():
                    keep({**about, "kind": kind, **row})
            print(f"\n{name}, {document['torch_threads']} threads")
            for title, _, (head, *rows) in result_tables(document):
                print(title, *table(head, rows), sep="\n", flush=True)
