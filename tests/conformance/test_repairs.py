"""Sources as they really are: repaired on request, judged by LeRobot and by the source's pixels."""

from __future__ import annotations

import json
from pathlib import Path

import comparison
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from lerobot.datasets import LeRobotDataset
from tests.trees import digest_of

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions, WorkerOptions
from leconvert.support.errors import FindingsError
from leconvert.testing import DatasetSpec, make_dataset, with_column


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    return make_dataset(
        tmp_path / "source", DatasetSpec(episodes=5, frames=(12, 7, 9, 4, 15), tasks=("a", "b"))
    )


def test_a_dropped_episode_leaves_a_consistent_dataset(generated: Path, tmp_path: Path) -> None:
    source = V21Source.open(generated)
    clip = source.clip_path(source.camera_keys[0], 1)
    clip.write_bytes(clip.read_bytes()[:-200])
    with pytest.raises(FindingsError) as stopped:
        leconvert.convert(generated, output=tmp_path / "ours")
    assert stopped.value.next_step is not None
    assert "--on-bad-episode drop" in stopped.value.next_step

    report = leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(on_bad_episode="drop"),
    )

    assert report.episodes == 4
    assert [entry["episode"] for entry in report.repairs["dropped_episodes"]] == [1]
    kept = V21Source.open(generated, dropped_episodes=[1])
    comparison.assert_exact_times(comparison.episodes_table(tmp_path / "ours"), kept)
    compared = comparison.assert_every_frame_is_the_sources(tmp_path / "ours", kept, "pyav")
    assert compared == 12 + 9 + 4 + 15
    rows = pq.read_table(tmp_path / "ours/data/chunk-000/file-000.parquet")
    assert rows["index"].to_pylist() == list(range(40))
    assert rows["episode_index"].to_pylist() == [0] * 12 + [1] * 9 + [2] * 4 + [3] * 15
    info = json.loads((tmp_path / "ours/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (4, 40)
    assert info["splits"] == {"train": "0:4"}
    stats = json.loads((tmp_path / "ours/meta/stats.json").read_text())
    assert stats["index"]["max"] == [39]
    assert stats["episode_index"]["max"] == [3]
    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    assert len(dataset) == 40


def test_tasks_with_gaps_and_doubles_are_numbered_by_row(generated: Path, tmp_path: Path) -> None:
    source = V21Source.open(generated)
    lines = [(3, "b"), (5, "a"), (8, "b")]
    (generated / "meta/tasks.jsonl").write_text(
        "".join(json.dumps({"task_index": index, "task": text}) + "\n" for index, text in lines)
    )
    texts = {0: "a", 1: "b"}
    wanted: list[str] = []
    for episode, length in enumerate(source.lengths):
        old = pq.read_table(source.data_path(episode))["task_index"].to_pylist()
        wanted += [texts[index] for index in old]
        new = [5 if index == 0 else (3, 8)[episode % 2] for index in old]
        assert len(new) == length
        table = pq.read_table(source.data_path(episode))
        table = with_column(table, "task_index", pa.array(new, pa.int64()))
        pq.write_table(table, source.data_path(episode))
    with pytest.raises(FindingsError):
        leconvert.convert(generated, output=tmp_path / "ours")

    leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(remap_tasks=True),
    )

    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    assert [dataset[frame]["task"] for frame in range(len(dataset))] == wanted
    assert sorted(dataset.meta.tasks["task_index"].tolist()) == [0, 1]


def test_computed_statistics_do_not_depend_on_who_computes_them(
    generated: Path, tmp_path: Path
) -> None:
    repairs = RepairOptions(recompute_stats=True, quantiles=True)
    leconvert.convert(
        generated, output=tmp_path / "one", repairs=repairs, workers=WorkerOptions(max_workers=1)
    )
    leconvert.convert(
        generated,
        output=tmp_path / "two",
        repairs=repairs,
        workers=WorkerOptions(num_workers=2),
        layout=LayoutOptions(episodes_per_batch=2),
    )
    assert digest_of(tmp_path / "one") == digest_of(tmp_path / "two")
