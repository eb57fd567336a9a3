"""Where there is no flock, the planner and the packer lock a file of this host instead."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from leconvert.support.errors import BusyError, StorageError
from leconvert.workdir.locks import packer_lock, planner_lock, read_packer
from leconvert.workdir.records import WorkDir

real_flock = fcntl.flock
Refuse = Callable[[BaseException], None]


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    work = WorkDir(tmp_path / "work")
    work.run("r1").ensure()
    return work


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This host's folder for temporary files."""
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def refuse(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let flock fail on the work dir's file system, and there alone."""

    def set_error(error: BaseException) -> None:
        def flock(descriptor: int, operation: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(work.root) and not operation & fcntl.LOCK_UN:
                raise error
            real_flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", flock)

    return set_error


MISSING = [
    *(OSError(code, os.strerror(code)) for code in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)),
    NotImplementedError("no flock here"),
]


@pytest.mark.parametrize("error", MISSING, ids=str)
def test_a_second_packer_or_planner_of_this_host_is_still_refused(
    work: WorkDir, local: Path, refuse: Refuse, error: BaseException
) -> None:
    refuse(error)
    run = work.run("r1")
    with packer_lock(run):
        assert read_packer(run)["pid"] == os.getpid()
        with pytest.raises(BusyError, match=f"process {os.getpid()}"), packer_lock(run):
            pass
    with planner_lock(work), pytest.raises(BusyError), planner_lock(work):
        pass
    with packer_lock(run), planner_lock(work):
        assert len(list(local.glob("*.lock"))) == 2


def test_locks_of_other_work_dirs_are_others(
    work: WorkDir, local: Path, refuse: Refuse, tmp_path: Path
) -> None:
    refuse(MISSING[0])
    other = WorkDir(work.root / "nested")
    with planner_lock(work), planner_lock(other):
        assert len(list(local.glob("*.lock"))) == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_lock_that_fails_for_another_reason_is_a_storage_error(
    work: WorkDir, local: Path, refuse: Refuse, code: int
) -> None:
    refuse(OSError(code, os.strerror(code)))
    with pytest.raises(StorageError), planner_lock(work):
        pass
    assert list(local.iterdir()) == []
