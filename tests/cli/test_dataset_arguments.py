"""``leconvert convert DATASET [OUTPUT]``: what DATASET stands for, and a command given again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from leconvert.cli.main import build_parser, main
from leconvert.cli.sources import take_arguments
from leconvert.support.errors import UsageError
from tests.trees import snapshot


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def taken(*words: str) -> argparse.Namespace:
    options: argparse.Namespace = build_parser().parse_args(["convert", *words])
    take_arguments(options)
    return options


@pytest.mark.parametrize("folder", ["set", "./org/set", "/data/org/set", "../set"])
def test_what_is_no_name_of_the_hub_is_a_folder(folder: str) -> None:
    options = taken(folder, "out")
    assert (options.root, options.repo_id, options.output) == (Path(folder), None, Path("out"))


def test_org_and_name_are_a_dataset_of_the_hub_unless_such_a_folder_exists(here: Path) -> None:
    options = taken("org/set")
    assert (options.root, options.repo_id) == (None, "org/set")
    (here / "org/set").mkdir(parents=True)
    options = taken("org/set")
    assert (options.root, options.repo_id) == (Path("org/set"), None)


def test_a_name_may_have_a_revision_unless_such_a_folder_exists(here: Path) -> None:
    options = taken("org/set/path@v2.0")
    assert (options.root, options.repo_id, options.revision) == (None, "org/set/path", "v2.0")
    with pytest.raises(UsageError, match="exclude each other"):
        taken("org/set@v2.0", "--revision", "v2.1")
    (here / "org/set@v2.0").mkdir(parents=True)
    assert taken("org/set@v2.0").root == Path("org/set@v2.0")
    with pytest.raises(UsageError, match="may mean a folder here or a dataset on the Hub"):
        taken("org/other@v2.0")


def test_a_folder_of_a_repository_is_named_unless_its_first_part_is_a_folder(here: Path) -> None:
    options = taken("org/set/path/to/arm")
    assert (options.root, options.repo_id) == (None, "org/set/path/to/arm")
    (here / "org").mkdir()
    with pytest.raises(UsageError, match="may mean a folder here or a dataset on the Hub"):
        taken("org/set/path/to/arm")


def test_a_name_that_can_be_both_is_refused_with_both_readings(here: Path) -> None:
    (here / "org").mkdir()
    with pytest.raises(
        UsageError, match="may mean a folder here or a dataset on the Hub"
    ) as refused:
        taken("org/set")
    assert "./org/set" in str(refused.value.next_step)
    assert "hf://datasets/org/set" in str(refused.value.next_step)
    (here / "home/org/set").mkdir(parents=True)
    assert taken("org/set").repo_id == "org/set"
    (here / "org/set").mkdir()
    with pytest.raises(UsageError, match="may mean a folder here or a dataset on the Hub"):
        taken("org/set")


def test_a_url_stays_as_it_is() -> None:
    assert taken("s3://bucket/set", "out").root == "s3://bucket/set"


def test_a_finished_command_is_quiet_if_asked_and_refuses_what_its_result_cannot_answer(
    small_source: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(small_source), "out", "-j", "1"]
    for _ in range(2):
        assert main([*command, "-q"]) == 0
        assert capsys.readouterr() == ("", "")
    before = snapshot(here / "out")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "already_converted": str(here / "out"),
        "verified": "structure",
    }
    for more in (["--block-align", "0"], ["--report", "page.html"]):
        assert main([*command, *more]) == 5, more
    assert snapshot(here / "out") == before
    (here / "out/meta/tasks.parquet").unlink()
    assert main(command) == 5
