"""Refusals of the labs, and their table: neither needs a lab."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "lab"))

import run
from lab_kit import LabError, demand
from nfs_hosts import NfsLab


def test_without_root_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="root"), NfsLab(tmp_path).running():
        pass


def test_a_scenario_that_fails_is_a_row_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def build(_: Namespace) -> Iterator[tuple[str, bool]]:
        yield "a lab", False

    def fails(holds: bool) -> Iterator[str]:
        """One thing breaks."""
        yield "another held"
        demand(holds, "nothing\nheld")

    def holds(_: bool) -> Iterator[str]:
        """Nothing breaks."""
        yield "all held"

    lab = ModuleType("lab")
    vars(lab).update(build=build, SCENARIOS={"fails": fails, "holds": holds})
    assert run.run(lab, Namespace(names=["fails", "holds"])) == 1
    assert capsys.readouterr().out.splitlines()[-7:] == [
        "| scenario | what happens | what came of it |",
        "| --- | --- | --- |",
        "| fails | One thing breaks. | another held |",
        "| fails | FAILED | nothing held |",
        "| holds | Nothing breaks. | all held |",
        "",
        "1 of 2 scenarios hold.",
    ]
