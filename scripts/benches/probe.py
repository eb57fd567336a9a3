"""Time loaders on one dataset, converted in several ways, alternately, beside the decode limit.

    python scripts/bench.py probe h264 av1 images --repeats 3
    python scripts/bench.py probe h264 --episodes 4 --duration-s 1 --repeats 1   # to try it

A dataset with three cameras and uneven episodes is generated and converted four times: by LeRobot's
converter (``reference``), by us with the same file limits (``ours``), by us with ``--layout
streaming`` (``streaming``), all with several MP4s a camera, and by us with one MP4 a camera
(``one-file``), the only result that LeRobot's streaming class reads rightly. On ``ours`` and
``one-file`` every loader runs in every mode with every number of workers; on the other two our
stream with the most workers, and in ``single`` the map too, so that the conversions stand side by
side.

``images`` has pictures in the tables instead of videos: nothing to decode in advance, no limit, and
one MP4 a camera means nothing. There every loader runs, in ``single``, on the first three.

Every run is a ``leconvert probe run`` of its own, every limit a ``leconvert probe limit``; files
are read once beforehand. The limit of the first two is measured in every repeat, of the others in
the first. Then frames of our stream in every mode, and of the released one in the first, are
compared with LeRobot's map-style loader (``--check``), untimed. Raw rows go to
``bench_logs/<date>-probe-<kind>-<file system>.jsonl``: a header line, then one line a run;
``bench.py show`` prints them as tables. A run that fails is a row with its error, and is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import kit
from benches.probe_tables import LIMIT, MAP, REFERENCE, RELEASED, STREAM, Run, grouped, tables

CODECS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast"}),
    "av1": ("libsvtav1", {"preset": "12", "crf": "40"}),
}
IMAGES = "images"
KINDS = (*CODECS, IMAGES)
CAMERAS = ("front", "left_wrist", "right_wrist")
LOADERS = (MAP, RELEASED, STREAM)
SINGLE, SARM = MODES = ("single", "sarm")
FILES_A_CAMERA = 5
OURS, STREAMING, ONE_FILE = ("ours", "streaming", "one-file")
CONVERSIONS = (REFERENCE, OURS, STREAMING, ONE_FILE)
# The measured keys of a result; the header says the others once.
METRICS = (
    "samples_per_s", "frames_per_s_node", "window_frames_per_s", "pct_of_limit",
    "first_batch_latency_s", "p50_sample_latency_ms", "p95_sample_latency_ms",
    "p99_sample_latency_ms", "p50_batch_wait_ms", "p95_batch_wait_ms", "p99_batch_wait_ms",
    "steady_window_s", "samples_measured", "epochs", "single_proc_samples_per_s", "fetch_pct",
    "decode_pct", "video_decoder_cache", "peak_rss_gb", "peak_pss_gb", "num_shards",
    "samples_per_worker", "shuffle_randomness_frac", "unreadable_frames",
)  # fmt: skip


def planned_runs(kind: str, workers: Sequence[int], modes: Sequence[str], repeat: int) -> list[Run]:
    """Return everything that a repeat measures; limits come first, as later runs refer to them."""
    if kind == IMAGES:
        return [
            Run(conversion, loader, SINGLE, n)
            for conversion in (REFERENCE, OURS, STREAMING)
            for loader in LOADERS
            for n in workers
        ]
    limited = CONVERSIONS if repeat == 0 else (OURS, ONE_FILE)
    runs = [Run(conversion, LIMIT) for conversion in limited]
    for mode in modes:
        for conversion in (OURS, ONE_FILE):
            runs += [Run(conversion, loader, mode, n) for loader in LOADERS for n in workers]
        beside = (MAP, STREAM) if mode == SINGLE else (STREAM,)
        for conversion in (REFERENCE, STREAMING):
            runs += [Run(conversion, loader, mode, max(workers)) for loader in beside]
    return runs


def planned_checks(kind: str, modes: Sequence[str]) -> list[Run]:
    """Return whose frames are compared: ours in every mode; filling LeRobot's buffer takes long."""
    if kind == IMAGES:
        return [Run(conversion, STREAM, SINGLE) for conversion in (REFERENCE, OURS, STREAMING)]
    checked = [(STREAM, mode) for mode in modes] + [(RELEASED, modes[0])]
    return [Run(conversion, *one) for conversion in (OURS, ONE_FILE) for one in checked]


