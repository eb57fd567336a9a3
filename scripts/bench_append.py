#!/usr/bin/env python3
"""Measure appending a few episodes to a result against converting the grown source anew.

    python scripts/bench_append.py --scratch /dev/shm/bench --runs 3 --output rows.jsonl

Both sides are the command line in a process of its own, in turns, on the same grown source; an
append is undone by `leconvert undo` before the next. Every row has the seconds on the clock and the
processor's, of all processes of the command, since other work may load the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import leconvert
from leconvert.testing import PROFILES, DatasetSpec, make_dataset

NEW = 10


def spec_of(episodes: int, clip_bytes: int) -> DatasetSpec:
    if episodes >= 1000:
        return replace(PROFILES["many"], episodes=episodes)
    mid = PROFILES["mid"]
    cameras = [replace(camera, target_clip_bytes=clip_bytes) for camera in mid.cameras]
    return replace(mid, episodes=episodes, cameras=cameras)


def run(name: str, episodes: int, words: list[str]) -> dict[str, object]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "leconvert", *words, "--quiet"], check=True)
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {"what": name, "episodes": episodes, "new": NEW, "seconds": round(seconds, 3)}
    return row | {"cpu_seconds": round(spent, 3), "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--episodes", type=int, nargs="+", default=[400, 4000])
    parser.add_argument("--clip-bytes", type=int, default=300_000, help="of 400 episodes' clips")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    for episodes in options.episodes:
        folder = options.scratch / str(episodes)
        folder.mkdir(parents=True)
        source, result, anew = folder / "source", folder / "result", folder / "anew"
        spec = spec_of(episodes + NEW, options.clip_bytes)
        lengths = spec.lengths()
        make_dataset(folder / "first", replace(spec, episodes=episodes, frames=lengths[:episodes]))
        leconvert.convert(folder / "first", output=result)
        shutil.rmtree(folder / "first")
        make_dataset(source, replace(spec, frames=lengths))
        given = [str(source), str(result), "--append"]
        for number in range(options.runs):
            rows = []
            for name in ("append", "anew") if number % 2 else ("anew", "append"):
                if name == "anew":
                    rows.append(run(name, episodes, ["convert", str(source), str(anew)]))
                    shutil.rmtree(anew)
                    continue
                rows.append(run(name, episodes, ["convert", *given]))
                subprocess.run(
                    [sys.executable, "-m", "leconvert", "undo", str(result)],
                    check=True, stdout=subprocess.DEVNULL,
                )  # fmt: skip
                shutil.rmtree(result.with_name("result_v30"))
            with options.output.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
