"""The storm ends what it started, also where it is interrupted itself."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from tests.scripts import loaded_script


def test_an_interrupted_storm_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with loaded_script("storm") as storm:
        monkeypatch.setattr(storm, "leconvert_main", lambda _: signal.pause())
        monkeypatch.setattr(storm.Storm, "_continue_those_due", interrupted)
        of_round = storm.Storm(
            tmp_path / "work", random.Random(0), kills=0, workers=2, pace_seconds=1.0,
            really_exec=False,
        )  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            of_round.rage()
    started = list(of_round._members)
    assert len(started) == 3
    for pid in started:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_storm_that_cannot_begin_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    with loaded_script("storm") as storm:
        monkeypatch.setattr(storm, "make_source", full)
        with pytest.raises(OSError, match="no space left"):
            storm.main(["--folder", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