def in_turn(runs: Sequence[Run], repeat: int, repeats: int) -> list[Run]:
    """Return the runs of a repeat in its order: nobody always follows the same neighbour."""
    limits = [run for run in runs if run.loader == LIMIT]
    others = [run for run in runs if run.loader != LIMIT]
    turn = repeat * len(others) // repeats
    return [*limits, *others[turn:], *others[:turn]]


def make_source(kind: str, root: Path, options: argparse.Namespace) -> None:
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
        episodes=options.episodes,
        frames=RandomLengths(0, *options.frames),
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
    names = [name for name in CONVERSIONS if kind != IMAGES or name != ONE_FILE]
    results = {name: scratch / name for name in names}
    sized: list[str] = []
    if kind != IMAGES:  # tables keep their usual limit
        camera_bytes = kit.size_of(source / "videos") / len(CAMERAS)
        limit = max(1, round(camera_bytes / FILES_A_CAMERA / 2**20))
        sized = ["--video-file-size-in-mb", str(limit)]
    ways = {OURS: sized, STREAMING: ["--layout", "streaming", *sized], ONE_FILE: []}
    for name in names:
        if name != REFERENCE:
            place = ["--root", source, "--output", results[name]]
            kit.run_quietly([*kit.LECONVERT, "convert", "--no-push", *place, *ways[name]])
    shutil.copytree(source, results[REFERENCE])
    module = "lerobot.scripts.convert_dataset_v21_to_v30"
    command = [sys.executable, "-m", module, "--repo-id", "bench/dataset", "--root",
               str(results[REFERENCE]), "--push-to-hub=false", *sized]  # fmt: skip
    kit.run_quietly(command, HF_HOME=str(scratch / "huggingface"), HF_HUB_OFFLINE="1")
    for result in results.values():
        kit.read_through(result)
    return results


@dataclass(frozen=True)
class Bench:
    """The folders of the results, and the length of each run."""

    scratch: Path
    results: Mapping[str, Path]
    options: argparse.Namespace

    def command(self, run: Run) -> list[str]:
        """Return the command line of a run."""
        asked = self.options
        out_dir = self.scratch / f"out-{run.conversion}"
        base = [*kit.LECONVERT, "probe"]
        place = ["--root", str(self.results[run.conversion]), "--out-dir", str(out_dir), "--json"]
        if run.loader == LIMIT:
            return [*base, "limit", *place, "--duration-s", str(asked.limit_duration_s)]
        return [
            *base, "run", *place,
            "--loader", run.loader, "--mode", run.mode, "--num-workers", str(run.workers),
            "--batch-size", str(asked.batch_size), "--duration-s", str(asked.duration_s),
            "--warmup-batches", str(asked.warmup_batches),
            "--probe-samples", str(asked.probe_samples),
        ]  # fmt: skip

    def check_command(self, run: Run) -> list[str]:
        """Return the command line that compares frames; next to nothing is timed."""
        return [*self.command(run), "--check", str(self.options.check), "--num-batches",
                "1", "--warmup-batches", "0", "--probe-samples", "0"]  # fmt: skip

    def run(self, command: Sequence[str]) -> dict[str, Any]:
        """Run a command and return the document that it printed, or its error."""
        log = self.scratch / "last-run.log"
        with log.open("wb") as errors:
            done = subprocess.run(
                command, env=self.environment(), check=False, stdout=subprocess.PIPE, stderr=errors
            )
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            sys.stderr.write(log.read_text("utf-8", errors="replace")[-4000:])
            raise SystemExit(
                f"{kit.shown(command, self.scratch)} ended with {done.returncode}"
            ) from None
        return document

    def environment(self) -> dict[str, str]:
        """Return variables that have Python compile modules for the first run and no other."""
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return variables | {"PYTHONPYCACHEPREFIX": str(self.scratch / "compiled")}

    def row(self, run: Run) -> dict[str, Any]:
        """Measure once and return the row."""
        command = self.command(run)
        document = self.run(command)
        row = {**self._about(run), "command": kit.shown(command, self.scratch)}
        if "error" in document:
            return row | {"error": kit.shown([document["message"]], self.scratch)}
        if run.loader == LIMIT:
            return row | {
                "frames_per_s": document["limit_frames_per_s"],
                "rates": document["rates"],
            }
        return row | {key: document[key] for key in METRICS}

    def check(self, run: Run) -> dict[str, Any]:
        """Compare frames once and return the row."""
        command = self.check_command(run)
        document = self.run(command)
        row = {"kind": "check", **self._about(run), "command": kit.shown(command, self.scratch)}
        if "error" in document:
            return row | {"error": kit.shown([document["message"]], self.scratch)}
        return row | {"check": document["check"]}

    @staticmethod
    def _about(run: Run) -> dict[str, Any]:
        about = {"conversion": run.conversion, "loader": run.loader}
        return about | ({"mode": run.mode, "workers": run.workers} if run.mode else {})


