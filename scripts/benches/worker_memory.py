"""How much memory does a worker need, and what does it depend on?

    python scripts/bench.py worker-memory

Plans datasets that are large in one way each, lets one worker do every batch, and compares the peak
of its resident memory with what `leconvert.run.worker_pool.worker_bytes` expects: more, but not by
much.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches import kit
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion
from leconvert.run.planner import open_or_plan
from leconvert.run.worker_pool import worker_bytes
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

# The kernel keeps the peak of a process from its exec on.
WORKER = """\
import json, sys
from leconvert.cli import main
code = main(["work", sys.argv[1], "--json"])
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak)
sys.exit(code)
"""


@dataclass(frozen=True)
class Shape:
    """A dataset, and how it is converted."""

    dataset: DatasetSpec
    repairs: RepairOptions | None = None
    video_file_size_in_mb: float = 200


def _images(repairs: RepairOptions | None) -> Shape:
    return Shape(
        DatasetSpec(
            episodes=3, frames=400, cameras=(), image_keys=("observation.images.top",),
            image_size=(240, 320), image_noise_amplitude=60,
        ),
        repairs,
    )  # fmt: skip


RETIME, STATS = RepairOptions(retime=True), RepairOptions(recompute_stats=True, quantiles=True)
LONG = DatasetSpec(episodes=2, frames=400_000, cameras=(), state_dim=14, action_dim=14)
SMALL_CAMERA = CameraSpec(width=32, height=32)
SHAPES: Mapping[str, Shape] = {
    "nothing large": Shape(DatasetSpec(episodes=5)),
    "8,000 tables in a file": Shape(
        DatasetSpec(episodes=8_000, frames=3, cameras=(), state_dim=14, action_dim=14)
    ),
    "400,000 frames in a video file": Shape(
        DatasetSpec(episodes=40, frames=10_000, cameras=(SMALL_CAMERA,), distinct_clips=1),
        video_file_size_in_mb=2000,
    ),
    "images, copied": _images(None),
    "images, written anew": _images(RETIME),
    "long tables, copied": Shape(LONG),
    "long tables, written anew": Shape(LONG, RETIME),
    "statistics, 1280 x 720": Shape(
        DatasetSpec(episodes=2, frames=120, cameras=(CameraSpec(width=1280, height=720),)), STATS
    ),
    "statistics, 3,000 frames": Shape(
        DatasetSpec(episodes=2, frames=3_000, cameras=(CameraSpec(width=320, height=240),)), STATS
    ),
}


def measure(shape: Shape, folder: Path) -> kit.Row:
    """Plan, work, and return peak and expectation in bytes."""
    make_dataset(folder / "source", shape.dataset)
    layout = LayoutOptions(video_file_size_in_mb=shape.video_file_size_in_mb)
    repairs = shape.repairs or RepairOptions()
    run = open_or_plan(
        folder / "source",
        folder / "result",
        folder / "work",
        Conversion(layout=layout, repairs=repairs),
    )
    command = [sys.executable, "-c", WORKER, str(folder / "work")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        "batches": run.manifest.num_batches,
        "peak_bytes": int(said.split()[-1]) * 1024,
        "expected_bytes": worker_bytes(run),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure every shape."""
    options = kit.parser(__doc__, repeats=None).parse_args(arguments)

    def run(name: str) -> kit.Row:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            return {"runner": name, **measure(SHAPES[name], Path(folder))}

    first = kit.header("bench.py worker-memory", arguments, options.scratch, {})
    log = kit.new_log(options.log_dir, first, "worker-memory")
    kit.rows_in_turns(log, first, tuple(SHAPES), 1, run)
    return 0
