"""Loaders on one dataset, converted in several ways, beside the decode limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benches import kit

CODECS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast"}),
    "av1": ("libsvtav1", {"preset": "12", "crf": "40"}),
}
IMAGES = "images"
CAMERAS = ("front", "left_wrist", "right_wrist")
FILES_A_CAMERA = 5
OURS, STREAMING, ONE_FILE = ("ours", "streaming", "one-file")
STREAM = "stream"
LOADERS = ("map", "stream-lerobot", STREAM)
MODES = ("single", "sarm")
WORKERS, BATCH_SIZE, WARMUP_BATCHES, COMPARED = 2, 16, 6, 16
# The measured keys of a result; the header says the others once.
METRICS = (
    "samples_per_s", "frames_per_s_node", "window_frames_per_s", "pct_of_limit",
    "first_batch_latency_s", "p50_sample_latency_ms", "p95_sample_latency_ms",
    "p99_sample_latency_ms", "p50_batch_wait_ms", "p95_batch_wait_ms", "p99_batch_wait_ms",
    "steady_window_s", "samples_measured", "epochs", "video_decoder_cache", "peak_rss_gb",
    "peak_pss_gb", "num_shards", "samples_per_worker", "shuffle_randomness_frac", "wrong_frames",
    "unreadable_frames", "limit", "check",
)  # fmt: skip
KEYS = ("mode", "conversion", "loader", "workers")
COLUMNS = {
    "samples_per_s": ".1f", "frames_per_s_node": ",.0f", "pct_of_limit": ".0f",
    "first_batch_latency_s": ".2f", "p99_batch_wait_ms": ",.0f", "peak_pss_gb": ".3f",
    "shuffle_randomness_frac": ".2f", "wrong_frames": ".0f", "unreadable_frames": ".0f",
}  # fmt: skip


class Run(NamedTuple):
    """One loader in one mode on one result."""

    conversion: str
    loader: str
    mode: str


def planned_runs(kind: str) -> list[Run]:
    """Return everything that a repeat measures."""
    if kind == IMAGES:
        return [Run(name, loader, MODES[0]) for name in (OURS, STREAMING) for loader in LOADERS]
    return [
        Run(conversion, loader, mode)
        for mode in MODES
        for conversion in (OURS, ONE_FILE, STREAMING)
        for loader in (LOADERS if conversion != STREAMING else (STREAM,))
    ]


def make_source(kind: str, root: Path, episodes: int) -> None:
    """Generate the v2.1 dataset, in a process of its own."""
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
    from leconvert.testing.dataset import RandomLengths

    keys = [f"observation.images.{name}" for name in CAMERAS]
    encoder, encoder_options = CODECS.get(kind, ("", {}))
    cameras = tuple(
        CameraSpec(
            key=key,
            width=320,
            height=240,
            codec=encoder,
            options=encoder_options,
            noise_amplitude=24,
            target_clip_bytes=600_000 if kind == "h264" else None,
        )
        for key in keys
    )
    spec = DatasetSpec(
        episodes=episodes,
        frames=RandomLengths(0, 120, 280),
        cameras=() if kind == IMAGES else cameras,
        image_keys=keys if kind == IMAGES else (),
        image_size=(120, 160),
        image_noise_amplitude=8,
        state_dim=14,
        action_dim=14,
    )
    make_dataset(root, spec)


def convert_all(kind: str, source: Path, scratch: Path) -> dict[str, Path]:
    """Convert in every way; return the results by name."""
    sized: list[str] = []
    if kind != IMAGES:  # tables keep their usual limit
        camera_bytes = kit.size_of(source / "videos") / len(CAMERAS)
        limit = max(1, round(camera_bytes / FILES_A_CAMERA / 2**20))
        sized = ["--video-file-size-in-mb", str(limit)]
    ways = {OURS: sized, STREAMING: ["--layout", "streaming", *sized], ONE_FILE: []}
    results = {run.conversion: scratch / run.conversion for run in planned_runs(kind)}
    for name, result in results.items():
        kit.run_quietly([*kit.LECONVERT, "convert", source, result, "-q", *ways[name]])
        kit.read_through(result)
    return results


def command(run: Run, scratch: Path, duration_s: float) -> list[str]:
    """Return the command line of a run."""
    return [
        *kit.LECONVERT, "probe", "run", "--json",
        "--root", str(scratch / run.conversion), "--out-dir", str(scratch / "out"),
        "--loader", run.loader, "--mode", run.mode, "--num-workers", str(WORKERS),
        "--batch-size", str(BATCH_SIZE), "--warmup-batches", str(WARMUP_BATCHES),
        "--duration-s", str(duration_s), "--probe-samples", "0",
        "--with-limit", "--limit-duration-s", str(duration_s / 2),
        "--check", str(COMPARED if run.loader == STREAM else 0),
    ]  # fmt: skip


def measured(run: Run, scratch: Path, duration_s: float) -> kit.Row:
    """Measure once and return the row."""
    words = command(run, scratch, duration_s)
    # Python compiles modules for the first run and no other.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    row = {"runner": " ".join(run), **run._asdict(), "workers": WORKERS}
    row["command"] = kit.shown(words, scratch)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        sys.stderr.write(done.stderr[-4000:])
        raise SystemExit(f"{row['command']} ended with {done.returncode}") from None
    if "error" in document:
        return row | {"error": kit.shown([document["message"]], scratch)}
    return row | {key: document[key] for key in METRICS}


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the medians of the runs that were timed; older logs have rows of other kinds too."""
    return kit.table([row for row in rows if "mode" in row and "kind" not in row], KEYS, COLUMNS)


