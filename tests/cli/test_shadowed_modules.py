"""Whoever stands in a folder with an `inspect.py` or a `types.py` converts as anybody else does."""

from __future__ import annotations

import pickle
import socket
import sys
from pathlib import Path

import pytest

from leconvert import convert
from leconvert.run.conversion import WorkerOptions
from leconvert.run.engines import LocalEngine
from leconvert.support.errors import IncompleteError
from leconvert.support.forkserver import start_python
from tests.program import Leconvert

# What Python imports before any module of a program, and what no program can do without it.
_BEFORE_ANY_PROGRAM = ("types", "threading", "warnings")
_IN_A_PROGRAM = ("inspect", "logging", "json", "random", "selectors", "numpy", "pyarrow")


def _with_modules(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} of the folder')\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _with_modules(tmp_path / "folder", (*_BEFORE_ANY_PROGRAM, *_IN_A_PROGRAM))


def test_worker_processes_do_not_see_it(
    leconvert: Leconvert, small_source: Path, tmp_path: Path, folder: Path
) -> None:
    arguments = ("--root", small_source, "--output", tmp_path / "out", "--num-workers", "2")
    leconvert("convert", *arguments, cwd=folder, code=0)


def test_python_m_does_not_see_it(
    leconvert_anew: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    folder = _with_modules(tmp_path / "folder", _IN_A_PROGRAM)
    leconvert_anew("check", small_source, cwd=folder, code=0)


def test_processes_that_share_a_scan_do_not_see_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files = (theirs.fileno(), theirs.fileno(), sys.stderr.fileno())
        process = start_python("leconvert.support.parallel", (), files)
        ours.sendall(pickle.dumps(len) + pickle.dumps(("three",)))
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(30) == 0
        assert pickle.loads(ours.recv(100)) == len("three")


def test_workers_that_die_at_their_start_are_told_with_their_last_lines_and_their_logs(
    small_source: Path, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    engine = LocalEngine(1, program=(sys.executable, "-m", "leconvert", "work"))
    with pytest.raises(IncompleteError) as failed:
        convert(small_source, output=tmp_path / "out", workers=WorkerOptions(engine=engine))
    (ended,) = [line for line in failed.value.details if line.startswith("worker ")]
    assert ended.endswith(" of the folder")
    assert failed.value.next_step is not None
    (logs,) = tmp_path.glob(".out.leconvert-work/runs/*/logs")
    assert str(logs) in failed.value.next_step
