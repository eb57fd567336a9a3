"""What a repo holds, as a push needs to know it before and after it acts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.hub.errors_of import hub_errors
from leconvert.hub.plan_push import CARD_PATH, RemoteFile
from leconvert.tables.paths import INFO_PATH

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = [
    "KIND",
    "NOTHING",
    "TAG",
    "RepoState",
    "find_tag",
    "is_private",
    "list_commits",
    "list_files",
    "look_at",
]

KIND = "dataset"
TAG = "v3.0"


@dataclass(frozen=True, slots=True)
class RepoState:
    """One look at a repo.

    Attributes:
        head: The commit that a push would add to; of ``main`` where the branch does not exist.
        has_branch: Whether the branch exists.
        tag: The commit that the tag ``v3.0`` names; None without it.
        pulls: The head of every pull request by its number.
        files: Every file at ``head``.
        info: The dataset's info.json at ``head``; None where there is no dataset.
        card: The card at ``head`` as it is stored; None without one.
    """

    head: str
    has_branch: bool
    tag: str | None
    pulls: Mapping[int, str]
    files: Mapping[str, RemoteFile]
    info: Mapping[str, Any] | None
    card: bytes | None


NOTHING = RepoState("", False, None, {}, {}, None, None)  # a repo that does not exist yet


def look_at(api: HfApi, repo_id: str, branch: str) -> RepoState | None:
    """Return what a repo holds; None where there is no such repo, as far as the token can see.

    Args:
        api: The client.
        repo_id: The repo.
        branch: The branch that will be pushed to.

    Raises:
        HubUnavailableError: The Hub does not answer.
        HubAccessError: The token is wrong, or the repo is gated.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with hub_errors(repo_id):
        try:
            refs = api.list_repo_refs(repo_id, repo_type=KIND, include_pull_requests=True)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    tags = {ref.name: ref.target_commit for ref in refs.tags}
    pulls = {
        int(ref.ref.rsplit("/", 1)[1]): ref.target_commit
        for ref in refs.pull_requests or []
        if ref.ref.rsplit("/", 1)[1].isdigit()
    }
    head = heads.get(branch, heads.get("main"))
    if head is None:
        return NOTHING
    files = list_files(api, repo_id, head)
    info = _json(_content(api, repo_id, head, INFO_PATH)) if INFO_PATH in files else None
    card = _content(api, repo_id, head, CARD_PATH) if CARD_PATH in files else None
    return RepoState(
        head=head,
        has_branch=branch in heads,
        tag=tags.get(TAG),
        pulls=pulls,
        files=files,
        info=info,
        card=card,
    )


def find_tag(api: HfApi, repo_id: str) -> str | None:
    """Return the commit that the tag ``v3.0`` names now; None without it.

    Raises:
        HubError: The Hub does not answer, or there is no such repo.
    """
    with hub_errors(repo_id):
        refs = api.list_repo_refs(repo_id, repo_type=KIND)
    return next((ref.target_commit for ref in refs.tags if ref.name == TAG), None)


def is_private(api: HfApi, repo_id: str) -> bool | None:
    """Tell whether a repo is private; None where there is none that this token can see.

    Raises:
        HubUnavailableError: The Hub does not answer.
        HubAccessError: The token is wrong.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with hub_errors(repo_id):
        try:
            return bool(api.repo_info(repo_id, repo_type=KIND).private)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None


def list_commits(api: HfApi, repo_id: str, head: str, since: str = "") -> list[str]:
    """Return the commits up to a head, newest first, each as a line for people.

    Args:
        api: The client.
        repo_id: The repo.
        head: The newest one.
        since: The commit before the oldest one; empty for all.

    Raises:
        HubError: The Hub does not answer.
    """
    with hub_errors(repo_id, head):
        commits = api.list_repo_commits(repo_id, repo_type=KIND, revision=head)
    newer = takewhile(lambda commit: commit.commit_id != since, commits)
    return [f"{c.commit_id[:12]} {c.created_at:%Y-%m-%d} {c.title}" for c in newer]


def list_files(api: HfApi, repo_id: str, revision: str) -> dict[str, RemoteFile]:
    """Return every file of a repo at a revision.

    Raises:
        HubError: The Hub does not answer, or there is no such revision.
    """
    from huggingface_hub.hf_api import RepoFile

    with hub_errors(repo_id, revision):
        entries = api.list_repo_tree(repo_id, revision=revision, recursive=True, repo_type=KIND)
        return {
            entry.path: RemoteFile(
                entry.size, None if entry.lfs is None else entry.lfs.sha256, entry.blob_id
            )
            for entry in entries
            if isinstance(entry, RepoFile)
        }


def _content(api: HfApi, repo_id: str, revision: str, path: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="leconvert-") as folder, hub_errors(repo_id, revision):
        found = api.hf_hub_download(
            repo_id, path, revision=revision, repo_type=KIND, local_dir=folder
        )
        return Path(found).read_bytes()


def _json(content: bytes) -> dict[str, Any]:
    """Return an object; an empty one for anything else, which describes no dataset."""
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
