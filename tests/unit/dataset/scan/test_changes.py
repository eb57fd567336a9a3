"""What changed in a source is found in order, one file at a time or many."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trees import open_below

from leconvert.dataset.formats.v2 import Dataset
from leconvert.dataset.scan import changed_files, changes, scan_source
from leconvert.dataset.scan import v2 as scanning
from leconvert.support.errors import StorageError, UnreadableSourceError
from leconvert.support.parallel import Latency

DATA = "data/chunk-000/episode_{:06d}.parquet"


@pytest.mark.parametrize("waits", [False, True])
def test_every_change_is_told_in_order(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(changes, "_FILES_AT_A_TIME", 1)
    monkeypatch.setattr(Latency, "dominates", waits)
    scan = scan_source(source_copy)
    dataset = Dataset(source_copy)
    data = scan.streams[0]
    assert changed_files(dataset, data.stream, data.files) == []

    (source_copy / DATA.format(0)).unlink()
    with (source_copy / DATA.format(2)).open("ab") as file:
        file.write(b"more")
    os.utime(source_copy / DATA.format(4), ns=(1, 1))
    size_bytes = int(data.size_bytes[2])
    assert changed_files(dataset, data.stream, data.files) == [
        f"{DATA.format(0)}: No such file or directory",
        f"{DATA.format(2)}: {size_bytes} bytes in the plan, {size_bytes + 4} now",
        f"{DATA.format(4)}: replaced or changed after the plan",
    ]


@pytest.mark.parametrize("kept", [True, False])
def test_inode_numbers_count_where_the_file_system_keeps_them(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    fleeting = frozenset() if kept else frozenset({source_copy.stat().st_dev})
    monkeypatch.setattr(scanning, "devices_with_fleeting_inodes", lambda: fleeting)
    scan = scan_source(source_copy)
    data = scan.streams[0]
    assert (data.files.inode == 0).all() == (not kept)
    first, second = (source_copy / DATA.format(index) for index in (0, 1))
    time_ns = first.stat().st_mtime_ns
    shutil.copyfile(first, first.with_name("other"))
    first.with_name("other").replace(first)
    os.utime(first, ns=(time_ns, time_ns))
    os.utime(second, ns=(1, 1))
    dataset = Dataset(source_copy)
    touched = [f"{DATA.format(1)}: replaced or changed after the plan"]
    replaced = [f"{DATA.format(0)}: replaced or changed after the plan"]
    changes = changed_files(dataset, data.stream, data.files)
    assert changes == (replaced + touched if kept else touched)


def test_a_server_that_fails_is_no_change(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_source(source_copy)
    dataset = Dataset(source_copy)

    def stale(path: str, folder: int | None = None) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(changes, "status_now", stale)
    with pytest.raises(StorageError, match="episode_000000"):
        changed_files(dataset, "data", scan.streams[0].files)


def test_a_file_that_may_not_be_read_is_no_change(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_source(source_copy)
    refused = source_copy / DATA.format(1)
    real = os.open

    def open_or_refuse(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if Path(path).name == refused.name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_or_refuse)
    dataset = Dataset(source_copy)
    with pytest.raises(StorageError, match=f"Cannot use {refused}: permission is denied"):
        changed_files(dataset, "data", scan.streams[0].files)


def test_files_of_a_folder_that_may_not_be_listed_are_found_by_their_paths(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_source(source_copy)
    dataset = Dataset(source_copy)
    (source_copy / DATA.format(1)).unlink()
    folder = str((source_copy / DATA.format(0)).parent)
    real = os.open

    def open_or_refuse(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        assert dir_fd is None
        return real(path, flags)

    monkeypatch.setattr(os, "open", open_or_refuse)
    changes = changed_files(dataset, "data", scan.streams[0].files)
    assert changes == [f"{DATA.format(1)}: No such file or directory"]


def test_each_file_is_opened_by_its_name_in_its_folder_which_is_closed_again(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_source(source_copy)
    dataset = Dataset(source_copy)
    opened: list[str] = []
    real = os.open

    def noted(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", noted)
    assert changed_files(dataset, "data", scan.streams[0].files) == []
    monkeypatch.undo()
    assert open_below(source_copy) == []
    folder, *names = opened
    assert folder == str((source_copy / DATA.format(0)).parent)
    assert names == [Path(DATA.format(key)).name for key in scan.streams[0].files.key.tolist()]


def test_a_named_pipe_in_a_files_place_is_told_and_not_waited_for(source_copy: Path) -> None:
    path = source_copy / DATA.format(1)
    path.unlink()
    os.mkfifo(path)
    scan = scan_source(source_copy)
    assert [f.code for f in scan.findings if f.path == DATA.format(1)] == ["unreadable-file"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_no_loss(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if str(path) == str(source_copy):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UnreadableSourceError, match="cannot be listed"):
        scan_source(source_copy)
