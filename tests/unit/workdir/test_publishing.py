"""What a publish, a replace and a promote do when the disk or the network lies."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.faults.faulty_files import CrashError, FaultyFileSystem
from tests.trees import open_below

from leconvert.support.errors import StorageError
from leconvert.support.file_calls import CANNOT_FLAG
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    OutcomeUnknownError,
    publish_exclusively,
    replace_record,
    sync_dir,
    sync_file,
    sync_tree,
    write_durably,
)

LIES = [errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.write_bytes(b"record of worker A\n")
    return path


@pytest.mark.parametrize("code", LIES)
def test_a_link_that_succeeded_but_reported_an_error_counts_as_published(
    mine: Path, tmp_path: Path, code: int
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code, happens=True)
    publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert (tmp_path / "done").samefile(mine)


@pytest.mark.parametrize("code", LIES)
def test_a_link_that_failed_because_another_was_first_is_told_apart(
    mine: Path, tmp_path: Path, code: int
) -> None:
    (tmp_path / "done").write_bytes(b"record of worker B\n")
    fs = FaultyFileSystem()
    fs.fail("link", code)
    with pytest.raises(AlreadyPublishedError) as caught:
        publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert str(caught.value) == f"{tmp_path / 'done'} already holds another record."
    assert caught.value.path == str(tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"record of worker B\n"


@pytest.mark.parametrize(
    ("code", "where", "helps"),
    [
        *((code, "done", "") for code in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT)),
        *((code, "", "--restart") for code in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)),
    ],
)
def test_a_link_that_really_failed_is_a_storage_error_with_a_next_step(
    mine: Path, tmp_path: Path, code: int, where: str, helps: str
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code)
    with pytest.raises(StorageError) as caught:
        publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert caught.value.path == str(tmp_path / where)
    assert caught.value.next_step
    assert helps in caught.value.next_step
    assert not (tmp_path / "done").exists()


def test_a_stale_handle_is_opened_again_to_read_back(mine: Path, tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EEXIST, happens=True)
    fs.fail("read_bytes", errno.ESTALE, match="done")
    publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert (tmp_path / "done").samefile(mine)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.EEXIST, AlreadyPublishedError), (errno.EIO, StorageError)]
)
def test_a_record_that_is_voided_while_it_is_read_back_does_not_count_as_ours(
    mine: Path, tmp_path: Path, code: int, error: type[Exception]
) -> None:
    target = tmp_path / "done"
    target.write_bytes(b"record of worker B\n")
    fs = FaultyFileSystem()
    fs.fail("link", code)
    fs.before("read_bytes", target.unlink, match="done")
    with pytest.raises(error):
        publish_exclusively(mine, target, fs=fs)
    assert ("list_names", tmp_path) in fs.operations, "it was listed, and gone when it was opened"
    assert not target.exists()


def test_publishing_forces_the_folder_to_the_disk(mine: Path, tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert fs.operations == [("link", mine), ("sync_dir", tmp_path)]


def test_a_full_disk_leaves_no_file_and_a_rename_whose_answer_is_lost_counts(
    tmp_path: Path,
) -> None:
    fs = FaultyFileSystem()
    fs.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="no space left") as caught:
        write_durably(tmp_path / "record", b"x", fs=fs)
    assert caught.value.path == str(tmp_path / "record")
    assert list(tmp_path.iterdir()) == []
    fs.fail("replace", errno.ENOENT, happens=True)
    replace_record(tmp_path / "beat", b"nonce", fs=fs)
    assert (tmp_path / "beat").read_bytes() == b"nonce"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_that_has_no_fsync_of_folders_writes_names_through_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(code, os.strerror(code))))
    if code == errno.EIO:
        with pytest.raises(StorageError, match="input/output error") as caught:
            sync_dir(tmp_path)
        assert caught.value.path == str(tmp_path)
        assert open_below(tmp_path) == []
    else:
        sync_dir(tmp_path)
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_file(tmp_path)


@pytest.mark.parametrize("name", ["rename_no_replace", "exchange"])
def test_a_system_without_renameat2_says_that_it_has_no_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1")
    with pytest.raises(OSError, match="not implemented") as caught:
        getattr(LOCAL, name)(one, other)
    assert caught.value.errno in CANNOT_FLAG
    assert (caught.value.filename, caught.value.filename2) == (str(one), str(other))
    assert one.read_bytes() == b"1"


def test_syncing_a_tree_reaches_every_path_and_tells_which_one_fails(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    fs = FaultyFileSystem()
    sync_tree(tmp_path, fs=fs)
    assert fs.operations == [
        ("sync_file", tmp_path / "a" / "b" / "file"),
        *(("sync_dir", tmp_path / folder) for folder in ("a/b", "a", "")),
    ]
    for operation, path in fs.operations[:2]:
        fs = FaultyFileSystem()
        fs.fail(operation, errno.EIO)
        with pytest.raises(StorageError) as caught:
            sync_tree(tmp_path, fs=fs)
        assert caught.value.path == str(path)


@pytest.mark.parametrize("durably", [False, True])
def test_a_record_is_forced_to_the_disk_only_if_asked_for(tmp_path: Path, durably: bool) -> None:
    class Watched(FaultyFileSystem):
        def write_new(self, path: Path, data: bytes, *, sync: bool) -> None:
            assert re.fullmatch(r"\.record\.[0-9a-f]{12}\.tmp", path.name)
            assert sync is durably
            super().write_new(path, data, sync=sync)

    fs = Watched()
    write = write_durably if durably else replace_record
    write(tmp_path / "record", b"x", fs=fs)
    operations = ["write_new", "replace", "sync_dir"]
    assert [name for name, _ in fs.operations] == operations[: 2 + durably]


def test_a_crash_anywhere_in_a_durable_write_leaves_old_or_new_content(tmp_path: Path) -> None:
    path, seen, crashes = tmp_path / "record", set(), True
    for point in range(100):
        path.write_bytes(b"old")
        try:
            write_durably(path, b"new", fs=FaultyFileSystem(crash_at=point))
        except CrashError:
            seen.add(path.read_bytes())
        else:
            crashes = False
            break
    assert (seen, crashes, path.read_bytes()) == ({b"old", b"new"}, False, b"new")
