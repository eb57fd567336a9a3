"""Time loaders on one dataset, converted in several ways, alternately, beside the decode limit.

    python scripts/bench_probe.py h264 av1 --repeats 3
    python scripts/bench_probe.py h264 --episodes 4 --duration-s 1 --repeats 1   # to try it

A dataset with three cameras and uneven episodes is generated and converted four times: by LeRobot's
converter (``reference``), by us with the same file limits (``ours``), by us with ``--layout
streaming`` (``streaming``), all with several MP4s a camera, and by us with one MP4 a camera
(``one-file``), the only result that LeRobot's streaming class reads rightly. On ``ours`` and
``one-file`` every loader runs in every mode with every number of workers; on the other two the map
and our stream with the most workers, so that the conversions stand side by side.

Every run is a ``leconvert probe run`` of its own, every limit a ``leconvert probe limit``; files
are read once beforehand. Then each loader's frames are compared with LeRobot's (``--check``),
untimed. Raw rows go to ``bench_logs/<date>-probe-<codec>-<file system>.jsonl``: a header line, then
one line a run. A run that fails is a row with its error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_common
import bench_convert

CODECS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast"}),
    "av1": ("libsvtav1", {"preset": "12", "crf": "40"}),
}
CAMERAS = ("front", "left_wrist", "right_wrist")
LOADERS = ("map", "stream-lerobot", "stream")
MODES = ("single", "sarm")
FILES_A_CAMERA = 5
REFERENCE, OURS, STREAMING, ONE_FILE = CONVERSIONS = ("reference", "ours", "streaming", "one-file")
# What of a result is measured; the rest is said once, in the header.
METRICS = (
    "samples_per_s", "frames_per_s_node", "window_frames_per_s", "pct_of_limit",
    "first_batch_latency_s", "p50_sample_latency_ms", "p95_sample_latency_ms",
    "p99_sample_latency_ms", "p50_batch_wait_ms", "p95_batch_wait_ms", "p99_batch_wait_ms",
    "steady_window_s", "samples_measured", "epochs", "single_proc_samples_per_s", "fetch_pct",
    "decode_pct", "video_decoder_cache", "peak_rss_gb", "peak_pss_gb", "num_shards",
    "samples_per_worker", "shuffle_randomness_frac", "unreadable_frames",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One thing to measure; ``loader`` is ``limit`` for the decode limit."""

    conversion: str
    loader: str
    mode: str = ""
    workers: int = 0

    @property
    def name(self) -> str:
        """What the table calls it."""
        return " ".join(
            [self.conversion, self.loader, *([self.mode, f"w{self.workers}"] if self.mode else [])]
        )


def planned_runs(workers: Sequence[int], modes: Sequence[str]) -> list[Run]:
    """Return everything that a repeat measures."""
    runs = [Run(conversion, "limit") for conversion in CONVERSIONS]
    for mode in modes:
        for conversion in (OURS, ONE_FILE):
            runs += [Run(conversion, loader, mode, n) for loader in LOADERS for n in workers]
        for conversion in (REFERENCE, STREAMING):
            runs += [Run(conversion, loader, mode, max(workers)) for loader in ("map", "stream")]
    return runs


# --- datasets ---------------------------------------------------------------------------------


def make_source(codec: str, root: Path, options: argparse.Namespace) -> None:
    """Generate the v2.1 dataset, in a process of its own."""
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
    from leconvert.testing.spec import RandomLengths

    encoder, encoder_options = CODECS[codec]
    spec = DatasetSpec(
        episodes=options.episodes,
        frames=RandomLengths(0, *options.frames),
        cameras=tuple(
            CameraSpec(
                key=f"observation.images.{name}",
                width=320,
                height=240,
                codec=encoder,
                options=encoder_options,
                noise_amplitude=24,
                target_clip_bytes=600_000 if codec == "h264" else None,
            )
            for name in CAMERAS
        ),
        state_dim=14,
        action_dim=14,
    )
    make_dataset(root, spec)


def convert_all(source: Path, scratch: Path) -> dict[str, Path]:
    """Convert in every way; return the results by name."""
    camera_bytes = bench_common.size_of(source / "videos") / len(CAMERAS)
    limit = max(1, round(camera_bytes / FILES_A_CAMERA / 2**20))
    results = {name: scratch / name for name in CONVERSIONS}
    sized = ["--video-file-size-in-mb", str(limit)]
    ours = [sys.executable, "-m", "leconvert", "convert", "--no-push", "--root", str(source)]
    run_quietly([*ours, "--output", str(results[OURS]), *sized])
    run_quietly([*ours, "--output", str(results[STREAMING]), "--layout", "streaming", *sized])
    run_quietly([*ours, "--output", str(results[ONE_FILE])])
    shutil.copytree(source, results[REFERENCE])
    module = "lerobot.scripts.convert_dataset_v21_to_v30"
    command = [sys.executable, "-m", module, "--repo-id", "bench/dataset", "--root",
               str(results[REFERENCE]), "--push-to-hub=false", *sized]  # fmt: skip
    run_quietly(command, HF_HOME=str(scratch / "huggingface"), HF_HUB_OFFLINE="1")
    for result in results.values():
        bench_common.read_through(result)
    return results


