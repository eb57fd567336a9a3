"""What one host can see by itself: each probe tries the real operation in a folder of its own."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leconvert.errors import StorageError
from leconvert.fscheck.promises import Finding, Promise
from leconvert.workdir.extents import can_clone
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.trees import remove_tree
from leconvert.workdir.trouble import storage_errors

__all__ = ["BrokenPromiseError", "finding_of", "probe_folder"]

_PREFIX = ".leconvert-check-"


class BrokenPromiseError(Exception):
    """An operation went well and did the wrong thing; the message says what was seen."""


def probe_folder(folder: Path, *, fs: FileSystem = LOCAL) -> list[Finding]:
    """Probe a folder; what is made there is removed again.

    Args:
        folder: An existing folder on the file system in question.
        fs: File operations.

    Raises:
        StorageError: No folder can be made in it at all.
    """
    with storage_errors(folder):
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        return [finding_of(promise, probe, place, fs) for promise, probe in _PROBES.items()]
    finally:
        with suppress(OSError, StorageError):
            remove_tree(place)


def finding_of(
    promise: Promise, probe: Callable[[Path, FileSystem], str], place: Path, fs: FileSystem
) -> Finding:
    """Run one probe, and turn what went wrong into a finding."""
    try:
        return Finding(promise, True, probe(place, fs))
    except BrokenPromiseError as broken:
        return Finding(promise, False, str(broken))
    except OSError as error:
        return Finding(promise, False, errno.errorcode.get(error.errno or 0, str(error)))
    except NotImplementedError as error:  # what filelock says where there is no flock
        return Finding(promise, False, str(error))


def _write(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "plain", b"content", sync=False)
    if (seen := fs.read_bytes(place / "plain")) != b"content":
        raise BrokenPromiseError(f"wrote 7 bytes, read {len(seen)} others")
    return ""


def _must_exist(call: Callable[[], None], what: str) -> None:
    try:
        call()
    except FileExistsError:
        return
    raise BrokenPromiseError(f"{what} succeeded twice")


def _create(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "once", b"1", sync=False)
    _must_exist(lambda: fs.write_new(place / "once", b"2", sync=False), "making one file")
    return ""


def _link(place: Path, fs: FileSystem) -> str:
    for name in ("first", "second"):
        fs.write_new(place / name, name.encode(), sync=False)
    # Across folders, as records are published: some file systems link within one alone.
    fs.make_dir(place / "names")
    target = place / "names" / "won"
    fs.link(place / "first", target)
    _must_exist(lambda: fs.link(place / "second", target), "linking one name")
    if fs.read_bytes(target) != b"first":
        raise BrokenPromiseError("the name holds the loser's content")
    if fs.identity(target) != fs.identity(place / "first"):
        raise BrokenPromiseError("two names of one file have different inodes")
    fs.remove_file(place / "first")
    if fs.read_bytes(target) != b"first":
        raise BrokenPromiseError("removing one name took the other's content along")
    return ""


def _folder(place: Path, fs: FileSystem) -> str:
    fs.make_dir(place / "folder")
    _must_exist(lambda: fs.make_dir(place / "folder"), "making one folder")
    return ""


def _replace(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "target", b"old", sync=False)
    fs.write_new(place / "source", b"new", sync=False)
    fs.replace(place / "source", place / "target")
    if fs.read_bytes(place / "target") != b"new" or "source" in fs.list_names(place):
        raise BrokenPromiseError("the old content or the old name is still there")
    return ""


def _tree(place: Path, name: str, fs: FileSystem) -> Path:
    tree = place / name
    fs.make_dir(tree)
    fs.write_new(tree / name, name.encode(), sync=False)
    return tree


def _move(place: Path, fs: FileSystem) -> str:
    tree, target = _tree(place, "moving", fs), place / "moved"
    fs.replace(tree, target)
    if fs.list_names(target) != ["moving"] or "moving" in fs.list_names(place):
        raise BrokenPromiseError("the folder did not move as a whole")
    return ""


def _no_replace(place: Path, fs: FileSystem) -> str:
    one, other = _tree(place, "one", fs), _tree(place, "other", fs)
    _must_exist(lambda: fs.rename_no_replace(one, other), "renaming onto a folder")
    fs.rename_no_replace(one, place / "free")
    return ""


def _exchange(place: Path, fs: FileSystem) -> str:
    left, right = _tree(place, "left", fs), _tree(place, "right", fs)
    fs.exchange(left, right)
    if (fs.list_names(left), fs.list_names(right)) != (["right"], ["left"]):
        raise BrokenPromiseError("the two folders did not change places")
    return ""


def _lock(place: Path, _fs: FileSystem) -> str:
    from filelock import FileLock, Timeout

    one, other = (
        FileLock(place / "lock", timeout=0, fallback_to_soft=False, is_singleton=False)
        for _ in range(2)
    )
    with one:
        try:
            other.acquire()
        except Timeout:
            return ""
        other.release()
        raise BrokenPromiseError("two descriptors held it at once")


def _sync_file(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "synced", b"content", sync=True)
    fs.sync_file(place / "synced")
    return ""


def _sync_folder(place: Path, _fs: FileSystem) -> str:
    # Not through `fs`, which bears file systems that have no such call.
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _reflink(place: Path, _fs: FileSystem) -> str:
    if not can_clone(place, place):
        raise BrokenPromiseError("FICLONE is refused")
    return ""


_PROBES: dict[Promise, Callable[[Path, FileSystem], str]] = {
    Promise.WRITE: _write,
    Promise.CREATE: _create,
    Promise.LINK: _link,
    Promise.FOLDER: _folder,
    Promise.REPLACE: _replace,
    Promise.MOVE: _move,
    Promise.LOCK: _lock,
    Promise.SYNC_FILE: _sync_file,
    Promise.SYNC_FOLDER: _sync_folder,
    Promise.NO_REPLACE: _no_replace,
    Promise.EXCHANGE: _exchange,
    Promise.REFLINK: _reflink,
}
