"""Push a result to the Hub: contents first, then one commit, then the tag.

**What readers meet**, whatever fails and whenever: all old; the branch new and the tag ``v3.0``
old or missing; all new. Contents of large files go up first and nobody sees them. One commit, made
only if its parent is still the branch's head, adds the new files, deletes the old dataset's and
brings the card. Then its listing is compared with the result, and only then the tag is set.

**What a rerun does.** Nothing about a push is kept on this side. Each try looks at the repo and
does what is missing: files that the repo has are not sent, contents that the Hub has are not sent,
a commit that was made is found by its files, and a missing tag is set before anything else. The
same look follows an answer that got lost, since then only the repo knows what was done.

**What is not promised.** Two pushes at once: the slower one ends with a conflict. A merge of a pull
request takes no parent: it is compared just before, and the listing just after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.errors import (
    HubAccessError,
    HubConflictError,
    HubError,
    HubUnavailableError,
    UsageError,
)
from leconvert.hub.card import render_card
from leconvert.hub.client import make_api, without_its_bars
from leconvert.hub.errors_of import TOKEN_HELP
from leconvert.hub.guard import check_complete, check_may_replace, checked_result
from leconvert.hub.local_files import git_hash, list_local, same_as_remote
from leconvert.hub.ownership import Owned, version_of
from leconvert.hub.plan_push import (
    CARD_PATH,
    CommitShare,
    PushPlan,
    RemoteFile,
    fingerprint,
    plan_push,
)
from leconvert.hub.provenance import Provenance
from leconvert.hub.push_report import MAIN, PushOptions, PushReport
from leconvert.hub.upload import Uploader
from leconvert.hub.view import NOTHING, RepoState, list_files, look_at
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.tables import read_repairs
from leconvert.workdir.durable import storage_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["PushOptions", "PushReport", "push"]

_PAUSES_SECONDS = (2.0, 8.0)  # after each try that ended without an answer, but the last


def push(
    result: Path,
    repo_id: str,
    options: PushOptions | None = None,
    *,
    provenance: Provenance | None = None,
    api: HfApi | None = None,
    pause: Callable[[float], None] = time.sleep,
    progress: Progress = NO_PROGRESS,
) -> PushReport:
    """Push a v3.0 dataset.

    Args:
        result: Its folder; only read.
        repo_id: The target, ``ORG/NAME``.
        options: How.
        provenance: Where it came from, for the card and for the check that the repo has not
            changed since.
        api: A client; None for one with ``HF_ENDPOINT`` and the user's token.
        pause: Waits so many seconds between tries.
        progress: Where to report.

    Returns:
        What was sent and removed, and the commit that holds it.

    Raises:
        SourceError: The folder holds no v3.0 dataset.
        VerificationError: The dataset is not complete.
        HubError: There is no such repo, or the Hub does not answer.
        HubAccessError: The token is missing, wrong, or does not allow it.
        HubConflictError: The repo changed meanwhile, or holds another dataset.
    """
    options = options or PushOptions()
    if options.create_pr and options.branch != MAIN:
        raise UsageError("--create-pr and --branch exclude each other: pull requests are to main.")
    info = checked_result(result, progress)
    api = api or make_api()
    if not options.dry_run and not _has_token(api):
        raise HubAccessError(
            f"A push to {repo_id} needs a token, and there is none.", next_step=TOKEN_HELP
        )
    if provenance is None and (repairs := read_repairs(result)):
        provenance = Provenance(changes=tuple(repairs.summary()))
    job = _Push(api, result, repo_id, info, options, provenance, progress)
    started = time.monotonic()
    with without_its_bars():
        for seconds in _PAUSES_SECONDS:
            try:
                return replace(job.run(), seconds=time.monotonic() - started)
            except HubUnavailableError as error:
                progress.say(f"{error.message} Looking again in {seconds:.0f} s.")
                pause(seconds)
        return replace(job.run(), seconds=time.monotonic() - started)


def _has_token(api: HfApi) -> bool:
    from huggingface_hub import get_token

    return bool(api.token if api.token is not None else get_token())


class _Push:
    """One push; `run` may be called again after `HubUnavailableError`."""

    def __init__(
        self,
        api: HfApi,
        result: Path,
        repo_id: str,
        info: dict[str, Any],
        options: PushOptions,
        provenance: Provenance | None,
        progress: Progress,
    ) -> None:
        self._api = api
        self._result = result
        self._repo_id = repo_id
        self._info = info
        self._options = options
        self._provenance = provenance
        self._progress = progress
        self._sizes = list_local(result)
        self._digests: dict[str, str] = {}
        self._begun: PushReport | None = None
        self._uploader = Uploader(api, repo_id, result, self._digests, threads=options.threads)

    def run(self) -> PushReport:
        """Look, and do what is missing."""
        options = self._options
        state = look_at(self._api, self._repo_id, options.branch)
        created = state is None
        if state is None and not options.create:
            raise HubError(
                f"{self._repo_id} is no dataset on the Hub, or this token may not see it.",
                next_step="Check the name. " + TOKEN_HELP,
            )
        if state is None and not options.dry_run:
            self._uploader.create_repo(private=options.private)
            state = self._look_again(options.branch)
        state = state or NOTHING
        plan = self._plan(state.files, state)
        card = self._card(state)
        report = self._report(state, plan, card, created=created)
        if self._begun is not None:
            # Another try: what an earlier one did of it counts too.
            report = replace(self._begun, commit=report.commit, tag=report.tag)
        self._begun = report
        if plan.changes_dataset and not options.force:
            check_may_replace(
                self._api, self._repo_id, state, self._info, self._sizes, self._provenance
            )
        if options.dry_run:
            return report
        if not state.has_branch and not options.create_pr:
            self._uploader.create_branch(options.branch, state.head)
        if not plan.changes_dataset:
            return self._finish(state, card, report)
        shares = self._shares(plan)
        if options.create_pr:
            number, head = self._fill_pull(state, card)
            return replace(report, commit=head, pull_request=number, commits=len(shares))
        if len(shares) > 1:
            return self._merge(state, card, replace(report, commits=len(shares)))
        commit = self._commit(shares[0], card, options.branch, state.head)
        self._check_complete(commit)
        return replace(report, commit=commit, tag=self._tag(state, commit))

    def _look_again(self, branch: str) -> RepoState:
        state = look_at(self._api, self._repo_id, branch)
        if state is None:
            raise HubError(
                f"{self._repo_id} is there, but this token may not see it; or it was removed.",
                next_step=TOKEN_HELP,
            )
        return state

    # --- deciding -----------------------------------------------------------------------------

    def _plan(self, files: Mapping[str, RemoteFile], state: RepoState) -> PushPlan:
        same = same_as_remote(self._result, self._sizes, files, self._digests, self._progress)
        owned = None if state.info is None else Owned({**self._info, **state.info})
        return plan_push(self._sizes, files, same, owned)

    def _shares(self, plan: PushPlan) -> list[CommitShare]:
        return plan.commits(
            self._sizes,
            operations=self._options.commit_operations,
            payload_bytes=self._options.commit_payload_bytes,
        )

    def _card(self, state: RepoState) -> str | None:
        """Return the new card, or None where it stays as it is."""
        if state.card is not None and not self._options.card:
            return None
        stored, place = state.card, f"README.md in {self._repo_id}"
        if stored is None and CARD_PATH in self._sizes:
            path = self._result / CARD_PATH
            with storage_errors(path):
                stored, place = path.read_bytes(), str(path)
        try:
            before = None if stored is None else stored.decode()
        except UnicodeDecodeError as error:
            raise HubConflictError(
                f"{place} is no text in UTF-8, which the Hub asks for.",
                path=CARD_PATH,
                next_step="Store it in UTF-8. Where the repo has one, --no-card leaves it alone.",
            ) from error
        if not self._options.card:
            return before
        text = render_card(
            before,
            self._info,
            repo_id=self._repo_id,
            sizes={path: size for path, size in self._sizes.items() if path != CARD_PATH},
            provenance=self._provenance,
        )
        there = state.files.get(CARD_PATH)
        return None if there and there.blob == git_hash(text.encode()) else text

    # --- acting -------------------------------------------------------------------------------

    def _commit(self, share: CommitShare, card: str | None, revision: str, parent: str) -> str:
        size = sum(self._sizes[path] for path in share.add)
        with self._progress.stage("upload", size, "B") as stage:
            additions = self._uploader.upload(share.add, self._sizes, revision, stage)
        return self._uploader.commit(
            share,
            additions,
            card,
            revision=revision,
            parent=parent,
            message=f"LeRobot dataset {version_of(self._info)}",
        )

    def _finish(self, state: RepoState, card: str | None, report: PushReport) -> PushReport:
        """Set the tag of a result that is there, then bring the card up to date."""
        tag = "none" if self._options.create_pr else self._tag(state, state.head)
        commit = state.head
        if card is not None and not self._options.create_pr:
            commit = self._commit(CommitShare((), ()), card, self._options.branch, state.head)
        return replace(report, commit=commit, tag=tag)

    def _fill_pull(self, state: RepoState, card: str | None) -> tuple[int, str]:
        """Bring the result into a pull request, left open; return its number and its head."""
        title = f"Convert to LeRobot v3.0 ({fingerprint(self._sizes, state.head)})"
        number = self._uploader.find_pull(title)
        if number is None:
            self._progress.say("Opening a pull request; main stays as it is meanwhile.")
            number = self._uploader.open_pull(title, f"On {state.head}.")
        revision = f"refs/pr/{number}"
        head = state.pulls.get(number, state.head)
        plan = self._plan(list_files(self._api, self._repo_id, head), state)
        shares = self._shares(plan)
        for place, share in enumerate(shares if plan.changes_dataset else []):
            text = card if place == len(shares) - 1 else None
            head = self._commit(share, text, revision, head)
        self._check_complete(revision)
        self._uploader.publish_pull(number)
        return number, head

    def _merge(self, state: RepoState, card: str | None, report: PushReport) -> PushReport:
        """Bring the result through a pull request: more operations than one commit takes."""
        if self._options.branch != MAIN:
            raise HubConflictError(
                f"{self._repo_id} needs {report.commits} commits, and only main takes several at "
                "once, by a pull request.",
                next_step="Push without --branch.",
            )
        number, _ = self._fill_pull(state, card)
        if self._look_again(MAIN).head != state.head:
            raise HubConflictError(
                f"{self._repo_id} changed while pull request {number} was filled.",
                next_step=f"Close pull request {number} on the Hub, look at what changed, and run "
                "the same command again.",
            )
        self._uploader.merge_pull(number)
        merged = self._look_again(MAIN)
        self._check_complete(merged.head)
        tag = self._tag(merged, merged.head)
        return replace(report, commit=merged.head, pull_request=number, merged=True, tag=tag)

    def _check_complete(self, revision: str) -> None:
        files = list_files(self._api, self._repo_id, revision)
        check_complete(self._repo_id, revision, files, self._sizes, self._digests, self._result)

    def _tag(self, state: RepoState, commit: str) -> str:
        """Let the tag name a commit that holds the result, and say what was done."""
        if self._is_tagged(state, commit):
            return "kept"
        self._uploader.set_tag(commit, state.tag, self._progress.say)
        return "set" if state.tag is None else "moved"

    def _is_tagged(self, state: RepoState, commit: str) -> bool:
        """Tell whether the tag names the commit, or one that differs in others' files alone."""
        if state.tag in (None, commit):
            return state.tag is not None
        tagged = list_files(self._api, self._repo_id, state.tag)
        return not self._plan(tagged, state).changes_dataset

    def _report(
        self, state: RepoState, plan: PushPlan, card: str | None, *, created: bool
    ) -> PushReport:
        """Return what there is to do, as far as it is known before it is done."""
        pending = plan.changes_dataset
        tag = "set" if state.tag is None else "moved"
        if self._options.dry_run and not pending and self._is_tagged(state, state.head):
            tag = "kept"
        return PushReport(
            repo_id=self._repo_id,
            url=f"{self._api.endpoint}/datasets/{self._repo_id}",
            branch=self._options.branch,
            created=created,
            before=None if created else state.head or None,
            commit=None if pending else state.head or None,
            commits=len(self._shares(plan)) if pending else int(card is not None),
            pull_request=None,
            merged=False,
            tag="none" if self._options.create_pr else tag,
            added=len(plan.add),
            added_bytes=plan.add_bytes,
            unchanged=len(plan.unchanged),
            deleted=plan.deleted_files,
            kept=plan.kept,
            card="kept" if card is None else "written",
            dry_run=self._options.dry_run,
            seconds=0.0,
        )
