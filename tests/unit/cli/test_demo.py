"""The demo, where it does not come to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.cli import demo
from leconvert.support.errors import VerificationError
from leconvert.testing import DatasetSpec


@pytest.fixture(autouse=True)
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_SPEC", DatasetSpec(episodes=2, frames=3))


def test_a_demo_that_was_interrupted_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trouble in (KeyboardInterrupt(), OSError(28, "full")):
        with monkeypatch.context() as patch:
            _stop_with(trouble, patch)
            with pytest.raises(type(trouble)):
                demo.run_demo(tmp_path)
        assert list(tmp_path.iterdir()) == []
    assert demo.run_demo(tmp_path).verification.ok


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
