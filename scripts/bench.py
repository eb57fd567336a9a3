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

from benches import kit

# The module and the subject of each case; its function has the case's name.
CASES = {
    "convert": ("conversions", "LeRobot's converter, ours, and a plain copy"),
    "verify": ("conversions", "verification, against hashing both sides"),
    "edit": ("conversions", "deleting, splitting, merging, and back to v2.1, beside other tools"),
    "append": ("conversions", "appending episodes, against converting the grown source"),
    "quantiles": ("conversions", "conversions with and without quantiles"),
    "scale": ("scale", "planner, leases and metadata over the number of episodes"),
    "fleet": ("fleet", "a rehearsal of 5,000 datasets, 100 TB, without bytes"),
    "strong": ("strong", "one to sixteen workers on a simulated slow disk"),
    "loaders": ("loaders", "what a sample costs by each loader"),
    "damage": ("damage", "damaged frames that a loader finds, and what looking costs"),
    "probe": ("probe", "loaders on one dataset that was converted in several ways"),
    "resample": ("resample", "resampling in several set-ups"),
    "hub": ("hub", "what pushes and migrations move to and from the Hub"),
    "show": ("show", "tables and plots of logs"),
}


def main(arguments: Sequence[str]) -> int:
    """Run the case that the first argument names, or list all."""
    if not arguments or arguments[0] not in CASES:
        print(__doc__)
        print("\n".join(f"  {name:15} {about}" for name, (_, about) in CASES.items()))
        return 0 if arguments and arguments[0] in {"-h", "--help"} else 2
    name, *others = arguments
    sys.path.insert(0, str(kit.REPOSITORY))  # cases use parts of the tests
    run = getattr(import_module(f"benches.{CASES[name][0]}"), name)
    run(kit.Case(f"bench.py {name}", run.__doc__, others))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
