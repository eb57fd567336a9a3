"""SLURM, Ray and workers by hand on one work dir: `mixed.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from nfs_lab.report import Transcript, as_table
from ray_lab import RayCluster, RayLabError
from slurm_lab import ClusterError, SlurmCluster
from slurm_lab.ground import ScenarioFailedError
from slurm_lab.mixed import RAY_NODES, SLURM_NODES, mixed

from leconvert import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Convert a dataset by workers of SLURM, of Ray, and started by hand, at once."
    )
    parser.add_argument("--folder", type=Path, help="default: a new temporary one, kept on failure")
    parser.add_argument("--transcript", type=Path, help="write what is said to this file too")
    options = parser.parse_args(arguments)
    # The paths of Ray's sockets must be short.
    folder = options.folder or Path(tempfile.mkdtemp(prefix="lemix-", dir="/tmp"))
    with Transcript(options.transcript) as say:
        try:
            visit(folder, say)
        except (ClusterError, RayLabError, ScenarioFailedError) as error:
            say(f"FAILED: {error}\nEverything is in {folder}.")
            return 1
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


def visit(folder: Path, say: Transcript) -> None:
    """Start both clusters, run the scenario, and say what came of it."""
    began = time.monotonic()
    slurm = SlurmCluster(folder / "slurm", SLURM_NODES, own_names=True)
    ray = RayCluster(folder / "ray", RAY_NODES)
    with slurm.running(), ray.running():
        say(
            f"leconvert {__version__}, {slurm.version} with {SLURM_NODES} nodes, Ray "
            f"{version('ray')} with {RAY_NODES}, on a machine of {os.cpu_count()} cores, up in "
            f"{time.monotonic() - began:.1f} s\n"
        )
        began = time.monotonic()
        row = mixed(slurm, ray, folder / "run")
    say(f"[{time.monotonic() - began:5.1f} s] {row.scenario}: {row.case}: {row.outcome}")
    say(f"\n{as_table([row])}\n\n1 of 1 scenarios hold.")


if __name__ == "__main__":
    sys.exit(main())
