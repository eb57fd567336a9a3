"""The cluster and folders that scenarios use, and the demands that they share."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_kit import leconvert

from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from slurm_lab.cluster import JobEnd, SlurmCluster

PROGRAM = f"{sys.executable} -m leconvert"
JOB_SECONDS = 240.0
SMALL = ("--cpus", "2", "--mem", "4G", "--time", "00:10:00", "--num-workers", "2")
_BRIEF = ("--duration-s", "1", "--warmup-batches", "1", "--probe-samples", "0")
LENGTHS = (25, 17, 31, 9, 22, 13)


@dataclass(frozen=True, slots=True)
class Ground:
    """The cluster and folders that scenarios use.

    Attributes:
        cluster: It runs.
        folder: For results; every node sees it.
        dataset: A v3.0 dataset with two cameras.
    """

    cluster: SlurmCluster
    folder: Path
    dataset: Path

    def leconvert(self, *arguments: str) -> str:
        """Run a command as a user on the login node would; returns what it said.

        Raises:
            ScenarioFailedError: It failed.
        """
        return leconvert(*arguments, environment=self.cluster.environment, folder=self.folder)

    def submitted(self, *arguments: str) -> list[JobEnd]:
        """Send a chain with `probe submit` and wait for all of its jobs."""
        said = self.leconvert(
            "probe", "submit", "--json", "--program", PROGRAM, *SMALL, *_BRIEF, *arguments
        )
        return self.cluster.wait_for(
            [job["job_id"] for job in json.loads(said)["jobs"]], JOB_SECONDS
        )

    def results(self, out_dir: str) -> list[dict[str, Any]]:
        """Return the documents of `probe run` in a folder, in order of name."""
        paths = sorted((self.folder / out_dir).glob("*.json"))
        return [json.loads(path.read_bytes()) for path in paths]


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a cluster of three logical nodes and a dataset for the length of a ``with`` block."""
    with SlurmCluster(options.folder / "cluster").running() as cluster:
        yield f"{cluster.version}, {cluster.nodes} logical nodes", _ground(cluster, options.folder)


def _ground(cluster: SlurmCluster, folder: Path) -> Ground:
    cameras = (
        CameraSpec(key="observation.images.top", width=64, height=48),
        CameraSpec(key="observation.images.wrist", width=32, height=32),
    )
    spec = DatasetSpec(episodes=len(LENGTHS), frames=list(LENGTHS), cameras=cameras)
    make_dataset(folder / "v21", spec)
    convert(folder / "v21", output=folder / "set")
    return Ground(cluster, folder, folder / "set")
