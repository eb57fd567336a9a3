"""A real SLURM on the hosts of the NFS lab: `slurm_nfs.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab_kit import lab_parser, require, run_lab, say
from nfs_lab import LabOptions, NfsLab
from nfs_lab.requirements import kernel_version
from nfs_lab.scenarios import Ground
from slurm_lab.cluster import PACKAGES
from slurm_lab.guests import GuestCluster
from slurm_lab.over_nfs import HOSTS, MEMORY_MB, SCENARIOS

from leconvert import __version__

_FOLDER = Path("/dev/shm/leconvert-slurm-nfs-lab")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Convert by SLURM, with a controller and three nodes that are hosts of their own and "
        "share nothing but an NFS mount.",
        SCENARIOS,
        folder=_FOLDER,
    )
    return run_lab(parser.parse_args(arguments), SCENARIOS, build)


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[Ground, GuestCluster]]:
    """Have the lab and the cluster for the length of a ``with`` block."""
    require("SLURM's daemons start jobs for others", PACKAGES)
    began = time.monotonic()
    lab = NfsLab(options.folder)
    with lab.running(LabOptions(clients=HOSTS, memory_mb=MEMORY_MB)):
        cluster = GuestCluster(lab)
        cluster.start()
        say(
            f"leconvert {__version__}, {cluster.version}, a controller and {len(cluster.nodes)} "
            f"nodes on hosts of their own (Linux {kernel_version()}) that mount one NFS server's "
            f"disk, {os.cpu_count()} cores in all, up in {time.monotonic() - began:.1f} s\n"
        )
        yield Ground(lab), cluster


if __name__ == "__main__":
    sys.exit(main())
