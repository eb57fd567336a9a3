"""Checks around a push: is there a dataset, may it replace what is there, did it arrive?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.errors import (
    HubConflictError,
    HubError,
    HubUnavailableError,
    SourceError,
    VerificationError,
)
from leconvert.hub.local_files import git_hash_of
from leconvert.hub.ownership import Owned, differs, version_of
from leconvert.hub.plan_push import CARD_PATH, RemoteFile
from leconvert.hub.provenance import Provenance
from leconvert.hub.view import TAG, RepoState, list_files
from leconvert.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["check_complete", "check_may_replace", "checked_result"]

_FORCE = "If it shall be replaced all the same, push with --force-push."
_SHOWN = 20


def checked_result(result: Path, progress: Progress) -> dict[str, Any]:
    """Return the info.json of a complete v3.0 dataset.

    Raises:
        UnreadableSourceError: The folder holds no dataset.
        SourceError: It holds one of another version.
        VerificationError: The dataset is not complete.
    """
    from leconvert.source.info import read_info
    from leconvert.verify.dataset import check_dataset

    info = read_info(result)
    version = version_of(info)
    if not version.startswith("v3."):
        raise SourceError(
            f"{result} is {version}; only v3.0 datasets are pushed.",
            path=str(result),
            next_step="Convert it first: `leconvert convert`.",
        )
    report = check_dataset(result, progress=progress)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        raise VerificationError(
            f"{result} is no complete v3.0 dataset: {len(errors)} errors.",
            path=str(result),
            next_step="`leconvert check` explains them. Nothing was pushed.",
            details=[f"{finding.code}: {finding.message}" for finding in errors[:_SHOWN]],
        )
    return info


def check_may_replace(
    api: HfApi,
    repo_id: str,
    state: RepoState,
    info: Mapping[str, Any],
    sizes: Mapping[str, int],
    provenance: Provenance | None,
) -> None:
    """Refuse to replace what a result was not made of.

    Args:
        api: The client.
        repo_id: The repo.
        state: What it holds.
        info: The result's info.json.
        sizes: The result's files.
        provenance: Where it came from; None if that is not known.

    Raises:
        HubConflictError: The repo holds another dataset, or changed since it was converted.
    """
    if not state.files:
        return
    if state.info is None:
        taken = sorted(sizes.keys() & state.files.keys() - {CARD_PATH})
        if taken:
            raise HubConflictError(
                f"{repo_id} is no LeRobot dataset, and has a {taken[0]} of its own.",
                next_step="Check the name. " + _FORCE,
            )
        return
    version = version_of(state.info)
    if version.startswith("v3."):
        raise HubConflictError(
            f"{repo_id} already holds a {version} dataset, and another one.",
            next_step="Check the name. " + _FORCE,
        )
    if not version.startswith("v2."):
        raise HubConflictError(
            f"{repo_id} holds a dataset {version}, whose files are not known.",
            next_step="Push to a repo of another name with --push-repo-id.",
        )
    why = differs(state.info, info)
    if why is not None:
        raise HubConflictError(
            f"{repo_id} holds another dataset: {why}.", next_step="Check the name. " + _FORCE
        )
    if provenance is None or provenance.repo_id != repo_id:
        return
    if provenance.commit not in ("", state.head):
        _check_unchanged_since(api, repo_id, provenance.commit, state, Owned(state.info))


def _check_unchanged_since(
    api: HfApi, repo_id: str, commit: str, state: RepoState, owned: Owned
) -> None:
    try:
        before = list_files(api, repo_id, commit)
    except HubUnavailableError:
        raise
    except HubError as error:
        # Nobody can tell what changed: a history that was squashed, or a repo that was made anew.
        raise HubConflictError(
            f"{repo_id} no longer has the commit {commit[:12]}, which was converted.",
            next_step="Convert the new state. " + _FORCE,
        ) from error
    changed = sorted(
        path
        for path in before.keys() | state.files.keys()
        if path in owned and before.get(path) != state.files.get(path)
    )
    if changed:
        raise HubConflictError(
            f"{repo_id} changed after {commit[:12]}, which was converted: "
            f"{len(changed)} files differ.",
            next_step="Convert the new state. " + _FORCE,
            details=changed[:_SHOWN],
        )


def check_complete(
    repo_id: str,
    revision: str,
    files: Mapping[str, RemoteFile],
    sizes: Mapping[str, int],
    digests: Mapping[str, str],
    root: Path,
) -> None:
    """Compare a listing with the result.

    Args:
        repo_id: The repo.
        revision: What was listed.
        files: The listing.
        sizes: The result's files.
        digests: SHA-256 of those that were read.
        root: The result's folder. Of it only files are read that the Hub keeps in git: small ones.

    Raises:
        HubConflictError: Something is missing there, or another file.
        StorageError: A file cannot be read.
    """
    wrong = []
    for path, size in sizes.items():
        there = files.get(path)
        if path == CARD_PATH or (
            there is not None
            and there.size == size
            and _is_same(there, digests.get(path), root / path)
        ):
            continue
        wrong.append(path)
    if wrong:
        raise HubConflictError(
            f"{revision} of {repo_id} is not the result: {len(wrong)} files differ.",
            next_step=f"The tag {TAG} was not set. Run the same command again.",
            details=wrong[:_SHOWN],
        )


def _is_same(there: RemoteFile, digest: str | None, path: Path) -> bool:
    """Tell whether a file has the content of one of its size, as far as its hash is known."""
    if there.sha256 is None:
        return git_hash_of(path) == there.blob
    return digest is None or digest == there.sha256
