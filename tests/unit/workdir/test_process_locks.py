"""A process is known by the lock that it holds, and locks are made only in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leconvert.workdir import identity
from leconvert.workdir.identity import (
    WorkerIdentity,
    new_token,
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
    identity._lock_of.cache_clear()
    again = folder / fields()["lock"].partition("/")[2]
    assert set(folder.iterdir()) == {held, again, young, foreign}
    assert process_is_running(fields())


@pytest.mark.parametrize("host", ["node.lab:7", "../../etc", "", "-rf", "ä" * 200])
def test_tokens_are_safe_file_names_whatever_the_host_is_called(host: str) -> None:
    token = new_token(host, 17)
    assert re.search(r"-17-[0-9a-f]{8}\Z", token)
    assert "/" not in token
    assert not token.startswith((".", "-"))
    assert len(token.encode()) < 120


def test_two_identities_of_one_process_differ() -> None:
    first, second = WorkerIdentity.of_this_process(), WorkerIdentity.of_this_process()
    assert first.token != second.token
    assert not process_is_gone(first.as_fields())


HOLDER = """
import json, sys
from leconvert.workdir.identity import WorkerIdentity
print(json.dumps(WorkerIdentity.of_this_process().as_fields()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Another process of this host, and what it writes into its records."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.kill()


def test_a_process_lives_as_long_as_it_holds_its_lock(
    other: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    process, record = other
    for number in (signal.SIGSTOP, signal.SIGCONT):
        process.send_signal(number)
        assert (process_is_running(record), process_is_gone(record)) == (True, False)
    assert not process_is_running(record | {"host": "copied-while-it-ran"})
    process.kill()
    # Between its end and being waited for, its id is still taken.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (process_is_running(record), process_is_gone(record)) == (False, True)
    process.wait()
    assert process_is_gone(record)
    assert process_is_gone(record | {"pid": os.getpid()}), "an id that was used again"
    assert not process_is_gone(record | {"host": "copied-while-it-ran"})


def test_of_a_lock_that_is_not_to_be_found_nothing_is_known(
    other: tuple[subprocess.Popen[str], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, record = other
    process.kill()
    process.wait()
    of_old = {"boot": "a boot", "started": 123, "host": record["host"], "pid": record["pid"]}
    locks: tuple[object, ...] = ("", None, 7, "../../etc/passwd", record["lock"] + "0")
    for unknown in (of_old, {}, *(record | {"lock": lock} for lock in locks)):
        assert not process_is_gone(unknown)
        assert not process_is_running(unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # that of another container
    assert not process_is_gone(record)


def test_without_a_lock_a_process_is_told_by_its_heartbeats_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent / "missing"))
    mine = fields()
    assert mine["lock"] == ""
    assert not process_is_running(mine)
