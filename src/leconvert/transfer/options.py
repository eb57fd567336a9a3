"""The user's options for the folder of fetched files."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from leconvert.support.errors import UsageError
from leconvert.support.flags import absolute_path, as_arguments, flag, size_in_bytes


@dataclass(frozen=True, slots=True)
class ScratchOptions:
    """The folder for files that a host's workers fetch.

    Attributes:
        folder: A local folder; None for one in the system's folder for temporary files.
        limit_bytes: Maximum of bytes there at a time, for all workers of this host together; None
            for no limit.

    Raises:
        UsageError: The limit is below 1 byte.
    """

    folder: Path | None = flag(
        None,
        "the local folder for files that are downloaded from the Hub (default: a folder below the "
        "system's folder for temporary files)",
        "DIR",
        absolute_path,
        names=("--scratch-dir",),
    )
    limit_bytes: int | None = flag(
        None,
        "size limit of the folder of --scratch-dir, for all workers of a host together, such as "
        "20G (default: as much as the batches of these workers need)",
        "BYTES",
        size_in_bytes,
        names=("--scratch-limit",),
    )

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit_bytes < 1:
            raise UsageError(f"--scratch-limit must be above 0 bytes, not {self.limit_bytes}.")

    def as_arguments(self) -> list[str]:
        """Return the same options for ``leconvert work``."""
        return as_arguments(self)

    def place(self, run_id: str) -> Path:
        """Return the folder of one run."""
        return (self.folder or default_scratch_dir()) / run_id


def default_scratch_dir() -> Path:
    """Return this user's folder for fetched files, ``leconvert-scratch-<user>`` in ``TMPDIR``."""
    import getpass  # few need it

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"leconvert-scratch-{user}"