def probe(case: kit.Case) -> None:
    """Time loaders on one dataset, converted in several ways, in turns, beside the decode limit.

        python scripts/bench.py probe h264 av1 images --repeats 3
        python scripts/bench.py probe h264 --episodes 4 --duration-s 1 --repeats 1   # to try it

    A dataset with three cameras and uneven episodes is generated and converted with several MP4s a
    camera (``ours``), the same with ``--layout streaming`` (``streaming``), and with one MP4 a
    camera (``one-file``), the only result that LeRobot's streaming class reads rightly. Every
    loader runs in every mode on ``ours`` and ``one-file``, and our stream on ``streaming``.

    ``images`` has pictures in the tables instead of videos: nothing to decode in advance, no limit,
    and one MP4 a camera means nothing. There every loader runs, in ``single``, on the first two.

    Every run is a ``leconvert probe run`` of its own, with two workers; files are read once
    beforehand. It measures the decode limit as well, and compares samples of our stream with those
    of LeRobot's map-style loader; neither is in its time. A run that fails is a row with its error.
    """
    add = case.parser.add_argument
    add("kinds", nargs="+", choices=(*CODECS, IMAGES))
    add("--episodes", type=int, default=16)
    add("--duration-s", type=float, default=3.0)
    options = case.parse(repeats=3)
    for kind in options.kinds:
        with case.scratch_folder() as scratch:
            print(f"{kind}: generating and converting ...", flush=True)
            source = scratch / "source"
            kit.in_own_process(make_source, kind, source, options.episodes)
            results = convert_all(kind, source, scratch)
            facts: kit.Row = {
                "dataset": kit.dataset_shape(source, kind),
                "codec": CODECS[kind][0] if kind in CODECS else "png",
                "results": {name: kit.dataset_shape(path, name) for name, path in results.items()},
            }
            run = partial(measured, scratch=scratch, duration_s=options.duration_s)
            with case.log(scratch, "probe", kind, kit.file_system_of(scratch), **facts) as keep:
                rows = case.in_turns(keep, planned_runs(kind), run)
            print(f"{kind}\n{table(rows)}\n", flush=True)
