"""Measure how many bytes a push sends to a Hub that holds the v2.1 dataset.

    python scripts/bench.py hub-push

For each shape of dataset: a v2.1 dataset is made and uploaded with the real client to the stand-in
of the tests, whose large files go through `hf_xet` to a `local://` store; it is converted; the
result is pushed to the same repo. Twice: with the client's cache of shards as the upload left it
(warm), and without it (cold). The store grows by the bytes that were sent. The first line of the
output is the machine, then comes a JSON line a push. The upload and each push are processes of
their own, as for a user.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches import kit
from leconvert.api import convert
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

sys.path.insert(0, str(kit.REPOSITORY))

from tests.hub import WRITE_TOKEN, StandIn

REPO = "tester/arm"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
UPLOAD = (
    "import sys; from huggingface_hub import HfApi; HfApi().upload_folder("
    "repo_id=sys.argv[1], repo_type='dataset', folder_path=sys.argv[2])"
)


@dataclass(frozen=True)
class Shape:
    """A dataset: so many episodes, each with a clip of about so many bytes a camera."""

    name: str
    episodes: int
    frames: int
    side: int
    clip_bytes: int

    def spec(self, *keys: str) -> DatasetSpec:
        """Return what to make with these cameras; every clip is another one."""
        cameras = tuple(
            CameraSpec(
                key=key,
                width=self.side * 4 // 3,
                height=self.side,
                gop_size=30,
                options={"preset": "ultrafast"},
                noise_amplitude=48,
                target_clip_bytes=self.clip_bytes,
            )
            for key in keys
        )
        return DatasetSpec(episodes=self.episodes, frames=self.frames, cameras=cameras)


SHAPES = (
    Shape("large", episodes=12, frames=150, side=480, clip_bytes=4_100_000),
    Shape("middle", episodes=40, frames=100, side=240, clip_bytes=500_000),
    Shape("small", episodes=200, frames=30, side=96, clip_bytes=44_000),
)


def main(arguments: Sequence[str]) -> int:
    """Measure each shape."""
    parser = shapes_parser(__doc__)
    parser.add_argument("--block-align", type=int, nargs="+", default=[0, 4096], metavar="BYTES")
    options = parser.parse_args(arguments)
    return for_each_shape(
        "hub-push",
        options,
        arguments,
        lambda shape, folder: measure(shape, folder, options.block_align),
    )


def shapes_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of shapes and a folder."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--folder", type=Path, help="where datasets and stores go; removed after")
    return parser


def for_each_shape(
    case: str,
    options: argparse.Namespace,
    arguments: Sequence[str],
    measure: Callable[[Shape, Path], None],
) -> int:
    """Print what this runs on, then measure each shape in a folder of its own."""
    versions = {name: kit.version_of(name) for name in ("huggingface_hub", "hf_xet")}
    scratch = options.folder or Path(tempfile.gettempdir())
    machine = kit.machine(f"bench.py {case}", arguments, scratch)
    print(json.dumps({**machine, "packages": versions}), flush=True)
    for shape in SHAPES:
        if options.shape is None or shape.name in options.shape:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                measure(shape, Path(folder))
    return 0


def measure(shape: Shape, folder: Path, block_aligns: Sequence[int]) -> None:
    """Measure one shape, and print a line a push."""
    source = make_dataset(folder / "source", shape.spec(TOP))
    with StandIn(folder / "hub", xet=True) as hub:
        hub.add_repo(REPO)
        run([sys.executable, "-c", UPLOAD, REPO, source], hub.endpoint, folder)
    for block_align in block_aligns:
        result = folder / f"result-{block_align}"
        convert(source, output=result, layout=LayoutOptions(block_align=block_align), for_push=True)
        for cache in ("warm", "cold"):
            line = {"shape": shape.name, "block_align": block_align, "cache": cache}
            line |= pushed(folder, result, warm=cache == "warm")
            print(json.dumps(line), flush=True)
        shutil.rmtree(result)


def pushed(folder: Path, result: Path, *, warm: bool) -> dict[str, float]:
    """Push a result to a copy of the Hub, and return what was sent."""
    state = folder / "copy"
    shutil.copytree(folder / "hub", state)
    try:
        with StandIn(state, xet=True) as hub:
            assert hub.xet is not None
            if not warm:
                hub.xet.forget_shards()
            before = hub.xet.sent()
            push = [*kit.LECONVERT, "push", result, "--push-repo-id", REPO]
            run(push, hub.endpoint, folder)
            after = hub.xet.sent()
    finally:
        shutil.rmtree(state)
    clips = [path.stat().st_size for path in (folder / "source").rglob("*.mp4")]
    files = {p: p.stat().st_size for p in result.rglob("*") if p.is_file()}
    size = sum(files.values())
    blocks, shards = after[0] - before[0], after[1] - before[1]
    return {
        "mean_clip_bytes": round(sum(clips) / len(clips)),
        "result_bytes": size,
        "video_bytes": sum(size for path, size in files.items() if path.suffix == ".mp4"),
        "sent_bytes": blocks,
        "sent_shard_bytes": shards,
        "sent_percent": round(100 * blocks / size, 1),
    }


def run(command: Sequence[object], endpoint: str, folder: Path, **more: str) -> str:
    """Run a process as a user who is logged in at the stand-in; return what it printed.

    Args:
        command: The command to run.
        endpoint: The stand-in's address.
        folder: Holds the client's home.
        more: Further environment variables.
    """
    user = {
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": WRITE_TOKEN,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return kit.run_quietly(command, **user, **more)
