"""Finished shards linked or copied into a tree, and removal of what is ours alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

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


def test_promoting_twice_is_harmless_and_nobody_makes_a_tree_anew(
    shard: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    target = tree / "videos" / "top" / "file-000.mp4"
    assert link_into_tree(shard, target, tree=tree) == "linked"
    assert link_into_tree(shard, target, tree=tree) == "linked"
    assert target.samefile(shard)
    gone = tmp_path / "tree-that-was-renamed-away"
    with pytest.raises(FileNotFoundError):
        link_into_tree(shard, gone / "data" / "file", tree=gone)
    assert not gone.exists()
    with pytest.raises(ValueError, match="not below"):
        make_folders_below(gone, tmp_path)


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
def test_where_no_link_is_possible_a_copy_is_made(shard: Path, tmp_path: Path, code: int) -> None:
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


def test_a_crash_while_copying_leaves_no_half_file_there(shard: Path, tmp_path: Path) -> None:
    target, crashes = tmp_path / "file", True
    for point in range(50):
        fs = FaultyFileSystem(crash_at=point)
        fs.fail("link", errno.EXDEV, times=None)
        try:
            link_into_tree(shard, target, fs=fs)
        except CrashError:
            assert not target.exists() or target.read_bytes() == b"shard"
            target.unlink(missing_ok=True)
        else:
            crashes = False
            break
    assert not crashes


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


def test_removal_stays_inside_the_given_folder_and_follows_no_link(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    (attempts / "000001").mkdir(parents=True)
    for outside in (attempts, attempts / ".." / "elsewhere", attempts / ".."):
        with pytest.raises(WorkDirError):
            remove_tree(outside, inside=attempts)
    assert remove_tree(attempts / "000001", inside=attempts)
    assert list(attempts.iterdir()) == []
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    ours = tmp_path / ".dataset.leconvert-work"
    ours.mkdir()
    (ours / "link").symlink_to(precious)
    assert remove_tree(ours)
    assert (precious / "file").exists()
    assert remove_tree(ours), "gone already is gone"


@pytest.mark.parametrize(
    ("exists", "faults"),
    [
        (False, [("link", errno.ENOSPC)]),
        (True, [("link", errno.ENOSPC)]),
        (False, [("link", errno.EXDEV), ("sync_file", errno.EIO)]),
        (False, [("link", errno.EXDEV), ("replace", errno.EIO)]),
    ],
)
def test_a_disk_that_fails_while_a_shard_is_linked_or_copied_is_told_and_changes_nothing(
    shard: Path, tmp_path: Path, exists: bool, faults: list[tuple[str, int]]
) -> None:
    target, fs = tmp_path / "file", FaultyFileSystem()
    if exists:
        target.write_bytes(b"old")
    for operation, code in faults:
        fs.fail(operation, code, match=PARTIAL if exists else "")
    said = os.strerror(faults[-1][1]).lower()
    with pytest.raises(StorageError, match=said.removesuffix(" on device")) as caught:
        link_into_tree(shard, target, fs=fs)
    assert caught.value.path == str(target)
    names = [path.name for path in tmp_path.iterdir() if path.name != "attempt"]
    assert names == ["file"] * exists


def test_what_is_still_open_elsewhere_may_linger_and_a_disk_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, real = tmp_path / ".set.leconvert-r1.1", shutil.rmtree
    (tree / "data").mkdir(parents=True)

    def failing(code: int) -> Mock:
        rmtree = Mock(side_effect=OSError(code, os.strerror(code), str(tree)))
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        return rmtree

    failing(errno.EROFS)
    with pytest.raises(StorageError, match="read-only") as caught:
        remove_tree(tree)
    assert caught.value.path == str(tree)
    failing(errno.EBUSY)
    assert remove_tree(tree) is False
    # Two that remove a tree at once both find it gone.
    rmtree = failing(errno.ENOENT)
    rmtree.side_effect = [rmtree.side_effect, None]
    real(tree)
    assert remove_tree(tree) is True
    assert rmtree.call_count == 2
