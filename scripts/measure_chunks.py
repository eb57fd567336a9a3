"""What a push sends to a Hub that holds the v2.1 dataset: `python scripts/measure_chunks.py`.

For each shape of dataset: a v2.1 dataset is made and uploaded with the real client to the stand-in
of the tests, whose large files go through `hf_xet` to a `local://` store; it is converted; the
result is pushed to the same repo. Twice: with the client's cache of shards as the upload left it
(warm), and without it (cold). What the store grew by is what was sent. Prints a JSON line a push,
after one that says what it ran on. The upload and each push are processes of their own, as for a
user.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hub import WRITE_TOKEN, StandIn  # noqa: E402

from leconvert import __version__  # noqa: E402
from leconvert.api import convert  # noqa: E402
from leconvert.model.values import LayoutOptions  # noqa: E402
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset  # noqa: E402

REPO = "tester/arm"
UPLOAD = (
    "import sys; from huggingface_hub import HfApi; HfApi().upload_folder("
    "repo_id=sys.argv[1], repo_type='dataset', folder_path=sys.argv[2])"
)


@dataclass(frozen=True)
class Shape:
    """A dataset with one camera: so many episodes, each with a clip of about so many bytes."""

    name: str
    episodes: int
    frames: int
    side: int
    clip_bytes: int

    def spec(self) -> DatasetSpec:
        """Return what to make; every clip is another one."""
        camera = CameraSpec(
            key="observation.images.top",
            width=self.side * 4 // 3,
            height=self.side,
            gop_size=30,
            options={"preset": "ultrafast"},
            noise_amplitude=48,
            target_clip_bytes=self.clip_bytes,
        )
        return DatasetSpec(episodes=self.episodes, frames=self.frames, cameras=(camera,))


SHAPES = (
    Shape("large", episodes=12, frames=150, side=480, clip_bytes=4_100_000),
    Shape("middle", episodes=40, frames=100, side=240, clip_bytes=500_000),
    Shape("small", episodes=200, frames=30, side=96, clip_bytes=44_000),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--block-align", type=int, nargs="+", default=[0, 4096], metavar="BYTES")
    parser.add_argument("--folder", type=Path, help="where datasets and stores go; removed after")
    options = parser.parse_args(argv)
    versions = {name: version(name) for name in ("huggingface_hub", "hf_xet")}
    print(json.dumps({"versions": {"leconvert": __version__, **versions}}), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for shape in SHAPES:
            if options.shape is None or shape.name in options.shape:
                measure(shape, Path(folder) / shape.name, options.block_align)
    return 0


def measure(shape: Shape, folder: Path, block_aligns: Sequence[int]) -> None:
    """Measure one shape, and print a line a push."""
    source = make_dataset(folder / "source", shape.spec())
    with StandIn(folder / "hub", xet=True) as hub:
        hub.add_repo(REPO)
        run([sys.executable, "-c", UPLOAD, REPO, str(source)], hub.endpoint, folder)
    for block_align in block_aligns:
        result = folder / f"result-{block_align}"
        convert(source, output=result, layout=LayoutOptions(block_align=block_align), for_push=True)
        for cache in ("warm", "cold"):
            line = {"shape": shape.name, "block_align": block_align, "cache": cache}
            line |= pushed(folder, result, warm=cache == "warm")
            print(json.dumps(line), flush=True)
        shutil.rmtree(result)
    shutil.rmtree(folder)


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
            push = [sys.executable, "-m", "leconvert", "push", str(result), "--push-repo-id", REPO]
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


def run(command: Sequence[str], endpoint: str, folder: Path, **more: str) -> str:
    """Run a process as a user who is logged in at the stand-in; return what it printed.

    Args:
        more: Further environment variables.
    """
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": WRITE_TOKEN,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **more,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