def run_quietly(command: Sequence[str], **variables: str) -> None:
    """Run a command; what it says is only shown if it fails."""
    done = subprocess.run(
        command, env=os.environ | variables, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


# --- one run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """Where the results are, and how long each run takes."""

    scratch: Path
    results: Mapping[str, Path]
    options: argparse.Namespace

    def command(self, run: Run) -> list[str]:
        """Return the command line of a run."""
        asked = self.options
        out_dir = self.scratch / f"out-{run.conversion}"
        base = [sys.executable, "-m", "leconvert", "probe"]
        place = ["--root", str(self.results[run.conversion]), "--out-dir", str(out_dir), "--json"]
        if run.loader == "limit":
            return [*base, "limit", *place, "--duration-s", str(asked.limit_duration_s)]
        return [
            *base, "run", *place,
            "--loader", run.loader, "--mode", run.mode, "--num-workers", str(run.workers),
            "--batch-size", str(asked.batch_size), "--duration-s", str(asked.duration_s),
            "--probe-samples", str(asked.probe_samples),
        ]  # fmt: skip

    def check_command(self, run: Run) -> list[str]:
        """Return the command line that compares frames; next to nothing is timed."""
        return [*self.command(run), "--check", str(self.options.check), "--num-batches", "1",
                "--warmup-batches", "0", "--probe-samples", "0"]  # fmt: skip

    def run(self, command: Sequence[str]) -> dict[str, Any]:
        """Run a command and return the document that it printed, or its error."""
        log = self.scratch / "last-run.log"
        with log.open("wb") as errors:
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=errors)
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            sys.stderr.write(log.read_text("utf-8", errors="replace")[-4000:])
            raise SystemExit(f"{self.shown(command)} ended with {done.returncode}") from None
        return document

    def row(self, run: Run) -> dict[str, Any]:
        """Measure once and return the row."""
        command = self.command(run)
        document = self.run(command)
        row = {**self._about(run), "command": self.shown(command)}
        if "error" in document:
            return row | {"error": self.shown([document["message"]])}
        if run.loader == "limit":
            return row | {
                "frames_per_s": document["limit_frames_per_s"],
                "rates": document["rates"],
            }
        return row | {key: document[key] for key in METRICS}

    def check(self, run: Run) -> dict[str, Any]:
        """Compare frames once and return the row."""
        command = self.check_command(run)
        document = self.run(command)
        row = {"kind": "check", **self._about(run), "command": self.shown(command)}
        if "error" in document:
            return row | {"error": self.shown([document["message"]])}
        return row | {"check": document["check"]}

    def shown(self, command: Sequence[str]) -> str:
        """Return a command line without this machine's paths."""
        text = " ".join(command).replace(str(self.scratch), "$SCRATCH")
        return text.replace(sys.executable, "python")

    @staticmethod
    def _about(run: Run) -> dict[str, Any]:
        about = {"conversion": run.conversion, "loader": run.loader}
        return about | ({"mode": run.mode, "workers": run.workers} if run.mode else {})


