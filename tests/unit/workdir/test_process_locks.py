"""A process is known by the lock that it holds, and locks are made only in a folder of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leconvert.workdir import identity
from leconvert.workdir.identity import (
    WorkerIdentity,
    process_is_gone,
    process_is_running,
)

_LONG_AGO = 0.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of locks, below a folder for temporary files of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    identity._lock_of.cache_clear()
    yield tmp_path / f"leconvert-{os.getuid()}.alive"
    identity._let_go()
    identity._lock_of.cache_clear()


def fields() -> dict[str, Any]:
    return WorkerIdentity.of_this_process().as_fields()


def test_a_child_does_not_hold_the_lock_of_its_parent(folder: Path) -> None:
    told, going = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            lock = fields()["lock"]
            if os.fork() == 0:  # it tells only once it runs, and so has let go
                os.close(going[1])
                os.write(told[1], lock.encode())
                os.read(going[0], 1)
        finally:
            os._exit(0)
    os.waitpid(parent, 0)
    record = {"host": os.uname().nodename, "lock": os.read(told[0], 100).decode()}
    try:
        assert process_is_gone(record)
        assert not process_is_running(record)
    finally:
        os.close(going[1])


def test_a_folder_that_somebody_else_made_is_not_used(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "documents"
    other.mkdir()
    name = f"1-{'0' * 16}"
    (other / name).write_text("mine")
    os.utime(other / name, (_LONG_AGO, _LONG_AGO))
    folder.symlink_to(other)
    assert fields()["lock"] == ""
    assert (other / name).read_text() == "mine"
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    identity._lock_of.cache_clear()
    assert fields()["lock"] == ""


def test_old_locks_that_nobody_holds_go_and_nothing_else(folder: Path) -> None:
    held = folder / fields()["lock"].partition("/")[2]
    free, young, foreign = (folder / name for name in (f"1-{'0' * 16}", "2-00", "notes.txt"))
    for path in (free, young, foreign):
        path.touch()
    for path in (held, free, foreign):
        os.utime(path, (_LONG_AGO, _LONG_AGO))
    identity._remove_old_locks(folder)
    assert set(folder.iterdir()) == {held, young, foreign}
    assert process_is_running(fields())
