"""The end of a work dir: whole, or under another name; and what a failing disk is called."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.faulty_files import CrashError
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk

from leconvert.support.errors import StorageError, TargetError, WorkDirError
from leconvert.support.storage_errors import any_storage_errors
from leconvert.workdir import removal
from leconvert.workdir.fs import remove_tree, sync_tree
from leconvert.workdir.locks import packer_lock, planner_lock
from leconvert.workdir.records import (
    Journal,
    WorkDir,
    default_work_dir,
    encode_record,
    removed_folder,
)
from leconvert.workdir.removal import remove_leftovers, remove_work_dir
from leconvert.workdir.swap import (
    TREE_RECORD,
    remove_left_trees,
    remove_new_tree,
    staging_dir,
    staging_generations,
)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    return make_work_dir(tmp_path)


def make_work_dir(parent: Path) -> Path:
    root = default_work_dir(parent / "set")
    WorkDir(root).run("r1").ensure()
    WorkDir(root).set_current("r1")
    return root


def test_a_work_dir_is_removed(work_dir: Path, tmp_path: Path) -> None:
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert list(tmp_path.iterdir()) == []
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set"), "gone already is gone"


def changes_of(folder: Path, act: Callable[[], object]) -> list[int]:
    """Do something; return the operations before which a death leaves something new."""
    with WatchedDisk(folder) as disk:
        act()
    changes = [number for number, operation in enumerate(disk.operations) if operation.changes]
    return [*changes, len(disk.operations) - 1]  # the last one only looks


def test_a_death_at_any_operation_leaves_a_whole_run_or_none(tmp_path: Path) -> None:
    root = make_work_dir(tmp_path)
    deaths = changes_of(tmp_path, lambda: remove_work_dir(root, "r1", root.parent / "set"))
    assert len(deaths) > 10
    for number in deaths:
        parent = tmp_path / str(number)
        parent.mkdir()
        root = make_work_dir(parent)
        before = [path.relative_to(root) for path in root.rglob("*")]
        with pytest.raises(CrashError), WatchedDisk(parent, fault=Fault(number, FaultKind.DIE)):
            remove_work_dir(root, "r1", root.parent / "set")
        if root.exists():
            after = [path.relative_to(root) for path in root.rglob("*")]
            assert [path for path in after if "planner.lock" not in path.name] == before
        assert remove_leftovers(root)
        assert list(parent.iterdir()) in ([root], [])
        assert remove_work_dir(root, "r1", root.parent / "set")


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ESTALE, errno.EBUSY])
def test_a_failing_disk_is_told_and_not_raised(work_dir: Path, tmp_path: Path, code: int) -> None:
    with WatchedDisk(tmp_path, fault=Fault(0, FaultKind.FAIL, code, lasts=True)):
        assert not remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_removal_left_makes_room_for_the_next(work_dir: Path) -> None:
    left = removed_folder(work_dir)
    left.mkdir()
    (left / "current").write_text("of an earlier run")
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert not left.exists()


def test_a_work_dir_in_which_somebody_planned_since_is_theirs(work_dir: Path) -> None:
    WorkDir(work_dir).run("r2").ensure()
    WorkDir(work_dir).set_current("r2")
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert WorkDir(work_dir).list_runs() == ["r1", "r2"]


def test_a_work_dir_in_which_somebody_is_planning_is_theirs(work_dir: Path) -> None:
    with planner_lock(WorkDir(work_dir)):
        assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert WorkDir(work_dir).current_run_id() == "r1"


def test_a_full_disk_does_not_keep_a_work_dir(work_dir: Path, tmp_path: Path) -> None:
    with WatchedDisk(tmp_path) as disk:
        assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    names = [operation.name for operation in disk.operations]
    root = make_work_dir(tmp_path)
    with WatchedDisk(tmp_path, fault=Fault(names.index("write"), FaultKind.FAIL, errno.ENOSPC)):
        assert remove_work_dir(root, "r1", root.parent / "set")
    assert list(tmp_path.iterdir()) == []


def test_no_lock_of_a_work_dir_is_held_while_its_folders_go(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS a file that is open stays, and keeps its folder."""
    freed = []

    def remove(path: Path) -> bool:
        if path.exists():
            with planner_lock(WorkDir(path)):
                freed.append(path)
        return remove_tree(path)

    monkeypatch.setattr(removal, "remove_tree", remove)
    assert remove_work_dir(work_dir, "r1", work_dir.parent / "set")
    assert freed == [removed_folder(work_dir)]


def make_new_tree(target: Path, generation: int) -> Path:
    tree = staging_dir(target, "r1", generation)
    (tree / "data/chunk-000").mkdir(parents=True)
    mark = encode_record("tree", 1, "r1", {})
    (tree / TREE_RECORD).write_bytes(mark)
    (tree / "data/chunk-000/file-000.parquet").write_bytes(b"rows")
    return tree


def make_journal(work_dir: Path, run_id: str = "r1") -> Journal:
    run = WorkDir(work_dir).run(run_id)
    run.ensure()
    journal = Journal(run)
    journal.begin()
    return journal


