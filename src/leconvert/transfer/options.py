"""The user's options for files from and to the Hub: the folder of fetched files, and a push."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from leconvert.support.errors import UsageError
from leconvert.support.flags import absolute_path, as_arguments, flag, size_in_bytes
from leconvert.support.values import dataclass


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
        if self.folder is not None:  # the workers of a scheduler begin in another folder
            object.__setattr__(self, "folder", Path(self.folder).absolute())
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


MAIN = "main"
# huggingface_hub documents for create_commit: at most 25,000 large files, and 1 GB for all bytes
# that are sent within the commit itself. We stay at a tenth of the second limit, as its own upload
# of folders does.
_COMMIT_OPERATIONS = 25_000
_COMMIT_PAYLOAD_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The options of a push.

    Attributes:
        repo_id: The repo, ``ORG/NAME``; None for the repo that the source came from.
        branch: The branch; made from ``main`` if it does not exist.
        create_pr: Leave everything in a pull request that somebody else merges.
        create: Make the repo if it does not exist.
        private: Make the repo private, and refuse an existing public one. Without it a new repo is
            private if the repo that the source came from is.
        force: Push even if the repo holds another dataset, and even if the result was not proven.
        card: Write the dataset card.
        dry_run: Look and plan, and write nothing.
        replaces: A commit of an earlier push that may be replaced whatever it holds, as long as the
            branch is at it.
        threads: Number of large files that are uploaded at a time.
        commit_operations: Maximum of operations in a commit; beyond it, a pull request of several
            commits is merged.
        commit_payload_bytes: Maximum of bytes in a commit itself.

    Raises:
        UsageError: ``create_pr`` is combined with a branch.
    """

    repo_id: str | None = None
    branch: str = flag(
        MAIN,
        "push to this branch; it is made from main if it does not exist (default: main)",
        "NAME",
    )
    create_pr: bool = flag(False, "push into a pull request and leave it open; no tag is set")
    create: bool = True
    private: bool = flag(
        False,
        "make a new repo private, and refuse to push to a public one (default: private if the "
        "source's repo is)",
    )
    force: bool = flag(
        False,
        "replace whatever is in the repo, and push the result even if nothing proves that it is "
        "right",
        names=("--force-push",),
    )
    card: bool = flag(True, "leave the dataset card (README.md) as it is", names=("--no-card",))
    dry_run: bool = False
    replaces: str | None = None
    threads: int = 5
    commit_operations: int = _COMMIT_OPERATIONS
    commit_payload_bytes: int = _COMMIT_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        if self.create_pr and self.branch != MAIN:
            raise UsageError(
                "--create-pr and --branch exclude each other. Pull requests always go to main."
            )
