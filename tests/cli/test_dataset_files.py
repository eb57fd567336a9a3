"""What of a dataset's folder comes along, is sent, or keeps it from being deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.cli.main import main
from tests.hub import WRITE_TOKEN, StandIn

REPO = "tester/arm"


@pytest.fixture
def result(small_result: Path, tmp_path: Path) -> Path:
    """A result with what others put into its folder, and must not be sent."""
    folder = Path(shutil.copytree(small_result, tmp_path / "out"))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("PRIVATE")
    (folder / "notes").symlink_to(tmp_path / "secret")
    (folder / "key.txt").symlink_to(tmp_path / "secret/key")
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("url = https://me:password@example.org")
    (folder / ".env").write_text("TOKEN=1")
    (folder / ".DS_Store").touch()
    return folder


LEFT_OUT = {
    ".env": "the name begins with a dot",
    ".git": "the name begins with a dot",
    "key.txt": "a link that leads out of the dataset",
    "notes": "a link that leads out of the dataset",
}


def files_of(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_mirror_sends_the_datasets_files_and_says_what_it_left_out(
    result: Path, small_result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mirror", str(result), f"file://{tmp_path}/store", "--json"]) == 0
    assert files_of(tmp_path / "store") == files_of(small_result)
    assert json.loads(capsys.readouterr().out)["left_out"] == LEFT_OUT
    assert main(["mirror", str(result), f"file://{tmp_path}/again"]) == 0
    said = capsys.readouterr().err
    assert "Left out .env: the name begins with a dot.\n" in said
    assert "Left out notes: a link that leads out of the dataset.\n" in said


def test_push_sends_the_same_files(
    result: Path, small_result: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    assert main(["push", str(result), "--push-repo-id", REPO]) == 0
    repo = hub.repo(REPO)
    there = set(repo.tree(repo.branches["main"])) - {".gitattributes"}
    assert there == files_of(small_result)
    assert "Left out key.txt: a link that leads out of the dataset.\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mirror", "push"])
def test_a_dataset_whose_videos_lie_behind_a_link_is_not_sent(
    small_result: Path, tmp_path: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    result = Path(shutil.copytree(small_result, tmp_path / "out"))
    (result / "videos").rename(tmp_path / "videos")
    (result / "videos").symlink_to(tmp_path / "videos")
    place = [f"file://{tmp_path}/store"] if command == "mirror" else ["--push-repo-id", REPO]
    assert main([command, str(result), *place]) == 3
    said = capsys.readouterr().err
    assert f"{result}/videos is a link that leads out of the dataset" in said
    assert f"`cp -rL {result} COPY`" in said
    assert not (tmp_path / "store").exists()
    assert not any(request.method not in ("GET", "HEAD") for request in hub.log)


def test_a_source_from_the_hub_can_be_deleted(
    hub: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    root = tmp_path / "arm"
    command = ["convert", "--repo-id", REPO, "--root", str(root), "--no-push", "--delete-source"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kept_source"], report["removed_source"]) == (None, f"{root}_old")
    assert not Path(f"{root}_old").exists()


def test_records_of_download_tools_do_not_keep_a_source(
    source_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = source_copy / ".cache/huggingface/download"
    kept.mkdir(parents=True)
    (kept / "README.md.metadata").touch()
    (source_copy / "videos/.DS_Store").touch()
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed_source"] == f"{source_copy}_old"
    assert not (source_copy / "videos/.DS_Store").exists()


@pytest.mark.parametrize("name", [".git/HEAD", ".cache/mine", ".cache/huggingface/token"])
def test_what_nobody_knows_keeps_a_source(
    source_copy: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (source_copy / name).parent.mkdir(parents=True)
    (source_copy / name).write_text("mine")
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kept_because"] == f"1 file is not in the result: {name}"
    assert (Path(report["kept_source"]) / name).read_text() == "mine"


def test_links_out_of_a_source_stay_behind_and_keep_it(
    source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("PRIVATE")
    (source_copy / "notes").symlink_to(tmp_path / "secret")
    (source_copy / "key.txt").symlink_to(tmp_path / "secret/key")
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert finding["message"] == "Links out of the dataset are left behind (2): key.txt, notes."
    assert report["kept_because"] == "2 files are not in the result: key.txt, notes"
    assert not any((source_copy / name).exists() for name in ("key.txt", "notes"))


def test_folders_of_episodes_behind_links_do_not_keep_a_source(
    source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source_copy / "data/chunk-000").rename(tmp_path / "chunk")
    (source_copy / "data/chunk-000").symlink_to(tmp_path / "chunk")
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed_source"] == f"{source_copy}_old"
    assert (tmp_path / "chunk/episode_000000.parquet").is_file(), "only the link is the source's"
