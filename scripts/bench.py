#!/usr/bin/env python3
"""Measure one case; raw rows of every repeat go to ``bench_logs/``.

    python scripts/bench.py convert small mid many images big --repeats 5
    python scripts/bench.py CASE --help

Commands are measured as ``python -m leconvert``, so ``PYTHONPATH=OTHER/src`` measures another tree;
``--trees`` of ``convert`` and ``edit`` lets several take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

CASES = {
    "convert": "LeRobot's converter, ours in several ways, and a plain copy",
    "verify": "verification, against hashing both sides",
    "edit": "deleting, splitting, merging, and back to v2.1, beside other tools",
    "append": "appending episodes, against converting the grown source anew",
    "quantiles": "conversions with and without quantiles",
    "scale": "planner, leases and metadata over the number of episodes",
    "fleet": "a rehearsal of 5,000 datasets, 100 TB, without bytes",
    "strong": "one to sixteen workers on a simulated slow disk",
    "loaders": "what a sample costs by each loader",
    "damage": "damaged frames that a loader finds, and what looking costs",
    "probe": "loaders on one dataset that was converted in several ways",
    "resample": "resampling in several set-ups",
    "hub": "what pushes and migrations move to and from the Hub",
    "show": "tables and plots of logs",
}


def main(arguments: Sequence[str]) -> int:
    """Run the case that the first argument names, or list all."""
    if not arguments or arguments[0] not in CASES:
        print(__doc__)
        print("\n".join(f"  {name:15} {about}" for name, about in CASES.items()))
        return 0 if arguments and arguments[0] in {"-h", "--help"} else 2
    case = import_module(f"benches.{arguments[0]}")
    return int(case.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
