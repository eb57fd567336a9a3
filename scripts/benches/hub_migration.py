"""Measure how many bytes a migration on the Hub moves.

    python scripts/bench.py hub-migration

For each shape of dataset and each layout: a v2.1 dataset is put on the stand-in of the tests, and
`leconvert convert ORG/NAME --layout LAYOUT`, a process of its own with the real client, makes it
v3.0 there. Prints a JSON line each, after one that says what it ran on: bytes of the bodies that
came and went, requests, commits. With `--load` LeRobot then downloads the tag v3.0 from the
stand-in and decodes each frame.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benches import kit
from benches.hub_push import REPO, TOP, WRIST, Shape, for_each_shape, run, shapes_parser
from leconvert.testing import make_dataset

sys.path.insert(0, str(kit.REPOSITORY))

from tests.hub import StandIn

LAYOUTS = ("episode-files", "overlay")
LOAD = """
import sys
from lerobot.datasets import LeRobotDataset
dataset = LeRobotDataset(sys.argv[1], revision="v3.0", root=sys.argv[2], video_backend="pyav")
for place in range(len(dataset)):
    dataset[place]
print(len(dataset))
"""


def main(arguments: Sequence[str]) -> int:
    """Measure each shape with each layout."""
    parser = shapes_parser(__doc__)
    parser.add_argument("--load", action="store_true", help="load each frame through LeRobot")
    options = parser.parse_args(arguments)

    def measure(shape: Shape, folder: Path) -> None:
        for layout in LAYOUTS:
            line = measured(shape, layout, folder / layout, load=options.load)
            print(json.dumps(line), flush=True)

    return for_each_shape("hub-migration", options, arguments, measure)


def measured(shape: Shape, layout: str, folder: Path, *, load: bool) -> dict[str, object]:
    """Migrate one dataset, and return what moved."""
    source = make_dataset(folder / "source", replace(shape.spec(TOP, WRIST), state_dim=14))
    sizes = {p: p.stat().st_size for p in source.rglob("*") if p.is_file()}
    clips = [size for path, size in sizes.items() if path.suffix == ".mp4"]
    with StandIn(folder / "hub") as hub:
        repo = hub.add_repo(REPO, source)
        first = repo.branches["main"]
        started = time.monotonic()
        command = [*kit.LECONVERT, "convert", REPO, "--layout", layout]
        run(command, hub.endpoint, folder, HF_HUB_DISABLE_XET="1")
        seconds = time.monotonic() - started
        log = list(hub.log)
        history = [oid for oid, _ in repo.history(repo.branches["main"])]
        commits = history.index(first)
        received = sum(request.answer_bytes for request in log if request.method == "GET")
        received += sum(request.answer_bytes for request in log if request.method == "POST")
        sent = sum(request.body_bytes for request in log)
        line: dict[str, object] = {
            "shape": shape.name,
            "layout": layout,
            "mean_clip_bytes": round(sum(clips) / len(clips)),
            "bytes": sum(sizes.values()),
            "received_bytes": received,
            "sent_bytes": sent,
            "moved_percent": round(100 * (received + sent) / sum(sizes.values()), 2),
            "requests": len(log),
            "commits": commits,
            "tags": sorted(repo.tags),
            "seconds": round(seconds, 2),
        }
        if load:
            loaded = [sys.executable, "-c", LOAD, REPO, str(folder / "loaded")]
            line["frames_loaded"] = int(
                run(loaded, hub.endpoint, folder, HF_HUB_DISABLE_XET="1").split()[-1]
            )
    return line
