"""Loaders side by side: what a sample costs, from the disk and from a store, and if it is right.

    python scripts/bench.py loaders --repeats 3
    python scripts/bench.py loaders --peer lance=DIR --peer mosaic=DIR   # where pip put them

A dataset of 96 short episodes with two cameras is made, each of whose pictures says which frame it
is. It is converted into a few MP4s a camera (*few*), into one a camera (*one*, which LeRobot's
streaming class needs), into one an episode (*many*), into Lance's tables by
``lerobot-lance-convert``, and into MosaicML's shards (*mds*: its frames as JPEG, since that format
holds no video). The store speaks S3 on loopback: 20 ms a request, 100 MB/s together.

Every run is a process of its own: batches of 32, shuffled, uint8, no windows. CPU time is that of
the process and its workers in the second half of the timed samples; memory is the sum of their
proportional sets (PSS); the first batch counts from the opening of the dataset, after all imports.
Then five batches more are taken untimed, and every picture of theirs is compared with what the
dataset drew. What left the store is that of all these samples, or with ``--whole-epoch`` of an
epoch. What fails is a row with its error. Loaders take turns in each repeat; raw rows go to
``bench_logs/<date>-loaders-<file system>.jsonl``.

A peer's packages need not be in this environment: ``pip install --target DIR --no-deps`` puts them
into a folder, which is put before the others for its runs alone.
"""

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
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benches import kit

CAMERAS = ("observation.images.top", "observation.images.wrist")
CHECKED_BATCHES = 5
# Every loader with the form of the dataset that it reads; LeRobot's classes read no bucket.
LOCAL = (
    *(("ours", "few"), ("lerobot", "few"), ("lerobot-pyav", "few"), ("lerobot-streaming", "one")),
    *(("lance", "few-lance"), ("mosaic", "mds")),
    ("ours", "many"),
)
STORE = tuple(pair for pair in LOCAL if not pair[0].startswith("lerobot"))
# Modules of each loader, and the modules that it imports when it first opens a dataset.
IMPORTS = {
    "ours": ("leconvert.loading", "leconvert.loading.stream", "av", "pyarrow.parquet", "fsspec"),
    "lance": ("lerobot_lancedb",),
    "mosaic": ("streaming", "PIL.Image"),
    "lerobot": ("lerobot.datasets.lerobot_dataset", "torchcodec.decoders"),
    "lerobot-pyav": ("lerobot.datasets.lerobot_dataset", "av"),
    "lerobot-streaming": ("lerobot.datasets.streaming_dataset", "torchcodec.decoders"),
}
_SENT = "/-/sent"


def prepare(folder: Path, episodes: int, peers: dict[str, str]) -> dict[str, str]:
    """Make what is missing of the dataset; return what could not be made, and why."""
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
    failed = {}
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
            failed[name] = (done.stderr.strip().splitlines() or ["no word"])[-1]
    return failed


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
    place, size, workers = options.place, options.batch_size, options.workers
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
        half = options.samples // options.batch_size
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
        sent = None
        if options.endpoint:
            with urlopen(options.endpoint + _SENT) as answer:
                sent = json.load(answer)
    (wall_0, cpu_0), (wall_opened, _), (wall_1, cpu_1), (wall_2, cpu_2) = marks
    samples = half * options.batch_size
    return {
        "cpu_ms_a_sample": round((cpu_2 - cpu_1) / samples * 1e3, 3),
        "cpu_ms_a_sample_from_start": round((cpu_1 - cpu_0) / samples * 1e3, 3),
        "samples_per_s": round(samples / (wall_2 - wall_1), 1),
        "imports_s": round(wall_opened - wall_0, 2),
        "first_batch_s": round(first_batch_s, 2),
        "pss_mb": round(pss / 1e6),
        "distinct_episodes": round(float(np.mean(distinct)), 1),
        "fetched_mb": None if sent is None else round(sent["bytes"] / 1e6, 1),
        "requests": None if sent is None else sent["requests"],
        "checked_frames": checked,
        "wrong_frames": wrong,
    }


def serve(folder: Path, seconds_per_request: float, mb_per_second: float) -> None:
    """Serve a folder as a bucket, and what it sent at `_SENT`; until the input ends."""
    pace = {"seconds_per_request": seconds_per_request, "mb_per_second": mb_per_second}
    with import_module("tests.s3").s3_store(folder, **pace, report=_SENT) as store:
        print(store.endpoint, flush=True)
        sys.stdin.read()


