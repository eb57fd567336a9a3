"""Sources as they really are: repaired on request, judged by LeRobot and by the source's pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import comparison
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from lerobot.datasets import LeRobotDataset
from tests.recordings import each
from tests.trees import digest_of

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions, WorkerOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError
from leconvert.testing import DatasetSpec, make_dataset

PHANTOM = "observation.images.egoview"


def codes(report: leconvert.ConversionReport, severity: str) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == severity}


def rewrite(path: Path, **columns: Any) -> None:
    """Replace columns of a parquet file; None removes one."""
    table = pq.read_table(path)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        if values is None:
            table = table.remove_column(place)
        else:
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.array(values).cast(field.type))
    pq.write_table(table, path)


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    return make_dataset(
        tmp_path / "source", DatasetSpec(episodes=5, frames=(12, 7, 9, 4, 15), tasks=("a", "b"))
    )


@pytest.mark.parametrize("recording", each("robot_sim_picknplace_v20", slow=True), indirect=True)
def test_a_v20_recording_with_a_phantom_camera_and_shifted_times_loads_frame_by_frame(
    recording: Path, tmp_path: Path
) -> None:
    root = recording
    with pytest.raises(FindingsError) as stopped:
        leconvert.convert(root, output=tmp_path / "ours")
    found = {entry["code"] for entry in stopped.value.findings if entry["severity"] == "error"}
    assert found == {"phantom-feature", "timestamps"}
    assert list(tmp_path.iterdir()) == []

    report = leconvert.convert(
        root,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(retime=True, drop_features=(PHANTOM,)),
    )

    for depth in ("structure", "bytes"):
        assert verify_pair(tmp_path / "ours", root, depth=depth).differences == ()
    assert codes(report, "repaired") == {"phantom-feature", "timestamps"}
    assert report.repairs["added_columns"] == ["frame_index"]
    source = V21Source.open(root, dropped_features=[PHANTOM])
    compared = comparison.assert_every_frame_is_the_sources(
        tmp_path / "ours", source, "torchcodec", window=64
    )
    assert compared == sum(source.lengths)
    # PyAV decodes a window from the keyframe before it, and there are few: it loads a part.
    compared = comparison.assert_every_frame_is_the_sources(
        tmp_path / "ours", source, "pyav", window=64, every=4
    )
    assert compared == comparison.frames_in_windows(source.lengths, 64, 4)
    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    stats = dataset.meta.stats
    assert stats["observation.images.ego_view"]["mean"].shape == (3, 1, 1)
    assert stats["timestamp"]["max"] == pytest.approx([(max(source.lengths) - 1) / 20])
    states = np.concatenate(
        [pq.read_table(source.data_path(e))["observation.state"].to_pylist() for e in range(5)]
    )
    assert stats["observation.state"]["mean"] == pytest.approx(states.mean(axis=0))
    assert stats["observation.state"]["std"] == pytest.approx(states.std(axis=0), abs=1e-9)


@pytest.mark.parametrize("recording", each("cr5_5ep", slow=True), indirect=True)
def test_a_recording_with_stale_statistics_says_which(recording: Path, tmp_path: Path) -> None:
    report = leconvert.convert(recording, output=tmp_path / "copied")
    stale = [finding for finding in report.findings if finding.code == "stale-stats"]
    assert len(stale) == 1
    assert "timestamp" in stale[0].message
    copied = json.loads((tmp_path / "copied/meta/stats.json").read_text())

    leconvert.convert(
        recording,
        output=tmp_path / "computed",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(recompute_stats=True),
    )
    computed = json.loads((tmp_path / "computed/meta/stats.json").read_text())
    lines = (recording / "meta/episodes_stats.jsonl").read_text().splitlines()
    stored = max(json.loads(line)["stats"]["timestamp"]["max"] for line in lines)
    last = (max(V21Source.open(recording).lengths) - 1) / 10
    assert copied["timestamp"]["max"] == pytest.approx(stored)
    assert computed["timestamp"]["max"] == pytest.approx([last])
    assert stored[0] > last + 0.1
    assert computed["action"]["mean"] == pytest.approx(copied["action"]["mean"], abs=1e-6)
    key = "observation.images.top"
    for name in ("mean", "std"):
        assert np.allclose(computed[key][name], copied[key][name], atol=0.01)


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


def test_wall_clock_times_are_replaced_on_request(generated: Path, tmp_path: Path) -> None:
    source = V21Source.open(generated)
    for episode, length in enumerate(source.lengths):
        rewrite(source.data_path(episode), timestamp=1.7e9 + np.arange(length) / 30)
    with pytest.raises(FindingsError, match="cannot be converted as it is"):
        leconvert.convert(generated, output=tmp_path / "ours")
    leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(retime=True),
    )
    compared = comparison.assert_every_frame_is_the_sources(tmp_path / "ours", source, "torchcodec")
    assert compared == sum(source.lengths)


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
        rewrite(source.data_path(episode), task_index=new)
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


def test_quantiles_reach_the_policy(generated: Path, tmp_path: Path) -> None:
    leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(quantiles=True),
    )
    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    for key in ("action", "observation.images.top"):
        assert {"q01", "q10", "q50", "q90", "q99"} <= dataset.meta.stats[key].keys()
        assert np.all(dataset.meta.stats[key]["q01"] <= dataset.meta.stats[key]["q99"])


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


def test_a_verification_expects_the_recorded_repairs_and_no_others(
    generated: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    source = V21Source.open(generated)
    for episode, length in enumerate(source.lengths):
        rewrite(source.data_path(episode), timestamp=np.arange(length) / 30 + 0.05)
    leconvert.convert(generated, output=ours, repairs=RepairOptions(retime=True))
    assert verify_pair(ours, generated, depth="bytes").ok

    (ours / "meta/repairs.json").unlink()
    differences = verify_pair(ours, generated, depth="bytes").differences
    assert {difference.what.split(",")[0] for difference in differences} >= {"column 'timestamp'"}


def test_an_accepted_finding_does_not_stop_the_conversion(generated: Path, tmp_path: Path) -> None:
    source = V21Source.open(generated)
    for episode, length in enumerate(source.lengths):
        rewrite(source.data_path(episode), timestamp=1e9 + np.arange(length) / 30)
    report = leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(accept=("timestamps",)),
    )
    assert "timestamps" in codes(report, "warning")
    assert not report.repairs
    assert not (tmp_path / "ours/meta/repairs.json").exists()


def test_statistics_that_are_missing_are_computed(generated: Path, tmp_path: Path) -> None:
    path = generated / "meta/episodes_stats.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(FindingsError):
        leconvert.convert(generated, output=tmp_path / "ours")
    leconvert.convert(
        generated,
        output=tmp_path / "ours",
        proof=ProofOptions(verify="bytes"),
        repairs=RepairOptions(recompute_stats=True),
    )
    computed = json.loads((tmp_path / "ours/meta/stats.json").read_text())
    assert computed["action"]["count"] == [47]
