"""A real SLURM on the hosts of the NFS lab: `slurm_nfs.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nfs_lab import LabError, LabOptions, NfsLab, ScenarioFailedError
from nfs_lab.report import Row, Transcript, as_table
from nfs_lab.requirements import kernel_version
from nfs_lab.scenarios import Ground
from slurm_lab.errors import ClusterError
from slurm_lab.guests import GuestCluster
from slurm_lab.over_nfs import HOSTS, MEMORY_MB, SCENARIOS
from slurm_lab.requirements import require

from leconvert import __version__

_RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "data"
_DEFAULT_FOLDER = Path("/dev/shm/leconvert-slurm-nfs-lab")


def parser() -> argparse.ArgumentParser:
    """Declare the options."""
    top = argparse.ArgumentParser(
        description="Convert by SLURM, with a controller and three nodes that are hosts of their "
        "own and share nothing but an NFS mount.",
        epilog=f"scenarios: {', '.join(SCENARIOS)}",
    )
    top.add_argument("names", nargs="*", metavar="SCENARIO", help="which (default: all)")
    top.add_argument("--folder", type=Path, default=_DEFAULT_FOLDER, help="the lab's own folder")
    top.add_argument("--recordings", type=Path, default=_RECORDINGS, help="real datasets")
    top.add_argument("--transcript", type=Path, help="write what is said to this file too")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if unknown := sorted(set(options.names) - set(SCENARIOS)):
        print(f"There is no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}.")
        return 2
    names = options.names or list(SCENARIOS)
    with Transcript(options.transcript) as say:
        try:
            rows = visit(names, NfsLab(options.folder), options.recordings, say)
        except (LabError, ClusterError, ScenarioFailedError) as error:
            say(f"FAILED: {error}")
            return 1
        say(f"\n{as_table(rows)}\n\n{len(names)} of {len(names)} scenarios hold.")
    return 0


def visit(names: Sequence[str], lab: NfsLab, recordings: Path, say: Transcript) -> list[Row]:
    """Build the lab and the cluster, run scenarios, and return what came of them."""
    require()
    rows: list[Row] = []
    began = time.monotonic()
    with lab.running(LabOptions(clients=HOSTS, memory_mb=MEMORY_MB)):
        cluster = GuestCluster(lab)
        cluster.start()
        say(
            f"leconvert {__version__}, {cluster.version}, a controller and {len(cluster.nodes)} "
            f"nodes on hosts of their own (Linux {kernel_version()}) that mount one NFS server's "
            f"disk, {os.cpu_count()} cores in all, up in {time.monotonic() - began:.1f} s\n"
        )
        ground = Ground(lab, recordings)
        for name in names:
            began = time.monotonic()
            for row in SCENARIOS[name](ground, cluster):
                rows.append(row)
                say(f"[{time.monotonic() - began:5.1f} s] {row.scenario}: {row.case}:"
                    f" {row.outcome}")  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
