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

import posixpath
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.dataset.check.dataset import checked_result
from leconvert.dataset.formats.v2 import TASKS_PATH as LEGACY_TASKS_PATH
from leconvert.dataset.formats.v3 import TASKS_PATH
from leconvert.model.versions import SOURCE_VERSIONS
from leconvert.remote.provenance import (
    CARD_PATH,
    decode_card,
    noted_origin,
    parse_card,
    render_card,
    told_by_repairs,
    write_provenance,
)
from leconvert.remote.push_plan import (
    CommitShare,
    Owned,
    PushPlan,
    Replacement,
    Result,
    fingerprint,
    plan_push,
    version_of,
    within_limits,
)
from leconvert.remote.repo import NOTHING, Repo, RepoState, head_of
from leconvert.remote.source import has_same_files, refs_of
from leconvert.support.errors import (
    HubConflictError,
    HubError,
    HubSourceChangedError,
    HubUnavailableError,
    LeconvertError,
    StorageError,
    UsageError,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.transfer.client import (
    TOKEN_HELP,
    Patience,
    check_token,
    make_api,
    without_its_bars,
)
from leconvert.transfer.names import HubName, check_name, folder_of, in_folder, repository_of
from leconvert.transfer.options import MAIN, PushOptions
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# LeRobot finds a dataset by a tag with the name of its version.
TAGS = ("v3.0", "v2.1")


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
        UsageError: No repo is given, and the origin of the source is not known; or the repo's name
            is not ``ORG/NAME`` or ``ORG/NAME/path``.
        SourceError: The folder holds no such dataset.
        VerificationError: The dataset is not complete, or not what was converted and proven.
        HubError: There is no such repo, or the Hub does not answer.
        HubAccessError: The token is missing, wrong, or does not allow it.
        HubConflictError: The repo changed meanwhile, holds another dataset, or is public and must
            not be.
    """
    repo_id = options.repo_id or _origin_of(result)
    return _push({repo_id: result}, options, api, on_hub, pause, progress)[0]


def push_folders(
    results: Mapping[str, Path],
    options: PushOptions = PushOptions(),
    *,
    progress: Progress = NO_PROGRESS,
) -> list[PushReport]:
    """Push datasets into folders of one repository, in one commit.

    Each is checked as `push` checks it, before anything is written. If the Hub does not accept all
    of them in one commit, several commits are made; each commit holds only whole datasets. There is
    no tag, since it would stand for everything in the repository.

    Args:
        results: The datasets' folders by their names on the Hub, ``ORG/NAME/path/to/dataset`` each.
        options: The options; ``repo_id`` is ignored.
        progress: Receives the progress.

    Returns:
        A report for each dataset, sorted by name.

    Raises:
        UsageError: They are not all in folders of one repository, or a pull request is requested.
    """
    names = sorted(results)
    parents = {
        "/".join(name.split("/")[:at]) for name in names for at in range(3, name.count("/") + 1)
    }
    is_one = len({repository_of(name) for name in names}) == 1 and all(map(folder_of, names))
    if not is_one or not parents.isdisjoint(names):
        raise UsageError(
            "Several datasets can be pushed together only into separate folders of one repo. No "
            "such folder may lie inside another.",
            next_step="Use a separate command for each repo.",
            details=names[:20],
        )
    if options.create_pr:
        raise UsageError(
            "--create-pr is for one dataset.",
            next_step="Push to a branch with --branch NAME, then open a pull request from that "
            "branch on the Hub. Or push each dataset by itself.",
        )
    return _push({name: results[name] for name in names}, options, None, {}, None, progress)


def _push(
    results: Mapping[str, Path],
    options: PushOptions,
    api: HfApi | None,
    on_hub: Mapping[str, str],
    pause: Callable[[float], object] | None,
    progress: Progress,
) -> list[PushReport]:
    for name in results:
        check_name(name)
    infos = [checked_result(root, TAGS, progress=progress) for root in results.values()]
    api = api or make_api()
    if not options.dry_run:
        check_token(next(iter(results)), api)
    pushes = [
        DatasetPush(
            Repo(api, name, threads=options.threads),
            Result(root, info, on_hub, progress),
            options,
            progress,
        )
        for (name, root), info in zip(results.items(), infos, strict=True)
    ]
    started = time.monotonic()
    with without_its_bars():
        reports = Patience(pause=pause).run(_Push(api, pushes, options).run, say=progress.say)
    for each in pushes if not options.dry_run else ():
        each.note_pushed()
    return [replace(report, seconds=time.monotonic() - started) for report in reports]


def push_stands(repo_id: str, commit: str) -> bool:
    """Return whether a branch, a tag or a pull request of a repo is at a commit that was pushed.

    For a folder of a repo it is enough that a branch still has its files.
    """
    refs = refs_of(repo_id, with_pulls=True)
    named = (*refs.branches, *refs.tags, *(refs.pull_requests or ()))
    if any(ref.target_commit == commit for ref in named):
        return True
    return any(has_same_files(repo_id, commit, ref.target_commit) for ref in refs.branches)


def _origin_of(result: Path) -> str:
    origin = noted_origin(result)
    if origin is None:
        raise UsageError(
            f"No record says which repo {result} came from.",
            path=str(result),
            next_step="Add --push-repo-id ORG/NAME.",
        )
    return origin.repo_id


def check_card(repo_id: str, options: PushOptions, sources: Sequence[Path]) -> None:
    """Refuse a dataset card that a push could not write, before hours of work.

    If the Hub does not answer now, the push itself will show it.

    Args:
        repo_id: The repo, which need not exist.
        options: The push.
        sources: The datasets of the result, which takes the first ``README.md`` of them.

    Raises:
        HubConflictError: The card is not UTF-8, or its head cannot be read.
    """
    try:
        stored, place = Repo(make_api(), repo_id).card_of(options.branch), None
    except LeconvertError:
        return
    if stored is None:
        place = next((p for root in sources if (p := root / CARD_PATH).is_file()), None)
        if place is not None:
            with storage_errors(place):
                stored = place.read_bytes()
    elif not options.card:
        return
    if stored is not None:
        parse_card(decode_card(stored, repo_id, place), repo_id, place)


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


# A dataset, and its share of a commit.
type _Part = tuple[DatasetPush, CommitShare]


def _cost_of(part: _Part) -> tuple[int, float]:
    push, share = part
    return share.cost(push.result.sizes)


def _commit(parts: Sequence[_Part], revision: str, parent: str, message: str) -> str:
    """Upload the contents of some datasets of one repo and commit them; return the commit."""
    from huggingface_hub import CommitOperationAdd

    repo, progress = parts[0][0].repo, parts[0][0].progress
    sent = [(push.repo, push.result, path) for push, share in parts for path in share.sent()]
    with progress.stage("upload", sum(own.sizes[path] for _, own, path in sent), "B") as stage:
        additions = []
        for place, own, path in sent:
            addition = CommitOperationAdd(place.placed(path), own.root / path)
            if path in own.digests:
                addition.upload_info.sha256 = bytes.fromhex(own.digests[path])
            additions.append(addition)
        uploaded = repo.upload(additions, revision)
        for (_, own, path), addition in zip(sent, uploaded, strict=True):
            if addition.upload_info.is_hashed:
                own.digests[path] = addition.upload_info.sha256.hex()
            stage.advance(own.sizes[path])
    for push, _ in parts:
        push.result.check_unchanged("Nothing was committed.")
    others = [each for push, share in parts for each in _other_operations(push.repo, share)]
    return repo.commit([*additions, *others], revision=revision, parent=parent, message=message)


def _other_operations(repo: Repo, share: CommitShare) -> Iterator[Any]:
    """Yield the operations besides those that add the sent files."""
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

    for path in share.add:
        if path in share.copies:
            source, commit = share.copies[path]
            yield CommitOperationCopy(repo.placed(source), repo.placed(path), src_revision=commit)
    for path in share.delete:
        yield CommitOperationDelete(repo.placed(path))
    if share.card is not None:
        yield CommitOperationAdd(repo.placed(CARD_PATH), share.card.encode())


class DatasetPush:
    """The push of one dataset; `prepare` may be called again after `HubUnavailableError`.

    Attributes:
        state: The repo as `prepare` saw it.
        plan: The changes.
        shares: The same as commits.
        card: The new card; None if it stays unchanged.
        report: The report so far.
    """

    state: RepoState
    plan: PushPlan
    shares: Sequence[CommitShare]
    card: str | None
    report: PushReport

    def __init__(
        self, repo: Repo, result: Result, options: PushOptions, progress: Progress
    ) -> None:
        self.repo, self.name = repo, repo.name
        self.result, self.version = result, result.version
        self.progress = progress
        self._options = options
        self.title = f"LeRobot dataset {result.version}"  # of a commit
        self._pull_title = f"Convert to LeRobot {result.version}"
        self._listed: dict[str, Mapping[str, RemoteFile]] = {}
        self._is_begun = False

    def prepare(self, state: RepoState | None) -> None:
        """Decide what to do, and refuse forbidden pushes; the repo is made if necessary.

        Args:
            state: The repo; None if there is none.
        """
        options = self._options
        created = state is None
        if state is None and not options.create:
            raise HubError(
                f"The Hub has no dataset {self.name}, or this token may not see it.",
                next_step="Check the name. " + TOKEN_HELP,
            )
        self._check(state or NOTHING)
        private = self._is_to_be_private(is_there=state is not None)
        if state is None and not options.dry_run:
            state = self._create(private=private)
            self._check(state)  # somebody else may have made and filled it meanwhile
        self.state = state or NOTHING
        self.plan = self._plan(self.state)  # the check read files that were to be hashed
        self._check_sources(self.plan)
        self.shares = self._shares(self.plan)
        self.card = self._card()
        report = self._report(created=created)
        if self._is_begun:
            # The work of an earlier attempt counts, too.
            report = replace(self.report, commit=report.commit, tag=report.tag)
        self.report, self._is_begun = report, True

    @property
    def needs_pull(self) -> bool:
        """Whether a pull request is needed: one is wanted, or one commit does not hold it all."""
        wanted = self._options.create_pr and self.plan.changes_dataset
        return wanted or len(self.shares) > 1

    def share(self) -> CommitShare:
        """Return the whole dataset's share of one commit.

        Raises:
            HubConflictError: One commit does not hold it all.
        """
        if len(self.shares) > 1:
            root = str(self.result.root)
            raise HubConflictError(
                f"{root} is more than one commit can hold.",
                path=root,
                next_step=f"Push it by itself: `leconvert push {shlex.quote(root)} "
                f"--push-repo-id {shlex.quote(self.name)}`. Then push the others.",
            )
        # A card alone does not make a pull request.
        return replace(self.shares[0], card=None if self._options.create_pr else self.card)

    def note_pushed(self) -> None:
        """Note in the record beside the result that it was pushed, if it is its own record."""
        known = self.result.known
        if known is None or known.pushed:
            return
        try:
            write_provenance(self.result.root, replace(known, pushed=True))
        except StorageError as error:  # a result on a read-only disk can be pushed
            self.progress.say(f"The push is done. It could not be recorded: {error.message}")

    def _create(self, *, private: bool) -> RepoState:
        self.repo.create(private=private)
        state = self._look_again(self._options.branch)
        if private and not self.repo.is_private():
            raise HubConflictError(
                f"Somebody else made {self.name} during this command, and it is public.",
                next_step="Nothing was pushed. Look at the repo on the Hub.",
            )
        return state

    def _look_again(self, branch: str) -> RepoState:
        state = self.repo.look(branch)
        if state is None:
            raise HubError(
                f"This token may not see {self.name}, or the repo was removed.",
                next_step=TOKEN_HELP,
            )
        return state

    def look_after_conflict(self) -> RepoState:
        """Return the repo as it is now.

        Raises:
            HubSourceChangedError: Another push changed the dataset that was converted.
        """
        now = self._look_again(self._options.branch)
        try:
            self._check(now)
            self._check_sources(self._plan(now))
        except HubSourceChangedError:
            raise
        except HubConflictError:
            pass  # it is about the repo's state now; the conflict itself is the reason
        return now

    def tag_replaced(self) -> None:
        """Make the tag of the version that the commit replaced, if that tag does not exist."""
        if self.plan.changes_dataset and self.state.info is not None:
            self._tag_replaced(self.state.head, version_of(self.state.info))

    def _tag_replaced(self, commit: str, version: str) -> None:
        if not self._is_for_main or version not in SOURCE_VERSIONS or version == self.version:
            return
        if version in self.state.tags:
            return
        try:
            self.repo.create_tag(version, commit)
        except HubConflictError:
            if self.repo.find_tag(version) is None:
                raise
            return  # somebody else made it, or an earlier attempt whose answer was lost
        said = f"The tag {version} now leads to {commit[:12]}, the commit before this push."
        self.progress.say(said)

    def _tag_replaced_before(self) -> None:
        """Do the same for an earlier attempt that ended after its commit, by the history."""
        is_below = False
        for commit in self.repo.commits(self.state.head):
            if commit.title.startswith((self.title, self._pull_title)):
                is_below = True
            elif is_below:
                info = self.repo.info_at(commit.commit_id)
                if version_of(info) in SOURCE_VERSIONS:
                    self._tag_replaced(commit.commit_id, version_of(info))
                    return
                is_below = False

    # --- deciding -----------------------------------------------------------------------------

    def _check_sources(self, plan: PushPlan) -> None:
        """Refuse to send files that are only stand-ins here."""
        gone = [path for path in plan.uploads() if path in self.result.on_hub]
        if gone:
            raise HubSourceChangedError(
                f"{self.name} no longer has the content of {count(len(gone), 'file')} that should "
                "stay.",
                path=gone[0],
                next_step="Convert the repo again, as it is now.",
                details=gone[:20],
            )

    def _check(self, state: RepoState) -> None:
        """Refuse to send a result that was not proven, and to replace another dataset.

        With ``force`` the result is sent anyway; a record that is about another state is then
        ignored.
        """
        plan, known = self._plan(state), self.result.known
        force, replaces = self._options.force, self._options.replaces
        if plan.changes_dataset or (known and known.files):
            self.result.check_proven(force=force or not plan.changes_dataset)
        if force:
            return
        if plan.changes_dataset and not (state.head and state.head == replaces):
            Replacement(self.repo, state, plan, self.result, self.progress).check()
        # A result that was pushed before may be replaced at its tag, too.
        tag = self._tag_in(state)
        if self._is_for_main and tag not in (None, state.head, replaces):
            tagged = self._files_at(tag)
            tasks = TASKS_PATH if self.version == TAGS[0] else LEGACY_TASKS_PATH
            if tasks in tagged and self._plan(state, tagged).changes_dataset:
                raise HubConflictError(
                    f"The tag {self.version} of {self.name} already leads to another "
                    f"{self.version} dataset, at commit {tag[:12]}.",
                    next_step=f"That dataset is {HubName(self.name, self.version)}. To move "
                    "the tag to this result, add --force-push.",
                )

    def _is_to_be_private(self, *, is_there: bool) -> bool:
        """Return whether a new repo will be private; refuse a public one that must be private.

        A dataset from a private repo, or from one that cannot be seen any more, is not made public
        implicitly.
        """
        sources = self.result.noted.repos if self.result.noted else []
        own = repository_of(self.name)
        sources = [name for name in sources if repository_of(name) != own]
        if not is_there:
            if self._options.private or not sources:
                return self._options.private
            for comes_from in sources:
                seen = self.repo.is_private(comes_from)
                if seen is not False:
                    why = "is" if seen else "can no longer be seen"
                    self.progress.say(f"{self.name} is made private, as {comes_from} {why}.")
                    return True
            return False
        if not (self._options.private or sources) or self.repo.is_private():
            return False
        if self._options.private:
            raise HubConflictError(
                f"--private is given, but {self.name} is public.",
                next_step="Make the repo private in its settings on the Hub, or leave "
                "--private out.",
            )
        for comes_from in sources if not self._options.force else ():
            if self.repo.is_private(comes_from) is False:
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
            self._listed[commit] = self.repo.files_at(commit)
        return self._listed[commit]

    def _plan(self, state: RepoState, files: Mapping[str, RemoteFile] | None = None) -> PushPlan:
        """Plan the changes from the state's files, or from others, to the result."""
        files = state.files if files is None else files
        own = self.result
        same = own.same_as(files)
        owned = None if state.info is None else Owned({**own.info, **state.info})
        held = {state.head: state.files}
        if own.on_hub and own.noted is not None and own.noted.commit not in held:
            # The tag of a v2.x dataset may be at a commit that the branch never had.
            held[own.noted.commit] = self._files_at(own.noted.commit)
        return plan_push(own.sizes, files, same, owned, own.digests, held)

    def _shares(self, plan: PushPlan) -> list[CommitShare]:
        return plan.commits(
            self.result.sizes,
            operations=self._options.commit_operations,
            payload_bytes=self._options.commit_payload_bytes,
        )

    def _card(self) -> str | None:
        """Return the new card, or None if it stays unchanged."""
        present = self.state.card
        if present is not None and not self._options.card:
            return None
        stored, place = present, None
        if stored is None and CARD_PATH in self.result.sizes:
            place = self.result.root / CARD_PATH
            with storage_errors(place):
                stored = place.read_bytes()
        before = None if stored is None else decode_card(stored, self.name, place)
        if not self._options.card:
            return before
        text = render_card(
            before,
            self.result.info,
            repo_id=self.name,
            sizes=self.result.sizes,
            provenance=self.result.known or told_by_repairs(self.result.root),
            place=place,
        )
        return None if present == text.encode() else text

    # --- acting -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Set the tag of a result that is already there."""
        commit = self.state.head
        if self._is_for_main and not self._is_tagged(commit):
            self._tag_replaced_before()
        self.report = replace(self.report, commit=commit, tag=self._set_tag(commit))

    def settle(self, commit: str, files: Mapping[str, RemoteFile]) -> None:
        """Compare the files of a commit with the result, and set its tag."""
        self.result.check_arrived(self.name, commit, files)
        self.report = replace(self.report, commit=commit, tag=self._set_tag(commit))

    def _fill_pull(self) -> int:
        """Fill a pull request with the result; return its number."""
        state = self.state
        title = f"{self._pull_title} ({fingerprint(self.result.sizes, state.head)})"
        number = self.repo.find_pull(title)
        if number is None:
            self.progress.say(
                "Opening a pull request. main does not change until the pull request is merged."
            )
            number = self.repo.open_pull(title, f"On {state.head}.")
        revision = f"refs/pr/{number}"
        head = state.pulls.get(number, state.head)
        plan = self._plan(state, self.repo.files_at(head))
        self._check_sources(plan)
        shares = self._shares(plan)
        for place, share in enumerate(shares if plan.changes_dataset else []):
            card = self.card if place == len(shares) - 1 else None
            head = _commit([(self, replace(share, card=card))], revision, head, self.title)
        self.result.check_arrived(self.name, revision, self.repo.files_at(revision))
        self.repo.publish_pull(number)
        self.report = replace(self.report, commit=head, pull_request=number)
        return number

    def push_by_pull(self) -> None:
        """Push the result through a pull request, and merge it unless it was asked for."""
        if self._options.create_pr:
            self._fill_pull()
            return
        if self._options.branch != MAIN:
            raise HubConflictError(
                f"The push to {self.name} needs {self.report.commits} commits. Such a push uses a "
                "pull request, and pull requests always go to main.",
                next_step="Push without --branch.",
            )
        number = self._fill_pull()
        if self._look_again(MAIN).head != self.state.head:
            self.progress.say(f"Pull request {number} is no longer needed. Close it on the Hub.")
            self.look_after_conflict()
            raise HubConflictError(
                f"{self.name} changed during the upload to pull request {number}.",
                next_step=f"Close pull request {number} on the Hub, look at what changed, and run "
                "the same command again.",
            )
        self.repo.merge_pull(number)
        self.tag_replaced()
        merged = self._look_again(MAIN)
        self.settle(merged.head, merged.files)
        self.report = replace(self.report, merged=True)

    def _tag_in(self, state: RepoState) -> str | None:
        """Return the commit of the tag of the result's version; None if there is no such tag."""
        return state.tags.get(self.version)

    @property
    def _is_for_main(self) -> bool:
        """Whether ``main`` will hold the result, since the tag is for main's dataset.

        A folder of a repository gets no tag, since it would be for all of its datasets.
        """
        is_repository = not folder_of(self.name)
        return is_repository and self._options.branch == MAIN and not self._options.create_pr

    def _set_tag(self, commit: str) -> str:
        """Make the tag for a commit that holds the result, and return what was done."""
        if not self._is_for_main:
            return "none"
        if self._is_tagged(commit):
            return "kept"
        before = self._tag_in(self.state)
        if before is not None:
            # Uploads since the look may have taken hours.
            now = self.repo.find_tag(self.version)
            if now == commit:
                return "kept"
            if now != before:
                raise self._tag_changed(before, now)
            self.progress.say(
                f"The tag {self.version} moves from {now[:12]} to {commit[:12]}. For a moment "
                "the tag does not exist. If this command is interrupted then, run it again."
            )
            self.repo.delete_tag(self.version)
        try:
            self.repo.create_tag(self.version, commit)
        except HubConflictError as error:
            now = self.repo.find_tag(self.version)
            if now != commit:
                raise self._tag_changed(None, now) from error
        return "set" if before is None else "moved"

    def _tag_changed(self, before: str | None, now: str | None) -> HubConflictError:
        what = "made" if before is None else "moved"
        said = "removed" if now is None else f"{what} and leads to {now[:12]} now"
        return HubConflictError(
            f"{self.name} changed during this command: the tag {self.version} was {said}.",
            next_step="The result is committed, but the tag was not changed. Look at the "
            "commit that the tag leads to. Then run the same command again to set the "
            "tag.",
        )

    def _is_tagged(self, commit: str) -> bool:
        """Return whether the tag is at the commit, or at one with the same dataset."""
        tag = self._tag_in(self.state)
        if tag is None or tag == commit:
            return tag is not None
        return not self._plan(self.state, self._files_at(tag)).changes_dataset

    def _report(self, *, created: bool) -> PushReport:
        """Return the report, as far as it is known before any action."""
        state, plan, pending = self.state, self.plan, self.plan.changes_dataset
        tag = "set" if self._tag_in(state) is None else "moved"
        if not self._is_for_main:
            tag = "none"
        elif self._options.dry_run and not pending and self._is_tagged(state.head):
            tag = "kept"
        return PushReport(
            repo_id=self.name,
            url=self.repo.url(self._options.branch),
            branch=self._options.branch,
            created=created,
            before=None if created else state.head or None,
            commit=None if pending else state.head or None,
            commits=len(self.shares) if pending else int(self.card is not None),
            pull_request=None,
            merged=False,
            tag=tag,
            added=len(plan.uploads()),
            added_bytes=self.result.bytes_of(plan.uploads()),
            unchanged=len(plan.unchanged),
            deleted=plan.deleted_files,
            kept=plan.kept,
            card="kept" if self.card is None else "written",
            dry_run=self._options.dry_run,
            seconds=0.0,
            version=self.version,
            copied=len(plan.copies),
            copied_bytes=self.result.bytes_of(plan.copies),
        )


class _Push:
    """A push of one dataset, or of several into folders of one repository.

    `run` may be called again after a `HubUnavailableError`.
    """

    def __init__(self, api: HfApi, pushes: Sequence[DatasetPush], options: PushOptions) -> None:
        self._pushes = {push.name: push for push in pushes}
        self._options = options
        # The folder to list, so no more of the repository is listed than necessary.
        self._repo = Repo(api, posixpath.commonpath([*self._pushes]))

    def run(self) -> list[PushReport]:
        """Look at the repository, and do the missing work; return a report for each dataset."""
        pushes = [*self._pushes.values()]
        self._prepare()
        if len(pushes) == 1 and pushes[0].needs_pull:
            if not self._options.dry_run:
                pushes[0].push_by_pull()
            return [pushes[0].report]
        parts = [(push, push.share()) for push in pushes]
        parts = [part for part in parts if _cost_of(part)[0]]
        most = self._options.commit_operations, self._options.commit_payload_bytes
        groups = [*within_limits(parts, _cost_of, *most)]
        if len(pushes) > 1:
            for push, _ in parts:
                push.report = replace(push.report, commits=len(groups))
        if not self._options.dry_run:
            self._commit_all(groups)
        return [push.report for push in pushes]

    def _prepare(self) -> None:
        branch = self._options.branch
        refs = self._repo.refs()
        head = None if refs is None else head_of(refs, branch)
        files = {} if head is None else self._listed(head)
        for number, (name, push) in enumerate(self._pushes.items()):
            if refs is None and number and not self._options.dry_run:
                refs = self._repo.refs()  # the first push made the repo
            own = files.get(name, {})
            push.prepare(None if refs is None else push.repo.look(branch, refs, own))

    def _commit_all(self, groups: Sequence[Sequence[_Part]]) -> None:
        pushes = [*self._pushes.values()]
        state = pushes[0].state
        if not state.has_branch and not self._options.create_pr:
            self._repo.create_branch(self._options.branch, state.head)
        for push in pushes:
            if not push.plan.changes_dataset:
                push.finish()
        head = state.head
        for group in groups:
            head = self._commit(group, head)

    def _listed(self, commit: str) -> dict[str, dict[str, RemoteFile]]:
        """Return the files of each dataset at a commit, by its name and their paths in it."""
        found: dict[str, dict[str, RemoteFile]] = {}
        for path, file in self._repo.files_at(commit).items():
            place = in_folder(self._repo.name, path)
            for at in (at for at, letter in enumerate(place) if letter == "/"):
                if (name := place[:at]) in self._pushes:
                    own = place[at + 1 :]
                    found.setdefault(name, {})[own] = replace(file, path=own)
        return found

    def _commit(self, group: Sequence[_Part], parent: str) -> str:
        """Upload and commit some datasets, compare the commit with them, and set the tags.

        Returns:
            The commit.

        Raises:
            HubUnavailableError: Only other folders of the repo changed meanwhile.
            HubConflictError: The branch changed meanwhile.
        """
        pushes = [push for push, _ in group]
        title = pushes[0].title
        if len(group) > 1:
            title = f"{count(len(group), 'LeRobot dataset')} {pushes[0].version}"
        try:
            commit = _commit(group, self._options.branch, parent, title)
        except HubConflictError as error:
            raise self._conflict(pushes, parent, error) from error
        pushes = [push for push in pushes if push.plan.changes_dataset]
        for push, _ in group:
            push.report = replace(push.report, commit=commit)
        for push in pushes:
            push.tag_replaced()
        listed = self._listed(commit) if pushes else {}
        for push in pushes:
            push.settle(commit, listed.get(push.name, {}))
        return commit

    def _conflict(
        self, pushes: Sequence[DatasetPush], parent: str, error: HubConflictError
    ) -> LeconvertError:
        """Return the error for a commit that the Hub refused, with the datasets that changed.

        Raises:
            HubSourceChangedError: A dataset that was converted changed.
        """
        found = [push.look_after_conflict() for push in pushes]
        if found[0].head == parent:
            return error  # the Hub has another reason
        changed = [
            push.name
            for push, now in zip(pushes, found, strict=True)
            if now.files != push.state.files
        ]
        if not changed and all(folder_of(push.name) for push in pushes):
            return HubUnavailableError(
                f"{self._repo.name} was not pushed: other folders of the repo change again and "
                "again.",
                next_step="Run the same command again. Files that the Hub has are not uploaded "
                "again.",
            )
        if not changed or len(pushes) == 1:
            return error
        return HubConflictError(
            f"{changed[0]} changed during this command.",
            next_step=error.next_step,
            details=[f"changed: {name}" for name in changed[:20]],
        )
