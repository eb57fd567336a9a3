"""Which commit of a repo is converted."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from leconvert.errors import SourceError
from leconvert.hub.client import make_api
from leconvert.hub.errors_of import hub_errors
from leconvert.hub.fetch import Fetcher
from leconvert.hub.remote import HubRepo
from leconvert.source.info import INFO_PATH, version_help

__all__ = ["Resolved", "check_convertible", "find_v30", "read_version", "resolve_revision"]

_TAG = re.compile(r"v(\d+)\.(\d+)(?:\.(\d+))?\Z")
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A revision, and what it was when it was asked for.

    Attributes:
        repo: The repo at a commit.
        revision: The tag, branch or commit that named it.
    """

    repo: HubRepo
    revision: str


def resolve_revision(
    repo_id: str, revision: str | None = None, *, endpoint: str | None = None
) -> Resolved:
    """Find the commit that a revision names.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the newest ``v2.x`` tag, else ``main``.
        endpoint: The Hub's address; None for the one that is configured.

    Raises:
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token is missing or does not allow it.
    """
    api = make_api(endpoint=endpoint)
    if revision is None:
        with hub_errors(repo_id):
            refs = api.list_repo_refs(repo_id, repo_type="dataset")
        commits = {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
        tags = _newest_first([ref.name for ref in refs.tags])
        old = [tag for tag in tags if tag.startswith("v2.")]
        revision = old[0] if old else _MAIN
        if revision in commits:
            return Resolved(HubRepo(repo_id, commits[revision], endpoint), revision)
    with hub_errors(repo_id, revision):
        info = api.repo_info(repo_id, revision=revision, repo_type="dataset")
        assert info.sha is not None
        return Resolved(HubRepo(repo_id, info.sha, endpoint), revision)


def find_v30(repo_id: str, *, endpoint: str | None = None) -> Resolved | None:
    """Return the newest tag ``v3.x`` whose ``info.json`` says so, too; None where there is none.

    Raises:
        HubError: There is no such repo, or no answer.
        HubAccessError: The token is missing or does not allow it.
    """
    with hub_errors(repo_id):
        refs = make_api(endpoint=endpoint).list_repo_refs(repo_id, repo_type="dataset")
    for tag in _newest_first([ref.name for ref in refs.tags]):
        if tag.startswith("v3."):
            found = resolve_revision(repo_id, tag, endpoint=endpoint)
            version = read_version(found.repo, Fetcher(found.repo))
            if version is not None and version.startswith("v3."):
                return found
    return None


def _newest_first(tags: list[str]) -> list[str]:
    numbers = {tag: found for tag in tags if (found := _TAG.match(tag))}

    def key(tag: str) -> tuple[int, ...]:
        return tuple(int(number or 0) for number in numbers[tag].groups())

    return sorted(numbers, key=key, reverse=True)


def read_version(repo: HubRepo, fetcher: Fetcher) -> str | None:
    """Return the ``codebase_version`` of a dataset; None where there is no dataset.

    Raises:
        HubError: No answer.
        HubAccessError: The token does not allow it.
    """
    file = repo.find_file(INFO_PATH)
    if file is None:
        return None
    try:
        info = json.loads(fetcher.read(file, 0, file.size_bytes))
    except ValueError:
        return None
    version = info.get("codebase_version") if isinstance(info, dict) else None
    return version if isinstance(version, str) else None


def check_convertible(found: Resolved, fetcher: Fetcher) -> None:
    """Refuse what is no v2.x dataset, before anything else is fetched.

    Raises:
        SourceError: It is no dataset, or of another version.
        HubError: No answer.
    """
    repo, revision = found.repo, found.revision
    version = read_version(repo, fetcher)
    if version is None:
        raise SourceError(
            f"{repo.repo_id} at {revision} is no LeRobot dataset: it has no {INFO_PATH} that names "
            "a codebase_version.",
            path=repo.name,
            next_step="Check the name, and give another --revision if there is one.",
        )
    if version.startswith("v3."):
        raise SourceError(
            f"{repo.repo_id} at {revision} is already {version}; there is nothing to convert.",
            path=repo.name,
            next_step="Give the tag or commit of the v2.x dataset with --revision.",
        )
    if not version.startswith("v2."):
        raise SourceError(
            f"{repo.repo_id} at {revision} is of version {ascii(version)[:60]}, and leconvert "
            "reads v2.0 and v2.1.",
            path=repo.name,
            next_step=version_help(version),
        )
