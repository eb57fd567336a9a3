"""Try all that a GPU can do here: decode by NVDEC, resample, train; and keep what came out.

    python scripts/gpu_check.py                       # a generated dataset, H.264
    python scripts/gpu_check.py --root my_dataset     # any v3.0 dataset

It was run on one GPU so far (docs/probe.md), never on two: whoever has some is asked to run it
and to send the log. Each step is a command of ``leconvert`` in a process of its own, on the CPU and
on the GPU in turn, and a row in ``bench_logs/<date>-gpu.jsonl``: what the command printed, or why
it could not run. The next step runs in any case, also when one fails or is not done in time. The
exit code is 0 where every step ran, and 1 where one failed or could not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import kit

CAMERAS = ("front", "left_wrist", "right_wrist")
LIMIT_SECONDS = 300.0  # of a step
PACKAGES = ("torch", "torchcodec", "lerobot", "accelerate", "pynvml", "av")
# Keys left out of the documents that are kept: raw repeats of thousands of batches are not needed.
DROPPED = frozenset({"raw", "host", "versions", "dataset", "options"})


@dataclass(frozen=True)
class Step:
    """One command of leconvert, and how many GPUs it needs."""

    name: str
    command: str
    gpus: int = 1


def look() -> tuple[list[str], str]:
    """Ask torch, in this process, for the GPUs, or why there are none."""
    if importlib.util.find_spec("torch") is None:
        return [], "torch is not installed: the extra train brings it"
    import torch

    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        return [], f"torch finds no GPU ({built})"
    return [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())], ""


def steps(root: Path, out_dir: Path, options: argparse.Namespace) -> Iterator[Step]:
    """Yield everything, in order."""
    place = f"--root {shlex.quote(str(root))} --json"
    out = f"--out-dir {shlex.quote(str(out_dir))}"
    seconds = f"--duration-s {options.duration_s}"
    decoders = ("cpu", "cuda")
    for device in decoders:
        command = f"probe diagnose {place} --decode-device {device}"
        yield Step(f"diagnose, {device}", command, int(device == "cuda"))
    for repeat in range(options.repeats):
        for device in decoders if repeat % 2 else reversed(decoders):
            command = f"probe limit {place} {out} {seconds} --decode-device {device}"
            yield Step(f"limit, {device}, {repeat}", command, int(device == "cuda"))
        run = f"probe run {place} {out} {seconds} --device cuda"
        for device in decoders:
            # With NVDEC each worker has a CUDA context of its own, of hundreds of megabytes.
            for workers in (0, options.num_workers):
                yield Step(
                    f"run, decoded on {device}, {workers} workers, {repeat}",
                    f"{run} --decode-device {device} --num-workers {workers}",
                )
    yield Step(
        "frames of NVDEC against LeRobot's",
        f"probe run {place} {out} --decode-device cuda --num-workers 0 --check 200 "
        "--num-batches 1 --warmup-batches 0",
    )
    yield Step("resample, everything", f"probe resample --all --no-plots --json {out}")
    train = f"probe train {place} --device cuda --steps {options.steps} {out}/train"
    yield Step("train, 1 process", f"{train}-1 --gpus 1")
    yield Step("train, 2 processes", f"{train}-2 --gpus 2", 2)
    yield Step("train, decoded on cuda", f"{train}-nvdec --decode-device cuda")


def try_step(step: Step, gpus: Sequence[str], missing: str, scratch: Path) -> dict[str, Any]:
    """Run a step; return its row."""
    command = kit.shown(["leconvert", step.command], scratch)
    row: dict[str, Any] = {"step": step.name, "command": command}
    if step.gpus > len(gpus):
        why = missing or f"it needs {step.gpus} GPUs; here are {len(gpus)}"
        return row | {"outcome": "could not run", "why": why}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [*kit.LECONVERT, *shlex.split(step.command)], timeout=LIMIT_SECONDS,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return row | {"outcome": "failed", "why": f"it had not ended after {LIMIT_SECONDS:.0f} s"}
    row |= {"exit_code": done.returncode, "seconds": round(time.perf_counter() - began, 2)}
    try:
        row["document"] = shortened(json.loads(done.stdout))
    except ValueError:
        row["document"] = None
    if done.returncode or row["document"] is None:
        return row | {"outcome": "failed", "why": kit.shown([done.stderr[-2000:]], scratch)}
    return row | {"outcome": "ran"}


def shortened(value: Any) -> Any:
    """Return a document without what a row need not have."""
    if isinstance(value, Mapping):
        return {key: shortened(part) for key, part in value.items() if key not in DROPPED}
    return [shortened(part) for part in value] if isinstance(value, list) else value


def make_dataset(folder: Path, options: argparse.Namespace) -> Path:
    """Generate a v2.1 dataset, convert it, and return the result."""
    from leconvert import convert
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

    cameras = [
        CameraSpec(key=f"observation.images.{name}", width=640, height=480, noise_amplitude=24)
        for name in CAMERAS
    ]
    spec = DatasetSpec(episodes=options.episodes, frames=options.frames, cameras=cameras)
    make_dataset(folder / "v21", spec)
    return convert(folder / "v21", output=folder / "v30").output


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    case = kit.Case("gpu_check.py", __doc__, arguments)
    add = case.parser.add_argument
    add("--root", type=Path, help="a v3.0 dataset (default: a generated one)")
    add("--episodes", type=int, default=20)
    add("--frames", type=int, default=300)
    add("--duration-s", type=float, default=10.0)
    add("--num-workers", type=int, default=min(4, os.cpu_count() or 1))
    add("--steps", type=int, default=200)
    options = case.parse(repeats=3)
    gpus, missing = look()
    outcomes = []
    with case.scratch_folder() as scratch:
        root = options.root or make_dataset(scratch, options)
        shape = kit.dataset_shape(root, "given" if options.root else "generated")
        facts = {"dataset": shape, "gpus": gpus, "no_gpu": missing or None}
        with case.log(scratch, "gpu", packages=PACKAGES, **facts) as keep:
            for step in steps(root, scratch / "out", options):
                row = try_step(step, gpus, missing, scratch)
                row["command"] = row["command"].replace(str(root), "ROOT")
                outcomes.append(row["outcome"])
                keep(row)
                lines = row.get("why", "").strip().splitlines()
                ours = (line for line in lines if line.startswith("leconvert: "))
                why = next(ours, lines[-1] if lines else "")
                print(f"{row['outcome']:14} {step.name:46} {why}", flush=True)
    print(f"{outcomes.count('ran')} of {len(outcomes)} steps ran")
    return 0 if set(outcomes) == {"ran"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
