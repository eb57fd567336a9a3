"""A command that is given again proves what it is asked to prove, and leaves what differs alone."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert.cli.main import main
from leconvert.run.conversion import Control
from leconvert.run.proof import VerificationReport, verify_pair
from leconvert.support.progress import SilentProgress, Stage
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.trees import digest_of, snapshot

SPEC = DatasetSpec(episodes=3, frames=6, cameras=(CameraSpec(height=32, width=32),))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reruns")
    make_dataset(root / "A", SPEC)
    shutil.copytree(root / "A", root / "B")
    (root / "list.txt").write_text("A\n")
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flip_a_byte(dataset: Path) -> None:
    """Change one byte of coded video, which no header and no table tells of."""
    path = next((dataset / "videos").rglob("*.mp4"))
    content = bytearray(path.read_bytes())
    content[(content.rfind(b"mdat") + len(content)) // 2] ^= 1
    path.write_bytes(content)


# Each command, where its result is, and whether the result takes the source's place.
COMMANDS = {
    "convert": (["convert", "A", "out"], "out"),
    "overlay": (["convert", "A", "--layout", "overlay"], "A"),
    "to v2.1": (["convert", "A", "out", "--to", "v2.1", "--quantiles"], "out"),
    "merge": (["merge", "A", "B", "--output", "out"], "out"),
    "split": (["split", "A", "--output-dir", "parts", "--into", "a=0,b=1-2"], "parts/a"),
    "trim in place": (["trim", "A", "--episode", "1", "--frames", ":4"], "A"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_compares_as_deep_as_it_is_asked_to(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, out = COMMANDS[name]
    result = here / out
    assert main([*command, "--verify", "bytes", "--quiet"]) == 0
    whole = snapshot(result)
    # All compare in one flow: how deep is seen of the first and of those with their own proof.
    for depth in ("structure", "bytes") if name in ("convert", "overlay", "split") else ("bytes",):
        capsys.readouterr()
        assert main([*command, "--verify", depth, "--json"]) == 0
        assert f'"verified": "{depth}"' in capsys.readouterr().out
    assert snapshot(result) == whole, "what is finished is left as it is"
    if name == "overlay":  # its video is the source's own
        return
    flip_a_byte(result)
    before = snapshot(result)
    assert main([*command, "--verify", "bytes"]) == 10
    said = capsys.readouterr().err
    assert "coded bytes" in said, "it says what differs"
    assert "verify: " in said, "a comparison that may take long shows how far it is"
    assert snapshot(result) == before, "nothing is made on top of it"


def test_a_fleet_without_its_record_compares_as_deep_as_it_is_asked_to(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fleet", "list.txt", "-o", "out", "--work-dir", "work", "--verify", "bytes"]
    assert main([*command, "--quiet"]) == 0
    shutil.rmtree("work")
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (row["state"], row["verified"]) == ("finished before", "bytes")
    shutil.rmtree("work")
    flip_a_byte(here / "out/A")
    before = digest_of(here / "out")
    assert main([*command, "--json"]) == 8
    (row,) = json.loads(capsys.readouterr().out)["datasets"]
    assert row["error"] == "VerificationError"
    assert "coded bytes" in row["message"]
    assert not list(here.glob("work/datasets/*/result.json")), "no record says that it is proven"
    assert digest_of(here / "out") == before


def test_a_fleet_goes_by_a_proof_on_record_only_as_deep_as_it_was(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def noted(*given: Any, depth: str, **named: Any) -> VerificationReport:
        compared.append(depth)
        return verify_pair(*given, depth=depth, **named)

    for module in ("leconvert.api", "leconvert.run.packer.run"):
        monkeypatch.setattr(f"{module}.verify_pair", noted)
    command = ["fleet", "list.txt", "-o", "out", "--work-dir", "work", "-j", "1", "--json"]
    rows = []
    for verify in ("structure", "bytes", "bytes"):
        assert main([*command, "--verify", verify]) == 0
        rows += json.loads(capsys.readouterr().out)["datasets"]
    assert compared == ["structure", "bytes"], "the third goes by the record of the second"
    assert [row["verified"] for row in rows] == ["structure", "bytes", "bytes"]
    assert rows[1]["verified_at"] == rows[2]["verified_at"] != ""
    # A record that says what was asked, and not what was proven, is none.
    (record,) = here.glob("work/datasets/*/result.json")
    told = json.loads(record.read_bytes())
    del told["fields"]["verified"]
    record.write_text(json.dumps(told))
    assert main([*command, "--verify", "bytes"]) == 0
    assert compared == ["structure", "bytes", "bytes"]


def test_a_source_that_is_gone_is_told_with_what_could_be_compared(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, source in (
        (["convert", "A", "out", "--work-dir", "one", "--verify", "bytes"], here / "A"),
        (["convert", "B", "--work-dir", "two", "--verify", "bytes"], here / "B_old"),
    ):
        assert main(command) == 0
        source.rename(here / f"gone {source.name}")
        capsys.readouterr()
        assert main(command) == 0
        assert "checked       not compared with the source: " in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["verified"] == "none"
        assert str(source) in told["verified_because"]
    shutil.rmtree("two")
    assert main(["convert", "B", "--verify", "bytes"]) == 3
    assert "It could not be compared with its source" in capsys.readouterr().err


def test_a_disk_that_fails_is_not_taken_for_a_result_that_is_missing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _ = COMMANDS["split"]
    assert main(command) == 0
    before = snapshot(here / "parts")

    def fails(_: object, paths: Sequence[str], **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", paths[0])

    monkeypatch.setattr("leconvert.run.proof.videos.ClipReader.read", fails)
    assert main(command) == 11
    assert "input/output error" in capsys.readouterr().err
    assert snapshot(here / "parts") == before


def test_a_result_that_was_made_otherwise_is_left_with_5_and_what_differs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "A", "out"]) == 0
    assert main(["merge", "A", "B", "-o", "both"]) == 0
    assert main(["split", "A", "--output-dir", "parts", "--into", "a=0,b=1-2"]) == 0
    before = snapshot(here)
    for command, said in (
        (
            ["convert", "A", "out", "--video-file-size-in-mb", "7"],
            "200 in the result, 7 asked for now",
        ),
        (["convert", "A", "out", "--layout", "episode-files"], "files of data begin at other"),
        (["convert", "A", "out", "--episodes", "0"], "nothing then, only "),
        (["convert", "A", "both"], "made from 2 datasets, but 1 dataset is given"),
        (["merge", "A", "B", "--output", "out"], "made from 1 dataset, but 2 datasets are given"),
        (["split", "A", "--output-dir", "parts", "--into", "a=0-1,b=2"], "only episodes 0-1 "),
    ):
        capsys.readouterr()
        assert main(command) == 5, command
        told = " ".join(capsys.readouterr().err.split())
        assert said in told, command
        assert main([command[0], "--help-all"]) == 0
        options = capsys.readouterr().out
        flags = re.findall(r"--[a-z-]+", told.partition("→")[2])
        assert flags
        assert all(flag in options for flag in flags), "the command takes what it advises"
    assert snapshot(here) == before


def test_another_edit_in_place_is_refused_with_the_ways_that_are_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trim", "A", "--episode", "0", "--frames", "1:4"]) == 0
    again = ["trim", "A", "--episode", "0", "--frames", "1:3"]
    assert main(again) == 5
    (undo,) = re.findall("`leconvert (undo .*?)`", capsys.readouterr().err)
    assert main([*again, "--output", "out"]) == 0
    assert main(shlex.split(undo)) == 0
    assert main(again) == 0


def test_stopping_a_comparison_of_a_finished_result_ends_it(here: Path) -> None:
    leconvert.convert("A", output="out")

    class StopsAtOnce(SilentProgress):
        def stage(self, name: str, total: int, unit: str) -> Stage:
            if name == "verify":
                stop.set()
            return super().stage(name, total, unit)

    stop = threading.Event()
    with pytest.raises(leconvert.support.errors.InterruptedRunError):
        leconvert.api.find_finished(
            [here / "A"], here / "out", control=Control(stop=stop, progress=StopsAtOnce())
        )
