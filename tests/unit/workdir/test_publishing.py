"""What a publish, a replace and a promote do when the disk or the network lies."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from leconvert.errors import StorageError, WorkDirError
from leconvert.testing.faults import CrashError, FaultyFileSystem
from leconvert.workdir.durable import (
    AlreadyPublishedError,
    OutcomeUnknownError,
    link_into_tree,
    make_folders_below,
    publish_exclusively,
    remove_tree,
    replace_record,
    storage_errors,
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
    with pytest.raises(AlreadyPublishedError):
        publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert (tmp_path / "done").read_bytes() == b"record of worker B\n"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_link_that_really_failed_is_a_storage_error_with_a_next_step(
    mine: Path, tmp_path: Path, code: int
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code)
    with pytest.raises(StorageError) as caught:
        publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert caught.value.path == str(tmp_path / "done")
    assert caught.value.next_step
    assert not (tmp_path / "done").exists()


def test_a_handle_that_goes_stale_while_reading_back_is_opened_again(
    mine: Path, tmp_path: Path
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EEXIST, happens=True)
    fs.fail("read_bytes", errno.ESTALE, match="done")
    publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert (tmp_path / "done").samefile(mine)


def test_an_outcome_that_cannot_be_read_back_is_called_unknown_not_failed(
    mine: Path, tmp_path: Path
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EIO, happens=True)
    fs.fail("list_names", errno.EIO, times=None)
    with pytest.raises(OutcomeUnknownError) as caught:
        publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert caught.value.exit_code == 11
    # Asking again when the disk answers gives the truth.
    publish_exclusively(mine, tmp_path / "done")


def test_a_record_that_was_voided_before_it_was_read_back_does_not_count_as_ours(
    mine: Path, tmp_path: Path
) -> None:
    target = tmp_path / "done"
    target.write_bytes(b"record of worker B\n")
    fs = FaultyFileSystem()
    fs.before("list_names", target.unlink)
    with pytest.raises(AlreadyPublishedError):
        publish_exclusively(mine, target, fs=fs)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named_as_the_reason(
    mine: Path, tmp_path: Path, code: int
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code)
    with pytest.raises(StorageError, match="hard links"):
        publish_exclusively(mine, tmp_path / "done", fs=fs)


def test_only_one_of_two_publishers_wins_when_they_meet_in_the_middle(tmp_path: Path) -> None:
    ours, theirs, target = tmp_path / "ours", tmp_path / "theirs", tmp_path / "done"
    ours.write_bytes(b"A\n")
    theirs.write_bytes(b"B\n")
    fs = FaultyFileSystem()
    fs.before("link", lambda: publish_exclusively(theirs, target))
    with pytest.raises(AlreadyPublishedError):
        publish_exclusively(ours, target, fs=fs)
    assert target.read_bytes() == b"B\n"


def test_publishing_forces_the_folder_to_the_disk_after_the_link(
    mine: Path, tmp_path: Path
) -> None:
    fs = FaultyFileSystem()
    publish_exclusively(mine, tmp_path / "done", fs=fs)
    assert fs.operations == [("link", mine), ("sync_dir", tmp_path)]


def test_a_crash_anywhere_in_a_durable_write_leaves_the_old_or_the_new_content(
    tmp_path: Path,
) -> None:
    seen = set()
    for point in range(100):
        path = tmp_path / f"{point}" / "record"
        path.parent.mkdir()
        path.write_bytes(b"old")
        fs = FaultyFileSystem(crash_at=point)
        try:
            write_durably(path, b"new", fs=fs)
        except CrashError:
            seen.add(path.read_bytes())
        else:
            assert path.read_bytes() == b"new"
            break
    assert seen == {b"old", b"new"}
    assert [name for name, _ in fs.operations] == ["write_new", "replace", "sync_dir"]


def test_a_rename_whose_answer_was_lost_counts_as_done(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.fail("replace", errno.ENOENT, happens=True)
    replace_record(tmp_path / "beat", b"nonce", fs=fs)
    assert (tmp_path / "beat").read_bytes() == b"nonce"


def test_a_full_disk_leaves_no_temporary_file_and_names_the_path(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="no space left") as caught:
        write_durably(tmp_path / "record", b"x", fs=fs)
    assert caught.value.path == str(tmp_path / "record")
    assert list(tmp_path.iterdir()) == []


def test_errors_about_names_are_not_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "missing").read_bytes()


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


def test_syncing_a_tree_reaches_every_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    fs = FaultyFileSystem()
    sync_tree(tmp_path, fs=fs)
    assert fs.operations == [
        ("sync_file", tmp_path / "a" / "b" / "file"),
        ("sync_dir", tmp_path / "a" / "b"),
        ("sync_dir", tmp_path / "a"),
        ("sync_dir", tmp_path),
    ]


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
    with pytest.raises(WorkDirError, match="Refusing"):
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
