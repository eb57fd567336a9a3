"""Loaders side by side: what a sample costs, from the disk and from a store, and if it is right."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from benches import kit

CAMERAS = ("observation.images.top", "observation.images.wrist")
CHECKED_BATCHES = 5
# Every loader with the form of the dataset that it reads; LeRobot's classes read no bucket.
LOCAL = (
    *(("ours", "few"), ("lerobot", "few"), ("lerobot-pyav", "few"), ("lerobot-streaming", "one")),
    *(("lance", "few-lance"), ("mosaic", "mds")),
    ("ours", "many"),
)
# Modules of each loader, and the modules that it imports when it first opens a dataset.
IMPORTS = {
    "ours": ("leconvert.loading", "leconvert.loading.stream", "av", "pyarrow.parquet", "fsspec"),
    "lance": ("lerobot_lancedb",),
    "mosaic": ("streaming", "PIL.Image"),
    "lerobot": ("lerobot.datasets.lerobot_dataset", "torchcodec.decoders"),
    "lerobot-pyav": ("lerobot.datasets.lerobot_dataset", "av"),
    "lerobot-streaming": ("lerobot.datasets.streaming_dataset", "torchcodec.decoders"),
}
BATCH_SIZE = 32
PACE = {"seconds_per_request": 0.02, "mb_per_second": 100.0}
KEYS = ("where", "loader", "form")
COLUMNS = {
    "cpu_ms_a_sample": ".1f", "samples_per_s": ",.0f", "first_batch_s": ".1f", "pss_mb": ",.0f",
    "distinct_episodes": ".1f", "fetched_mb": ".0f", "wrong_frames": ".0f",
}  # fmt: skip


def prepare(folder: Path, episodes: int, peers: dict[str, str]) -> None:
    """Make every form of the dataset that is missing; say which could not be made, and why."""
    import leconvert
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
    from leconvert.testing.dataset import RandomLengths

    source = folder / "v21"
    if not source.exists():
        cameras = tuple(
            CameraSpec(
                key=key,
                width=320,
                height=240,
                options={"preset": "veryfast"},
                noise_amplitude=40,
                target_clip_bytes=60 * 8_000,
            )
            for key in CAMERAS
        )
        spec = DatasetSpec(episodes=episodes, frames=RandomLengths(7, 50, 70), cameras=cameras)
        make_dataset(source, spec)
    for name, layout in (
        ("few", leconvert.LayoutOptions(video_file_size_in_mb=12)),
        ("one", leconvert.LayoutOptions(video_file_size_in_mb=10_000)),
        ("many", leconvert.LayoutOptions(layout="episode-files")),
    ):
        if not (folder / name).exists():
            leconvert.convert(source, output=folder / name, layout=layout)
    lance = "from lerobot_lancedb.convert import main; main()"
    for name, command, peer in (
        ("few-lance", ("-c", lance, "--root", folder / "few"), "lance"),
        ("mds", (kit.BENCH, "loaders", "--write-mds", folder / "few"), "mosaic"),
    ):
        if (folder / name).exists():
            continue
        done = subprocess.run(
            [sys.executable, *map(str, command), "--out", str(folder / name)],
            env=environment(peers.get(peer)),
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(folder / name, ignore_errors=True)
            print(f"{name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}", flush=True)


def write_mds(source: Path, target: Path) -> None:
    """Write the frames of a dataset as MosaicML's shards."""
    from PIL import Image

    from leconvert.loading import EpisodeStream

    columns = dict.fromkeys(CAMERAS, "jpeg")
    numbers = {"episode_index": "int", "frame_index": "int"}
    vectors = {"observation.state": "ndarray:float32", "action": "ndarray:float32"}
    with import_module("streaming").MDSWriter(
        out=str(target), columns={**columns, **numbers, **vectors}
    ) as out:
        for sample in EpisodeStream(source, shuffle=False, return_uint8=True):
            row: dict[str, Any] = {key: int(sample[key]) for key in numbers}
            row |= {key: sample[key].numpy() for key in vectors}
            for key in CAMERAS:
                row[key] = Image.fromarray(sample[key].movedim(0, 2).numpy())
            out.write(row)


def environment(peer: str | None) -> dict[str, str]:
    """Return the environment of a run, with a peer's packages before the others."""
    paths = [path for path in (peer, os.environ.get("PYTHONPATH")) if path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }


