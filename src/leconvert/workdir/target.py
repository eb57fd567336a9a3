"""What may stand where a finished tree shall go: the checks before a swap."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from contextlib import suppress
from glob import escape
from pathlib import Path

from leconvert.errors import TargetError
from leconvert.workdir.filesystem import CANNOT_FLAG, LOCAL, FileSystem
from leconvert.workdir.mounts import is_mount_point
from leconvert.workdir.trouble import storage_errors

__all__ = [
    "check_target",
    "codebase_version",
    "has_source_tables",
    "info_path",
    "is_converted",
    "old_dir",
    "refusal",
    "removed_old_dir",
    "try_renames",
]
# "." and ".leconvert-<run id of 22 characters>.<generation>.removed" around the target's name.
_LONGEST_ADDITION = 50
_CAP_FOWNER = 1 << 3
_MOST_TRIES = 8
# What says nothing about whether folders can be renamed.
_OF_THE_DISK = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ETIMEDOUT}
)

_SOURCE_TABLE = "meta/episodes.jsonl"


def info_path(root: Path) -> Path:
    """Return the path of the file that tells what dataset is in a folder."""
    return root / "meta/info.json"


def old_dir(target: Path) -> Path:
    """Return where the tree at a target is kept: ``<target>_old``, as LeRobot's script does."""
    real = Path(os.path.realpath(target))
    return real.with_name(f"{real.name}_old")


def removed_old_dir(target: Path) -> Path:
    """Return the name that the tree kept at `old_dir` has while it is removed."""
    old = old_dir(target)
    return old.with_name(f".{old.name}.leconvert-removed")


def codebase_version(root: Path) -> str | None:
    """Return a dataset's ``codebase_version``, or None where there is no dataset to read."""
    try:
        version = json.loads(info_path(root).read_bytes()).get("codebase_version")
    except (OSError, ValueError, AttributeError):
        return None
    return version if isinstance(version, str) else None


def is_converted(root: Path) -> bool:
    """Tell whether a v3.0 dataset stands here, whose files are v3.0's too."""
    return (codebase_version(root) or "").startswith("v3") and not has_source_tables(root)


def has_source_tables(root: Path) -> bool:
    """Tell whether a v2.x dataset's table of episodes is here, which no result has."""
    return (root / _SOURCE_TABLE).is_file()


def check_target(target: Path, old: Path | None) -> None:
    """Refuse a target that a swap could not replace; call it before any work is done, too.

    Args:
        target: Where the new tree shall be.
        old: Where the tree that is there goes, or None where there must be none.

    Raises:
        TargetError: It exists and must not; it must and does not; it is a file, a symbolic link, a
            mount point; it is another user's, and only that one may rename it; its name leaves no
            room for those of the run's folders; ``old`` exists; or the folder above cannot be
            written.
    """
    if target.is_symlink():
        raise refusal(
            target,
            f"{target} is a symbolic link" + ("" if target.exists() else " that leads nowhere"),
            "Give the folder that it leads to, or remove the link.",
        )
    parent = target.parent
    if not parent.is_dir():
        raise refusal(target, f"the folder {parent} does not exist", "Make it first.")
    longest = os.pathconf(parent, "PC_NAME_MAX") - _LONGEST_ADDITION
    if len(os.fsencode(target.name)) > longest:
        raise refusal(
            target,
            f"the name {target.name} is too long: folders beside it have that name and up to "
            f"{_LONGEST_ADDITION} bytes more",
            f"Choose an --output with a name of at most {longest} bytes.",
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise refusal(
            target,
            f"the folder {parent} cannot be written",
            "Make it writable, or choose another --output.",
        )
    if old is None:
        if os.path.lexists(target):
            raise refusal(
                target, f"{target} exists already", "Choose another --output, or move it away."
            )
        return
    if not target.is_dir():
        raise refusal(
            target,
            f"{target} is not a folder" if os.path.lexists(target) else f"{target} is gone",
            "Give the dataset's own folder.",
        )
    if is_mount_point(target):
        raise refusal(
            target,
            f"{target} is a mount point and cannot be renamed",
            "Convert with --output to another folder.",
        )
    if _only_its_owner_may_rename(target):
        raise refusal(
            target,
            f"{target} cannot be renamed: it belongs to another user, and in {parent} only owners "
            "may rename (its sticky bit is set)",
            "Convert with --output to a folder of your own, or as the user that it belongs to.",
        )
    if os.path.lexists(old):
        raise refusal(
            old,
            f"{old} exists already, and the tree at {target} would be kept there",
            f"Check that you do not need {old}, then remove or rename it.",
        )


def try_renames(target: Path, *, fs: FileSystem = LOCAL) -> None:
    """Do with empty folders beside a target what the swap will do there; call it before any work.

    Some folders let one make names and not change them: those that only grow (``chattr +a``), or
    on mounts of object stores. What it cannot show is what the target itself has: its owner, or
    that something is mounted on it. `check_target` looks at these.

    Raises:
        TargetError: Folders there cannot be renamed.
        StorageError: They cannot be made there.
    """
    prefix = f".{target.name}.leconvert-try-"
    with storage_errors(target.parent):
        for left in target.parent.glob(f"{escape(prefix)}*"):  # by one that died
            with suppress(OSError):
                left.rmdir()
    failure = OSError()
    for _ in range(_MOST_TRIES):
        with storage_errors(target.parent):
            one = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
            other = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            _exchange_if_possible(one, other, fs)
            other.rmdir()
            fs.replace(one, other)
        except OSError as error:
            failure = error
            # A planner with another work dir takes them for left by one that died; each does once.
            if error.errno != errno.ENOENT:
                break
        else:
            return
        finally:
            for path in (one, other) * 2:  # one error of the disk leaves none there
                with suppress(OSError):
                    path.rmdir()
    if failure.errno in _OF_THE_DISK:
        with storage_errors(target.parent):
            raise failure
    raise refusal(
        target,
        f"folders in {target.parent} cannot be renamed: {failure.strerror}",
        "Choose an --output in a folder where they can.",
    ) from failure


def _exchange_if_possible(one: Path, other: Path, fs: FileSystem) -> None:
    try:
        fs.exchange(one, other)
    except OSError as error:
        if error.errno not in CANNOT_FLAG:
            raise


def _only_its_owner_may_rename(target: Path) -> bool:
    above, there = target.parent.stat(), target.lstat()
    if not above.st_mode & stat.S_ISVTX or os.geteuid() in {above.st_uid, there.st_uid}:
        return False
    return not _may_act_for_owners()


def _may_act_for_owners() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _CAP_FOWNER)
    return False


def refusal(path: Path, message: str, next_step: str) -> TargetError:
    """Return the error that refuses a target, with the sentence's full stop."""
    return TargetError(f"{message}.", path=str(path), next_step=next_step)
