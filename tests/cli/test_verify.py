"""``leconvert verify``: what it says, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.cli.main import main

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
    assert verify(damaged, small_source, "--bytes", "--json") == 10
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["depth"], report["share"]) == (False, "bytes", 1.0)
    (found,) = report["differences"]
    named = (found["episode"], found["stream"], found["path"])
    assert named == (0, "videos/observation.images.top", TOP)
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


def test_a_source_that_is_no_folder_is_a_wrong_path(
    small_result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(small_result, tmp_path / "absent") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / 'absent'} is not a folder." in said
    assert "--source is the dataset that it was made from." in said


def test_result_and_source_in_each_others_places_differ_and_in_one_place_are_refused(
    small_result: Path, small_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(small_source, small_result) == 10
    assert verify(small_result, small_result) == 3
    assert "RESULT and --source are the same dataset" in capsys.readouterr().err
