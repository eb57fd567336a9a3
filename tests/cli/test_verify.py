"""``leconvert verify``: what it says, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import leconvert
from leconvert.cli.main import main
from leconvert.model.selection import EpisodeSelection

TOP = "videos/observation.images.top/chunk-000/file-000.mp4"


@pytest.fixture
def damaged(small_result: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(small_result, tmp_path / "out"))
    content = bytearray((root / TOP).read_bytes())
    content[content.index(b"mdat") + 12] ^= 1
    (root / TOP).write_bytes(content)
    return root


def verify(result: Path, source: Path, *options: str) -> int:
    return main(["verify", str(result), "--source", str(source), *options])


def test_differences_are_listed_and_exit_with_10(
    damaged: Path, small_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(damaged, small_source) == 0, "the structure is whole"
    capsys.readouterr()
    assert verify(damaged, small_source, "--bytes") == 10
    first, last, step = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{TOP}, episode 0: coded bytes from packet 0 on (SHA-256 of that")
    assert last == "1 difference. The result does not match its source."
    assert step.startswith("  → If --source is the right dataset, convert it again")


def test_json_names_episode_stream_file_and_both_values(
    damaged: Path, small_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(damaged, small_source, "--bytes", "--json") == 10
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["depth"], report["share"]) == (False, "bytes", 1.0)
    (found,) = report["differences"]
    assert found["episode"] == 0
    assert found["stream"] == "videos/observation.images.top"
    assert found["path"] == TOP
    assert len(found["expected"]) == len(found["found"]) == 64


@pytest.mark.parametrize("depth", ["--structure", "--bytes"])
@pytest.mark.parametrize("pattern", ["data/*/*.parquet", "videos/*/*/*.mp4"])
def test_a_source_that_lost_a_file_does_not_match(
    small_result: Path, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    pattern: str, depth: str,
) -> None:  # fmt: skip
    source = Path(shutil.copytree(small_source, tmp_path / "source"))
    next(source.glob(pattern)).unlink()
    assert verify(small_result, source, depth) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "The result may have the only good copy: keep it." in said
    assert "--on-bad-episode" not in said


def test_a_folder_without_a_dataset_is_no_difference(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, small_source) == 2
    assert f"{tmp_path} is not a dataset: it has no meta/." in capsys.readouterr().err


def test_a_source_that_is_another_one_is_named(
    small_result: Path, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part, merged = tmp_path / "part", tmp_path / "merged"
    leconvert.convert(small_source, output=part, selection=EpisodeSelection(episodes="1-2"))
    leconvert.merge([small_source, part], output=merged)
    sources = ["--source", str(small_source), "--source"]
    assert main(["verify", str(merged), *sources, str(small_result)]) == 10
    (said,) = [
        line
        for line in capsys.readouterr().out.splitlines()
        if ("The result was made from") in line
    ]
    assert said == (
        "The result was made from part. No --source has the same tables as part had at the time "
        "of the conversion."
    )
    moved = part.rename(tmp_path / "moved")
    assert main(["verify", str(merged), *sources, str(moved)]) == 0
    assert "The result was made from" not in capsys.readouterr().out


def test_result_and_source_in_each_others_places_differ(
    small_result: Path, small_source: Path
) -> None:
    assert verify(small_source, small_result) == 10


def test_a_result_given_as_the_source_names_the_source_that_was_kept(
    small_result: Path, source_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leconvert.convert(source_copy)
    assert verify(source_copy, source_copy) == 3
    kept = source_copy.with_name(f"{source_copy.name}_old")
    assert f"The conversion kept its source as {kept}." in capsys.readouterr().err
    assert verify(small_result, small_result) == 3
    assert "--source is the dataset that it was made from" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["meta/info.json", "meta/episodes"])
def test_a_result_that_lost_metadata_differs(
    small_result: Path, small_source: Path, tmp_path: Path, lost: str
) -> None:
    root = Path(shutil.copytree(small_result, tmp_path / "out"))
    (root / lost).rename(tmp_path / "lost")
    assert verify(root, small_source) == 10


def test_a_result_that_calls_itself_v21_differs(
    small_result: Path, small_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(small_result, tmp_path / "out"))
    info = root / "meta/info.json"
    info.write_text(info.read_text().replace("v3.0", "v2.1"))
    assert verify(root, small_source) == 10
