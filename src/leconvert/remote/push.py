"""Push a result to the Hub: contents first, then one commit, then the tags.

**The tag of the replaced version.** If the replaced dataset has no tag of its version, it gets one
right after the commit. A tag set before the commit could stay on a dataset that another push has
replaced meanwhile, and steer the next run there.

**Readers see** one of three states, whatever fails and whenever: everything old; the branch new,
with the tag of the result's version old or missing; everything new. Contents of large files are
uploaded first, and nobody sees them. One commit, made only if its parent is still the branch's
head, adds the new files, deletes the old dataset's files and brings the card. Then its listing is
compared with the result, and only then the tag is set.

**Reruns.** This side keeps no record of what was sent. Each attempt looks at the repo and does what
is missing: it sends no file that the repo has and no content that the Hub has, recognises an
earlier commit by its files, and sets a missing tag before anything else. If the repo has a file
under another name, the Hub copies it: the new name has the same hash. A lost answer is followed by
the same look, since only the repo then shows what was done.

**The files that are sent** are those that were proven, by content. A push is refused if the result
differs from the record beside it, or if it would replace a dataset that the result was not made
from (`Replacement`).

**Not guaranteed.** If two pushes run at once, the slower one ends with a conflict. A merge of a
pull request takes no parent: the head is compared just before it, and the listing just after.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.dataset.check.dataset import checked_result
from leconvert.dataset.files import GIT_FILES, published_files
from leconvert.dataset.formats.v2 import TASKS_PATH as LEGACY_TASKS_PATH
from leconvert.dataset.formats.v3 import TASKS_PATH, read_repairs
from leconvert.dataset.scan.changes import FileFacts
from leconvert.model.versions import SOURCE_VERSIONS
from leconvert.remote.options import MAIN, PushOptions
from leconvert.remote.provenance import (
    Provenance,
    noted_origin,
    read_provenance,
    render_card,
    write_provenance,
)
from leconvert.remote.push_plan import (
    CARD_PATH,
    KIND,
    NOTHING,
    TAGS,
    CommitShare,
    Owned,
    PushPlan,
    Replacement,
    RepoState,
    altered_files,
    check_complete,
    files_at,
    find_tag,
    fingerprint,
    info_at,
    is_private,
    list_commits,
    not_as_proven,
    plan_push,
    read_repo_state,
    same_as_remote,
    version_of,
)
from leconvert.support.errors import (
    HubConflictError,
    HubError,
    HubSourceChangedError,
    HubUnavailableError,
    LeconvertError,
    StorageError,
    UsageError,
    VerificationError,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count
from leconvert.transfer.client import (
    TOKEN_HELP,
    Patience,
    ask_hub,
    check_token,
    hub_errors,
    make_api,
    without_its_bars,
)
from leconvert.transfer.names import folder_of, in_folder, repository_of
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, GitRefs, HfApi

    from leconvert.support.progress import Stage


# The report of a push.


@dataclass(frozen=True, slots=True)
class PushReport:
    """The report of a push, or of its dry run.

    Attributes:
        repo_id: The repo.
        url: Its address.
        branch: The branch.
        created: Whether the repo was (or would be) made.
        before: The branch's commit before the push; None if there was none.
        commit: The commit that holds the result; None in a dry run with something to commit.
        commits: Number of commits that were (or would be) made.
        pull_request: Number of the pull request that holds the result; None if none was needed.
        merged: Whether the pull request was merged.
        tag: ``set``, ``moved``, ``kept``, or ``none`` in a pull request that is not merged.
        added: Number of files of the result that the repo did not have.
        added_bytes: Bytes of these files.
        unchanged: Number of files of the result that the repo had.
        deleted: Number of files of the old dataset that were removed.
        kept: Files in the repo that are not the dataset's.
        card: ``written`` or ``kept``.
        dry_run: Whether nothing was written.
        seconds: Duration of the push.
        version: The result's version, which is also the tag's name.
        copied: Number of files of the result that the repo had under another name.
        copied_bytes: Bytes of these files, which were not sent.
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
    version: str = TAGS[0]
    copied: int = 0
    copied_bytes: int = 0

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


# The actions of a push on a repo, one call each; every error is one of leconvert's.
#
# No action is repeated here. After `HubUnavailableError` it is unknown whether the action was done;
# the caller looks at the repo again to find out.


