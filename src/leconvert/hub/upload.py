"""What a push does to a repo, one call an action; every error is one of leconvert's.

No action is repeated here. After `HubUnavailableError` nobody knows whether it was done: whoever
called looks at the repo again, and finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.hub.errors_of import hub_errors
from leconvert.hub.plan_push import CARD_PATH, CommitShare
from leconvert.hub.view import KIND, TAG

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

    from leconvert.progress import Stage

__all__ = ["Uploader"]

# The Hub says how files are to be uploaded for so many at a time (huggingface_hub's
# PREUPLOAD_BATCH_SIZE).
_FILES_A_REQUEST = 256

_pushing = partial(hub_errors, sends=True)


class Uploader:
    """Writes to one repo.

    Args:
        api: The client.
        repo_id: The repo.
        root: The result's folder.
        digests: SHA-256 by path, of files that were read already; grows by what is uploaded, so
            that nothing is read twice when a push looks again.
        threads: Large files that go up at a time.
    """

    def __init__(
        self, api: HfApi, repo_id: str, root: Path, digests: dict[str, str], *, threads: int = 5
    ) -> None:
        self._api = api
        self._repo: dict[str, Any] = {"repo_id": repo_id, "repo_type": KIND}
        self._repo_id = repo_id
        self._root = root
        self._digests = digests
        self._threads = threads

    def create_repo(self, *, private: bool) -> None:
        """Make the repo, if it is not there."""
        with _pushing(self._repo_id):
            # None and not False: a public repo only where the namespace's own default says so.
            self._api.create_repo(**self._repo, private=private or None, exist_ok=True)

    def create_branch(self, branch: str, start: str) -> None:
        """Make a branch that begins at a commit."""
        with _pushing(self._repo_id, start):
            self._api.create_branch(**self._repo, branch=branch, revision=start, exist_ok=True)

    def upload(
        self, paths: Iterable[str], sizes: Mapping[str, int], revision: str, stage: Stage
    ) -> list[CommitOperationAdd]:
        """Bring the contents of large files to the Hub; no reader sees them before a commit.

        Args:
            paths: Files of the result.
            sizes: Their bytes.
            revision: The branch or pull request that they are for.
            stage: Told the bytes of each file that the Hub has.

        Returns:
            The operations that a commit is made of.
        """
        operations = []
        for some in batched(sorted(paths), _FILES_A_REQUEST):
            additions = [self._addition(path) for path in some]
            with _pushing(self._repo_id, revision):
                # A .gitignore in the repo must not leave files out of a dataset: an empty one.
                self._api.preupload_lfs_files(
                    **self._repo,
                    additions=additions,
                    revision=revision,
                    num_threads=self._threads,
                    free_memory=False,
                    gitignore_content="",
                )
            for addition in additions:
                info = addition.upload_info
                if info.is_hashed:
                    self._digests[addition.path_in_repo] = info.sha256.hex()
                stage.advance(sizes[addition.path_in_repo])
            operations += additions
        return operations

    def _addition(self, path: str) -> CommitOperationAdd:
        from huggingface_hub import CommitOperationAdd

        addition = CommitOperationAdd(path, self._root / path)
        if path in self._digests:
            addition.upload_info.sha256 = bytes.fromhex(self._digests[path])
        return addition

    def commit(
        self,
        share: CommitShare,
        additions: Sequence[CommitOperationAdd],
        card: str | None,
        *,
        revision: str,
        parent: str,
        message: str,
    ) -> str:
        """Commit, if the revision is still where it was seen, and return the commit.

        Raises:
            HubConflictError: Somebody else committed meanwhile.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [*additions]
        operations += [CommitOperationDelete(path) for path in share.delete]
        if card is not None:
            operations.append(CommitOperationAdd(CARD_PATH, card.encode()))
        with _pushing(self._repo_id, revision):
            done = self._api.create_commit(
                **self._repo,
                operations=operations,
                commit_message=message,
                revision=revision,
                parent_commit=parent,
                num_threads=self._threads,
            )
        return str(done.oid)

    # --- pull requests -----------------------------------------------------------------------

    def find_pull(self, title: str) -> int | None:
        """Return the number of this user's open pull request with a title; None without one.

        Anybody may open one with that title, and put into it what a merge would bring to ``main``.
        """
        with _pushing(self._repo_id):
            pulls = self._api.get_repo_discussions(
                **self._repo, discussion_type="pull_request", discussion_status="open"
            )
            found = [pull for pull in pulls if pull.title == title]
            if not found:
                return None
            user = self._api.whoami()["name"]  # the Hub answers it seldom: not without need
            return next((pull.num for pull in found if pull.author == user), None)

    def open_pull(self, title: str, description: str) -> int:
        """Begin a pull request, a draft, and return its number."""
        with _pushing(self._repo_id):
            pull = self._api.create_pull_request(**self._repo, title=title, description=description)
        return int(pull.num)

    def publish_pull(self, number: int) -> None:
        """Make a draft a pull request that may be merged."""
        with _pushing(self._repo_id):
            details = self._api.get_discussion_details(**self._repo, discussion_num=number)
            if details.status == "draft":
                self._api.change_discussion_status(
                    **self._repo, discussion_num=number, new_status="open"
                )

    def merge_pull(self, number: int) -> None:
        """Merge a pull request; readers of ``main`` see all of it at once.

        Raises:
            HubConflictError: ``main`` changed the same files meanwhile.
        """
        with _pushing(self._repo_id):
            self._api.merge_pull_request(**self._repo, discussion_num=number)

    # --- the tag -----------------------------------------------------------------------------

    def delete_tag(self) -> None:
        """Delete the tag ``v3.0``: the Hub cannot move one."""
        with _pushing(self._repo_id, TAG):
            self._api.delete_tag(**self._repo, tag=TAG)

    def create_tag(self, commit: str) -> None:
        """Let ``v3.0`` name a commit.

        Raises:
            HubConflictError: There is such a tag.
        """
        with _pushing(self._repo_id, commit):
            self._api.create_tag(**self._repo, tag=TAG, revision=commit)