def open_loader(options: argparse.Namespace, scratch: str) -> Callable[[], Iterator[Any]]:
    """Open a loader's dataset, and return what begins an epoch of its batches."""
    place, size, workers = options.place, BATCH_SIZE, options.workers
    if options.here == "ours":
        import fsspec

        from leconvert.loading import EpisodeStream, StreamLoader

        if options.endpoint:
            fsspec.config.conf["s3"] = {"endpoint_url": options.endpoint}
        stream = EpisodeStream(
            place,
            return_uint8=True,
            rank=0,
            world_size=1,
            cache_dir=scratch,
        )
        ours = StreamLoader(stream, batch_size=size, num_workers=workers)
        return lambda: iter(ours)
    from torch.utils.data import DataLoader

    more: dict[str, Any] = {"shuffle": True}
    if options.here == "lance":
        peer = import_module("lerobot_lancedb")
        store = {"aws_endpoint": options.endpoint, "allow_http": "true"}
        dataset: Any = peer.LanceDBDataset(
            repo_id="local/dataset" if not options.endpoint else None,
            root=place,
            return_uint8=True,
            storage_options=store if options.endpoint else None,
        )
        more["multiprocessing_context"] = peer.lance_mp_context() if workers else None
    elif options.here == "mosaic":
        import numpy as np
        import torch

        class Frames(import_module("streaming").StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, index: Any) -> Any:
                row = super().__getitem__(index)
                for key in CAMERAS:
                    row[key] = torch.from_numpy(np.array(row[key])).movedim(2, 0)
                return row

        if options.endpoint:
            os.environ["S3_ENDPOINT_URL"] = options.endpoint
        where = {"remote": place, "local": scratch} if options.endpoint else {"local": place}
        dataset = Frames(shuffle=True, batch_size=size, **where)
        more = {}
    elif options.here in {"lerobot", "lerobot-pyav"}:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        dataset = LeRobotDataset(
            "local/dataset",
            root=place,
            return_uint8=True,
            video_backend="pyav" if options.here == "lerobot-pyav" else "torchcodec",
        )
    else:
        from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

        dataset = StreamingLeRobotDataset("local/dataset", root=place, return_uint8=True)
        more = {}
    loader: Any = DataLoader(dataset, batch_size=size, num_workers=workers, **more)
    return lambda: iter(loader)


def measure(options: argparse.Namespace) -> kit.Row:
    """Go through an epoch in this process, and return what it took."""
    import numpy as np
    import psutil
    import torch  # noqa: F401 (what every loader needs is not the dataset's opening)

    from leconvert.testing import read_label

    family = psutil.Process()

    def mark() -> tuple[float, float]:
        everyone = [family, *family.children(recursive=True)]
        return time.perf_counter(), sum(sum(one.cpu_times()[:2]) for one in everyone)

    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        marks = [mark()]
        for name in IMPORTS[options.here]:
            import_module(name)
        if options.endpoint and options.here == "ours":
            import_module("s3fs")
        marks.append(mark())
        begin = open_loader(options, scratch)
        half = options.samples // BATCH_SIZE
        distinct, first_batch_s = [], 0.0
        batches = begin()
        for number in range(2 * half):
            batch = next(batches)
            first_batch_s = first_batch_s or time.perf_counter() - marks[1][0]
            distinct.append(len(np.unique(batch["episode_index"].numpy())))
            if number + 1 in (half, 2 * half):
                marks.append(mark())
        everyone = [family, *family.children(recursive=True)]
        pss = sum(one.memory_full_info().pss for one in everyone)
        if options.whole_epoch:
            for _ in batches:
                pass
        wrong = checked = 0
        del batches
        for batch in itertools.islice(begin(), CHECKED_BATCHES):
            rows = zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True)
            for row, (episode, frame) in enumerate(rows):
                for camera, key in enumerate(CAMERAS):
                    label = read_label(batch[key][row].movedim(0, 2).numpy())
                    checked += 1
                    wrong += tuple(label) != (camera, episode, frame)
    (wall_0, cpu_0), (wall_opened, _), (wall_1, cpu_1), (wall_2, cpu_2) = marks
    samples = half * BATCH_SIZE
    return {
        "cpu_ms_a_sample": round((cpu_2 - cpu_1) / samples * 1e3, 3),
        "cpu_ms_a_sample_from_start": round((cpu_1 - cpu_0) / samples * 1e3, 3),
        "samples_per_s": round(samples / (wall_2 - wall_1), 1),
        "imports_s": round(wall_opened - wall_0, 2),
        "first_batch_s": round(first_batch_s, 2),
        "pss_mb": round(pss / 1e6),
        "distinct_episodes": round(float(np.mean(distinct)), 1),
        "checked_frames": checked,
        "wrong_frames": wrong,
    }


