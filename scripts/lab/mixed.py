"""SLURM, Ray and workers by hand on one work dir: `mixed.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from every_lab.program import lab_parser, run_lab, told
from every_lab.report import Row
from ray_lab import RayCluster
from slurm_lab import SlurmCluster
from slurm_lab.mixed import RAY_NODES, SLURM_NODES, mixed

from leconvert import __version__

SCENARIOS = {"mixed": mixed}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Convert a dataset by workers of SLURM, of Ray, and started by hand, at once.", SCENARIOS
    )
    return run_lab(parser, arguments, SCENARIOS, visit)


def visit(
    names: Sequence[str], options: argparse.Namespace, say: Callable[[str], None]
) -> Iterator[Row]:
    """Start both clusters, run the scenario, and yield what comes of it."""
    began = time.monotonic()
    slurm = SlurmCluster(options.folder / "slurm", SLURM_NODES, own_names=True)
    ray = RayCluster(options.folder / "ray", RAY_NODES)
    with slurm.running(), ray.running():
        say(
            f"leconvert {__version__}, {slurm.version} with {SLURM_NODES} nodes, Ray "
            f"{version('ray')} with {RAY_NODES}, on a machine of {os.cpu_count()} cores, up in "
            f"{time.monotonic() - began:.1f} s\n"
        )
        for name in names:
            yield from told(SCENARIOS[name](slurm, ray, options.folder / "run"), say)


if __name__ == "__main__":
    sys.exit(main())
