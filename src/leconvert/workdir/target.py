"""What may stand where a finished tree shall go: the checks before a swap."""

from __future__ import annotations

import json
import os
from pathlib import Path

from leconvert.errors import TargetError

__all__ = [
    "check_target",
    "codebase_version",
    "is_converted",
    "old_dir",
    "refusal",
    "removed_old_dir",
]

_INFO_PATH = "meta/info.json"


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
        version = json.loads((root / _INFO_PATH).read_bytes()).get("codebase_version")
    except (OSError, ValueError, AttributeError):
        return None
    return version if isinstance(version, str) else None


def is_converted(root: Path) -> bool:
    """Tell whether a v3.0 dataset stands here."""
    return (codebase_version(root) or "").startswith("v3")


def check_target(target: Path, old: Path | None) -> None:
    """Refuse a target that a swap could not replace; call it before any work is done, too.

    Args:
        target: Where the new tree shall be.
        old: Where the tree that is there goes, or None where there must be none.

    Raises:
        TargetError: It exists and must not; it must and does not; it is a file, a symbolic link, a
            mount point; ``old`` exists; or the folder above cannot be written.
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
    if target.is_mount():
        raise refusal(
            target,
            f"{target} is a mount point and cannot be renamed",
            "Convert to a folder below or beside it with --output.",
        )
    if os.path.lexists(old):
        raise refusal(
            old,
            f"{old} exists already, and the tree at {target} would be kept there",
            f"Check that you do not need {old}, then remove or rename it.",
        )


def refusal(path: Path, message: str, next_step: str) -> TargetError:
    """Return the error that refuses a target, with the sentence's full stop."""
    return TargetError(f"{message}.", path=str(path), next_step=next_step)
