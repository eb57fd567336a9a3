"""A real Ray cluster on one machine: `python scripts/lab/ray_nodes.py --help`, docs/engines.md.

It is not called ``ray.py``: beside it nobody could import Ray.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from nfs_lab.report import Row, Transcript, as_table
from ray_lab import RayCluster, RayLabError
from ray_lab.scenarios import SCENARIOS, ScenarioFailedError, make_ground

from leconvert import __version__

_NODES = 3


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description="Convert a dataset on Ray nodes that are killed, cut off and added meanwhile.",
        epilog=f"scenarios: {', '.join(SCENARIOS)}",
    )
    top.add_argument("names", nargs="*", metavar="SCENARIO", help="which (default: all)")
    top.add_argument("--folder", type=Path, help="default: a new temporary one, kept on failure")
    top.add_argument("--transcript", type=Path, help="also write what is said to this file")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if unknown := sorted(set(options.names) - set(SCENARIOS)):
        print(f"There is no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}.")
        return 2
    # The paths of Ray's sockets must be short.
    folder = options.folder or Path(tempfile.mkdtemp(prefix="leray-", dir="/tmp"))
    with Transcript(options.transcript) as say:
        try:
            rows = visit(options.names or list(SCENARIOS), folder, say)
        except (RayLabError, ScenarioFailedError) as error:
            say(f"FAILED: {error}\nEverything is in {folder}.")
            return 1
        say(f"\n{as_table(rows)}\n\n{len(rows)} of {len(rows)} scenarios hold.")
    return 0


def visit(names: Sequence[str], folder: Path, say: Transcript) -> list[Row]:
    rows: list[Row] = []
    began = time.monotonic()
    with RayCluster(folder / "c", _NODES).running() as cluster:
        say(
            f"leconvert {__version__}, Ray {version('ray')}, {_NODES} nodes in network namespaces "
            f"of a machine of {os.cpu_count()} cores, up in {time.monotonic() - began:.1f} s\n"
        )
        ground = make_ground(cluster, folder)
        for name in names:
            began = time.monotonic()
            for row in SCENARIOS[name](ground):
                rows.append(row)
                spent = time.monotonic() - began
                say(f"[{spent:5.1f} s] {row.scenario}: {row.case}: {row.outcome}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
