"""Storage errors for users: one sentence with the path, and the next step."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leconvert.support.errors import StorageError, UsageError

_FREE_SPACE = (
    "Free disk space there, then run the same command again; finished work stays finished."
)
_WRITABLE = "Mount it for writing, or choose another folder; then run the same command again."
_PERMITTED = "Let this user read and write there, then run the same command again."
CHECK_DISK = "Check the disk or the network mount, then run the same command again."
_REMOVED = "Check the disk, and check that nobody removed files of the run."
_MORE_MEMORY = (
    "Close other programs, or raise the limit of the job or of `ulimit -v`; then run the same "
    "command again."
)
_MORE_THREADS = (
    "Close other programs of this user, or raise the limit of the job, of the container or of "
    "`ulimit -u`; then run the same command again."
)
_NO_THREAD = ("can't start new thread", "Failed to launch worker thread")  # Python's, Arrow's
_NEXT_STEPS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("there is no space left", _FREE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _FREE_SPACE),
    errno.EROFS: ("the file system is read-only", _WRITABLE),
    errno.EACCES: ("permission is denied", _PERMITTED),  # see `denied`
    errno.EPERM: ("the operation is not permitted", _PERMITTED),
    errno.EIO: ("the device or server reports an input/output error", CHECK_DISK),
    errno.ESTALE: ("the server no longer knows the file (stale handle)", CHECK_DISK),
    errno.ETIMEDOUT: ("the server does not answer", CHECK_DISK),
    errno.EMFILE: (
        "too many files are open",
        "Raise the limit with `ulimit -n`, then run the same command again.",
    ),
    errno.ENFILE: (
        "too many files are open on this machine",
        "Close other programs, then run the same command again.",
    ),
    errno.ENOMEM: ("this process can get no more memory", _MORE_MEMORY),
    errno.ENOTCONN: ("its mount has lost its server or program", CHECK_DISK),
    errno.EHOSTDOWN: ("the server is down", CHECK_DISK),
    errno.EFBIG: ("the file is too large for the file system", CHECK_DISK),
}


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn errors of the disk within the block into a `StorageError` with path and next step.

    ENOENT, EEXIST and other errors about names pass through.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NEXT_STEPS:
            raise
        raise _told(error, str(path)) from error


def raise_storage_trouble(error: BaseException, path: Path | str) -> None:
    """Raise a `StorageError` if the disk failed, as opposed to the content of a file being wrong.

    The causes of an error count, too. Errors about names, such as ENOENT, and a library's own
    errors pass: FFmpeg reports input and output errors for damaged content.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and _is_the_disks(cause):
            named = cause.filename
            raise _told(cause, named if isinstance(named, str) else str(path)) from error
        cause = cause.__cause__


def _is_the_disks(error: OSError) -> bool:
    return error.errno in _NEXT_STEPS and type(error).__module__ == "builtins"


def denied(path: Path | str) -> tuple[str, str]:
    """Return which right this user lacks at a path, and how to get it.

    It checks the folders that lead to the path and the path itself. If the path does not exist, it
    checks the folder in which it would be made.
    """
    place = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are
    wanted = [(folder, os.X_OK, "rx", "enter the folder") for folder in reversed(place.parents)]
    folder = next((each for each in place.parents if os.path.lexists(each)), place)
    if os.path.isdir(place):  # noqa: PTH112 - `Path.is_dir` raises where a folder may not be entered
        wanted += [
            (place, os.R_OK | os.X_OK, "rx", "list the folder"),
            (place, os.W_OK, "w", "write in the folder"),
        ]
    elif os.path.lexists(place):
        wanted += [(place, os.R_OK, "r", "read"), (place, os.W_OK, "w", "change")]
    wanted.append((folder, os.W_OK, "w", "write in the folder"))
    for each, right, letters, does in wanted:
        if os.path.lexists(each) and not os.access(each, right):
            return lacking_right(each, letters, does)
    return f"Cannot use {path}: permission is denied.", _PERMITTED


