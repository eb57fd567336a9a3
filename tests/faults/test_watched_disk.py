"""The layer that breaks operations: what it sees, what it breaks, and that it leaves no trace."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.faulty_files import CrashError
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk

from leconvert.workdir.fs import LOCAL


def names(disk: WatchedDisk) -> list[str]:
    return [operation.name for operation in disk.operations]


def write_by_path(path: Path) -> None:
    path.write_bytes(b"12345678")


def write_by_descriptor(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"12345678")
    os.close(descriptor)


def write_by_place(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.pwritev(descriptor, [b"1234", b"5678"], 0)
    os.close(descriptor)


def copy_in_the_kernel(path: Path) -> None:
    with (path.parent.parent / "original").open("rb") as source, path.open("wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 8, 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "original").write_bytes(b"12345678")
    folder = tmp_path / "watched"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "write", [write_by_path, write_by_descriptor, write_by_place, copy_in_the_kernel]
)
def test_every_write_is_seen_torn_and_refused(folder: Path, write: Callable[[Path], None]) -> None:
    path = folder / "file"
    with WatchedDisk(folder) as disk:
        write(path)
    assert path.read_bytes() == b"12345678"
    [number] = [n for n, operation in enumerate(disk.operations) if operation.size_bytes == 8]
    path.unlink()
    with pytest.raises(CrashError), WatchedDisk(folder, fault=Fault(number, FaultKind.TEAR)):
        write(path)
    assert path.read_bytes() == b"1234"
    path.unlink()
    # Python writes once more when it closes the file: a disk that is full stays so.
    full = Fault(number, FaultKind.FAIL, errno.ENOSPC, lasts=True)
    with pytest.raises(OSError, match="No space left"), WatchedDisk(folder, fault=full):
        write(path)
    assert path.read_bytes() == b""


def test_nothing_happens_after_a_death_not_even_in_a_finally(folder: Path) -> None:
    def make_and_tidy() -> None:
        (folder / "a").mkdir()
        try:
            (folder / "b").mkdir()
        finally:
            (folder / "a").rmdir()

    with pytest.raises(CrashError), WatchedDisk(folder, fault=Fault(1, FaultKind.DIE)):
        make_and_tidy()
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_disk_without_links_and_locks_has_none(folder: Path, tmp_path: Path) -> None:
    (folder / "a").touch()
    (tmp_path / "elsewhere").touch()
    with WatchedDisk(folder, has_links=False, has_locks=False) as disk:
        with pytest.raises(OSError, match="Operation not permitted"):
            os.link(folder / "a", folder / "b")
        with (folder / "a").open() as file, pytest.raises(OSError, match="not implemented"):
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        os.link(tmp_path / "elsewhere", tmp_path / "linked")
        with (tmp_path / "elsewhere").open() as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    assert [(done.name, done.error) for done in disk.operations if done.error] == [
        ("link", errno.EPERM),
        ("flock", errno.ENOSYS),
    ]
    assert list(folder.iterdir()) == [folder / "a"]


def test_a_full_disk_stays_full_but_can_be_read(folder: Path) -> None:
    (folder / "a").write_text("a")
    with WatchedDisk(folder, fault=Fault(0, FaultKind.FAIL, errno.ENOSPC, lasts=True)):
        for name in ("b", "c"):
            with pytest.raises(OSError, match="No space left"):
                (folder / name).mkdir()
        assert (folder / "a").read_text() == "a"


def test_renames_are_seen_with_both_names_and_exchange_can_be_missing(folder: Path) -> None:
    for name in "ab":
        (folder / name).mkdir()
    with WatchedDisk(folder) as disk:
        LOCAL.exchange(folder / "a", folder / "b")
        LOCAL.rename_no_replace(folder / "a", folder / "c")
    assert names(disk) == ["exchange", "rename_no_replace"]
    assert disk.operations[1].paths == (str(folder / "a"), str(folder / "c"))
    with WatchedDisk(folder, can_exchange=False) as disk, pytest.raises(OSError, match="Invalid"):
        LOCAL.exchange(folder / "b", folder / "c")
    assert disk.operations[0].error == errno.EINVAL