def loaders(case: kit.Case) -> None:
    """Measure what a sample costs by each loader, from the disk and from a store.

        python scripts/bench.py loaders --repeats 3
        python scripts/bench.py loaders --peer lance=DIR --peer mosaic=DIR   # where pip put them

    A dataset of 96 short episodes with two cameras is made, each of whose pictures says which frame
    it is. It is converted into a few MP4s a camera (*few*), into one a camera (*one*, which
    LeRobot's streaming class needs), into one an episode (*many*), into Lance's tables by
    ``lerobot-lance-convert``, and into MosaicML's shards (*mds*: its frames as JPEG, since that
    format holds no video). The store speaks S3 on loopback: 20 ms a request, 100 MB/s together.

    Every run is a process of its own: batches of 32, shuffled, uint8, no windows. CPU time is that
    of the process and its workers in the second half of the timed samples; memory is the sum of
    their proportional sets (PSS); the first batch counts from the opening of the dataset, after all
    imports. Then five batches more are taken untimed, and every picture of theirs is compared with
    what the dataset drew. The bytes that left the store are those of all these samples, or with
    ``--whole-epoch`` of an epoch. A run that fails is a row with its error.

    A peer's packages need not be in this environment: ``pip install --target DIR --no-deps`` puts
    them into a folder, which is put before the others for its runs alone.
    """
    add = case.parser.add_argument
    add("--peer", action="append", default=[], help="NAME=DIR of its packages")
    add("--workers", type=int, default=2)
    add("--episodes", type=int, default=96)
    for name in ("here", "place", "endpoint", "write-mds", "out"):
        add(f"--{name}", help=argparse.SUPPRESS)
    add("--samples", type=int, default=960, help="of each of the two timed halves")
    add("--whole-epoch", action="store_true", help="go on to the end of the epoch")
    options = case.parse(repeats=3)
    if options.here:
        print(json.dumps(measure(options)))
        return
    if options.write_mds:
        write_mds(Path(options.write_mds), Path(options.out))
        return
    folder = options.scratch / "bench-loaders"
    folder.mkdir(exist_ok=True)
    peers = dict(one.split("=", 1) for one in options.peer)
    kit.in_own_process(prepare, folder, options.episodes, peers)
    kit.read_through(folder)
    facts: kit.Row = {
        **PACE,
        "dataset": kit.dataset_shape(folder / "few", f"{options.episodes} episodes, two cameras"),
        "bytes": {path.name: kit.size_of(path) for path in sorted(folder.iterdir())},
        "packages": (*kit.PACKAGES, "torch", "torchcodec", "s3fs"),
    }
    runs = [("local", *pair) for pair in LOCAL]
    runs += [("store", *pair) for pair in LOCAL if not pair[0].startswith("lerobot")]

    def run(one: tuple[str, str, str]) -> kit.Row:
        about = dict(zip(KEYS, one, strict=True))
        row: kit.Row = {"runner": " ".join(one), **about, "workers": options.workers}
        row["samples"] = 2 * options.samples + CHECKED_BATCHES * BATCH_SIZE
        row["load"] = round(os.getloadavg()[0], 1)
        return row | one_run(options, *one, folder, peers.get(one[1]))

    with case.log(folder, "loaders", kit.file_system_of(folder), **facts) as keep:
        rows = case.in_turns(keep, runs, run)
    print(kit.table(rows, KEYS, COLUMNS), flush=True)


def one_run(
    options: argparse.Namespace, where: str, loader: str, form: str, folder: Path, peer: str | None
) -> kit.Row:
    """Run one loader in a process of its own; return what it measured, or its error."""
    command = [
        *(sys.executable, str(kit.BENCH), "loaders", "--here", loader),
        *("--scratch", str(options.scratch)),
        *("--workers", str(options.workers), "--samples", str(options.samples)),
        *(["--whole-epoch"] if options.whole_epoch else []),
    ]
    with ExitStack() as serving:
        if where == "store":
            store = serving.enter_context(import_module("tests.s3").s3_store(folder, **PACE))
            command += ["--place", f"s3://bucket/{form}", "--endpoint", store.endpoint]
        else:
            command += ["--place", str(folder / form)]
        try:
            done = subprocess.run(
                command, env=environment(peer), check=False, capture_output=True, text=True,
                timeout=600,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": "ten minutes were not enough"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1][-300:]}
    found: kit.Row = json.loads(done.stdout.strip().splitlines()[-1])
    if where == "store":
        sent = sum(store.sent_bytes.values())
        found |= {"fetched_mb": round(sent / 1e6, 1), "requests": store.requests}
    return found
