"""A real SLURM on one machine: `python scripts/lab/slurm.py --help`, docs/probe-cluster.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab_kit import lab_parser, run_lab, say
from slurm_lab import SlurmCluster
from slurm_lab.ground import Ground, make_ground
from slurm_lab.scenarios import SCENARIOS

from leconvert import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Send benchmarks and trainings to a SLURM cluster of logical nodes.", SCENARIOS
    )
    parser.add_argument("--nodes", type=int, default=3, help="logical nodes (default: 3)")
    return run_lab(parser.parse_args(arguments), SCENARIOS, build)


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[Ground]]:
    """Have the cluster and a dataset for the length of a ``with`` block."""
    began = time.monotonic()
    with SlurmCluster(options.folder / "cluster", options.nodes).running() as cluster:
        say(
            f"leconvert {__version__}, {cluster.version}, {options.nodes} logical nodes on a "
            f"machine of {os.cpu_count()} cores, up in {time.monotonic() - began:.1f} s\n"
        )
        yield (make_ground(cluster, options.folder),)


if __name__ == "__main__":
    sys.exit(main())
