"""A real SLURM on one machine: `python scripts/lab/slurm.py --help`, docs/probe-cluster.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nfs_lab.report import Row, as_table
from slurm_lab import ClusterError, SlurmCluster
from slurm_lab.scenarios import SCENARIOS, ScenarioFailedError, make_ground

from leconvert import __version__


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description="Send benchmarks and trainings to a SLURM cluster of logical nodes.",
        epilog=f"scenarios: {', '.join(SCENARIOS)}",
    )
    top.add_argument("names", nargs="*", metavar="SCENARIO", help="which (default: all)")
    top.add_argument("--nodes", type=int, default=3, help="logical nodes (default: 3)")
    top.add_argument("--folder", type=Path, help="default: a new temporary one, kept on failure")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if unknown := sorted(set(options.names) - set(SCENARIOS)):
        print(f"There is no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}.")
        return 2
    folder = options.folder or Path(tempfile.mkdtemp(prefix="leconvert-slurm-lab-"))
    try:
        rows = list(visit(options.names or list(SCENARIOS), folder, options.nodes))
    except (ClusterError, ScenarioFailedError) as error:
        print(f"FAILED: {error}\nEverything is in {folder}.", file=sys.stderr)
        return 1
    print(f"\n{as_table(rows)}\n\n{len(rows)} of {len(rows)} scenarios hold.")
    return 0


def visit(names: Sequence[str], folder: Path, nodes: int) -> Sequence[Row]:
    rows: list[Row] = []
    began = time.monotonic()
    with SlurmCluster(folder / "cluster", nodes).running() as cluster:
        print(
            f"leconvert {__version__}, {cluster.version}, {nodes} logical nodes on a machine of "
            f"{os.cpu_count()} cores, up in {time.monotonic() - began:.1f} s\n",
            flush=True,
        )
        ground = make_ground(cluster, folder)
        for name in names:
            began = time.monotonic()
            for row in SCENARIOS[name](ground):
                rows.append(row)
                print(
                    f"[{time.monotonic() - began:5.1f} s] {row.scenario}: {row.case}: "
                    f"{row.outcome}",
                    flush=True,
                )
    return rows


if __name__ == "__main__":
    sys.exit(main())
