"""What a migration on the Hub moves: `python scripts/measure_migration.py`.

For each shape of dataset and each layout: a v2.1 dataset is put on the stand-in of the tests, and
`leconvert convert ORG/NAME --layout LAYOUT`, a process of its own with the real client, makes it
v3.0 there. Prints a JSON line each, after one that says what it ran on: bytes of the bodies that
came and went, requests, commits. With `--load` LeRobot then downloads the tag v3.0 from the
stand-in and decodes each frame.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hub import StandIn  # noqa: E402

from leconvert import __version__  # noqa: E402
from leconvert.testing import DatasetSpec, make_dataset  # noqa: E402
from measure_chunks import Shape as OneCamera  # noqa: E402
from measure_chunks import run  # noqa: E402

REPO = "tester/arm"
LAYOUTS = ("episode-files", "overlay")
LOAD = """
import sys
from lerobot.datasets import LeRobotDataset
dataset = LeRobotDataset(sys.argv[1], revision="v3.0", root=sys.argv[2], video_backend="pyav")
for place in range(len(dataset)):
    dataset[place]
print(len(dataset))
"""


class Shape(OneCamera):
    """A dataset with two cameras: so many episodes, each with clips of about so many bytes."""

    def spec(self) -> DatasetSpec:
        """Return what to make."""
        spec = super().spec()
        (top,) = spec.cameras
        cameras = (top, replace(top, key="observation.images.wrist"))
        return replace(spec, cameras=cameras, state_dim=14)


SHAPES = (
    Shape("large", episodes=12, frames=150, side=480, clip_bytes=4_100_000),
    Shape("middle", episodes=40, frames=100, side=240, clip_bytes=500_000),
    Shape("small", episodes=200, frames=30, side=96, clip_bytes=44_000),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--load", action="store_true", help="load each frame through LeRobot")
    parser.add_argument("--folder", type=Path, help="where datasets and stores go; removed after")
    options = parser.parse_args(argv)
    print(json.dumps({"leconvert": __version__, "huggingface_hub": version("huggingface_hub")}))
    for shape in SHAPES:
        if options.shape is None or shape.name in options.shape:
            for layout in LAYOUTS:
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    line = measured(shape, layout, Path(folder), load=options.load)
                print(json.dumps(line), flush=True)
    return 0


def measured(shape: Shape, layout: str, folder: Path, *, load: bool) -> dict[str, object]:
    """Migrate one dataset, and return what moved."""
    source = make_dataset(folder / "source", shape.spec())
    sizes = {p: p.stat().st_size for p in source.rglob("*") if p.is_file()}
    clips = [size for path, size in sizes.items() if path.suffix == ".mp4"]
    with StandIn(folder / "hub") as hub:
        repo = hub.add_repo(REPO, source)
        first = repo.branches["main"]
        started = time.monotonic()
        command = [sys.executable, "-m", "leconvert", "convert", REPO, "--layout", layout]
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


if __name__ == "__main__":
    sys.exit(main())