def main(arguments: Sequence[str]) -> int:
    """Run every loader in turn and write a line for each."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("--peer", action="append", default=[], help="NAME=DIR of its packages")
    parser.add_argument("--only", nargs="+", help="these loaders")
    parser.add_argument("--forms", nargs="+", help="these forms of the dataset")
    parser.add_argument("--places", nargs="+", default=["local", "store"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--request-ms", type=float, default=20)
    parser.add_argument("--mb-per-s", type=float, default=100)
    for name in ("here", "place", "endpoint", "serve", "write-mds", "out"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, default=960, help="of each of the two timed halves")
    parser.add_argument("--whole-epoch", action="store_true", help="go on to the end of the epoch")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options)))
    elif options.serve:
        serve(Path(options.serve), options.request_ms / 1e3, options.mb_per_s)
    elif options.write_mds:
        write_mds(Path(options.write_mds), Path(options.out))
    else:
        compare(options, arguments)
    return 0


def compare(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Run every loader in every place, in turns; what failed once is not tried again."""
    folder = options.scratch / "bench-loaders"
    folder.mkdir(exist_ok=True)
    peers = dict(one.split("=", 1) for one in options.peer)
    failed = kit.in_own_process(prepare, folder, options.episodes, peers)
    kit.read_through(folder)
    shape = kit.dataset_shape(folder / "few", f"{options.episodes} episodes, two cameras")
    sizes = {path.name: kit.size_of(path) for path in sorted(folder.iterdir())}
    versions = (*kit.PACKAGES, "torch", "torchcodec", "s3fs")
    first = kit.header("bench.py loaders", arguments, folder, shape, packages=versions)
    first |= {"bytes": sizes, "request_ms": options.request_ms, "mb_per_s": options.mb_per_s}
    runs = [("local", *pair) for pair in LOCAL if "local" in options.places]
    runs += [("store", *pair) for pair in STORE if "store" in options.places]
    runs = [run for run in runs if not options.only or run[1] in options.only]
    runs = [run for run in runs if not options.forms or run[2] in options.forms]
    broken = {run: failed[run[2]] for run in runs if run[2] in failed}
    with kit.rows_kept(
        kit.new_log(options.log_dir, first, "loaders", first["file_system"]), first
    ) as keep:
        for repeat, run in kit.in_turns(runs, options.repeats):
            if run in broken and repeat:
                continue
            where, loader, form = run
            row: kit.Row = {"repeat": repeat, "where": where, "loader": loader, "form": form}
            row |= {"workers": options.workers, "batch_size": options.batch_size}
            row |= {"samples": 2 * options.samples + CHECKED_BATCHES * options.batch_size}
            row["load"] = round(os.getloadavg()[0], 1)
            found = (
                {"error": broken[run]}
                if run in broken
                else one_run(options, run, folder, peers.get(loader))
            )
            if "error" in found:
                broken[run] = found["error"]
            keep(row | found)
            print(json.dumps(row | found), flush=True)


def one_run(
    options: argparse.Namespace,
    run: tuple[str, ...],
    folder: Path,
    peer: str | None,
) -> kit.Row:
    """Run one loader in a process of its own; return what it measured, or its error."""
    where, loader, form = run
    command = [
        *(sys.executable, str(kit.BENCH), "loaders", "--here", loader),
        *("--scratch", str(options.scratch)),
        *("--workers", str(options.workers), "--batch-size", str(options.batch_size)),
        *("--samples", str(options.samples)),
        *(["--whole-epoch"] if options.whole_epoch else []),
    ]
    server = None
    if where == "store":
        server = subprocess.Popen(
            [
                *(sys.executable, str(kit.BENCH), "loaders", "--serve", str(folder)),
                *("--request-ms", str(options.request_ms), "--mb-per-s", str(options.mb_per_s)),
            ],
            env={**os.environ, "PYTHONPATH": str(kit.REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        command += ["--place", f"s3://bucket/{form}", "--endpoint", endpoint]
    else:
        command += ["--place", str(folder / form)]
    try:
        done = subprocess.run(
            command,
            env=environment(peer),
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        return {"error": "ten minutes were not enough"}
    finally:
        if server is not None and server.stdin is not None:
            server.stdin.close()
            server.wait()
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1][-300:]}
    found: kit.Row = json.loads(done.stdout.strip().splitlines()[-1])
    return found
