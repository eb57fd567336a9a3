"""How to push, and what a push did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from leconvert.hub.plan_push import COMMIT_OPERATIONS, COMMIT_PAYLOAD_BYTES

__all__ = ["MAIN", "PushOptions", "PushReport"]

MAIN = "main"


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How to push.

    Attributes:
        branch: The branch; made from ``main`` where it does not exist.
        create_pr: Leave everything in a pull request that somebody else merges.
        create: Make the repo where it does not exist.
        private: Make it a private one, and refuse a public one that is there. Without it a new repo
            is private if the one that the source came from is.
        force: Push whatever the repo holds, and the result as it is, whatever was proven of it.
        card: Write the dataset card.
        dry_run: Look and plan, and write nothing.
        threads: Large files that go up at a time.
        commit_operations: Operations a commit; above, a pull request of several is merged.
        commit_payload_bytes: Bytes a commit may carry itself.
    """

    branch: str = MAIN
    create_pr: bool = False
    create: bool = True
    private: bool = False
    force: bool = False
    card: bool = True
    dry_run: bool = False
    threads: int = 5
    commit_operations: int = COMMIT_OPERATIONS
    commit_payload_bytes: int = COMMIT_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did, or would do.

    Attributes:
        repo_id: The repo.
        url: Its address.
        branch: The branch.
        created: Whether the repo was (or would be) made.
        before: The commit that the branch was at; None where there was none.
        commit: The commit that holds the result; None in a dry run with something to commit.
        commits: Commits that were (or would be) made.
        pull_request: The number of the pull request that holds it; None where none was needed.
        merged: Whether that was merged.
        tag: ``set``, ``moved``, ``kept``, or ``none`` in a pull request that is not merged.
        added: Files of the result that the repo did not have.
        added_bytes: Their bytes.
        unchanged: Files of the result that it had.
        deleted: Files of the old dataset that went.
        kept: Files in the repo that are not the dataset's.
        card: ``written`` or ``kept``.
        dry_run: Whether nothing was written.
        seconds: How long it took.
    """

    repo_id: str
    url: str
    branch: str
    created: bool
    before: str | None
    commit: str | None
    commits: int
    pull_request: int | None
    merged: bool
    tag: str
    added: int
    added_bytes: int
    unchanged: int
    deleted: int
    kept: tuple[str, ...]
    card: str
    dry_run: bool
    seconds: float

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)
