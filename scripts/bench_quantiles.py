"""What do quantiles cost, which a recording needs to be resumed with LeRobot?

    python scripts/bench_quantiles.py DATASET... --repeats 5 | tee bench_logs/quantiles.txt

Converts each dataset with one thread, in turn without and with ``--quantiles``, whole and without
its cameras, so that columns alone are computed. Prints every repeat: processor seconds of the whole
program, which other work on the machine changes less than the wall clock, and wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_common import commit, cpu_name, file_system_of

__all__ = ["main"]


def measured(source: Path, options: list[str]) -> tuple[float, float]:
    """Convert once; return processor seconds and wall seconds."""
    with tempfile.TemporaryDirectory(prefix="leconvert-quantiles-") as folder:
        words = ["convert", str(source), str(Path(folder, "out")), "--max-workers", "1", "-q"]
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "leconvert", *words, *options])
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"leconvert ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, seconds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sources", nargs="+", type=Path, metavar="DATASET")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--also", action="append", default=[], metavar="OPTION")
    options = parser.parse_args()
    scratch = Path(tempfile.gettempdir())
    print(f"commit {commit()}, {cpu_name()}, {file_system_of(scratch)}, Python {sys.version[:6]}")
    for source in options.sources:
        info = json.loads((source / "meta/info.json").read_bytes())
        cameras = [name for name, of in info["features"].items() if of["dtype"] == "video"]
        dropped = [f"--drop-feature={name}" for name in cameras]
        variants = {
            "all, by default": [],
            "all, --quantiles": ["--quantiles"],
            "columns, by default": dropped,
            "columns, --quantiles": [*dropped, "--quantiles"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        print(
            f"\n{source.name}: {info['codebase_version']}, {info['total_episodes']} episodes, "
            f"{info['total_frames']} frames, {len(cameras)} cameras; {' '.join(options.also)}"
        )
        for _ in range(options.repeats):
            for name, words in variants.items():
                found[name].append(measured(source, [*words, *options.also]))
        for name, repeats in found.items():
            processor = [seconds for seconds, _ in repeats]
            raw = "  ".join(f"{cpu:.2f}/{wall:.2f}" for cpu, wall in repeats)
            print(f"  {name:<22}median {statistics.median(processor):6.2f} s processor   {raw}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
