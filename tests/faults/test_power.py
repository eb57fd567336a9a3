"""What a power failure leaves: extremes between what was forced to the disk and what was not."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.faulty_files import CrashError
from tests.faults.power import Loss, PowerModel
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk

from leconvert.workdir.fs import sync_dir, sync_file

Watch = Callable[[], WatchedDisk]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "old").mkdir(parents=True)
    (root / "old" / "file").write_bytes(b"old")
    os.utime(root / "old" / "file", ns=(5, 5))
    return root


@pytest.fixture
def model(root: Path) -> PowerModel:
    return PowerModel(root, root.with_name("graveyard"))


def content(root: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


OLD = {"old": None, "old/file": b"old"}


@pytest.mark.parametrize(
    ("loss", "left"),
    [
        (Loss.ALL, OLD),
        (Loss.DATA, {**OLD, "new": None, "new/file": b""}),
        (Loss.NAMES, OLD),
        (Loss.TOP, OLD),
        (Loss.BELOW, {**OLD, "new": None}),
    ],
)
def test_what_was_never_forced_to_the_disk_may_be_gone(
    root: Path, model: PowerModel, loss: Loss, left: dict[str, bytes | None]
) -> None:
    with WatchedDisk(root, power=model):
        (root / "new").mkdir()
        (root / "new" / "file").write_bytes(b"new")
    model.fail(loss)
    assert content(root) == left
    assert sorted(path.name for path in root.parent.iterdir()) == ["root"]


@pytest.mark.parametrize("loss", Loss)
def test_what_was_forced_to_the_disk_is_there(root: Path, model: PowerModel, loss: Loss) -> None:
    with WatchedDisk(root, power=model):
        (root / "new").mkdir()
        (root / "new" / "file").write_bytes(b"new")
        sync_file(root / "new" / "file")
        sync_dir(root / "new")
        sync_dir(root)
    model.fail(loss)
    assert content(root) == {**OLD, "new": None, "new/file": b"new"}


def test_what_was_made_and_forced_through_a_symbolic_link_is_there(
    root: Path, model: PowerModel
) -> None:
    """Two datasets that share files are compared, and forced to the disk, in folders of links."""
    view = root.with_name("view")
    view.mkdir()
    (view / "part").symlink_to("../root/old")
    with WatchedDisk(root, power=model):
        (view / "part" / "new").write_bytes(b"new")
        (root / "old" / "file").write_bytes(b"other")
        sync_file(view / "part" / "new")
        sync_file(view / "part" / "file")
        sync_dir(view / "part")
        (view / "part").unlink()
    model.fail(Loss.ALL)
    assert content(root) == {"old": None, "old/file": b"other", "old/new": b"new"}


@pytest.mark.parametrize(("loss", "bytes_left"), [(Loss.DATA, b"first"), (Loss.NAMES, b"second")])
def test_bytes_that_were_written_over_come_back_with_their_time(
    root: Path, model: PowerModel, loss: Loss, bytes_left: bytes
) -> None:
    path = root / "old" / "file"
    with WatchedDisk(root, power=model):
        path.write_bytes(b"first")
        os.utime(path, ns=(7, 7))
        sync_file(path)
        path.write_bytes(b"second")
    inode = path.stat().st_ino
    model.fail(loss)
    assert path.read_bytes() == bytes_left
    assert path.stat().st_ino == inode
    assert (path.stat().st_mtime_ns == 7) == (loss is Loss.DATA)


def test_a_removed_file_comes_back_with_its_inode_where_its_folder_was_not_forced(
    root: Path, model: PowerModel
) -> None:
    inode = (root / "old" / "file").stat().st_ino
    with WatchedDisk(root, power=model):
        (root / "old" / "file").unlink()
        (root / "old").rmdir()
    model.fail(Loss.ALL)
    assert content(root) == OLD
    assert (root / "old" / "file").stat().st_ino == inode
    assert (root / "old" / "file").stat().st_mtime_ns == 5


def test_a_rename_and_the_removals_below_it_survive_apart(root: Path, model: PowerModel) -> None:
    with WatchedDisk(root, power=model):
        (root / "old").rename(root / "removed")
        (root / "removed" / "file").unlink()
    copy: PowerModel = pickle.loads(pickle.dumps(model))
    assert copy.signature(Loss.TOP) == (("/old", 1, -1),)
    assert copy.signature(Loss.BELOW) == (("/removed", 1, -1), ("/removed/file", 2, 0))
    copy.fail(Loss.TOP)
    assert content(root) == {"old": None}


def test_links_replacements_and_exchanges_are_followed(root: Path, model: PowerModel) -> None:
    with WatchedDisk(root, power=model):
        (root / "one").write_bytes(b"one")
        sync_file(root / "one")
        (root / "two").hardlink_to(root / "one")
        (root / "new").mkdir()
        (root / "new" / "x").write_bytes(b"x")
        (root / "new" / "x").replace(root / "old" / "file")
        (root / "old").rename(root / "aside")
        (root / "new").rename(root / "old")
    seen = content(root)
    model.fail(Loss.NAMES)
    assert content(root) == OLD
    assert seen == {"aside": None, "aside/file": b"x", "old": None, "one": b"one", "two": b"one"}


def test_a_name_that_two_renames_gave_is_the_last_one(root: Path, model: PowerModel) -> None:
    with WatchedDisk(root, power=model):
        (root / "a").write_bytes(b"a")
        (root / "b").write_bytes(b"b")
        (root / "a").replace(root / "b")
        sync_file(root / "b")
        sync_dir(root)
    model.fail(Loss.ALL)
    assert content(root) == {**OLD, "b": b"a"}


def test_what_fails_with_the_process_is_not_followed(root: Path, model: PowerModel) -> None:
    disk = WatchedDisk(root, fault=Fault(0, FaultKind.DIE, loss=Loss.DATA), power=model)
    with disk, pytest.raises(CrashError):
        (root / "new").mkdir()
    model.fail(Loss.DATA)
    assert content(root) == OLD
