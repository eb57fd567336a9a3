"""Two ranks of `probe run`, started as srun does: disjoint, together complete, one result each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from leconvert.conversion import convert

# Runs the command, then says which frames the very same stream gives this rank in an epoch.
RANK = """
import json, sys
from leconvert.cli import main
root, out_dir = sys.argv[1:]
assert main(["probe", "run", "--root", root, "--out-dir", out_dir, "--scenario",
             "stream_bucket_2node", "--num-workers", "2", "--batch-size", "4", "--duration-s",
             "0.2", "--warmup-batches", "1", "--probe-samples", "0", "--json"]) == 0
from leconvert.probe import EpisodeStream, StreamLoader
loader = StreamLoader(EpisodeStream(root), batch_size=4, num_workers=2)
print(json.dumps([int(index) for batch in loader for index in batch["index"]]))
"""


def test_two_ranks_are_disjoint_and_together_complete(small_source: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    frames = convert(small_source, output=root).frames
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, root, tmp_path / "results"],
            env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(text.splitlines()[-1]) for text in said)
    assert sorted(first + second) == list(range(frames))
    assert first
    assert second
    results = [
        json.loads(path.read_bytes()) for path in sorted((tmp_path / "results").glob("*.json"))
    ]
    assert [(r["options"]["rank"], r["options"]["world_size"]) for r in results] == [(0, 2), (1, 2)]
    assert sum(result["loaded_episodes"] for result in results) == 5
    assert [result["options"]["scenario"] for result in results] == ["stream_bucket_2node"] * 2
