"""Does a file system share extents? Asked of the kernel by trying, never guessed from its name."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["can_clone"]

_FICLONE = 0x40049409
_PROBE_BYTES = 4096


def can_clone(source: Path, target_folder: Path) -> bool:
    """Tell whether blocks of files in one folder can be cloned into another.

    Both must be on the same file system, and it must share extents. A file of one block is made
    in the target folder and removed again; nothing is written below ``source``.

    Args:
        source: A folder whose files would be cloned.
        target_folder: A folder that can be written.
    """
    try:
        if os.stat(source).st_dev != os.stat(target_folder).st_dev:  # noqa: PTH116 - st_dev alone
            return False
        with (
            tempfile.TemporaryFile(dir=target_folder) as one,
            tempfile.TemporaryFile(dir=target_folder) as other,
        ):
            one.write(b"\0" * _PROBE_BYTES)
            one.flush()
            with suppress(OSError):
                fcntl.ioctl(other.fileno(), _FICLONE, one.fileno())
                return True
    except OSError:
        return False
    return False
