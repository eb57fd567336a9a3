"""Measure a migration of small datasets in the folders of one repository.

    python scripts/bench.py hub-folders

Datasets of v2.1 are put on the stand-in of the tests, and made v3.0 there in three ways: converted
to a folder that is then pushed in one commit, pushed back one by one, and without moving files.
Commands are processes of their own with the real client. Prints a JSON line each, after one that
says what it ran on: requests, bytes of the bodies that came and went, commits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benches import kit
from benches.hub_push import REPO, TOP, WRIST, Shape, run
from leconvert.testing import make_dataset

sys.path.insert(0, str(kit.REPOSITORY))

from tests.hub import StandIn

SHAPE = Shape("tiny", episodes=5, frames=30, side=96, clip_bytes=44_000)
WAYS = ("one commit", "one by one", "episode-files")


def main(arguments: Sequence[str]) -> int:
    """Measure each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", type=int, default=50, metavar="N")
    parser.add_argument("--folder", type=Path, help="where all goes; removed after")
    options = parser.parse_args(arguments)
    scratch = options.folder or Path(tempfile.gettempdir())
    machine = kit.machine("bench.py hub-folders", arguments, scratch)
    print(json.dumps({**machine, "packages": {n: kit.version_of(n) for n in ("huggingface_hub",)}}))
    for way in WAYS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(json.dumps(measured(way, options.datasets, Path(folder))), flush=True)
    return 0


def measured(way: str, number: int, folder: Path) -> dict[str, object]:
    """Migrate the repository, and return what moved."""
    files: dict[str, bytes] = {"README.md": b"# Many\n"}
    for place in range(number):
        spec = replace(SHAPE.spec(TOP, WRIST), state_dim=14, seed=place)
        root = make_dataset(folder / f"source-{place}", spec)
        files |= {
            f"user_{place % 7}/task_{place}/{path.relative_to(root).as_posix()}": path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
    with StandIn(folder / "hub") as hub:
        repo = hub.add_repo(REPO, files)
        first = repo.branches["main"]
        started = time.monotonic()

        def leconvert(*words: object) -> str:
            command = [*kit.LECONVERT, *words]
            return run(command, hub.endpoint, folder, HF_HUB_DISABLE_XET="1")

        listed = leconvert("fleet", "find", f"hf://datasets/{REPO}")
        found, requests = folder / "list.txt", {"find": len(hub.log)}
        found.write_text(listed)
        fleet = ["fleet", found, "--work-dir", folder / "work"]
        if way == "one commit":
            results = folder / "converted"
            leconvert(*fleet, "--output-dir", results)
            requests["fleet"] = len(hub.log) - sum(requests.values())
            leconvert("push", results / REPO, "--push-repo-id", REPO)
            requests["push"] = len(hub.log) - sum(requests.values())
        else:
            layout = [] if way == "one by one" else ["--layout", way]
            leconvert(*fleet, "--push-to-hub", *layout)
            requests["fleet"] = len(hub.log) - sum(requests.values())
        seconds = time.monotonic() - started
        history = [oid for oid, _ in repo.history(repo.branches["main"])]
        tree = repo.tree(repo.branches["main"])
        done = sum(path.endswith("meta/tasks.parquet") for path in tree)
        sent = sum(request.body_bytes for request in hub.log)
        received = sum(request.answer_bytes for request in hub.log)
    return {
        "way": way,
        "datasets": number,
        "migrated": done,
        "files": len(files),
        "bytes": sum(map(len, files.values())),
        "requests": requests,
        "received_bytes": received,
        "sent_bytes": sent,
        "commits": history.index(first),
        "seconds": round(seconds, 1),
    }
