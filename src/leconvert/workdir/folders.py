"""Makes the work dir's own folder so that it survives a power failure."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.trouble import storage_errors

__all__ = ["make_durably"]


def make_durably(folder: Path, *, fs: FileSystem = LOCAL) -> None:
    """Make a folder with those above it, and force the names of what was made to the disk.

    Records that are forced to the disk in a folder whose own name is not are lost with it; after a
    swap by two renames they are all that tells where the dataset is. What exists is kept.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        with storage_errors(made), suppress(FileExistsError):
            fs.make_dir(made)
        # A folder that may be written but not read cannot be opened, and so not forced either.
        with storage_errors(made.parent), suppress(PermissionError):
            fs.sync_dir(made.parent)
