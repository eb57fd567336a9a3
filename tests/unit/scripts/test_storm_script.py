"""The storm ends what it started, also where it is interrupted itself."""

from __future__ import annotations

import os
import random
import signal
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.scripts import loaded_script


def test_an_interrupted_storm_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(of_round: Any) -> None:
        if len(of_round.members) == 3:
            raise KeyboardInterrupt

    with loaded_script("storm") as storm:
        stop = partial(signal.raise_signal, signal.SIGSTOP)
        monkeypatch.setattr(storm, "stand_still_with_a_batch", stop)
        monkeypatch.setattr(storm, "leconvert_main", lambda _: signal.pause())
        monkeypatch.setattr(storm, "WORKERS", 2)
        monkeypatch.setattr(storm.ConversionStorm, "strike", interrupted)
        options = Namespace(pace=1.0, plain=False)
        of_round = storm.ConversionStorm(tmp_path / "work", random.Random(0), options)
        with pytest.raises(KeyboardInterrupt):
            of_round.rage(1)
    started = list(of_round.members)
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
        monkeypatch.setattr(storm, "make_dataset", full)
        with pytest.raises(OSError, match="no space left"):
            storm.main(["--folder", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_an_error_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loaded_script("storm") as storm, pytest.raises(SystemExit, match="2"):
        storm.main(["--folder", str(tmp_path / "nothing")])
    assert f"--folder {tmp_path}/nothing is no folder" in capsys.readouterr().err