def lacking_right(place: Path, letters: str, does: str) -> tuple[str, str]:
    """Return what this user may not do, and how to get the right.

    Args:
        place: A folder or file that exists.
        letters: The right in ``chmod``'s notation.
        does: The forbidden action, such as ``write in the folder``.
    """
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"The file system of {place} is mounted read-only.", _WRITABLE
    user, owner = os.geteuid(), place.stat().st_uid
    said = f"User {_name(user)} may not {does} {place}."
    if user == owner:
        command = f"chmod u+{letters} {shlex.quote(str(place))}"
        return said, f"`{command}` gives the right; then run the same command again."
    return said, (
        f"It belongs to user {_name(owner)}. Ask {_name(owner)} for the right, or choose another "
        "place; then run the command again."
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in many containers
        return str(user)


def lacks_permission(error: BaseException) -> bool:
    """Return whether this user lacks a permission; waiting does not help then."""
    return isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)


@contextmanager
def machine_limits() -> Iterator[None]:
    """Turn errors for want of memory or threads within the block into a `StorageError`."""
    try:
        yield
    except MemoryError as error:
        said = "This process can get no more memory."
        raise StorageError(said, next_step=_MORE_MEMORY) from error
    except Exception as error:
        if not any(text in str(error) for text in _NO_THREAD):
            raise
        said = "This process can start no more threads."
        raise StorageError(said, next_step=_MORE_THREADS) from error


@contextmanager
def any_storage_errors() -> Iterator[None]:
    """Turn every remaining ``OSError`` into a `StorageError`; for the outermost calls.

    The cause of an unexpected one is usually a failed look at a file, or a removed file. A path
    that a library cannot open becomes a `UsageError`. See also `machine_limits`.
    """
    try:
        with machine_limits():
            yield
    except OSError as error:
        raise storage_error(error) from error
    except UnicodeEncodeError as error:
        raise undecodable_path(error) from error


def undecodable_path(error: UnicodeEncodeError) -> UsageError:
    """Return the error for a path that is not UTF-8, which a library cannot open.

    In the C locale Python reads names as UTF-8 (PEP 540) unless told otherwise. In a locale with
    another encoding it does not: the name itself may be right.
    """
    shown = ascii(error.object)[1:-1]
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and _is_utf_8(error.object):
        return UsageError(
            f"The path {shown} is UTF-8, but Python reads paths as {encoding} in this locale. No "
            "parquet file can be opened there.",
            path=shown,
            next_step="Set PYTHONUTF8=1, then run the same command again.",
        )
    return UsageError(
        f"The path {shown} is not UTF-8. No parquet file can be opened there.",
        path=shown,
        next_step="Rename the folder or file, then run the same command again.",
    )


def _is_utf_8(path: str) -> bool:
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeError:
        return False
    return True


def storage_error(error: OSError) -> StorageError:
    """Return an error in the user's terms."""
    if error.errno == errno.ENOENT and error.filename is None and _here_is_gone():
        return StorageError(
            "The current folder of this command no longer exists.",
            next_step="Change to a folder that exists, then run the same command again.",
        )
    path = error.filename if isinstance(error.filename, str) else "the output, or a file of the run"
    return _told(error, path)


def _here_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd is the same call
    except FileNotFoundError:
        return True
    return False


def _told(error: OSError, path: str) -> StorageError:
    if error.errno == errno.EACCES:
        message, next_step = denied(path)
        return StorageError(message, path=path, next_step=next_step)
    if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not Path(path).is_dir()):
        said, next_step = (
            "a part of this path is not a folder",
            "Give a path whose parts are folders.",
        )
    else:
        unknown = str(error.strerror or error), _REMOVED
        said, next_step = _NEXT_STEPS.get(error.errno or 0, unknown)
    return StorageError(f"Cannot use {path}: {said}.", path=path, next_step=next_step)