# The Hub says for this many files at a time how to upload them (huggingface_hub's
# PREUPLOAD_BATCH_SIZE).
_FILES_A_REQUEST = 256

_pushing = partial(hub_errors, sends=True)


class Uploader:
    """Writes to one repo."""

    def __init__(
        self,
        api: HfApi,
        repo_id: str,
        root: Path,
        digests: dict[str, str],
        *,
        tag: str = TAGS[0],
        threads: int = 5,
    ) -> None:
        self._api = api
        self._tag = tag
        self._repo: dict[str, Any] = {"repo_id": repository_of(repo_id), "repo_type": KIND}
        self._repo_id = repo_id
        self._folder = folder_of(repo_id)
        self._root = root
        self._digests = digests
        self._threads = threads

    def create_repo(self, *, private: bool) -> None:
        """Make the repo, if it does not exist."""
        with _pushing(self._repo_id):
            # None instead of False: the namespace's own default decides whether the repo is public.
            self._api.create_repo(**self._repo, private=private or None, exist_ok=True)

    def create_branch(self, branch: str, start: str) -> None:
        """Make a branch that begins at a commit."""
        with _pushing(self._repo_id, start):
            self._api.create_branch(**self._repo, branch=branch, revision=start, exist_ok=True)

    def upload(
        self,
        sent: Sequence[tuple[CommitOperationAdd, Callable[[CommitOperationAdd], None]]],
        revision: str,
    ) -> None:
        """Upload the contents of large files; no reader sees them before a commit.

        Args:
            sent: Operations of a commit, each with the function to call after its upload.
            revision: The branch or pull request.
        """
        for some in batched(sent, _FILES_A_REQUEST):
            with _pushing(self._repo_id, revision):
                # An empty .gitignore: one in the repo must not leave out files of a dataset.
                self._api.preupload_lfs_files(
                    **self._repo,
                    additions=[addition for addition, _ in some],
                    revision=revision,
                    num_threads=self._threads,
                    free_memory=False,
                    gitignore_content="",
                )
            for addition, is_there in some:
                is_there(addition)

    def addition(self, path: str) -> CommitOperationAdd:
        """Return the operation that adds a file of the result."""
        from huggingface_hub import CommitOperationAdd

        addition = CommitOperationAdd(in_folder(self._folder, path), self._root / path)
        if path in self._digests:
            addition.upload_info.sha256 = bytes.fromhex(self._digests[path])
        return addition

    def operations(
        self,
        share: CommitShare,
        additions: Sequence[CommitOperationAdd],
        copies: Mapping[str, tuple[str, str]],
        card: str | None,
    ) -> list[Any]:
        """Return the operations of a commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

        operations: list[Any] = [*additions]
        placed = partial(in_folder, self._folder)
        operations += [
            CommitOperationCopy(placed(copies[path][0]), placed(path), src_revision=copies[path][1])
            for path in share.add
            if path in copies
        ]
        operations += [CommitOperationDelete(placed(path)) for path in share.delete]
        if card is not None:
            operations.append(CommitOperationAdd(placed(CARD_PATH), card.encode()))
        return operations

    def commit(self, operations: Sequence[Any], *, revision: str, parent: str, message: str) -> str:
        """Commit, if the revision is still where it was seen, and return the commit."""
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
        """Return the number of this user's open pull request with a title; None if there is none.

        Pull requests of others do not count: anybody may open one with that title, and a merge
        would bring its contents to ``main``.
        """
        with _pushing(self._repo_id):
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
        with _pushing(self._repo_id):
            pull = self._api.create_pull_request(**self._repo, title=title, description=description)
        return int(pull.num)

    def publish_pull(self, number: int) -> None:
        """Turn a draft into a pull request that may be merged."""
        with _pushing(self._repo_id):
            details = self._api.get_discussion_details(**self._repo, discussion_num=number)
            if details.status == "draft":
                self._api.change_discussion_status(
                    **self._repo, discussion_num=number, new_status="open"
                )

    def merge_pull(self, number: int) -> None:
        """Merge a pull request; readers of ``main`` see all of its changes at once."""
        with _pushing(self._repo_id):
            self._api.merge_pull_request(**self._repo, discussion_num=number)

    # --- the tag -----------------------------------------------------------------------------

    def delete_tag(self) -> None:
        """Delete the tag, if it is still there: the Hub cannot move a tag."""
        from huggingface_hub.errors import RevisionNotFoundError

        with _pushing(self._repo_id, self._tag), suppress(RevisionNotFoundError):
            self._api.delete_tag(**self._repo, tag=self._tag)

    def create_tag(self, commit: str, tag: str | None = None) -> None:
        """Make the tag, or another one, for a commit."""
        with _pushing(self._repo_id, commit):
            self._api.create_tag(**self._repo, tag=tag or self._tag, revision=commit)


# Push a result to the Hub: contents first, then one commit, then the tag.


def push(
    result: Path,
    options: PushOptions = PushOptions(),
    *,
    api: HfApi | None = None,
    on_hub: Mapping[str, str] = {},
    pause: Callable[[float], object] | None = None,
    progress: Progress = NO_PROGRESS,
) -> PushReport:
    """Push a v3.0 or v2.1 dataset.

    The record beside the result (`leconvert.remote.provenance`) states its origin and its files
    when it was proven. Afterwards it also states that the result was pushed.

    Args:
        result: The result's folder; only read.
        options: The repo, and how to push.
        api: A client; None for one with ``HF_ENDPOINT`` and the user's token.
        on_hub: SHA-256 of files of the result whose content is only on the Hub, by path. Their
            local stand-ins are never read and never sent.
        pause: Waits some seconds between attempts; None for the pause of all requests to the Hub.
        progress: Receives the progress.

    Returns:
        The report, with the commit that holds the result.

    Raises:
        UsageError: No repo is given, and the origin of the source is not known.
        SourceError: The folder holds no such dataset.
        VerificationError: The dataset is not complete, or not what was converted and proven.
        HubError: There is no such repo, or the Hub does not answer.
        HubAccessError: The token is missing, wrong, or does not allow it.
        HubConflictError: The repo changed meanwhile, holds another dataset, or is public and must
            not be.
    """
    repo_id = options.repo_id or _origin_of(result)
    info = checked_result(result, TAGS, progress=progress)
    api = api or make_api()
    if not options.dry_run:
        check_token(repo_id, api)
    job = DatasetPush(api, result, repo_id, info, options, on_hub, progress)
    started = time.monotonic()
    patience = Patience(pause=pause)
    with without_its_bars():
        while True:
            try:
                report = replace(job.run(), seconds=time.monotonic() - started)
                break
            except HubUnavailableError as error:
                patience.wait(error, say=progress.say)
    if not options.dry_run:
        job.note_pushed()
    return report


def push_stands(repo_id: str, commit: str) -> bool:
    """Return whether a branch, a tag or a pull request of a repo is at a commit that was pushed."""
    refs = ask_hub(
        repo_id,
        None,
        lambda: make_api().list_repo_refs(
            repository_of(repo_id), repo_type=KIND, include_pull_requests=True
        ),
    )
    named = (*refs.branches, *refs.tags, *(refs.pull_requests or ()))
    return any(ref.target_commit == commit for ref in named)


def _origin_of(result: Path) -> str:
    origin = noted_origin(result)
    if origin is None:
        raise UsageError(
            f"No record says which repo {result} came from.",
            path=str(result),
            next_step="Add --push-repo-id ORG/NAME.",
        )
    return origin.repo_id


def push_converted(
    result: Path, options: PushOptions, *, progress: Progress = NO_PROGRESS
) -> PushReport:
    """Push a result right after its conversion; an error says that only the push is left."""
    try:
        return push(result, options, progress=progress)
    except HubSourceChangedError:
        raise  # no push of this result can succeed
    except LeconvertError as error:
        words = [str(result), *(["--push-repo-id", options.repo_id] if options.repo_id else [])]
        again = f"`leconvert push {shlex.join(words)}`"
        error.next_step = (
            f"{error.next_step or ''} The dataset is converted already. {again} only pushes it."
        ).strip()
        raise


def others_change(name: str) -> HubUnavailableError:
    """Return the error of a push that was slower than changes in other folders."""
    return HubUnavailableError(
        f"{name} was not pushed: other folders of the repo change again and again.",
        next_step="Run the same command again. Files that the Hub has are not uploaded again.",
    )


class DatasetPush:
    """One push; `run` may be called again after `HubUnavailableError`."""

    def __init__(
        self,
        api: HfApi,
        result: Path,
        repo_id: str,
        info: dict[str, Any],
        options: PushOptions,
        on_hub: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self._api = api
        self._on_hub = on_hub
        self._result = result
        self.name = repo_id
        self._info = info
        self.version = version_of(info)
        self._title = f"LeRobot dataset {self.version}"  # of a commit
        self._pull_title = f"Convert to LeRobot {self.version}"
        self._options = options
        self._noted = read_provenance(result)
        self._known = self._noted  # None once it turns out to be another result's
        self._progress = progress
        published = published_files(result)
        # Every repo has Git files of its own.
        others = {path: why for path, why in published.left_out.items() if path not in GIT_FILES}
        for line in replace(published, left_out=others).remarks():
            progress.say(line)
        self.sizes = published.sizes
        self._facts = {path: self._facts_of(path) for path in self.sizes}
        self._digests: dict[str, str] = dict(on_hub)
        self._listed: dict[str, Mapping[str, RemoteFile]] = {}
        self._begun: PushReport | None = None
        self.uploader = Uploader(
            api, repo_id, result, self._digests, tag=self.version, threads=options.threads
        )

    def run(self) -> PushReport:
        """Look at the repo, and do what is missing."""
        options = self._options
        seen = read_repo_state(self._api, self.name, options.branch, self.version)
        state, plan, card, report = self.prepare(seen)
        if options.dry_run:
            return report
        if not state.has_branch and not options.create_pr:
            self.uploader.create_branch(options.branch, state.head)
        if not plan.changes_dataset:
            return self._finish(state, card, report)
        shares = self._shares(plan)
        if options.create_pr:
            number, head = self._fill_pull(state, card)
            return replace(report, commit=head, pull_request=number, commits=len(shares))
        if len(shares) > 1:
            return self._merge(state, card, replace(report, commits=len(shares)))
        try:
            commit = self._commit(shares[0], plan.copies, card, options.branch, state.head)
        except HubConflictError:
            self._check_source_again()
            if folder_of(self.name) and self.has_same_files(state):
                raise others_change(self.name) from None
            raise
        if state.info is not None:
            self._tag_replaced(state, state.head, version_of(state.info))
        self.check_complete(commit)
        return replace(report, commit=commit, tag=self._set_tag(state, commit))

    def prepare(
        self, state: RepoState | None
    ) -> tuple[RepoState, PushPlan, str | None, PushReport]:
        """Decide what to do, and refuse forbidden pushes; the repo is made if necessary.

        Args:
            state: The repo; None if there is none.

        Returns:
            The repo as it is now, the plan, the new card, and a report of the planned work.
        """
        options = self._options
        created = state is None
        if state is None and not options.create:
            raise HubError(
                f"The Hub has no dataset {self.name}, or this token may not see it.",
                next_step="Check the name. " + TOKEN_HELP,
            )
        plan = self._plan((state or NOTHING).files, state or NOTHING)
        self._check(state or NOTHING, plan)
        private = self._is_to_be_private(is_there=state is not None)
        if state is None and not options.dry_run:
            state = self._create(private=private)
            plan = self._plan(state.files, state)
            self._check(state, plan)  # somebody else may have made and filled it meanwhile
        state = state or NOTHING
        plan = self._plan(state.files, state)  # the check read files that were to be hashed
        self._check_sources(plan)
        card = self._card(state)
        report = self._report(state, plan, card, created=created)
        if self._begun is not None:
            # After an earlier attempt: its work counts, too.
            report = replace(self._begun, commit=report.commit, tag=report.tag)
        self._begun = report
        return state, plan, card, report

    def look(self, refs: GitRefs, files: Mapping[str, RemoteFile]) -> RepoState | None:
        """Return the state of a repository that was listed, as `read_repo_state` does."""
        return read_repo_state(
            self._api, self.name, self._options.branch, self.version, refs, files
        )

    def share_of(self, plan: PushPlan) -> CommitShare:
        """Return a plan's share of one commit."""
        shares = self._shares(plan)
        if len(shares) > 1:
            raise HubConflictError(
                f"{self._result} is more than one commit can hold.",
                path=str(self._result),
                next_step=f"Push it by itself: `leconvert push {shlex.quote(str(self._result))} "
                f"--push-repo-id {shlex.quote(self.name)}`. Then push the others.",
            )
        return shares[0]

    def note_pushed(self) -> None:
        """Note in the record beside the result that it was pushed, if it is its own record."""
        if self._known is None or self._known is not self._noted or self._known.pushed:
            return
        try:
            write_provenance(self._result, replace(self._known, pushed=True))
        except StorageError as error:  # a result on a read-only disk can be pushed
            self._progress.say(f"The push is done. It could not be recorded: {error.message}")

    def _create(self, *, private: bool) -> RepoState:
        self.uploader.create_repo(private=private)
        state = self._look_again(self._options.branch)
        if private and not is_private(self._api, self.name):
            raise HubConflictError(
                f"Somebody else made {self.name} during this command, and it is public.",
                next_step="Nothing was pushed. Look at the repo on the Hub.",
            )
        return state

    def _look_again(self, branch: str) -> RepoState:
        state = read_repo_state(self._api, self.name, branch, self.version)
        if state is None:
            raise HubError(
                f"This token may not see {self.name}, or the repo was removed.",
                next_step=TOKEN_HELP,
            )
        return state

    def has_same_files(self, before: RepoState) -> bool:
        """Return whether the branch has changed, but the dataset's folder has not."""
        now = self._look_again(self._options.branch)
        return now.head != before.head and now.files == before.files

    def _check_source_again(self) -> None:
        """After a conflict: raise if another push changed the dataset that was converted."""
        state = self._look_again(self._options.branch)
        plan = self._plan(state.files, state)
        try:
            self._check(state, plan)
            self._check_sources(plan)
        except HubSourceChangedError:
            raise
        except HubConflictError:
            return  # it is about the repo's state now; the conflict itself is the reason

    def _tag_replaced(self, state: RepoState, commit: str, version: str) -> None:
        """Make the tag of the replaced version, if that tag does not exist."""
        if not self._is_for_main or version not in SOURCE_VERSIONS or version == self.version:
            return
        if version in state.tags:
            return
        try:
            self.uploader.create_tag(commit, version)
        except HubConflictError:
            if find_tag(self._api, self.name, version) is None:
                raise
            return  # somebody else made it, or an earlier attempt whose answer was lost
        said = f"The tag {version} now leads to {commit[:12]}, the commit before this push."
        self._progress.say(said)

    def _tag_replaced_before(self, state: RepoState) -> None:
        """Do the same for an earlier attempt that ended after its commit, by the history."""
        is_below = False
        for commit in list_commits(self._api, self.name, state.head):
            if commit.title.startswith((self._title, self._pull_title)):
                is_below = True
            elif is_below:
                info = info_at(self._api, self.name, commit.commit_id)
                if version_of(info) in SOURCE_VERSIONS:
                    self._tag_replaced(state, commit.commit_id, version_of(info))
                    return
                is_below = False

    # --- deciding -----------------------------------------------------------------------------

    def _check_sources(self, plan: PushPlan) -> None:
        """Refuse to send files that are only stand-ins here."""
        gone = [path for path in plan.uploads() if path in self._on_hub]
        if gone:
            raise HubSourceChangedError(
                f"{self.name} no longer has the content of {count(len(gone), 'file')} that should "
                "stay.",
                path=gone[0],
                next_step="Convert the repo again, as it is now.",
                details=gone[:20],
            )

    def _check(self, state: RepoState, plan: PushPlan) -> None:
        """Refuse to send a result that was not proven, and to replace another dataset.

        With ``force`` the result is sent anyway; a record that is about another state is then
        ignored.
        """
        if self._known is not None and (plan.changes_dataset or self._known.files):
            altered = altered_files(
                self._result, self._info, self._known, self.sizes, self._digests, self._progress
            )
            if altered:
                if plan.changes_dataset and not self._options.force:
                    raise not_as_proven(self._result, self._known, altered)
                self._known = None
        if self._options.force:
            return
        if plan.changes_dataset and not (state.head and state.head == self._options.replaces):
            Replacement(
                self._api,
                self.name,
                state,
                plan,
                self._result,
                self._info,
                self.sizes,
                self._known,
                self._progress,
            ).check()
        # A result that was pushed before may be replaced at its tag, too.
        if self._is_for_main and state.tag not in (None, state.head, self._options.replaces):
            tagged = self._files_at(state.tag)
            tasks = TASKS_PATH if self.version == TAGS[0] else LEGACY_TASKS_PATH
            if tasks in tagged and self._plan(tagged, state).changes_dataset:
                raise HubConflictError(
                    f"The tag {self.version} of {self.name} already leads to another "
                    f"{self.version} dataset, at commit {state.tag[:12]}.",
                    next_step=f"That dataset is hf://datasets/{self.name}@{self.version}. To move "
                    "the tag to this result, add --force-push.",
                )

    def _is_to_be_private(self, *, is_there: bool) -> bool:
        """Return whether a new repo will be private; refuse a public one that must be private.

        A dataset from a private repo, or from one that cannot be seen any more, is not made public
        implicitly.
        """
        sources = self._noted.repos if self._noted else []
        own = repository_of(self.name)
        sources = [name for name in sources if repository_of(name) != own]
        if not is_there:
            if self._options.private or not sources:
                return self._options.private
            for comes_from in sources:
                seen = is_private(self._api, comes_from)
                if seen is not False:
                    why = "is" if seen else "can no longer be seen"
                    self._progress.say(f"{self.name} is made private, as {comes_from} {why}.")
                    return True
            return False
        if not (self._options.private or sources) or is_private(self._api, self.name):
            return False
        if self._options.private:
            raise HubConflictError(
                f"--private is given, but {self.name} is public.",
                next_step="Make the repo private in its settings on the Hub, or leave "
                "--private out.",
            )
        for comes_from in sources if not self._options.force else ():
            if is_private(self._api, comes_from) is False:
                continue
            raise HubConflictError(
                f"{self.name} is public, but the source {comes_from} is not.",
                next_step="Push to a new repo, which is made private, or make this repo "
                "private in its settings on the Hub. If everybody may read the "
                "dataset, add --force-push.",
            )
        return False

    def _files_at(self, commit: str) -> Mapping[str, RemoteFile]:
        if commit not in self._listed:
            self._listed[commit] = files_at(self._api, self.name, commit)
        return self._listed[commit]

    def _plan(self, files: Mapping[str, RemoteFile], state: RepoState) -> PushPlan:
        same = same_as_remote(self._result, self.sizes, files, self._digests, self._progress)
        owned = None if state.info is None else Owned({**self._info, **state.info})
        held = {state.head: state.files}
        if self._on_hub and self._noted is not None and self._noted.commit not in held:
            # The tag of a v2.x dataset may be at a commit that the branch never had.
            held[self._noted.commit] = self._files_at(self._noted.commit)
        return plan_push(self.sizes, files, same, owned, self._digests, held)

    def _shares(self, plan: PushPlan) -> list[CommitShare]:
        return plan.commits(
            self.sizes,
            operations=self._options.commit_operations,
            payload_bytes=self._options.commit_payload_bytes,
        )

    def _card(self, state: RepoState) -> str | None:
        """Return the new card, or None if it stays unchanged."""
        if state.card is not None and not self._options.card:
            return None
        stored, place = state.card, f"README.md in {self.name}"
        if stored is None and CARD_PATH in self.sizes:
            path = self._result / CARD_PATH
            with storage_errors(path):
                stored, place = path.read_bytes(), str(path)
        try:
            before = None if stored is None else stored.decode()
        except UnicodeDecodeError as error:
            raise HubConflictError(
                f"{place} is not UTF-8 text, which the Hub requires.",
                path=CARD_PATH,
                next_step="Save the file as UTF-8. If the repo has a README.md already, "
                "--no-card keeps it.",
            ) from error
        if not self._options.card:
            return before
        text = render_card(
            before,
            self._info,
            repo_id=self.name,
            sizes={path: size for path, size in self.sizes.items() if path != CARD_PATH},
            provenance=self._known or self._told_by_repairs(),
        )
        return None if state.card == text.encode() else text

    def _told_by_repairs(self) -> Provenance | None:
        """Return the conversion's changes from the result's own record; None if it has none."""
        repairs = read_repairs(self._result)
        return Provenance(changes=tuple(repairs.summary())) if repairs else None

    # --- acting -------------------------------------------------------------------------------

    def _commit(
        self,
        share: CommitShare,
        copies: Mapping[str, tuple[str, str]],
        card: str | None,
        revision: str,
        parent: str,
    ) -> str:
        sent = [path for path in share.add if path not in copies]
        with self._progress.stage("upload", self._bytes_of(sent), "B") as stage:
            additions = self.sendings(share, copies, stage)
            self.uploader.upload(additions, revision)
        self.check_unchanged("Nothing was committed.")
        added = [addition for addition, _ in additions]
        return self.uploader.commit(
            self.uploader.operations(share, added, copies, card),
            revision=revision,
            parent=parent,
            message=self._title,
        )

    def sendings(
        self, share: CommitShare, copies: Mapping[str, tuple[str, str]], stage: Stage
    ) -> list[tuple[CommitOperationAdd, Callable[[CommitOperationAdd], None]]]:
        """Return the operations that add files, each with a function to call after its upload."""
        return [self._sending(path, stage) for path in sorted(set(share.add) - copies.keys())]

    def _sending(
        self, path: str, stage: Stage
    ) -> tuple[CommitOperationAdd, Callable[[CommitOperationAdd], None]]:
        def is_there(addition: CommitOperationAdd) -> None:
            if addition.upload_info.is_hashed:
                self._digests[path] = addition.upload_info.sha256.hex()
            stage.advance(self.sizes[path])

        return self.uploader.addition(path), is_there

    def _bytes_of(self, paths: Iterable[str]) -> int:
        return sum(self.sizes[path] for path in paths)

    def _finish(self, state: RepoState, card: str | None, report: PushReport) -> PushReport:
        """Set the tag of a result that is already there, then update the card."""
        if self._is_for_main and not self._is_tagged(state, state.head):
            self._tag_replaced_before(state)
        tag = self._set_tag(state, state.head)
        commit = state.head
        if card is not None and not self._options.create_pr:
            nothing, branch = CommitShare((), ()), self._options.branch
            commit = self._commit(nothing, {}, card, branch, state.head)
        return replace(report, commit=commit, tag=tag)

    def _fill_pull(self, state: RepoState, card: str | None) -> tuple[int, str]:
        """Fill a pull request with the result and leave it open; return its number and head."""
        title = f"{self._pull_title} ({fingerprint(self.sizes, state.head)})"
        number = self.uploader.find_pull(title)
        if number is None:
            self._progress.say(
                "Opening a pull request. main does not change until the pull request is merged."
            )
            number = self.uploader.open_pull(title, f"On {state.head}.")
        revision = f"refs/pr/{number}"
        head = state.pulls.get(number, state.head)
        plan = self._plan(files_at(self._api, self.name, head), state)
        self._check_sources(plan)
        shares = self._shares(plan)
        for place, share in enumerate(shares if plan.changes_dataset else []):
            text = card if place == len(shares) - 1 else None
            head = self._commit(share, plan.copies, text, revision, head)
        self.check_complete(revision)
        self.uploader.publish_pull(number)
        return number, head

    def _merge(self, state: RepoState, card: str | None, report: PushReport) -> PushReport:
        """Push the result through a pull request: it has more operations than one commit takes."""
        if self._options.branch != MAIN:
            raise HubConflictError(
                f"The push to {self.name} needs {report.commits} commits. Such a push uses a pull "
                "request, and pull requests always go to main.",
                next_step="Push without --branch.",
            )
        number, _ = self._fill_pull(state, card)
        if self._look_again(MAIN).head != state.head:
            self._progress.say(f"Pull request {number} is no longer needed. Close it on the Hub.")
            self._check_source_again()
            raise HubConflictError(
                f"{self.name} changed during the upload to pull request {number}.",
                next_step=f"Close pull request {number} on the Hub, look at what changed, and run "
                "the same command again.",
            )
        self.uploader.merge_pull(number)
        if state.info is not None:
            self._tag_replaced(state, state.head, version_of(state.info))
        merged = self._look_again(MAIN)
        self.check_complete(merged.head)
        tag = self._set_tag(merged, merged.head)
        return replace(report, commit=merged.head, pull_request=number, merged=True, tag=tag)

    def _facts_of(self, path: str) -> FileFacts | None:
        try:
            # Some file systems change inode numbers while nobody changes the files.
            return replace(FileFacts.of(self._result / path), inode=0)
        except OSError:
            return None

    def check_unchanged(self, what_was_done: str) -> None:
        """Refuse a result that changes during the push: other bytes were read than sent."""
        changed = [path for path, facts in self._facts.items() if self._facts_of(path) != facts]
        if changed:
            raise VerificationError(
                f"{count(len(changed), 'file')} of {self._result} changed during the push. "
                f"{what_was_done}",
                path=str(self._result),
                next_step="Run the same command again when no other program writes to the dataset.",
                details=changed[:20],
            )

    def check_complete(self, revision: str, files: Mapping[str, RemoteFile] | None = None) -> None:
        """Compare a revision with the result; ``files`` are its files, if they were listed."""
        self.check_unchanged(f"The tag {self.version} was not set.")
        if files is None:
            files = files_at(self._api, self.name, revision)
        check_complete(
            self.name, revision, files, self.sizes, self._digests, self._result, self.version
        )

    @property
    def _is_for_main(self) -> bool:
        """Whether ``main`` will hold the result, since the tag is for main's dataset.

        A folder of a repository gets no tag, since it would be for all of its datasets.
        """
        is_repository = not folder_of(self.name)
        return is_repository and self._options.branch == MAIN and not self._options.create_pr

    @property
    def _url(self) -> str:
        url = f"{self._api.endpoint}/datasets/{repository_of(self.name)}"
        folder = folder_of(self.name)
        return f"{url}/tree/{self._options.branch}/{folder}" if folder else url

    def _set_tag(self, state: RepoState, commit: str) -> str:
        """Make the tag for a commit that holds the result, and return what was done."""
        if not self._is_for_main:
            return "none"
        if self._is_tagged(state, commit):
            return "kept"
        if state.tag is not None:
            # Uploads since the look may have taken hours.
            now = find_tag(self._api, self.name, self.version)
            if now == commit:
                return "kept"
            if now != state.tag:
                raise self._tag_changed(state.tag, now)
            self._progress.say(
                f"The tag {self.version} moves from {now[:12]} to {commit[:12]}. For a moment "
                "the tag does not exist. If this command is interrupted then, run it again."
            )
            self.uploader.delete_tag()
        try:
            self.uploader.create_tag(commit)
        except HubConflictError as error:
            now = find_tag(self._api, self.name, self.version)
            if now != commit:
                raise self._tag_changed(None, now) from error
        return "set" if state.tag is None else "moved"

    def _tag_changed(self, before: str | None, now: str | None) -> HubConflictError:
        what = "made" if before is None else "moved"
        said = "removed" if now is None else f"{what} and leads to {now[:12]} now"
        return HubConflictError(
            f"{self.name} changed during this command: the tag {self.version} was {said}.",
            next_step="The result is committed, but the tag was not changed. Look at the "
            "commit that the tag leads to. Then run the same command again to set the "
            "tag.",
        )

    def _is_tagged(self, state: RepoState, commit: str) -> bool:
        """Return whether the tag is at the commit, or at one with the same dataset."""
        if state.tag in (None, commit):
            return state.tag is not None
        return not self._plan(self._files_at(state.tag), state).changes_dataset

    def _report(
        self, state: RepoState, plan: PushPlan, card: str | None, *, created: bool
    ) -> PushReport:
        """Return the report, as far as it is known before any action."""
        pending = plan.changes_dataset
        tag = "set" if state.tag is None else "moved"
        if not self._is_for_main:
            tag = "none"
        elif self._options.dry_run and not pending and self._is_tagged(state, state.head):
            tag = "kept"
        return PushReport(
            repo_id=self.name,
            url=self._url,
            branch=self._options.branch,
            created=created,
            before=None if created else state.head or None,
            commit=None if pending else state.head or None,
            commits=len(self._shares(plan)) if pending else int(card is not None),
            pull_request=None,
            merged=False,
            tag=tag,
            added=len(plan.uploads()),
            added_bytes=self._bytes_of(plan.uploads()),
            unchanged=len(plan.unchanged),
            deleted=plan.deleted_files,
            kept=plan.kept,
            card="kept" if card is None else "written",
            dry_run=self._options.dry_run,
            seconds=0.0,
            version=self.version,
            copied=len(plan.copies),
            copied_bytes=self._bytes_of(plan.copies),
        )
