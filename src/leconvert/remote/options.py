"""How a result is pushed to the Hub: what a user can say."""

from __future__ import annotations

from dataclasses import dataclass

from leconvert.support.errors import UsageError
from leconvert.support.flags import flag

MAIN = "main"
# huggingface_hub says of create_commit: at most 25,000 large files, and 1 GB for all that is sent
# within the commit itself. The second is kept at a tenth, as its own upload of folders does.
_COMMIT_OPERATIONS = 25_000
_COMMIT_PAYLOAD_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How to push.

    Attributes:
        repo_id: Where to, ``ORG/NAME``; None for where the source came from.
        branch: The branch; made from ``main`` where it does not exist.
        create_pr: Leave everything in a pull request that somebody else merges.
        create: Make the repo where it does not exist.
        private: Make it a private one, and refuse a public one that is there. Without it a new repo
            is private if the one that the source came from is.
        force: Push whatever the repo holds, and the result as it is, whatever was proven of it.
        card: Write the dataset card.
        dry_run: Look and plan, and write nothing.
        replaces: A commit of an earlier push that may be replaced whatever it holds, as long as
            the branch is at it.
        threads: Large files that go up at a time.
        commit_operations: Operations a commit; above, a pull request of several is merged.
        commit_payload_bytes: Bytes a commit may carry itself.
    """

    repo_id: str | None = None
    branch: str = flag(
        MAIN, "push to a branch, made from main if it does not exist (default: main)", "NAME"
    )
    create_pr: bool = flag(False, "leave the result in a pull request; no tag is set")
    create: bool = True
    private: bool = flag(
        False,
        "make the repo private, and refuse a public one (default: as the source's repo is)",
    )
    force: bool = flag(
        False,
        "replace whatever the repo holds, and send the result as it is, whatever was proven",
        names=("--force-push",),
    )
    card: bool = flag(True, "leave README.md as it is", names=("--no-card",))
    dry_run: bool = False
    replaces: str | None = None
    threads: int = 5
    commit_operations: int = _COMMIT_OPERATIONS
    commit_payload_bytes: int = _COMMIT_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        if self.create_pr and self.branch != MAIN:
            raise UsageError(
                "--create-pr and --branch exclude each other: pull requests are to main."
            )