def bench_kind(
    kind: str, scratch: Path, options: argparse.Namespace, arguments: Sequence[str]
) -> None:
    """Generate, convert, run everything, write the log and print its tables."""
    began = time.monotonic()
    print(f"{kind}: generating and converting ...", flush=True)
    source = scratch / "source"
    kit.in_own_process(make_source, kind, source, options)
    bench = Bench(scratch, convert_all(kind, source, scratch), options)
    first = kit.header("bench.py probe", arguments, scratch, kit.dataset_shape(source, kind))
    first |= {
        "codec": CODECS[kind][0] if kind in CODECS else "png",
        "results": {
            name: kit.dataset_shape(result, name) for name, result in bench.results.items()
        },
    }
    log = kit.new_log(options.log_dir, first, "probe", kind, first["file_system"])
    rows: list[kit.Row] = []
    failed: set[Run] = set()
    with kit.rows_kept(log, first) as keep:
        for repeat in range(options.repeats):
            runs = planned_runs(kind, options.workers, options.modes, repeat)
            for run in in_turn(runs, repeat, options.repeats):
                if run in failed:
                    continue
                row = {"repeat": repeat, **bench.row(run)}
                rows.append(row)
                keep(row)
                if "error" in row:
                    failed.add(run)
                rate = row.get("samples_per_s") or row.get("frames_per_s") or row["error"]
                print(f"  {repeat} {run.name:34} {rate}", flush=True)
        if options.check:
            for run in planned_checks(kind, options.modes):
                rows.append(bench.check(run))
                keep(rows[-1])
    minutes = (time.monotonic() - began) / 60
    print(f"\n{log.name}, {minutes:.1f} minutes\n\n{tables(grouped(first, rows))}\n", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--frames", type=int, nargs=2, default=(120, 280), metavar=("MIN", "MAX"))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--warmup-batches", type=int, default=6)
    parser.add_argument("--duration-s", type=float, default=15.0)
    parser.add_argument("--limit-duration-s", type=float, default=5.0)
    parser.add_argument("--probe-samples", type=int, default=100)
    parser.add_argument("--check", type=int, default=200, help="samples compared; 0 for none")
    options = parser.parse_args(arguments)
    for kind in options.kinds:
        with kit.scratch_folder(options.scratch, "probe") as scratch:
            bench_kind(kind, scratch, options, arguments)
    return 0
