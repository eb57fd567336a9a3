"""Measure appending a few episodes to a result against a new conversion of the grown source.

    python scripts/bench.py append --repeats 3

Both sides are the command line in a process of its own, in turns, on the same grown source; an
append is undone by `leconvert undo` before the next. *long* has 400 episodes of 3 cameras with
clips of 1.5 MB; *many* 4,000 short ones. Every row has the seconds on the clock and the
processor's, of all processes of the command, since other work may load the machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benches import kit

NEW = 10
EPISODES = {"long": 400, "many": 4000}
CLIP_BYTES = 1_500_000  # of *long*


def make_sources(folder: Path, name: str, episodes: int) -> None:
    """Make a dataset, convert it to ``result``, and make the dataset that it has grown to."""
    import leconvert
    from leconvert.testing import PROFILES, make_dataset

    mid = PROFILES["mid"]
    cameras = [replace(camera, target_clip_bytes=CLIP_BYTES) for camera in mid.cameras]
    shape = PROFILES["many"] if name == "many" else replace(mid, cameras=cameras)
    spec = replace(shape, episodes=episodes + NEW)
    lengths = spec.lengths()
    make_dataset(folder / "first", replace(spec, episodes=episodes, frames=lengths[:episodes]))
    leconvert.convert(folder / "first", output=folder / "result")
    shutil.rmtree(folder / "first")
    make_dataset(folder / "source", replace(spec, frames=lengths))


def main(arguments: Sequence[str]) -> int:
    """Measure each dataset."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("datasets", nargs="*", choices=[*EPISODES], metavar="DATASET")
    parser.add_argument("--episodes", type=int, help="other than the dataset's")
    options = parser.parse_args(arguments)
    for name in options.datasets or EPISODES:
        with kit.scratch_folder(options.scratch, "append") as folder:
            episodes = options.episodes or EPISODES[name]
            kit.in_own_process(make_sources, folder, name, episodes)
            source, result, anew = folder / "source", folder / "result", folder / "anew"
            convert, undo = (*kit.LECONVERT, "convert", source), (*kit.LECONVERT, "undo", result)
            runners = [
                kit.Runner("anew", (*convert, anew, "-q"), [anew]),
                kit.Runner(
                    "append", (*convert, result, "--append", "-q"), [folder / "result_v30"],
                    after=undo,
                ),
            ]  # fmt: skip
            shape = kit.dataset_shape(source, f"{episodes} and {NEW} episodes")
            log_name = ("append", str(episodes))
            kit.compare("append", log_name, runners, folder, shape, options, arguments)
    return 0
