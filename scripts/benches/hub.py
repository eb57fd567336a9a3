"""The bytes that move between this machine and the Hub, whose stand-in of the tests serves here."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.store import Repo

from benches import kit
from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

REPO = "tester/arm"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
UPLOAD = (
    "import sys; from huggingface_hub import HfApi; HfApi().upload_folder("
    "repo_id=sys.argv[1], repo_type='dataset', folder_path=sys.argv[2])"
)
IN_PLACE = ("episode-files", "overlay")
WAYS = ("one commit", "one by one", "episode-files")


@dataclass(frozen=True)
class Shape:
    """A dataset: so many episodes, each with a clip of about so many bytes a camera."""

    name: str
    episodes: int
    frames: int
    side: int
    clip_bytes: int

    def make(self, root: Path, *keys: str, seed: int = 0, state_dim: int = 6) -> Path:
        """Make the dataset with these cameras; every clip is another one."""
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
        spec = DatasetSpec(episodes=self.episodes, frames=self.frames, cameras=cameras)
        return make_dataset(root, replace(spec, seed=seed, state_dim=state_dim))


SMALL = Shape("small", episodes=200, frames=30, side=96, clip_bytes=44_000)
SHAPES = (
    Shape("large", episodes=12, frames=150, side=480, clip_bytes=4_100_000),
    Shape("middle", episodes=40, frames=100, side=240, clip_bytes=500_000),
    SMALL,
)


def hub(case: kit.Case) -> None:
    """Measure the bytes that move between this machine and the Hub.

        python scripts/bench.py hub push        # a result, to a repo that holds the v2.1 dataset
        python scripts/bench.py hub migration   # a dataset to v3.0 without moving its files
        python scripts/bench.py hub folders     # many small datasets in folders of one repository

    Every command is a process of its own with the real client, as for a user.

    - *push*: the v2.1 dataset is uploaded through `hf_xet` to a ``local://`` store, converted, and
      the result pushed: with the client's cache of shards as the upload left it (warm), and without
      it (cold). The store grows by the bytes that were sent.
    - *migration*: ``convert ORG/NAME`` with each layout that keeps files where they are. Rows hold
      the bytes of the bodies that came and went, requests and commits.
    - *folders*: datasets converted to a folder that is then pushed in one commit, pushed back one
      by one, and without moving files.
    """
    whats = {"push": push, "migration": migration, "folders": folders}
    case.parser.add_argument("what", choices=whats)
    case.parser.add_argument("--datasets", type=int, default=50, help="of `folders` (50)")
    options = case.parse()
    packages = ("huggingface_hub", "hf_xet")
    with case.log(options.scratch, f"hub-{options.what}", packages=packages) as keep:
        for row in whats[options.what](case):
            keep(row)
            print(json.dumps(row), flush=True)


def push(case: kit.Case) -> Iterator[kit.Row]:
    """Push the result of each shape, with a warm and with a cold client."""
    for shape in SHAPES:
        with case.scratch_folder() as folder:
            source = shape.make(folder / "source", TOP)
            with StandIn(folder / "hub", xet=True) as hub:
                hub.add_repo(REPO)
                run([sys.executable, "-c", UPLOAD, REPO, source], hub.endpoint, folder)
            convert(source, output=folder / "result", for_push=True)
            clips = [path.stat().st_size for path in source.rglob("*.mp4")]
            for cache in ("warm", "cold"):
                yield {
                    "shape": shape.name,
                    "cache": cache,
                    "mean_clip_bytes": round(sum(clips) / len(clips)),
                    **pushed(folder, folder / "result", warm=cache == "warm"),
                }


def pushed(folder: Path, result: Path, *, warm: bool) -> kit.Row:
    """Push a result to a copy of the Hub, and return what was sent."""
    state = folder / "copy"
    shutil.copytree(folder / "hub", state)
    try:
        with StandIn(state, xet=True) as hub:
            assert hub.xet is not None
            if not warm:
                hub.xet.forget_shards()
            before = hub.xet.sent()
            run([*kit.LECONVERT, "push", result, "--push-repo-id", REPO], hub.endpoint, folder)
            after = hub.xet.sent()
    finally:
        shutil.rmtree(state)
    size, blocks = kit.size_of(result), after[0] - before[0]
    return {
        "result_bytes": size,
        "sent_bytes": blocks,
        "sent_shard_bytes": after[1] - before[1],
        "sent_percent": round(100 * blocks / size, 1),
    }


def migration(case: kit.Case) -> Iterator[kit.Row]:
    """Migrate a dataset of each shape with each layout."""
    for shape in SHAPES:
        for layout in IN_PLACE:
            with case.scratch_folder() as folder:
                source = shape.make(folder / "source", TOP, WRIST, state_dim=14)
                size = kit.size_of(source)
                with StandIn(folder / "hub") as hub:
                    repo = hub.add_repo(REPO, source)
                    command = [*kit.LECONVERT, "convert", REPO, "--layout", layout]
                    row = moved(hub, repo, folder, [command])
                total = row["received_bytes"] + row["sent_bytes"]
                about = {"shape": shape.name, "layout": layout, "bytes": size}
                yield about | row | {"moved_percent": round(100 * total / size, 2)}


def folders(case: kit.Case) -> Iterator[kit.Row]:
    """Migrate a repository of many datasets in each way."""
    shape = replace(SMALL, episodes=5)
    for way in WAYS:
        with case.scratch_folder() as folder:
            files: dict[str, bytes] = {"README.md": b"# Many\n"}
            for seed in range(case.options.datasets):
                root = shape.make(folder / f"source-{seed}", TOP, WRIST, seed=seed, state_dim=14)
                files |= {
                    f"user_{seed % 7}/task_{seed}/{path.relative_to(root)}": path.read_bytes()
                    for path in root.rglob("*")
                    if path.is_file()
                }
            with StandIn(folder / "hub") as hub:
                repo = hub.add_repo(REPO, files)
                find = [*kit.LECONVERT, "fleet", "find", f"hf://datasets/{REPO}"]
                found = folder / "list.txt"
                found.write_text(run(find, hub.endpoint, folder, HF_HUB_DISABLE_XET="1"))
                fleet = [*kit.LECONVERT, "fleet", found, "--work-dir", folder / "work"]
                layout = ["--layout", way] if way == "episode-files" else []
                commands = [[*fleet, "--push-to-hub", *layout]]
                if way == "one commit":
                    results = folder / "converted"
                    push_all = [*kit.LECONVERT, "push", results / REPO, "--push-repo-id", REPO]
                    commands = [[*fleet, "--output-dir", results], push_all]
                row = moved(hub, repo, folder, commands)
                tree = repo.tree(repo.branches["main"])
            done = sum(path.endswith("meta/tasks.parquet") for path in tree)
            about = {"way": way, "datasets": case.options.datasets, "migrated": done}
            yield about | {"files": len(files), "bytes": sum(map(len, files.values()))} | row


def moved(hub: StandIn, repo: Repo, folder: Path, commands: Sequence[Sequence[object]]) -> kit.Row:
    """Run commands, and return what moved from and to the Hub since it was started."""
    before, started = repo.branches["main"], time.monotonic()
    requests = [len(hub.log)]
    for command in commands:
        run(command, hub.endpoint, folder, HF_HUB_DISABLE_XET="1")
        requests.append(len(hub.log) - sum(requests))
    history = [oid for oid, _ in repo.history(repo.branches["main"])]
    return {
        "requests": requests[1:],
        "received_bytes": sum(
            request.answer_bytes for request in hub.log if request.method != "HEAD"
        ),
        "sent_bytes": sum(request.body_bytes for request in hub.log),
        "commits": history.index(before),
        "seconds": round(time.monotonic() - started, 1),
    }


def run(command: Sequence[object], endpoint: str, folder: Path, **more: str) -> str:
    """Run a process as a user who is logged in at the stand-in; return what it printed."""
    user = {
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": WRITE_TOKEN,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return kit.run_quietly(command, **user, **more)
