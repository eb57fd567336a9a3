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


PARTIAL = "leconvert-partial"


@pytest.mark.parametrize(
    ("content", "fault", "outcome"),
    [
        pytest.param(None, (errno.EIO, "", True), "linked", id="answer lost"),
        pytest.param(b"voided", None, "linked", id="voided"),
        pytest.param(b"voided", (errno.EEXIST, PARTIAL, True), "linked", id="second answer lost"),
        pytest.param(b"voided", (errno.EMLINK, PARTIAL, False), "copied", id="links run out"),
        pytest.param(b"SHARD", (errno.EXDEV, "", False), "copied", id="another of the same size"),
    ],
)
def test_whatever_has_the_name_the_shard_gets_it(
    shard: Path,
    tmp_path: Path,
    content: bytes | None,
    fault: tuple[int, str, bool] | None,
    outcome: str,
) -> None:
    target, fs = tmp_path / "file", FaultyFileSystem()
    if content is not None:
        target.write_bytes(content)
        os.utime(target, ns=(0, 0))
    if fault is not None:
        code, match, happens = fault
        fs.fail("link", code, match=match, happens=happens)
    assert link_into_tree(shard, target, fs=fs) == outcome
    assert target.read_bytes() == b"shard"
    assert target.samefile(shard) is (outcome == "linked")
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


@pytest.mark.parametrize("name", ["dataset", ".hidden", "leconvert-work", ".a.leconvert-work"])
def test_a_folder_that_is_not_ours_is_never_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").mkdir()
    if name.startswith(".a"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(WorkDirError, match="was not removed"):
        remove_tree(tmp_path / name)
    assert (tmp_path / name).is_dir()


def test_removal_stays_inside_the_given_folder(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    (attempts / "000001").mkdir(parents=True)
    for outside in (attempts, attempts / ".." / "elsewhere", attempts / ".."):
        with pytest.raises(WorkDirError):
            remove_tree(outside, inside=attempts)
    assert remove_tree(attempts / "000001", inside=attempts)
    assert list(attempts.iterdir()) == []


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
