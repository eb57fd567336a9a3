"""SLURM, Ray and workers by hand on one work dir: `mixed.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from lab_kit import Transcript, lab_parser, run_lab
from ray_lab import RayCluster
from slurm_lab import SlurmCluster
from slurm_lab.mixed import RAY_NODES, SLURM_NODES, mixed

from leconvert import __version__

SCENARIOS = {"mixed": mixed}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Convert a dataset by workers of SLURM, of Ray, and started by hand, at once.", SCENARIOS
    )
    return run_lab(parser, arguments, SCENARIOS, build)


@contextmanager
def build(
    options: argparse.Namespace, say: Transcript
) -> Iterator[tuple[SlurmCluster, RayCluster, Path]]:
    """Have both clusters for the length of a ``with`` block."""
    began = time.monotonic()
    slurm = SlurmCluster(options.folder / "slurm", SLURM_NODES, own_names=True)
    ray = RayCluster(options.folder / "ray", RAY_NODES)
    with slurm.running(), ray.running():
        say(
            f"leconvert {__version__}, {slurm.version} with {SLURM_NODES} nodes, Ray "
            f"{version('ray')} with {RAY_NODES}, on a machine of {os.cpu_count()} cores, up in "
            f"{time.monotonic() - began:.1f} s\n"
        )
        yield slurm, ray, options.folder / "run"


if __name__ == "__main__":
    sys.exit(main())
