"""The demo and the dry run of a fleet, where they do not come to their end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from leconvert import fleet
from leconvert.cli import demo, main
from leconvert.support.errors import VerificationError


def test_a_demo_that_was_interrupted_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trouble in (KeyboardInterrupt(), OSError(28, "full")):
        _stop_with(trouble, monkeypatch)
        with pytest.raises(type(trouble)):
            demo.run_demo(tmp_path)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert demo.run_demo(tmp_path).verification.ok


def test_a_signal_that_ends_a_demo_leaves_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "convert", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["demo", str(tmp_path)]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_ends_the_dry_run_of_a_fleet_lets_it_remove_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        with TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fleet, "price_fleet", ended)
    (tmp_path / "set").mkdir()
    (tmp_path / "list").write_text("set\n")
    command = ["fleet", str(tmp_path / "list"), "-o", str(tmp_path), "--work-dir", str(tmp_path)]
    assert main([*command, "--dry-run"]) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "set"]


def test_a_demo_that_finds_a_difference_keeps_it_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_with(VerificationError("differs"), monkeypatch)
    with pytest.raises(VerificationError):
        demo.run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo_v21"]


def _stop_with(trouble: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(demo, "convert", stopped)
