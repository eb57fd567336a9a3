"""Git LFS pointers: small texts that a clone without Git LFS has in place of the files."""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from leconvert.dataset_files import files_below
from leconvert.errors import UnreadableSourceError
from leconvert.text import count

__all__ = ["is_pointer", "refuse_pointers"]

_BEGIN = b"version https://git-lfs.github.com/spec/"
# The specification has clients ignore anything longer as a pointer.
_LARGEST_BYTES = 1024
_FIRST_FILES = 3


def is_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a pointer; False for what cannot be read."""
    with suppress(OSError):
        seen = os.stat(path)  # noqa: PTH116 - asked of many files
        # Opening a named pipe would wait for somebody who writes.
        if stat.S_ISREG(seen.st_mode) and seen.st_size <= _LARGEST_BYTES:
            with Path(path).open("rb") as file:
                return file.read(len(_BEGIN)) == _BEGIN
    return False


def refuse_pointers(root: Path, *, met_one: bool = False) -> None:
    """Raise if a dataset has pointers: ``meta`` is looked at, and the first files of each folder.

    Args:
        root: The dataset's folder, of any version.
        met_one: One was met already, so that all that is left is to count them.

    Raises:
        UnreadableSourceError: There is a pointer; it says how many there are.
    """
    folders = (files_below(root, f"{name}/") for name in ("data", "videos", "images"))
    first = chain(files_below(root, "meta/"), *(islice(files, _FIRST_FILES) for files in folders))
    if not met_one and not any(is_pointer(root / path) for path, _ in first):
        return
    files = [path for path, is_file in files_below(root) if is_file]
    pointers = sum(is_pointer(root / path) for path in files)
    if any((folder / ".git").exists() for folder in (root, *root.absolute().parents)):
        helps = f"Run `git lfs pull` in {shlex.quote(str(root))}, then the same command again."
    else:
        helps = (
            "Clone its repository with Git LFS installed: this folder is no clone, so that "
            "`git lfs pull` cannot fetch them here."
        )
    raise UnreadableSourceError(
        f"{pointers:,} of {count(len(files), 'file')} in {root} are Git LFS pointers, not the "
        "files themselves.",
        path=str(root),
        next_step=helps,
    )
