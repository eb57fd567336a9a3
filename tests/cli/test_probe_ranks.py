"""Two ranks of `probe run`, as srun starts them: disjoint, together complete, one result each."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ranks import run_as_ranks


def frames_of_rank(root: str, out_dir: str) -> list[int]:
    """Run the command; return which frames the very same stream gives this rank in an epoch."""
    from leconvert.cli import main
    from leconvert.loading import EpisodeStream, StreamLoader

    words = ["probe", "run", "--root", root, "--out-dir", out_dir]
    words += ["--scenario", "stream_bucket_2node", "--num-workers", "2", "--batch-size", "4"]
    words += ["--duration-s", "0.2", "--warmup-batches", "1", "--probe-samples", "0", "--json"]
    assert main(words) == 0
    loader = StreamLoader(EpisodeStream(root), batch_size=4, num_workers=2)
    return [int(index) for batch in loader for index in batch["index"]]


def test_two_ranks_are_disjoint_and_together_complete(small_result: Path, tmp_path: Path) -> None:
    first, second = run_as_ranks(
        *(frames_of_rank, small_result, tmp_path / "results"),
        folder=tmp_path,
        variable="SLURM_PROCID",
        environment={"SLURM_STEP_NUM_TASKS": "2"},
    )
    assert sorted(first + second) == list(range(44))
    assert first
    assert second
    results = [
        json.loads(path.read_bytes()) for path in sorted((tmp_path / "results").glob("*.json"))
    ]
    assert [(r["options"]["rank"], r["options"]["world_size"]) for r in results] == [(0, 2), (1, 2)]
    # One may lie on both sides of the cut between them.
    assert sum(result["loaded_episodes"] for result in results) in {5, 6}
    assert [result["options"]["scenario"] for result in results] == ["stream_bucket_2node"] * 2