def test_a_death_at_any_operation_leaves_a_new_tree_to_the_next_packer(tmp_path: Path) -> None:
    tree = make_new_tree(tmp_path / "set", 1)
    deaths = changes_of(tmp_path, lambda: remove_new_tree(tree, "r1"))
    assert len(deaths) > 4
    for number in deaths:
        target = tmp_path / str(number) / "set"
        target.mkdir(parents=True)
        tree = make_new_tree(target, 1)
        journal = make_journal(tmp_path / "work" / str(number))
        with (
            pytest.raises(CrashError),
            WatchedDisk(target.parent, fault=Fault(number, FaultKind.DIE)),
        ):
            remove_new_tree(tree, "r1")
        if tree.exists():
            assert (tree / "data/chunk-000/file-000.parquet").read_bytes() == b"rows"
        else:
            assert staging_generations(target, journal) == []
            left = removed_folder(tree).exists()
            remove_left_trees(target, make_journal(tmp_path / "work" / str(number), "another-run"))
            assert removed_folder(tree).exists() == left
            remove_left_trees(target, journal)
            assert list(target.parent.iterdir()) == [target]


def test_a_new_trees_other_name_is_on_the_disk_before_anything_in_it_goes(tmp_path: Path) -> None:
    tree = make_new_tree(tmp_path / "set", 1)
    with WatchedDisk(tmp_path) as disk:
        remove_new_tree(tree, "r1")
    done = [(operation.name, operation.paths) for operation in disk.operations if operation.changes]
    renamed = next(place for place, (name, _) in enumerate(done) if name == "rename")
    assert done[renamed][1] == (str(tree), str(removed_folder(tree)))
    assert done[renamed + 1] == ("fsync", (str(tmp_path),))
    assert {name for name, _ in done[renamed + 2 :]} == {"unlink", "rmdir"}
    assert list(tmp_path.iterdir()) == []


def test_a_tree_without_the_runs_mark_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "set"
    tree = make_new_tree(target, 1)
    with pytest.raises(TargetError, match="does not have the mark of run"):
        remove_new_tree(tree, "r2")
    # A packer that was frozen exchanges it for the target between the look and the rename.
    rename = Path.rename

    def exchanged_meanwhile(path: Path, to: Path) -> Path:
        if path == tree and to == removed_folder(tree):
            (tree / TREE_RECORD).unlink()
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", exchanged_meanwhile)
    with pytest.raises(TargetError, match="may be a dataset"):
        remove_new_tree(tree, "r1")
    assert (tree / "data/chunk-000/file-000.parquet").read_bytes() == b"rows"
    rename(tree, removed_folder(tree))
    remove_left_trees(target, make_journal(tmp_path / "work"))
    assert (removed_folder(tree) / "data/chunk-000/file-000.parquet").read_bytes() == b"rows"


def test_trees_of_runs_that_were_given_up_go_with_the_work_dir(
    work_dir: Path, tmp_path: Path
) -> None:
    make_new_tree(tmp_path / "set", 1)
    make_journal(work_dir)
    WorkDir(work_dir).run("r2").ensure()
    WorkDir(work_dir).set_current("r2")
    assert remove_work_dir(work_dir, "r2", tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_a_new_tree_that_another_packer_adopted_stays(tmp_path: Path) -> None:
    tree = make_new_tree(tmp_path / "set", 1)
    adopted = staging_dir(tmp_path / "set", "r1", 2)
    tree.rename(adopted)
    remove_new_tree(tree, "r1")
    assert (adopted / "data/chunk-000/file-000.parquet").exists()


def test_a_folder_that_we_did_not_make_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "data"
    theirs.mkdir()
    with pytest.raises(WorkDirError, match="leconvert did not make this folder"):
        remove_work_dir(theirs, "r1", tmp_path / "set")
    assert theirs.is_dir()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ESTALE, "Stale", "/data/set/x"), "/data/set/x: the server no longer knows"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/data/y"), "/data/y: No such file"),
        (FileExistsError(errno.EEXIST, "File exists", "/dev/null"), "null: a part of this path is"),
        (OSError("what nobody knows"), "a file of the run: what nobody knows"),
    ],
)
def test_every_disk_error_becomes_a_sentence_with_a_path_and_a_next_step(
    error: OSError, said: str
) -> None:
    with pytest.raises(StorageError, match=said) as caught, any_storage_errors():
        raise error
    assert caught.value.next_step


def test_a_lock_that_cannot_be_released_hides_nothing(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WorkDir(work_dir).run("r1")
    real = fcntl.flock

    def stale(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_UN:
            raise OSError(errno.ESTALE, "Stale file handle")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", stale)
    with pytest.raises(TargetError, match="what went wrong"), packer_lock(run):
        raise TargetError("what went wrong.")


def test_a_folder_that_cannot_be_listed_is_not_taken_for_synced(tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    with WatchedDisk(tmp_path) as disk:
        sync_tree(tmp_path / "tree")
    lists = [n for n, operation in enumerate(disk.operations) if operation.name == "scandir"]
    assert len(lists) == 2
    for number in lists:
        with (
            pytest.raises(StorageError, match="input/output"),
            WatchedDisk(tmp_path, fault=Fault(number, FaultKind.FAIL, errno.EIO)),
        ):
            sync_tree(tmp_path / "tree")
