"""``leconvert convert`` of a dataset that is v3.0 already."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import leconvert
from leconvert.cli.main import main


@pytest.fixture(scope="module")
def made(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "v30"
    leconvert.convert(small_source, output=out)
    return out


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "v30"))


@pytest.mark.parametrize("command", ["convert", "plan"])
def test_without_an_option_there_is_nothing_to_convert(
    dataset: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(dataset)]) == 3
    said = capsys.readouterr().err
    assert f"{dataset} is already v3.0." in said
    assert "There is nothing to convert" in said
    assert "--output writes it anew" in " ".join(said.split())


def test_it_is_written_anew_elsewhere_and_verified(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    sizes = ["--data-file-size-in-mb", "0.004", "--video-file-size-in-mb", "0.01"]
    assert main(["convert", str(dataset), str(out), *sizes]) == 0
    assert len(list((out / "data").rglob("*.parquet"))) > 1
    assert main(["verify", str(out), "--source", str(dataset), "--bytes"]) == 0
    assert "matches" in capsys.readouterr().out
    assert main(["verify", str(out), "--source", str(out)]) == 3
    assert "is the result itself" in capsys.readouterr().err


def test_a_command_that_is_given_again_says_that_it_is_finished(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(dataset), str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {
        "already_converted": str(tmp_path / "out"),
        "verified": "structure",
    }


def test_a_plan_of_it_can_be_looked_at(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(dataset), "--layout", "streaming", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["episodes"] == 5
    assert plan["space"]["cloned"] is False
    assert [room["bytes_needed"] > 0 for room in plan["space"]["rooms"]] == [True]
    assert sorted(path.name for path in dataset.parent.iterdir()) == ["v30"]
