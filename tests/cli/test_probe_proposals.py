"""The command lines and the result keys of the benchmarks that were proposed for LeRobot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import Leconvert
from tests.unit.bench.schema_checker import violations

# The scenario benchmark and the streaming benchmark, in underscores as they wrote them.
FLAGS = (
    "--batch_size=4", "--num_workers=0", "--prefetch_factor=2", "--episode_pool_size=8",
    "--max_buffer_input_shards=4", "--video_decoder_cache_size=8", "--video_fetch_workers=0",
    "--num_batches=2", "--warmup_batches=1", "--duration_s=0.1", "--probe_samples=4",
    "--probe_warmup=1", "--device=cpu", "--decode_device=cpu", "--num_partitions=1",
    "--partition_index=0", "--max_episodes=3", "--seed=1", "--json",
)  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "loader", "pool"),
    [("mmap_local", "map_style", None), ("stream_hub", "streaming", 8)],
)
def test_a_scenario_runs_and_its_result_has_every_key(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path, scenario: str, loader: str,
    pool: Any,
) -> None:  # fmt: skip
    apart = () if loader == "map_style" else (f"--data_files_root={small_result}",)
    run = leconvert_here(
        "probe", "run", f"--scenario={scenario}", "--repo_id=lab/set",
        f"--local_root={small_result}", *FLAGS, *apart, f"--out_dir={tmp_path}",
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert violations(document) == []
    assert (document["scenario"], document["loader"]) == (scenario, loader)
    assert document["episode_pool_size"] == pool
    assert document["max_buffer_input_shards"] == 4
    assert document["loaded_episodes"] == 3
    assert len(document["image_shape"]) == 3
    assert set(document["video_decoder_cache"]) == {
        "hits", "misses", "evictions", "hit_rate", "size"
    }  # fmt: skip
    assert any("no input shards" in note for note in document["notes"])


def test_scenarios_are_sent_without_another_word(leconvert_here: Leconvert) -> None:
    options = (
        "--scenarios", "mmap_local,stream_bucket", "--repo_id=lab/set", "--local_root=sets/set",
        "--max_buffer_input_shards=8", "--conda_env=lerobot", "--max_episodes=3", "--out_dir=out",
        "--dry-run",
    )  # fmt: skip
    sent, named = (leconvert_here("probe", *more, *options) for more in ((), ("submit",)))

    assert sent.returncode == 0, sent.stderr
    assert sent.stdout == named.stdout
    words = "--root=sets/set --repo-id=lab/set --scenario=mmap_local --max-buffer-input-shards=8"
    assert words in sent.stdout


def test_the_metadata_of_a_bucket_of_data_files_are_the_repositorys(
    leconvert_here: Leconvert,
) -> None:
    sent = leconvert_here(
        "probe", "--scenarios=stream_bucket", "--repo_id=lab/set",
        "--data_files_root=hf://buckets/lab/files", "--dry-run", "--no-summary",
    )  # fmt: skip

    assert sent.returncode == 0, sent.stderr
    for words in ("--root=hf://datasets/lab/set", "--data-files-root=hf://buckets/lab/files"):
        assert words in sent.stdout
