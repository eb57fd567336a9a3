"""Pushes datasets into folders of one repository, in one commit.

Each dataset is checked and proven as by `leconvert.remote.push`, which describes the states that
readers see and the work of a rerun. There is no tag, since it would stand for everything in the
repository.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.dataset.check.dataset import checked_result
from leconvert.remote.options import PushOptions
from leconvert.remote.push import DatasetPush, PushReport, others_change
from leconvert.remote.push_plan import (
    CARD_PATH,
    TAGS,
    CommitShare,
    RepoState,
    files_at,
    head_of,
    payload_of,
    read_refs,
)
from leconvert.support.errors import HubConflictError, HubUnavailableError, UsageError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.text import count
from leconvert.transfer.client import Patience, check_token, make_api, without_its_bars
from leconvert.transfer.names import folder_of, in_folder, repository_of
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def push_folders(
    results: Mapping[str, Path],
    options: PushOptions = PushOptions(),
    *,
    api: HfApi | None = None,
    pause: Callable[[float], object] | None = None,
    progress: Progress = NO_PROGRESS,
) -> list[PushReport]:
    """Push datasets into folders of one repository, in one commit.

    Each is checked as `push` checks it, before anything is written. If the Hub does not accept all
    of them in one commit, several commits are made; each commit holds only whole datasets.

    Args:
        results: The datasets' folders by their names on the Hub, ``ORG/NAME/path/to/dataset`` each.
        options: The options; ``repo_id`` is ignored.
        api: As for `push`.
        pause: As for `push`.
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
    api = api or make_api()
    if not options.dry_run:
        check_token(names[0], api)
    pushes = [
        DatasetPush(
            api,
            results[name],
            name,
            checked_result(results[name], TAGS, progress=progress),
            options,
            {},
            progress,
        )
        for name in names
    ]
    together = _PushTogether(api, repository_of(names[0]), pushes, options, progress)
    started = time.monotonic()
    patience = Patience(pause=pause)
    with without_its_bars():
        while True:
            try:
                reports = together.run()
                break
            except HubUnavailableError as error:
                patience.wait(error, say=progress.say)
    for each in pushes if not options.dry_run else ():
        each.note_pushed()
    return [replace(report, seconds=time.monotonic() - started) for report in reports]


@dataclass(slots=True)
class _Part:
    """One of several datasets that are pushed together, with the state of the current try."""

    push: DatasetPush
    state: RepoState
    share: CommitShare
    copies: Mapping[str, tuple[str, str]]
    card: str | None
    report: PushReport

    @property
    def operations(self) -> int:
        """Number of its operations in a commit."""
        return len(self.share.add) + len(self.share.delete) + (self.card is not None)

    @property
    def payload_bytes(self) -> float:
        """Number of its bytes in the body of a commit."""
        card = payload_of({CARD_PATH: len((self.card or "").encode())})
        return card + payload_of({path: self.push.sizes[path] for path in self.share.add})


class _PushTogether:
    """Several pushes to folders of one repository.

    `run` may be called again after a `HubUnavailableError`.
    """

    def __init__(
        self,
        api: HfApi,
        repository: str,
        pushes: Sequence[DatasetPush],
        options: PushOptions,
        progress: Progress,
    ) -> None:
        self._api = api
        self._repository = repository
        self._pushes = pushes
        self._options = options
        self._progress = progress
        folders = [folder_of(push.name) for push in pushes]
        # The folder to list, so no more of the repository is listed than necessary.
        self._top = in_folder(repository, posixpath.commonpath(folders))

    def run(self) -> list[PushReport]:
        """Look at the repository, and do the missing work.

        Returns:
            A report for each dataset.
        """
        options = self._options
        refs = read_refs(self._api, self._repository)
        head = None if refs is None else head_of(refs, options.branch)
        files = {} if head is None else self._listed(head)
        parts: list[_Part] = []
        for push in self._pushes:
            if refs is None and parts and not options.dry_run:
                refs = read_refs(self._api, self._repository)  # the first push made the repo
            seen = None if refs is None else push.look(refs, files.get(push.name, {}))
            state, plan, card, report = push.prepare(seen)
            parts.append(_Part(push, state, push.share_of(plan), plan.copies, card, report))
        reports = {part.push.name: part.report for part in parts}
        pending = [part for part in parts if part.operations]
        groups = list(self._groups(pending))
        for part in pending:
            reports[part.push.name] = replace(part.report, commits=len(groups))
        if options.dry_run or not groups:
            return [*reports.values()]
        state = parts[0].state
        if not state.has_branch:
            parts[0].push.uploader.create_branch(options.branch, state.head)
        head = state.head
        for group in groups:
            head = self._commit(group, head)
            for part in group:
                reports[part.push.name] = replace(reports[part.push.name], commit=head)
        return [*reports.values()]

    def _listed(self, commit: str) -> dict[str, dict[str, RemoteFile]]:
        """Return the files of each dataset at a commit, by its name and their paths in it."""
        owners = {f"{push.name}/": push.name for push in self._pushes}
        found: dict[str, dict[str, RemoteFile]] = {}
        for path, file in files_at(self._api, self._top, commit).items():
            place = in_folder(self._top, path)
            for at in (at for at, letter in enumerate(place) if letter == "/"):
                if (name := owners.get(place[: at + 1])) is not None:
                    own = place[at + 1 :]
                    found.setdefault(name, {})[own] = replace(file, path=own)
        return found

    def _groups(self, parts: Iterable[_Part]) -> Iterator[list[_Part]]:
        """Yield groups of datasets that fit into one commit."""
        most, most_bytes = self._options.commit_operations, self._options.commit_payload_bytes
        group: list[_Part] = []
        operations, payload_bytes = 0, 0.0
        for part in parts:
            operations += part.operations
            payload_bytes += part.payload_bytes
            if group and (operations > most or payload_bytes > most_bytes):
                yield group
                group = []
                operations, payload_bytes = part.operations, part.payload_bytes
            group.append(part)
        if group:
            yield group

    def _commit(self, group: Sequence[_Part], parent: str) -> str:
        """Upload and commit some datasets, then compare the repository with them.

        Returns:
            The commit.
        """
        first, branch = group[0].push, self._options.branch
        size_bytes = sum(part.report.added_bytes for part in group)
        with self._progress.stage("upload", size_bytes, "B") as stage:
            sent = [part.push.sendings(part.share, part.copies, stage) for part in group]
            first.uploader.upload([*chain.from_iterable(sent)], branch)
        operations: list[Any] = []
        for part, own in zip(group, sent, strict=True):
            part.push.check_unchanged("Nothing was committed.")
            added = [addition for addition, _ in own]
            operations += part.push.uploader.operations(part.share, added, part.copies, part.card)
        said = count(len(group), "LeRobot dataset")
        try:
            commit = first.uploader.commit(
                operations, revision=branch, parent=parent, message=f"{said} {first.version}"
            )
        except HubConflictError:
            if parent == group[0].state.head and all(p.push.has_same_files(p.state) for p in group):
                raise others_change(self._repository) from None
            raise
        listed = self._listed(commit)
        for part in group:
            part.push.check_complete(commit, listed.get(part.push.name, {}))
        return commit
