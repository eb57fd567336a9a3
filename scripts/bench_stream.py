"""What a sample of `EpisodeStream` costs, of two source trees in turn.

    python scripts/bench_stream.py DATASET --trees ../before/src src
    python scripts/bench_stream.py DATASET --trees src --pool 64 --pool 256 --workers 4

Every run is a process of its own that imports leconvert from one tree. It takes batches until so
many samples have come, once from the start and once more in the middle, so that what opening costs
can be told from what a sample costs. CPU time is that of the process and its workers; memory is the
sum of their proportional sets (PSS) at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_common import (
    bench_parser,
    dataset_shape,
    file_system_of,
    header,
    in_turns,
    new_log,
    read_through,
    rows_kept,
)

WINDOWS = {
    "single": None,
    "history": [step / 10 for step in range(-7, 1)],
    "chunk": [step / 30 for step in range(50)],
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take samples in this process, and return what they took."""
    import numpy as np
    import psutil

    from leconvert.loading import EpisodeStream, StreamLoader

    steps = WINDOWS[options.mode]
    # What is given by default changed once; these are the same in every tree.
    more: dict[str, Any] = {"rank": 0, "world_size": 1, "return_uint8": True}
    stream = EpisodeStream(options.dataset, **more)
    if steps is not None or options.pool:
        if options.pool:
            more["episode_pool_size"] = options.pool[0]
        keys = ["action"] if options.mode == "chunk" else stream.meta.camera_keys
        deltas = dict.fromkeys(keys, steps) if steps else None
        stream = EpisodeStream(options.dataset, delta_timestamps=deltas, **more)
    (workers,) = options.workers
    loader = StreamLoader(stream, batch_size=options.batch_size, num_workers=workers)
    family = psutil.Process()

    def cpu_seconds() -> float:
        everyone = [family, *family.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in everyone)

    marks: list[tuple[float, float]] = [(time.perf_counter(), cpu_seconds())]
    distinct: list[int] = []
    batches = iter(loader)
    half = options.samples // options.batch_size
    first_batch = 0.0
    for number in range(2 * half):
        batch = next(batches)
        first_batch = first_batch or time.perf_counter() - marks[0][0]
        distinct.append(len(np.unique(batch["episode_index"].numpy())))
        if number + 1 in (half, 2 * half):
            marks.append((time.perf_counter(), cpu_seconds()))
    everyone = [family, *family.children(recursive=True)]
    (_, cpu_0), (wall_1, cpu_1), (wall_2, cpu_2) = marks
    samples = half * options.batch_size
    facts = stream.facts()
    return {
        "pool": stream.episode_pool_size,
        "cpu_ms_a_sample_from_start": round((cpu_1 - cpu_0) / samples * 1e3, 4),
        "cpu_ms_a_sample": round((cpu_2 - cpu_1) / samples * 1e3, 4),
        "samples_per_s": round(samples / (wall_2 - wall_1), 1),
        "first_batch_s": round(first_batch, 3),
        "distinct_episodes_in_a_batch": round(float(np.mean(distinct)), 2),
        "pss_mb": round(sum(process.memory_full_info().pss for process in everyone) / 1e6, 1),
        "episodes_opened": facts.episodes,
        "decoder_hit_rate": facts.hit_rate,
    }


def main() -> None:
    """Run every combination in turn and write a line for each."""
    parser = bench_parser(__doc__, repeats=3)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--trees", nargs="+", type=Path, default=[Path("src")])
    parser.add_argument("--mode", choices=list(WINDOWS), default="single")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--pool", type=int, action="append", help="each tree's own by default")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8_000, help="of each of the two halves")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options)))
        return
    read_through(options.dataset)
    place = file_system_of(options.dataset)
    path = new_log(options.log_dir, f"{datetime.now(UTC):%Y-%m-%d}-stream-{place}")
    shape = dataset_shape(options.dataset, options.dataset.name)
    first = header("bench_stream.py", sys.argv[1:], options.dataset, shape)
    asked = itertools.product(options.workers or [2], options.pool or [None], options.trees)
    with rows_kept(path, first) as keep:
        for repeat, (workers, pool, tree) in in_turns(list(asked), options.repeats):
            command = [
                *(sys.executable, __file__, str(options.dataset), "--here"),
                *("--mode", options.mode, "--workers", str(workers)),
                *("--samples", str(options.samples), "--batch-size", str(options.batch_size)),
                *(() if pool is None else ("--pool", str(pool))),
            ]
            environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            row = {"repeat": repeat, "tree": tree.parent.name, "mode": options.mode}
            row |= {"workers": workers, "batch_size": options.batch_size}
            keep(row | json.loads(done.stdout))


if __name__ == "__main__":
    main()
