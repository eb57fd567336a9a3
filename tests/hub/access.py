"""Who may do what: the Hub's answers to a missing, foreign, or read-only token."""

from __future__ import annotations

from tests.hub.answers import RefusedError, Request
from tests.hub.store import Repo

__all__ = [
    "OTHER_TOKEN",
    "READ_TOKEN",
    "TOKENS",
    "WRITE_TOKEN",
    "may_create",
    "may_propose",
    "may_read",
    "may_write",
    "may_write_to",
]


# Users, and what their tokens allow.
WRITE_TOKEN = "hf_tester_write"
READ_TOKEN = "hf_tester_read"
OTHER_TOKEN = "hf_stranger_write"
TOKENS = {
    WRITE_TOKEN: ("tester", "write"),
    READ_TOKEN: ("tester", "read"),
    OTHER_TOKEN: ("stranger", "write"),
}


def _owns(request: Request, name: str) -> bool:
    return request.user == name.split("/", maxsplit=1)[0]


def may_read(request: Request, repo: Repo | None, what: str = "all") -> Repo:
    """Return the repo if it may be read; a private one looks like one that does not exist.

    Raises:
        RefusedError: There is no such repo, as far as this user can know, or it is gated.
    """
    if repo is not None and (not repo.private or _owns(request, repo.name)):
        if repo.gated in ("all", what) and not _owns(request, repo.name):
            status = 401 if request.user is None else 403
            raise RefusedError(status, f"Access to dataset {repo.name} is restricted.", "GatedRepo")
        return repo
    if request.user is None:
        raise RefusedError(401, "Invalid username or password.", "RepoNotFound")
    raise RefusedError(404, "Repository not found", "RepoNotFound")


def may_propose(request: Request, repo: Repo | None) -> Repo:
    """Return the repo if a pull request may be opened: with any token that can write.

    Raises:
        RefusedError: There is no token, or it can only read.
    """
    repo = may_read(request, repo)
    if request.user is None:
        raise RefusedError(401, "Invalid username or password.")
    if request.role != "write":
        raise RefusedError(403, "You must use a token with write access.")
    return repo


def may_write(request: Request, repo: Repo | None) -> Repo:
    """Return the repo if its owner asks, with a token that can write.

    Raises:
        RefusedError: As `may_propose`, or it belongs to somebody else.
    """
    repo = may_propose(request, repo)
    if not _owns(request, repo.name):
        raise RefusedError(403, "You don't have write access to this repo.")
    return repo


def may_write_to(request: Request, repo: Repo | None, revision: str) -> Repo:
    """Return the repo if a revision of it may be written: a pull request by its author too.

    Raises:
        RefusedError: As `may_write`.
    """
    readable = may_propose(request, repo)
    for pull in readable.pulls:
        if revision == f"refs/pr/{pull['num']}" and pull["author"] == request.user:
            return readable
    return may_write(request, repo)


def may_create(request: Request, namespace: str) -> None:
    """Check that a repo may be made.

    Raises:
        RefusedError: There is no token, it can only read, or the namespace is somebody else's.
    """
    if request.user is None:
        raise RefusedError(401, "Invalid username or password.")
    if request.role != "write" or request.user != namespace:
        raise RefusedError(
            403, f"You don't have the rights to create a dataset under {namespace!r}."
        )