# --- the table --------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return medians of the timed rows, checks, and how our stream compares, as aligned text."""
    timed: dict[Run, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("kind") != "check":
            run = Run(row["conversion"], row["loader"], row.get("mode", ""), row.get("workers", 0))
            timed.setdefault(run, []).append(row)
    lines = [f"{'':34}{'samples/s':>10}{'frames/s':>10}{'% limit':>8}{'first s':>8}{'p99 ms':>8}"
             f"{'PSS GB':>8}{'random':>8}"]  # fmt: skip
    for run, group in timed.items():
        errors = [row["error"] for row in group if "error" in row]
        if errors:
            lines.append(f"{run.name:34}  fails: {errors[0]}")
        elif run.loader == "limit":
            lines.append(f"{run.name:34}{'':10}{median(group, 'frames_per_s'):10.0f}")
        else:
            lines.append(
                f"{run.name:34}{median(group, 'samples_per_s'):10.1f}"
                f"{median(group, 'frames_per_s_node'):10.0f}{median(group, 'pct_of_limit'):8.0f}"
                f"{median(group, 'first_batch_latency_s'):8.2f}"
                f"{median(group, 'p99_batch_wait_ms'):8.0f}{median(group, 'peak_pss_gb'):8.2f}"
                f"{median(group, 'shuffle_randomness_frac'):8.2f}"
            )
    lines += ["", *ratios(timed), "", *checks(rows)]
    return "\n".join(lines)


def ratios(timed: Mapping[Run, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield, a line each, how our stream's best compares with the best of the other loaders."""
    for conversion in (OURS, ONE_FILE):
        for mode in dict.fromkeys(run.mode for run in timed if run.mode):
            best: dict[str, float] = {}
            for run, group in timed.items():
                sound = not any("error" in row for row in group)
                if (run.conversion, run.mode) == (conversion, mode) and sound:
                    rate = median(group, "samples_per_s")
                    best[run.loader] = max(rate, best.get(run.loader, 0.0))
            others = [rate for loader, rate in best.items() if loader != "stream"]
            if "stream" in best and others:
                times = best["stream"] / max(others)
                yield f"{conversion} {mode}: stream is {times:.2f} times the better of the others"


def checks(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line a comparison of frames."""
    for row in rows:
        if row.get("kind") != "check":
            continue
        found, name = row.get("check"), f"{row['conversion']} {row['loader']} {row['mode']}"
        if found is None:
            yield f"check {name}: fails: {row['error']}"
        else:
            yield (
                f"check {name}: in {found['samples']} samples {found['wrong_frames']} frames are "
                f"wrong, {found['unreadable_frames']} unreadable, "
                f"{found['wrong_pad_flags'] + found['wrong_values']} flags or values wrong"
            )


def median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the median of what is known; not a number where nothing is."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else float("nan")


# --- the whole --------------------------------------------------------------------------------


def bench_codec(codec: str, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Generate, convert, run everything, write the log and print the table."""
    scratch = Path(options.scratch) / f"leconvert-bench-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        print(f"{codec}: generating and converting ...", flush=True)
        source = scratch / "source"
        make = [sys.executable, __file__, "--make", str(source), codec]
        make += ["--episodes", str(options.episodes), "--frames", *map(str, options.frames)]
        subprocess.run(make, check=True)
        bench = Bench(scratch, convert_all(source, scratch), options)
        first = bench_convert.header(
            bench_convert.Bench(scratch, source, sync=False), codec, arguments
        )
        first |= {
            "command": first["command"].replace("bench_convert", "bench_probe"),
            "codec": CODECS[codec][0],
            "results": {
                name: bench_common.dataset_shape(result, name)
                for name, result in bench.results.items()
            },
        }
        stem = f"{first['started'][:10]}-probe-{codec}-{first['file_system']}"
        log = bench_common.new_log(Path(options.log_dir), stem)
        runs = planned_runs(options.workers, options.modes)
        rows: list[dict[str, Any]] = []
        with log.open("w", encoding="utf-8") as file:
            file.write(json.dumps(first) + "\n")

            def keep(row: dict[str, Any]) -> None:
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()

            for repeat in range(options.repeats):
                # Limits come first, as later runs refer to them; nobody always follows the same
                # neighbour.
                limits = [run for run in runs if run.loader == "limit"]
                others = [run for run in runs if run.loader != "limit"]
                turn = repeat * len(others) // options.repeats
                for run in [*limits, *others[turn:], *others[:turn]]:
                    row = {"repeat": repeat, **bench.row(run)}
                    keep(row)
                    rate = row.get("samples_per_s") or row.get("frames_per_s") or row["error"]
                    print(f"  {repeat} {run.name:34} {rate}", flush=True)
            if options.check:
                for conversion in (OURS, ONE_FILE):
                    for loader in ("stream", "stream-lerobot"):
                        for mode in options.modes:
                            keep(bench.check(Run(conversion, loader, mode)))
        order = {run: place for place, run in enumerate(runs)}
        rows.sort(key=lambda row: _place(row, order))
        print(f"\n{codec}, {log.name}\n{table(rows)}\n", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _place(row: Mapping[str, Any], order: Mapping[Run, int]) -> int:
    run = Run(row["conversion"], row["loader"], row.get("mode", ""), row.get("workers", 0))
    return order.get(run, len(order))


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    shared_memory = Path("/dev/shm")
    scratch = shared_memory if shared_memory.is_dir() else Path.cwd()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("codecs", nargs="+", choices=CODECS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--frames", type=int, nargs=2, default=(120, 280), metavar=("MIN", "MAX"))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--duration-s", type=float, default=15.0)
    parser.add_argument("--limit-duration-s", type=float, default=5.0)
    parser.add_argument("--probe-samples", type=int, default=100)
    parser.add_argument("--check", type=int, default=200, help="samples compared; 0 for none")
    parser.add_argument("--scratch", default=scratch, help=f"where it happens ({scratch})")
    parser.add_argument("--log-dir", default=bench_common.REPOSITORY / "bench_logs")
    parser.add_argument("--make", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.make is not None:
        make_source(options.codecs[0], Path(options.make), options)
        return 0
    for codec in options.codecs:
        bench_codec(codec, options, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
