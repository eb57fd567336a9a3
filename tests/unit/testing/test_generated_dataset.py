"""A generated dataset agrees with itself: rows, clips, stats and metadata tell one story."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.support.errors import TargetError, UsageError
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    read_label,
)
from leconvert.testing.dataset import RandomLengths

SPEC = DatasetSpec(
    episodes=5,
    frames=(4, 1, 7, 3, 5),
    fps="29.97",
    cameras=(
        CameraSpec(key="observation.images.b", width=64, height=48),
        CameraSpec(key="observation.images.a", width=32, height=32, codec="mpeg4"),
    ),
    image_keys=("observation.images.still",),
    image_size=(20, 24),
    state_dim=3,
    action_dim=1,
    matrix_shape=(2, 3),
    has_done=True,
    tasks=("one", "two", "drei Würfel"),
    tasks_per_episode=2,
    quantiles=True,
    extra_episode_keys={"operator": ["ann", "bob"], "score": [0.5]},
    extra_info={"license": "mit", "robot_type": "arm"},
    extra_files={"README.md": "# read me", "meta/modality.json": b"{}"},
    chunks_size=2,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("generated") / "dataset", SPEC)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _info(root: Path) -> dict[str, Any]:
    return json.loads((root / "meta/info.json").read_text("utf-8"))


def _tables(root: Path) -> list[pa.Table]:
    return [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]


def _digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_further_keys_and_files_are_there(root: Path) -> None:
    episodes = _lines(root / "meta/episodes.jsonl")
    assert [episode["operator"] for episode in episodes] == ["ann", "bob", "ann", "bob", "ann"]
    assert {episode["score"] for episode in episodes} == {0.5}
    assert _info(root)["license"] == "mit"
    assert _info(root)["robot_type"] == "arm"
    assert (root / "README.md").read_text() == "# read me"
    assert (root / "meta/modality.json").read_bytes() == b"{}"


def test_the_schema_is_the_one_that_lerobot_recorded(root: Path) -> None:
    schema = pq.read_schema(next(root.glob("data/*/*.parquet")))

    assert schema.field("observation.state").type == pa.list_(pa.float32(), 3)
    assert schema.field("action").type == pa.float32()  # a length of 1 is a scalar
    assert schema.field("timestamp").type == pa.float32()
    assert schema.field("observation.images.still").type == pa.struct(
        [("bytes", pa.binary()), ("path", pa.string())]
    )
    described = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(described) == schema.names
    assert described["observation.images.still"] == {"_type": "Image"}
    assert described["observation.state"]["length"] == 3
    features = _info(root)["features"]
    videos = [key for key, feature in features.items() if feature["dtype"] == "video"]
    assert [key for key in features if key not in videos] == schema.names


def test_every_frame_of_every_clip_and_image_is_the_one_it_should_be(root: Path) -> None:
    for number, camera in enumerate(SPEC.cameras):
        for episode, path in enumerate(sorted(root.glob(f"videos/*/{camera.key}/*.mp4"))):
            with av.open(str(path)) as container:
                images = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
            length = SPEC.lengths()[episode]
            labels = [tuple(read_label(image)) for image in images]
            assert labels == [(number, episode, frame) for frame in range(length)]
            assert not any(np.array_equal(one, other) for one, other in pairwise(images))


def test_stats_are_those_of_the_rows(root: Path) -> None:
    stats = _lines(root / "meta/episodes_stats.jsonl")
    assert [line["episode_index"] for line in stats] == [0, 1, 2, 3, 4]
    for line, table in zip(stats, _tables(root), strict=True):
        assert list(line["stats"]) == list(_info(root)["features"])
        for key in ("observation.state", "observation.matrix", "timestamp", "index", "next.done"):
            rows = np.array(table[key].to_pylist(), dtype=np.float64)
            rows = rows.reshape(len(rows), -1) if rows.ndim == 1 else rows
            found = line["stats"][key]
            assert found["count"] == [len(rows)]
            assert np.array_equal(np.array(found["min"], dtype=float), rows.min(axis=0))
            assert np.array_equal(np.array(found["max"], dtype=float), rows.max(axis=0))
            np.testing.assert_allclose(found["mean"], rows.mean(axis=0))
            np.testing.assert_allclose(found["std"], rows.std(axis=0))
            np.testing.assert_allclose(found["q90"], np.quantile(rows, 0.9, axis=0))
        assert line["stats"]["index"]["min"] == [table["index"][0].as_py()]
        assert isinstance(line["stats"]["index"]["min"][0], int)


def test_image_stats_are_those_of_the_pixels(root: Path) -> None:
    import io

    stats = _lines(root / "meta/episodes_stats.jsonl")
    for line, table in zip(stats, _tables(root), strict=True):
        pixels = []
        for struct in table["observation.images.still"].to_pylist():
            with av.open(io.BytesIO(struct["bytes"]), format="png_pipe") as container:
                pixels.append(next(container.decode(video=0)).to_ndarray(format="rgb24") / 255)
        channels = np.stack(pixels).reshape(-1, 3)
        found = line["stats"]["observation.images.still"]
        assert found["count"] == [len(pixels)]
        for name in ("min", "max", "mean", "std", "q50"):
            assert np.shape(found[name]) == (3, 1, 1)
        np.testing.assert_allclose(np.ravel(found["min"]), channels.min(axis=0))
        np.testing.assert_allclose(np.ravel(found["max"]), channels.max(axis=0))
        np.testing.assert_allclose(np.ravel(found["mean"]), channels.mean(axis=0))
        np.testing.assert_allclose(np.ravel(found["std"]), channels.std(axis=0))
        for camera in SPEC.cameras:
            assert np.shape(line["stats"][camera.key]["std"]) == (3, 1, 1)


def test_the_same_spec_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    assert _digests(make_dataset(tmp_path / "again", SPEC)) == _digests(root)


def test_another_seed_gives_other_rows(root: Path, tmp_path: Path) -> None:
    spec = replace(SPEC, seed=1, cameras=(), image_keys=())
    other = make_dataset(tmp_path / "other", spec)

    assert _tables(other)[0]["action"] != _tables(root)[0]["action"]


def test_shared_clips_are_separate_files_with_equal_bytes(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=5, frames=3, distinct_clips=2)
    clips = sorted(make_dataset(tmp_path / "d", spec).glob("videos/*/*/*.mp4"))

    contents = [clip.read_bytes() for clip in clips]
    assert contents[0] == contents[2] == contents[4]
    assert contents[1] == contents[3] != contents[0]
    assert len({clip.stat().st_ino for clip in clips}) == 5
    assert {clip.stat().st_nlink for clip in clips} == {1}
    root = make_dataset(tmp_path / "e", replace(spec, frames=RandomLengths(3, 2, 4)))
    for table, clip in zip(_tables(root), sorted(root.glob("videos/*/*/*.mp4")), strict=True):
        with av.open(str(clip)) as container:
            assert container.streams.video[0].frames == table.num_rows


def test_a_target_size_is_met_within_a_fifth(tmp_path: Path) -> None:
    camera = CameraSpec(
        options={"preset": "ultrafast"}, noise_amplitude=48, target_clip_bytes=60_000
    )
    root = make_dataset(tmp_path / "d", DatasetSpec(episodes=1, frames=90, cameras=(camera,)))

    assert 48_000 < next(root.glob("videos/*/*/*.mp4")).stat().st_size < 72_000


def test_a_v20_dataset_has_stats_of_the_whole_and_none_of_episodes(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=3, frames=(2, 5, 3), codebase_version="v2.0")
    root = make_dataset(tmp_path / "d", spec)

    assert not (root / "meta/episodes_stats.jsonl").exists()
    stats = json.loads((root / "meta/stats.json").read_text())
    rows = np.concatenate([np.array(table["action"].to_pylist()) for table in _tables(root)])
    np.testing.assert_allclose(stats["action"]["mean"], rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], rows.std(axis=0), rtol=1e-6)
    assert stats["action"]["max"] == rows.max(axis=0).tolist()
    assert _info(root)["codebase_version"] == "v2.0"


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")

    with pytest.raises(TargetError, match="is not empty"):
        make_dataset(tmp_path, DatasetSpec())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"episodes": 0},
        {"frames": 0},
        {"frames": (1, 2)},
        {"fps": "0"},
        {"tasks_per_episode": 3},
        {"image_keys": ("observation.images.top",)},
        {"cameras": (CameraSpec(key="action"),)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_spec_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DatasetSpec(**wrong)


def test_folders_may_be_texts_and_rates_numbers(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=1, frames=2, fps=29.97)
    assert spec.rate == DatasetSpec(fps="29.97").rate
    root = str(make_dataset(str(tmp_path / "set"), spec))
    edit_info(root, lambda info: info.update(robot_type="other"))
    edit_lines(root, "tasks", lambda records: records[0].update(task="Other."))
    edit_table(root, 0, lambda table: table.slice(0, 1))
    assert json.loads((tmp_path / "set/meta/info.json").read_bytes())["robot_type"] == "other"
    assert json.loads((tmp_path / "set/meta/info.json").read_bytes())["fps"] == 29.97
    assert "Other." in (tmp_path / "set/meta/tasks.jsonl").read_text()
    assert pq.read_table(tmp_path / "set/data/chunk-000/episode_000000.parquet").num_rows == 1
