"""The program that every lab is, and its waiting: what they end with and leave behind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "lab"))

from lab_kit import LabError, Row, demand, lab_parser, run_lab, wait_until

FOLDERS: list[Path] = []


def calm(_: Path) -> Iterator[Row]:
    """Nothing happens."""
    yield Row("calm", "nothing happens", "it holds")


def storm(_: Path) -> Iterator[Row]:
    """A scenario in which leconvert fails."""
    demand(False, "The roof is gone.")
    yield from ()


SCENARIOS = {"storm": storm, "calm": calm}


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Have a lab that is a folder with a log."""
    FOLDERS.append(options.folder)
    (options.folder / "log").write_text("all of it")
    yield "a folder", options.folder


def run(*arguments: str) -> int:
    return run_lab(lab_parser("Weather.", SCENARIOS).parse_args(arguments), SCENARIOS, build)


def test_scenarios_that_hold_are_counted_and_their_temporary_folder_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("calm") == 0
    said = capsys.readouterr().out
    assert "| calm | nothing happens | it holds |" in said
    assert said.endswith("1 of 1 scenarios hold.\n")
    assert not FOLDERS[-1].exists()


def test_after_a_scenario_that_fails_the_others_run_and_the_folder_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--folder", str(tmp_path)) == 1  # all of them, in order
    said = capsys.readouterr().out
    assert "| storm | FAILED | The roof is gone. |\n| calm | nothing happens | it holds |" in said
    assert said.endswith(f"1 of 2 scenarios hold.\nEverything is in {tmp_path}.\n")
    assert (tmp_path / "log").exists()


def test_a_name_that_no_scenario_has_builds_no_lab(capsys: pytest.CaptureFixture[str]) -> None:
    before = len(FOLDERS)
    assert run("calm", "sun") == 2
    assert capsys.readouterr().out == "There is no scenario sun; there are storm, calm.\n"
    assert len(FOLDERS) == before


def test_waiting_ends_when_it_is_so_when_time_is_up_and_when_the_host_is_off() -> None:
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), 60, "The answer", look_seconds=0)
    assert next(answers, None) is None
    with pytest.raises(LabError, match=r"The answer did not happen within 0 s\."):
        wait_until(lambda: False, 0, "The answer", look_seconds=0)
    with pytest.raises(LabError, match=r"The answer did not happen: the host is off\."):
        wait_until(lambda: False, 60, "The answer", alive=lambda: False, look_seconds=0)
    # What it did before it went off counts.
    last = iter([False, True])
    wait_until(lambda: next(last), 60, "The answer", alive=lambda: False, look_seconds=0)
