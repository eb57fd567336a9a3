"""Measure appending a few episodes to a result against a new conversion of the grown source.

    python scripts/bench.py append --repeats 3

Both sides are the command line in a process of its own, in turns, on the same grown source; an
append is undone by `leconvert undo` before the next. Every row has the seconds on the clock and the
processor's, of all processes of the command, since other work may load the machine.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benches import kit

NEW = 10


def make_sources(folder: Path, episodes: int, clip_bytes: int) -> None:
    """Make a dataset, convert it to ``result``, and make the dataset that it has grown to.

    From 1,000 episodes on they are short, with small clips; fewer have clips of so many bytes.
    """
    import leconvert
    from leconvert.testing import PROFILES, make_dataset

    mid = PROFILES["mid"]
    cameras = [replace(camera, target_clip_bytes=clip_bytes) for camera in mid.cameras]
    shape = PROFILES["many"] if episodes >= 1000 else replace(mid, cameras=cameras)
    spec = replace(shape, episodes=episodes + NEW)
    lengths = spec.lengths()
    make_dataset(folder / "first", replace(spec, episodes=episodes, frames=lengths[:episodes]))
    leconvert.convert(folder / "first", output=folder / "result")
    shutil.rmtree(folder / "first")
    make_dataset(folder / "source", replace(spec, frames=lengths))


def bench(episodes: int, folder: Path, options: Namespace, arguments: Sequence[str]) -> None:
    """Measure one number of episodes, keep the rows, and print the medians."""
    kit.in_own_process(make_sources, folder, episodes, options.clip_bytes)
    source, result, anew = folder / "source", folder / "result", folder / "anew"

    def run(name: str) -> kit.Row:
        words = [str(result), "--append"] if name == "append" else [str(anew)]
        command = [*kit.LECONVERT, "convert", str(source), *words, "--quiet"]
        row = kit.measured(command, folder)
        if name == "append":
            kit.run_quietly([*kit.LECONVERT, "undo", result])
            shutil.rmtree(result.with_name("result_v30"))
        else:
            shutil.rmtree(anew)
        return {"runner": name, "new": NEW, "load": round(os.getloadavg()[0], 1), **row}

    shape = kit.dataset_shape(source, f"{episodes} and {NEW} episodes")
    head = kit.header("bench.py append", arguments, folder, shape)
    log = kit.new_log(options.log_dir, head, "append", str(episodes))
    rows = kit.rows_in_turns(log, head, ("anew", "append"), options.repeats, run)
    print(kit.table(rows), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measure each number of episodes."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("--episodes", type=int, nargs="+", default=[400, 4000])
    parser.add_argument("--clip-bytes", type=int, default=300_000, help="of 400 episodes' clips")
    options = parser.parse_args(arguments)
    for episodes in options.episodes:
        with kit.scratch_folder(options.scratch, "append") as folder:
            bench(episodes, folder, options, arguments)
    return 0
