"""A repo on the Hub as a push needs it: what it holds, and the actions on it, one call each.

Every error is one of leconvert's. No action is repeated here. After `HubUnavailableError` it is
unknown whether the action was done; the caller looks at the repo again to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import batched
from typing import TYPE_CHECKING, Any

from leconvert.dataset.formats.v3 import INFO_PATH
from leconvert.remote.provenance import CARD_PATH
from leconvert.remote.source import info_in, read_info
from leconvert.support.errors import HubError
from leconvert.support.values import dataclass
from leconvert.transfer.client import hub_errors
from leconvert.transfer.hub import HubStore
from leconvert.transfer.names import folder_of, in_folder, repository_of
from leconvert.transfer.options import MAIN
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, GitCommitInfo, GitRefs, HfApi

_KIND = "dataset"
# The Hub says for this many files at a time how to upload them (huggingface_hub's
# PREUPLOAD_BATCH_SIZE).
_FILES_A_REQUEST = 256


@dataclass(frozen=True, slots=True)
class RepoState:
    """One look at a repo, or at the folder of a dataset in it."""

    head: str  # the commit that a push would add to; that of ``main`` if the branch does not exist
    has_branch: bool  # whether the branch exists
    tags: Mapping[str, str]  # the commit of every tag, by name
    pulls: Mapping[int, str]  # the head of every pull request, by number
    files: Mapping[str, RemoteFile]  # every file at ``head``
    # The dataset's info.json at ``head``; None if there is no dataset.
    info: Mapping[str, Any] | None
    card: bytes | None  # the stored card at ``head``; None if there is none


NOTHING = RepoState("", False, {}, {}, {}, None, None)  # a repo that does not exist yet


def head_of(refs: GitRefs, branch: str) -> str | None:
    """Return the parent of a push to a branch; None in an empty repo."""
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    return heads.get(branch, heads.get(MAIN))


class Repo:
    """The repo of a dataset; paths are relative to the dataset's folder in it.

    Args:
        api: The client.
        name: The dataset, ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``.
        threads: Number of large files that are uploaded at a time.
    """

    def __init__(self, api: HfApi, name: str, *, threads: int = 5) -> None:
        self.name = name
        self._api = api
        self._repo: dict[str, Any] = {"repo_id": repository_of(name), "repo_type": _KIND}
        self._threads = threads

    # --- looking -----------------------------------------------------------------------------

    def url(self, branch: str) -> str:
        """Return the address of the dataset's page."""
        url = f"{self._api.endpoint}/datasets/{repository_of(self.name)}"
        folder = folder_of(self.name)
        return f"{url}/tree/{branch}/{folder}" if folder else url

    def refs(self) -> GitRefs | None:
        """Return branches, tags and pull requests; None if the token can see no such repo."""
        return self._if_seen(
            self.name,
            lambda: self._api.list_repo_refs(**self._repo, include_pull_requests=True),
        )

    def is_private(self, name: str | None = None) -> bool | None:
        """Return whether this repo, or another, is private; None if the token cannot see it."""
        name = name or self.name
        return self._if_seen(
            name,
            lambda: bool(self._api.repo_info(repository_of(name), repo_type=_KIND).private),
        )

    def _if_seen[T](self, name: str, ask: Callable[[], T]) -> T | None:
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        with hub_errors(name):
            try:
                return ask()
            except GatedRepoError:
                raise
            except RepositoryNotFoundError:
                return None

    def look(
        self,
        branch: str,
        refs: GitRefs | None = None,
        files: Mapping[str, RemoteFile] | None = None,
    ) -> RepoState | None:
        """Return the state of the repo; None if the token can see no such repo.

        Args:
            branch: The branch of the push.
            refs: The answer of `refs`, if it is known.
            files: Every file of the dataset at `head_of` the branch, if they were listed.
        """
        refs = refs or self.refs()
        if refs is None:
            return None
        head = head_of(refs, branch)
        if head is None:
            return NOTHING
        there = self.files_at(head) if files is None else files
        info = self._content(head, there.get(INFO_PATH))
        return RepoState(
            head=head,
            has_branch=branch in {ref.name for ref in refs.branches},
            tags={ref.name: ref.target_commit for ref in refs.tags},
            pulls={
                int(number): ref.target_commit
                for ref in refs.pull_requests or []
                if (number := ref.ref.rsplit("/", 1)[1]).isdigit()
            },
            files=there,
            info=None if info is None else info_in(info),
            card=self._content(head, there.get(CARD_PATH)),
        )

    def card_of(self, branch: str) -> bytes | None:
        """Return the card that a push to a branch finds; None if there is none."""
        refs = self.refs()
        head = None if refs is None else head_of(refs, branch)
        return None if head is None else self._store(head).read_whole(CARD_PATH)

    def find_tag(self, tag: str) -> str | None:
        """Return the current commit of a tag; None if there is no such tag."""
        with hub_errors(self.name):
            refs = self._api.list_repo_refs(**self._repo)
        return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)

    def commits(self, head: str) -> list[GitCommitInfo]:
        """Return the commits up to a head, newest first."""
        with hub_errors(self.name, head):
            return self._api.list_repo_commits(**self._repo, revision=head)

    def files_at(self, revision: str, name: str | None = None) -> dict[str, RemoteFile]:
        """Return every file of this dataset, or another, at a revision, by its path."""
        return {file.path: file for file in self._store(revision, name).list_files()}

    def info_at(self, commit: str) -> dict[str, Any]:
        """Return the ``meta/info.json`` of a commit; empty if it has no dataset."""
        return read_info(self._store(commit))

    def _store(self, revision: str, name: str | None = None) -> HubStore:
        """Return a store that tries once: after a failure, a push looks at everything again."""
        api = self._api
        return HubStore(name or self.name, revision, api.endpoint, token=api.token, tries=1)

    def _content(self, head: str, file: RemoteFile | None) -> bytes | None:
        if file is None:
            return None
        content = self._store(head).read_whole(file.path, file.digest)
        if content is None:
            raise HubError(
                f"{self.name} at {head} lists the file {file.path}, but does not have it.",
                path=file.path,
                next_step="Run the same command again.",
            )
        return content

    # --- writing -----------------------------------------------------------------------------

    def _sends(self, revision: str | None = None) -> AbstractContextManager[None]:
        return hub_errors(self.name, revision, sends=True)

    def create(self, *, private: bool) -> None:
        """Make the repo, if it does not exist."""
        with self._sends():
            # None instead of False: the namespace's own default decides whether the repo is public.
            self._api.create_repo(**self._repo, private=private or None, exist_ok=True)

    def create_branch(self, branch: str, start: str) -> None:
        """Make a branch that begins at a commit."""
        with self._sends(start):
            self._api.create_branch(**self._repo, branch=branch, revision=start, exist_ok=True)

    def upload(
        self, additions: Sequence[CommitOperationAdd], revision: str
    ) -> Iterator[CommitOperationAdd]:
        """Upload the contents of large files, which no reader sees before a commit.

        Yields:
            Each addition, once its content is there.
        """
        for some in batched(additions, _FILES_A_REQUEST):
            with self._sends(revision):
                # An empty .gitignore: one in the repo must not leave out files of a dataset.
                self._api.preupload_lfs_files(
                    **self._repo,
                    additions=some,
                    revision=revision,
                    num_threads=self._threads,
                    free_memory=False,
                    gitignore_content="",
                )
            yield from some

    def commit(self, operations: Sequence[Any], *, revision: str, parent: str, message: str) -> str:
        """Commit, if the revision is still where it was seen, and return the commit."""
        with self._sends(revision):
            done = self._api.create_commit(
                **self._repo,
                operations=operations,
                commit_message=message,
                revision=revision,
                parent_commit=parent,
                num_threads=self._threads,
            )
        return str(done.oid)

    def placed(self, path: str) -> str:
        """Return the path of a dataset's file in the repo, as operations name it."""
        return in_folder(folder_of(self.name), path)

    def find_pull(self, title: str) -> int | None:
        """Return the number of this user's open pull request with a title; None if there is none.

        Pull requests of others do not count: anybody may open one with that title, and a merge
        would bring its contents to ``main``.
        """
        with self._sends():
            # Ask for all: it is not documented whether the open ones include drafts.
            pulls = self._api.get_repo_discussions(**self._repo, discussion_type="pull_request")
            found = [p for p in pulls if p.title == title and p.status in ("draft", "open")]
            if not found:
                return None
            # the Hub limits this request, so make it only if needed
            user = self._api.whoami()["name"]
            return next((pull.num for pull in found if pull.author == user), None)

    def open_pull(self, title: str, description: str) -> int:
        """Open a pull request as a draft, and return its number."""
        with self._sends():
            pull = self._api.create_pull_request(**self._repo, title=title, description=description)
        return int(pull.num)

    def publish_pull(self, number: int) -> None:
        """Turn a draft into a pull request that may be merged."""
        with self._sends():
            details = self._api.get_discussion_details(**self._repo, discussion_num=number)
            if details.status == "draft":
                self._api.change_discussion_status(
                    **self._repo, discussion_num=number, new_status="open"
                )

    def merge_pull(self, number: int) -> None:
        """Merge a pull request; readers of ``main`` see all of its changes at once."""
        with self._sends():
            self._api.merge_pull_request(**self._repo, discussion_num=number)

    def delete_tag(self, tag: str) -> None:
        """Delete a tag, if it is still there: the Hub cannot move a tag."""
        from huggingface_hub.errors import RevisionNotFoundError

        with self._sends(tag), suppress(RevisionNotFoundError):
            self._api.delete_tag(**self._repo, tag=tag)

    def create_tag(self, tag: str, commit: str) -> None:
        """Make a tag for a commit."""
        with self._sends(commit):
            self._api.create_tag(**self._repo, tag=tag, revision=commit)
