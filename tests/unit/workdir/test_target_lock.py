"""Two processes take turns at the lock of a target, whose folder each removes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leconvert.support.errors import BusyError
from leconvert.workdir.locks import target_lock
from leconvert.workdir.records import target_lock_path


def just_once_before(
    monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], None], when: Path
) -> None:
    """Let something happen right before the first call of a function of `os` for a path."""
    function, calls = getattr(os, name), []

    def called(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == str(when) and not calls:
            calls.append(path)
            happens()
        return function(path, *arguments, **options)

    monkeypatch.setattr(os, name, called)


def test_a_folder_that_its_last_holder_removes_right_now_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = target_lock_path(tmp_path / "out")
    just_once_before(monkeypatch, "open", lock.parent.rmdir, lock)
    with target_lock(tmp_path / "out", "r1"):
        assert lock.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_lets_go_leaves_the_lock_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    lock = target_lock_path(target)
    following = target_lock(target, "r2")
    unlink, removed = Path.unlink, []

    def unlink_and_let_the_next_one_in(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path == lock and not removed:
            removed.append(path)
            following.__enter__()

    with monkeypatch.context() as patch:
        with target_lock(target, "r1"):
            patch.setattr(Path, "unlink", unlink_and_let_the_next_one_in)
        assert removed
    with pytest.raises(BusyError), target_lock(target, "r3"):
        pass
    following.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []
