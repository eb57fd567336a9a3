"""``convert --to v2.1``: one file an episode, as LeRobot 0.3.3 writes it, proven and resumable."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert import media
from leconvert.cli.main import main
from leconvert.dataset.formats import v3
from leconvert.dataset.scan.file_checks import uneven_steps
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.trees import snapshot

CAMERA = "observation.images.top"
SPEC = DatasetSpec(
    episodes=4,
    frames=[6, 4, 5, 7],
    cameras=(CameraSpec(CAMERA, 64, 48),),
    tasks=("Pick.", "Place."),
    extra_episode_keys={"operator": ["ann", "bob"]},
    extra_info={"license": "mit"},
    extra_files={"meta/modality.json": '{"video": {"top": {}}}\n'},
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "source", SPEC)


def info_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "meta/info.json").read_bytes())
    return found


def lines_of(root: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "meta" / name).read_text().splitlines()]


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments), "--to", "v2.1"])


def test_the_result_has_one_file_an_episode_and_the_tables_of_v21(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert convert(source, out, "--verify", "bytes") == 0
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {
        *(f"data/chunk-000/episode_{n:06d}.parquet" for n in range(4)),
        *(f"videos/chunk-000/{CAMERA}/episode_{n:06d}.mp4" for n in range(4)),
        *(f"meta/{name}" for name in ("info.json", "stats.json", "modality.json")),
        *(f"meta/{name}.jsonl" for name in ("episodes", "episodes_stats", "tasks")),
    }
    for name in ("episodes.jsonl", "episodes_stats.jsonl", "tasks.jsonl"):
        assert lines_of(out, name) == lines_of(source, name)
    info = info_of(out)
    assert list(info)[:13] == [
        "codebase_version", "robot_type", "total_episodes", "total_frames", "total_tasks",
        "total_videos", "total_chunks", "chunks_size", "fps", "splits", "data_path", "video_path",
        "features",
    ]  # fmt: skip
    assert (info["codebase_version"], info["total_videos"], info["total_chunks"]) == ("v2.1", 4, 1)
    assert info["license"] == "mit"
    assert json.loads((out / "meta/stats.json").read_bytes())["action"]["count"] == [22]
    for number in range(4):
        theirs, ours = (
            media.read_clip_index(root / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4")
            for root in (source, out)
        )
        assert media.samples_sha256(ours, 0, ours.num_samples) == media.samples_sha256(
            theirs, 0, theirs.num_samples
        )


def test_lists_are_sequences_whoever_wrote_the_source(source: Path, tmp_path: Path) -> None:
    for path in source.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        told = json.loads(table.schema.metadata[b"huggingface"])
        value = {"dtype": "float32", "_type": "Value"}
        told["info"]["features"]["action"] = {"feature": value, "length": 4, "_type": "List"}
        pq.write_table(
            table.replace_schema_metadata({b"huggingface": json.dumps(told).encode()}), path
        )
    out = tmp_path / "out"
    assert convert(source, out, "--verify", "bytes") == 0
    for path in out.glob("data/*/*.parquet"):
        assert b'"List"' not in pq.read_schema(path).metadata[b"huggingface"]
        assert pq.ParquetFile(path).num_row_groups == 1


def test_a_v20_dataset_is_converted_in_place_and_kept(tmp_path: Path) -> None:
    root = make_dataset(
        tmp_path / "old", DatasetSpec(episodes=2, frames=3, codebase_version="v2.0")
    )
    assert convert(root) == 0
    assert info_of(root)["codebase_version"] == "v2.1"
    assert info_of(tmp_path / "old_old")["codebase_version"] == "v2.0"
    assert [
        line["stats"]["action"]["count"] for line in lines_of(root, "episodes_stats.jsonl")
    ] == [[3], [3]]


def test_a_v21_dataset_is_converted_in_place_only_where_something_changes(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(source)
    assert convert(source) == 5
    assert "is already v2.1" in capsys.readouterr().err
    assert convert(source, "--episodes", "1-3") == 0
    assert info_of(source)["total_episodes"] == 3
    assert snapshot(source.with_name("source_old")) == before
    assert main(["undo", str(source)]) == 0
    assert snapshot(source) == before
    assert info_of(source.with_name("source_v21"))["total_episodes"] == 3


def test_episodes_that_are_left_out_leave_no_gap(source: Path, tmp_path: Path) -> None:
    (source / "data/chunk-000/episode_000001.parquet").unlink()
    out = tmp_path / "out"
    assert convert(source, out, "--on-bad-episode", "drop", "--verify", "bytes") == 0
    assert [line["episode_index"] for line in lines_of(out, "episodes.jsonl")] == [0, 1, 2]
    assert [line["length"] for line in lines_of(out, "episodes.jsonl")] == [6, 5, 7]
    rows = pq.read_table(out / "data/chunk-000/episode_000001.parquet")
    assert rows["episode_index"].to_pylist() == [1] * 5
    assert rows["index"].to_pylist() == list(range(6, 11))
    assert main(["verify", str(out), "--source", str(source), "--bytes"]) == 0


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("language_events", {"dtype": "language", "shape": [1], "names": None}),
        ("observation.images.still", {"info": {"is_depth_map": True}}),
    ],
)
def test_what_v21_has_no_form_for_needs_a_flag(
    tmp_path: Path, name: str, feature: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    images = ("observation.images.still",)
    spec = DatasetSpec(episodes=2, frames=3, image_keys=images, image_size=(16, 16))
    root = make_dataset(tmp_path / "source", spec)
    info = info_of(root)
    info["features"][name] = {**info["features"].get(name, {}), **feature}
    (root / "meta/info.json").write_text(json.dumps(info))
    if name == "language_events":
        for path in root.glob("data/*/*.parquet"):
            table = pq.read_table(path)
            said = [[{"role": "user", "content": "Pick.", "timestamp": 0.0}]] * table.num_rows
            pq.write_table(table.append_column(name, pa.array(said)), path)
    assert convert(root, tmp_path / "out") == 3
    said_of = capsys.readouterr().err
    assert "beyond-v21" in said_of
    assert f"--drop-feature {name}" in said_of
    assert convert(root, tmp_path / "out", "--drop-feature", name, "--verify", "bytes") == 0
    assert name not in info_of(tmp_path / "out")["features"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--layout", "streaming"], "which has one file for each episode"),
        (["--data-file-size-in-mb", "5"], "which has one file for each episode"),
        (["--push-to-hub", "true"], "dataset is not pushed to the repo of its source, since"),
        (["--probe"], "--probe measures only v3.0 datasets"),
    ],
)
def test_options_that_are_for_v30_alone_are_refused(
    source: Path, tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(source, tmp_path / "out", *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- the way back from v3.0 ---


@pytest.fixture
def joined(source: Path, tmp_path: Path) -> Path:
    """The v3.0 dataset of the source, with several episodes in a file."""
    assert main(["convert", str(source), str(tmp_path / "v30")]) == 0
    return tmp_path / "v30"


def test_a_round_trip_gives_every_packet_row_and_line_back(
    source: Path, joined: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert convert(joined, out, "--verify", "bytes") == 0
    for name in ("episodes.jsonl", "tasks.jsonl", "episodes_stats.jsonl"):
        assert lines_of(out, name) == lines_of(source, name)
    for path in sorted((source / "data").glob("*/*.parquet")):
        ours = out / path.relative_to(source)
        assert pq.read_table(ours).equals(pq.read_table(path))
        assert b'"List"' not in pq.read_schema(ours).metadata[b"huggingface"]
    for origin in (source, joined):
        flags = ["--source", str(origin), "--bytes", "--decode", "22"]
        assert main(["verify", str(out), *flags]) == 0
    info = info_of(out)
    assert "data_files_size_in_mb" not in info
    assert not any("fps" in feature for feature in info["features"].values())
    assert info["license"] == "mit"


def test_a_v30_dataset_is_converted_in_place_kept_and_put_back(
    joined: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(joined)
    assert convert(joined, "--dry-run") == 0
    assert snapshot(joined) == before
    assert convert(joined, "--verify", "bytes") == 0
    kept = joined.with_name("v30_old")
    assert info_of(joined)["codebase_version"] == "v2.1"
    assert snapshot(kept) == before
    assert main(["verify", str(joined), "--source", str(kept), "--bytes"]) == 0
    capsys.readouterr()
    assert convert(joined) == 0
    assert "is already the v2.1 dataset made from" in capsys.readouterr().out
    assert main(["convert", str(joined)]) == 5  # what is kept would be lost
    assert "v30_old exists already" in capsys.readouterr().err
    assert main(["clean", "--of", str(joined), "--old"]) == 0
    assert (
        "only a v2.1 source and a v3.0 result can be compared in this way"
        in capsys.readouterr().out
    )
    result = snapshot(joined)
    assert main(["undo", str(joined)]) == 0
    assert snapshot(joined) == before
    assert snapshot(joined.with_name("v30_v21")) == result
    assert sorted(path.name for path in joined.parent.glob("v30*")) == ["v30", "v30_v21"]
    assert main(["undo", str(joined)]) == 0
    assert "An earlier command already put" in capsys.readouterr().out


def test_a_v30_dataset_is_kept_even_where_its_removal_is_asked_for(
    joined: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(joined)
    assert convert(joined, "--delete-source") == 0
    assert "v2.1 cannot store everything" in capsys.readouterr().out
    assert snapshot(joined.with_name("v30_old")) == before


def test_an_overlay_goes_back_by_undo(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(source)
    assert main(["convert", str(source), "--layout", "overlay"]) == 0
    assert convert(source) == 5
    assert "leconvert undo" in capsys.readouterr().err
    assert main(["undo", str(source)]) == 0
    assert {name: facts for name, facts in snapshot(source).items() if name in before} == before


def test_times_are_looked_at_in_files_of_several_episodes(
    joined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(v3, "ROWS_AT_A_TIME", 3)
    (path,) = joined.glob("data/*/*.parquet")
    table = pq.read_table(path)
    times = table["timestamp"].to_pylist()
    times[12], times[13] = times[12] - 8e-5, times[13] + 8e-5  # of the third episode, index 2
    at = table.schema.get_field_index("timestamp")
    changed = table.set_column(at, table.schema.field(at), pa.array(times, pa.float32()))
    pq.write_table(changed, path)
    # Each is near enough for v3.0, but they are too far from each other for v2.1.
    assert main(["convert", str(joined), str(tmp_path / "v30b"), "--quantiles", "--dry-run"]) == 0
    assert convert(joined, tmp_path / "out") == 3
    said = capsys.readouterr().err
    assert "uneven-times" in said
    assert "17 of 22 frames" in " ".join(said.split()), "the episode of 5 frames alone is named"
    assert "--retime" in said
    flags = ["--retime", "--fill-stats", "--verify", "bytes"]
    assert convert(joined, tmp_path / "out", *flags) == 0
    for made in (tmp_path / "out").glob("data/*/*.parquet"):
        assert not len(uneven_steps(pq.read_table(made)["timestamp"].to_numpy(), Fraction(30)))
