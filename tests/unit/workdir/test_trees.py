"""Finished shards linked or copied into a tree, and removal of what is ours alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from tests.faults.faulty_files import CrashError, FaultyFileSystem

from leconvert.support.errors import StorageError, WorkDirError
from leconvert.workdir.fs import link_into_tree, make_folders_below, remove_tree


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "attempt" / "file-000.mp4"
    path.parent.mkdir()
    path.write_bytes(b"shard")
    return path


def test_promoting_twice_is_harmless(shard: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    target = tree / "videos" / "top" / "file-000.mp4"
    assert link_into_tree(shard, target, tree=tree) == "linked"
    assert link_into_tree(shard, target, tree=tree) == "linked"
    assert target.samefile(shard)


def test_a_link_into_the_tree_whose_answer_was_lost_counts_as_linked(
    shard: Path, tmp_path: Path
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EIO, happens=True)
    assert link_into_tree(shard, tmp_path / "file", fs=fs) == "linked"


def test_a_file_of_a_voided_attempt_is_replaced(shard: Path, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"of an attempt that was voided")
    assert link_into_tree(shard, target) == "linked"
    assert target.samefile(shard)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt", "file"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_a_link_is_impossible_the_shard_is_copied_once(
    shard: Path, tmp_path: Path, code: int
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code, times=None)
    target = tmp_path / "file"
    assert link_into_tree(shard, target, fs=fs) == "copied"
    assert target.read_bytes() == b"shard"
    inode = target.stat().st_ino
    assert link_into_tree(shard, target, fs=fs) == "copied"
    assert target.stat().st_ino == inode, "a whole copy is kept"
    names = [name for name, _ in fs.operations]
    assert names.index("sync_file") < names.index("replace"), "on the disk before it has its name"


def test_a_crash_while_copying_leaves_no_half_file_under_the_final_name(
    shard: Path, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    finished = False
    for point in range(50):
        fs = FaultyFileSystem(crash_at=point)
        fs.fail("link", errno.EXDEV, times=None)
        try:
            link_into_tree(shard, target, fs=fs)
        except CrashError:
            assert not target.exists() or target.read_bytes() == b"shard"
            target.unlink(missing_ok=True)
        else:
            finished = True
            break
    assert finished


def test_a_superseded_packer_cannot_make_its_tree_anew(shard: Path, tmp_path: Path) -> None:
    gone = tmp_path / "tree-that-was-renamed-away"
    with pytest.raises(FileNotFoundError):
        link_into_tree(shard, gone / "data" / "file", tree=gone)
    assert not gone.exists()
    with pytest.raises(ValueError, match="not below"):
        make_folders_below(gone, tmp_path)


def test_removing_a_tree_follows_no_link_out_of_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    ours = tmp_path / ".dataset.leconvert-work"
    ours.mkdir()
    (ours / "link").symlink_to(precious)
    assert remove_tree(ours)
    assert (precious / "file").exists()
    assert remove_tree(ours), "gone already is gone"


@pytest.mark.parametrize("name", ["dataset", ".hidden", "leconvert-work"])
def test_a_folder_that_is_not_ours_is_never_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(WorkDirError, match="was not removed"):
        remove_tree(tmp_path / name)
    assert (tmp_path / name).is_dir()


def test_a_link_with_one_of_our_names_is_not_removed_through(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    link = tmp_path / ".dataset.leconvert-work"
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(WorkDirError):
        remove_tree(link)
    assert (tmp_path / "precious").is_dir()


def test_removal_stays_inside_the_given_folder(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    (attempts / "000001").mkdir(parents=True)
    with pytest.raises(WorkDirError):
        remove_tree(attempts, inside=attempts)
    with pytest.raises(WorkDirError):
        remove_tree(attempts / ".." / "elsewhere", inside=attempts)
    with pytest.raises(WorkDirError):
        remove_tree(attempts / "..", inside=attempts)
    assert remove_tree(attempts / "000001", inside=attempts)
    assert list(attempts.iterdir()) == []


def test_a_second_link_whose_answer_was_lost_counts_too(shard: Path, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"of an attempt that was voided")
    fs = FaultyFileSystem()
    fs.fail("link", errno.EEXIST, match="leconvert-partial", happens=True)
    assert link_into_tree(shard, target, fs=fs) == "linked"
    assert target.samefile(shard)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt", "file"]


def test_a_file_of_a_voided_attempt_is_replaced_by_a_copy_where_links_run_out(
    shard: Path, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"of an attempt that was voided")
    fs = FaultyFileSystem()
    fs.fail("link", errno.EMLINK, match="leconvert-partial")
    assert link_into_tree(shard, target, fs=fs) == "copied"
    assert target.read_bytes() == b"shard"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt", "file"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_disk_that_fails_while_a_shard_is_linked_is_told_and_changes_nothing(
    shard: Path, tmp_path: Path, exists: bool
) -> None:
    target = tmp_path / "file"
    if exists:
        target.write_bytes(b"old")
    fs = FaultyFileSystem()
    fs.fail("link", errno.ENOSPC, match="leconvert-partial" if exists else "")
    with pytest.raises(StorageError, match="no space left") as caught:
        link_into_tree(shard, target, fs=fs)
    assert caught.value.path == str(target)
    assert [path.name for path in tmp_path.iterdir() if path.name != "attempt"] == (
        ["file"] if exists else []
    )


@pytest.mark.parametrize("operation", ["sync_file", "replace"])
def test_a_copy_that_fails_leaves_no_temporary_file(
    shard: Path, tmp_path: Path, operation: str
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EXDEV)
    fs.fail(operation, errno.EIO)
    with pytest.raises(StorageError, match="input/output"):
        link_into_tree(shard, tmp_path / "file", fs=fs)
    assert [path.name for path in tmp_path.iterdir()] == ["attempt"]


def test_a_copy_of_another_file_is_not_kept(shard: Path, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"SHARD")  # as long, and of another time
    os.utime(target, ns=(0, 0))
    fs = FaultyFileSystem()
    fs.fail("link", errno.EXDEV)
    assert link_into_tree(shard, target, fs=fs) == "copied"
    assert target.read_bytes() == b"shard"


@pytest.mark.parametrize(("code", "raises"), [(errno.EBUSY, False), (errno.EROFS, True)])
def test_what_is_still_open_elsewhere_may_linger_and_a_disk_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, raises: bool
) -> None:
    tree = tmp_path / ".set.leconvert-r1.1"
    tree.mkdir()

    def rmtree(path: Path, **_: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    if raises:
        with pytest.raises(StorageError, match="read-only") as caught:
            remove_tree(tree)
        assert caught.value.path == str(tree)
    else:
        assert remove_tree(tree) is False


def test_two_that_remove_a_tree_at_once_both_find_it_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / ".set.leconvert-r1.1"
    (tree / "data").mkdir(parents=True)
    (tree / "data" / "file").write_bytes(b"x")
    real, calls = shutil.rmtree, []

    def rmtree(path: Path, **how: object) -> None:
        calls.append(how)
        if len(calls) == 1:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        real(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert remove_tree(tree) is True
    assert len(calls) == 2
