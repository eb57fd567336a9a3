"""Clones without Git LFS: pointers where files should be, of every kind, told at the first look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leconvert.cli.main import main
from tests.hub import StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.program import Leconvert

__all__ = ["hub", "lone_client", "pauses"]

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 1048576\n"
)


@pytest.mark.parametrize(
    ("pattern", "is_clone"),
    [
        ("meta/info.json", True),
        ("meta/episodes_stats.jsonl", False),
        ("videos/*/*/episode_000004.mp4", False),
    ],
)
def test_pointers_are_counted_and_the_way_out_is_named(
    source_copy: Path, tmp_path: Path, leconvert_here: Leconvert, pattern: str, is_clone: bool
) -> None:
    if is_clone:
        (source_copy / ".git").mkdir()
        (source_copy / ".git/pointer").write_text(POINTER)
    files = sum(path.is_file() for path in source_copy.rglob("*")) - is_clone
    pointers = list(source_copy.glob(pattern))
    for path in pointers:
        path.write_text(POINTER)
    out = tmp_path / "out"
    for command in (["convert", "--root", source_copy, "--output", out], ["check", source_copy]):
        refused = leconvert_here(*command, code=3)
        said = re.sub(r"\s+", " ", refused.stderr)
        assert (
            f"{len(pointers)} of {files} files in {source_copy} are only Git LFS pointers" in said
        )
        assert (f"Run `git lfs pull` in {source_copy}" in said) == is_clone
        assert ("is not a clone" in said) != is_clone
        assert "--" not in said.split("→")[1]  # no flag helps
    assert not out.exists()


def test_pointers_among_images_beside_the_tables_are_told(
    source_copy: Path, leconvert_here: Leconvert
) -> None:
    image = source_copy / "images/observation.images.top/episode_000000/frame_000000.png"
    image.parent.mkdir(parents=True)
    image.write_text(POINTER)
    assert "1 of " in leconvert_here("check", source_copy).stderr


def test_pointers_in_a_v30_dataset_are_told_too(
    result_copy: Path, leconvert_here: Leconvert
) -> None:
    for path in result_copy.rglob("*.mp4"):
        path.write_text(POINTER)
    refused = leconvert_here("check", result_copy, code=3)
    assert "2 of " in refused.stderr
    assert "Git LFS pointers" in refused.stderr


@pytest.mark.parametrize("more", [[], ["--engine", "local"], ["--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("path", ["meta/tasks.jsonl", "data/chunk-000/episode_000001.parquet"])
def test_pointers_in_the_repo_itself_are_no_matter_of_another_download(
    hub: StandIn,
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
    more: list[str],
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    hub.add_repo("tester/arm", small_source)
    hub.add_commit("tester/arm", {path: POINTER.encode()})
    command = ["convert", "tester/arm", "--output", str(tmp_path / "out"), *more]
    assert main(command) == 3
    said = capsys.readouterr().err
    assert "1 of 22 files" in said
    assert "Ask the owner of the repo to upload the files." in said
    assert "clone" not in said
    hub.add_commit("tester/arm", {path: (small_source / path).read_bytes()})
    downloaded = tmp_path / "home/tester/arm"
    if downloaded.exists():
        downloaded.rename(tmp_path / "away")  # as advised
    assert main(command) == 0
