"""The plan of a push, the result that is pushed, and whether it may replace what a repo holds."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import takewhile
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from leconvert.dataset.files import GIT_FILES, kept_dataset, published_files
from leconvert.dataset.formats.v2 import LEGACY_META_FILES
from leconvert.dataset.formats.v3 import (
    DATA_PATH_TEMPLATE,
    EPISODES_DIR,
    INFO_PATH,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    VIDEO_PATH_TEMPLATE,
)
from leconvert.dataset.scan.changes import FileFacts
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.versions import V3_VERSION, unreadable
from leconvert.remote.provenance import (
    CARD_PATH,
    Provenance,
    facts_of,
    hash_files,
    read_provenance,
)
from leconvert.support.errors import (
    HubConflictError,
    HubError,
    HubSourceChangedError,
    HubUnavailableError,
    VerificationError,
)
from leconvert.support.progress import Progress
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.transfer.names import HubName
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from leconvert.remote.repo import Repo, RepoState

# The files of a repo that belong to the LeRobot dataset in it, as opposed to the user's own.


_META_FILES = frozenset({*LEGACY_META_FILES, INFO_PATH, REPAIRS_PATH, STATS_PATH, TASKS_PATH})
_EPISODES = re.compile(re.escape(EPISODES_DIR) + r"/chunk-[0-9]+/file-[0-9]+\.parquet")


def version_of(info: Mapping[str, Any]) -> str:
    """Return the ``codebase_version`` of an info.json, if it is a text."""
    version = info.get("codebase_version")
    return version if isinstance(version, str) else "of no version"


def _features(info: Mapping[str, Any]) -> dict[str, str]:
    features = info.get("features")
    if not isinstance(features, Mapping):
        return {}
    return {
        str(key): str(feature.get("dtype"))
        for key, feature in features.items()
        if isinstance(feature, Mapping)
    }


def cameras_of(info: Mapping[str, Any]) -> list[str]:
    """Return the video features of an info.json, sorted."""
    return sorted(key for key, dtype in _features(info).items() if dtype == "video")


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return why a result cannot be a conversion of a repo's dataset; None if it can.

    A conversion may leave features and episodes out. It never changes the frame rate. It adds no
    features except those that every v3.0 dataset has.
    """
    if old.get("fps") != new.get("fps"):
        return f"it has {old.get('fps')} frames per second, the result {new.get('fps')}"
    unknown = _features(new).keys() - _features(old).keys() - DEFAULT_COLUMNS.keys()
    if unknown:
        return f"it has no feature {sorted(unknown)[0]!r}"
    return None


class Owned:
    """Recognises the files of the dataset that an info.json describes, by their names.

    These are the files of ``meta/`` that LeRobot and leconvert write, files of episodes by the
    templates of a v2.x dataset, and files by the templates of v3.0 for any of its cameras, since
    v3.0's readers take every such file for a part of the dataset. All other files of the repo are
    not the dataset's, whatever folder they are in.
    """

    def __init__(self, info: Mapping[str, Any]) -> None:
        cameras = cameras_of(info)
        named = [info.get("data_path"), info.get("video_path")]
        templates = [DATA_PATH_TEMPLATE, VIDEO_PATH_TEMPLATE]
        templates += [template for template in named if isinstance(template, str)]
        found = (_pattern(template, cameras) for template in templates)
        self._patterns = [pattern for pattern in found if pattern is not None]
        self._patterns.append(_EPISODES)

    def __contains__(self, path: str) -> bool:
        return path in _META_FILES or any(pattern.fullmatch(path) for pattern in self._patterns)


def _pattern(template: str, cameras: list[str]) -> re.Pattern[str] | None:
    """Return a pattern for the names that a template makes; None if it makes none, or only one."""
    pattern, numbers = "", 0
    try:
        for literal, field, _, _ in Formatter().parse(template):
            pattern += re.escape(literal)
            if field == "video_key":
                pattern += f"(?:{'|'.join(map(re.escape, cameras))})"
                if not cameras:
                    return None
            elif field is not None:
                pattern += "[0-9]+"
                numbers += 1
    except ValueError:
        return None
    return re.compile(pattern) if numbers else None


# The plan of a push, decided from two listings. No code here uses the Hub or a disk.


_LARGE_SUFFIXES = (".parquet", ".mp4", ".arrow")
# The Hub treats any file above 10 MiB as a large one.
_SURELY_LARGE_BYTES = 10 * 1024 * 1024
_BASE64 = 4 / 3


@dataclass(frozen=True, slots=True)
class CommitShare:
    """One commit's share of a dataset's plan."""

    add: tuple[str, ...]  # files
    delete: tuple[str, ...]  # files and folders, after the additions
    copies: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # as in `PushPlan`
    card: str | None = None  # the new card

    def sent(self) -> list[str]:
        """Return the files whose content is sent."""
        return [path for path in self.add if path not in self.copies]

    def cost(self, sizes: Mapping[str, int]) -> tuple[int, float]:
        """Return the number of its operations, and of its bytes in the commit's body."""
        operations = len(self.add) + len(self.delete) + (self.card is not None)
        card = payload_of({CARD_PATH: len((self.card or "").encode())})
        return operations, card + payload_of({path: sizes[path] for path in self.add})


@dataclass(frozen=True, slots=True)
class PushPlan:
    """The changes of one push to a repo."""

    # Files that are new or differ, sorted by name; the card is not among them.
    add: tuple[str, ...]
    unchanged: tuple[str, ...]  # files that the repo already has
    # Files of ``add`` whose content the repo has elsewhere: the path there, and the commit.
    copies: Mapping[str, tuple[str, str]]
    # Files of the old dataset, and folders (ending in a slash) that hold nothing else.
    delete: tuple[str, ...]
    deleted_files: int  # number of files that are deleted
    # Files of the repo that are not the dataset's and stay; the card is not among them.
    kept: tuple[str, ...]

    def uploads(self) -> tuple[str, ...]:
        """Return the files whose content is sent."""
        return tuple(path for path in self.add if path not in self.copies)

    @property
    def changes_dataset(self) -> bool:
        """Whether any file of the dataset changes."""
        return bool(self.add or self.delete)

    def commits(
        self, sizes: Mapping[str, int], *, operations: int, payload_bytes: int
    ) -> list[CommitShare]:
        """Return the plan as commits within the Hub's limits; additions come first."""
        operations = max(operations - 1, 1)

        def cost_of(path: str) -> tuple[int, float]:
            return 1, payload_of({path: sizes[path]})

        groups = [*within_limits(self.add, cost_of, operations, payload_bytes)] or [[]]
        room = operations - len(groups[-1])
        starts = range(room, len(self.delete), operations)
        deleted = [self.delete[:room], *(self.delete[at : at + operations] for at in starts)]
        before = [CommitShare(tuple(group), (), self.copies) for group in groups[:-1]]
        last = CommitShare(tuple(groups[-1]), deleted[0], self.copies)
        return [*before, last, *(CommitShare((), paths) for paths in deleted[1:])]


def plan_push(
    local: Mapping[str, int],
    remote: Mapping[str, RemoteFile],
    same: Collection[str],
    owned: Owned | None,
    digests: Mapping[str, str] = {},
    held: Mapping[str, Mapping[str, RemoteFile]] = {},
) -> PushPlan:
    """Compare a result with a repo's files.

    Args:
        local: Size of every file of the result, by path.
        remote: Files of the repo, by path.
        same: Paths of files with the same content on both sides.
        owned: Recognises files of the old dataset; None if there is no dataset.
        digests: Hashes of files of the result, as far as known.
        held: Files of the repo at some commits, from which it can copy.
    """
    local = {path: size for path, size in local.items() if path != CARD_PATH}
    add = tuple(sorted(path for path in local if path not in same))
    there = {
        file.digest: (path, commit)
        for commit in reversed([*held])  # so that the first commit takes precedence
        for path, file in held[commit].items()
        if file.is_large
    }
    unchanged = tuple(sorted(path for path in local if path in same))
    others = [path for path in remote if path not in local and path != CARD_PATH]
    gone = sorted(path for path in others if owned is not None and path in owned)
    return PushPlan(
        add=add,
        unchanged=unchanged,
        copies={
            path: there[digests[path]] for path in add if path in digests and digests[path] in there
        },
        delete=tuple(_by_folders(gone, remote, local)),
        deleted_files=len(gone),
        kept=tuple(sorted(set(others) - set(gone))),
    )


def fingerprint(local: Mapping[str, int], base: str) -> str:
    """Return a name for a push of these files onto a commit, 12 hexadecimal digits."""
    lines = [base, *(f"{path} {size}" for path, size in sorted(local.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts)):
        yield "/".join(parts[:depth]) + "/"


def _by_folders(
    gone: list[str], remote: Mapping[str, RemoteFile], local: Collection[str]
) -> Iterator[str]:
    """Yield files to delete; if all files of a folder are deleted, yield the folder instead.

    A folder counts only if no file in it stays and none is added, so the order of operations within
    a commit does not matter.
    """
    leaving = Counter(folder for path in gone for folder in _folders(path))
    present = Counter(folder for path in remote for folder in _folders(path))
    coming = {folder for path in local for folder in _folders(path)}
    told: set[str] = set()
    for path in gone:
        whole = next(
            (f for f in _folders(path) if leaving[f] == present[f] and f not in coming), None
        )
        if whole is None:
            yield path
        elif whole not in told:
            told.add(whole)
            yield whole


def within_limits[T](
    items: Iterable[T],
    cost_of: Callable[[T], tuple[int, float]],
    operations: int,
    payload_bytes: float,
) -> Iterator[list[T]]:
    """Yield items in groups, in order; a group is within the limits, or a single item.

    Args:
        items: The items.
        cost_of: Returns the operations and the bytes of an item in a commit.
        operations: Maximum of operations in a commit.
        payload_bytes: Maximum of bytes in the body of a commit.
    """
    group: list[T] = []
    used, payload = 0, 0.0
    for item in items:
        more, size = cost_of(item)
        if group and (used + more > operations or payload + size > payload_bytes):
            yield group
            group, used, payload = [], 0, 0.0
        group.append(item)
        used, payload = used + more, payload + size
    if group:
        yield group


def payload_of(sizes: Mapping[str, int]) -> float:
    """Return the number of bytes of files in the body of a commit; large files have none."""
    return sum(size * _BASE64 for path, size in sizes.items() if not _is_large(path, size))


def _is_large(path: str, size: int) -> bool:
    return path.endswith(_LARGE_SUFFIXES) or size > _SURELY_LARGE_BYTES


# The files of a result on disk, and whether the Hub has the same.


def same_as_remote(
    root: Path,
    local: Mapping[str, int],
    remote: Mapping[str, RemoteFile],
    digests: dict[str, str],
    progress: Progress,
) -> set[str]:
    """Return the files whose content the repo has under the same name.

    Only files of the same size are read.
    """
    alike = {
        path: remote[path]
        for path, size in local.items()
        if path != CARD_PATH and path in remote and remote[path].size_bytes == size
    }
    large = {path: local[path] for path, there in alike.items() if there.is_large}
    hash_files(root, large, digests, progress)
    return {
        path
        for path, there in alike.items()
        if (digests[path] == there.digest if path in large else there.is_content_of(root / path))
    }


_SHOWN = 20


class Result:
    """A dataset that is pushed, with its files when the push began.

    Args:
        root: Its folder.
        info: Its info.json.
        on_hub: SHA-256 of files whose content is only on the Hub, by path; see `push`.
        progress: Receives the progress.

    Attributes:
        version: Its version, which is also the name of the tag.
        noted: The record beside it; None if there is none.
        known: The same; None once it turns out to be another result's.
        sizes: Size of every file, by path.
        digests: SHA-256 of files, as far as known.
    """

    def __init__(
        self, root: Path, info: Mapping[str, Any], on_hub: Mapping[str, str], progress: Progress
    ) -> None:
        self.root = root
        self.info = info
        self.version = version_of(info)
        self.noted = self.known = read_provenance(root)
        published = published_files(root)
        # Every repo has Git files of its own.
        others = {path: why for path, why in published.left_out.items() if path not in GIT_FILES}
        for line in replace(published, left_out=others).remarks():
            progress.say(line)
        self.sizes = published.sizes
        self.on_hub = on_hub
        self.digests = dict(on_hub)
        self._progress = progress
        self._facts = {path: self._facts_of(path) for path in self.sizes}

    def bytes_of(self, paths: Iterable[str]) -> int:
        """Return the number of bytes of some files."""
        return sum(self.sizes[path] for path in paths)

    def same_as(self, files: Mapping[str, RemoteFile]) -> set[str]:
        """Return the files whose content a repo has under the same name."""
        return same_as_remote(self.root, self.sizes, files, self.digests, self._progress)

    def check_proven(self, *, force: bool) -> None:
        """Refuse a result that is not as proven; files of unchanged size are read.

        With ``force`` the record of another state is ignored.

        Raises:
            VerificationError: Files differ from the record.
        """
        known = self.known
        if known is None:
            return
        alike = {path: n for path, (n, _) in known.files.items() if self.sizes.get(path) == n}
        hash_files(self.root, alike, self.digests, self._progress)
        owned = Owned(self.info)  # files of others beside the dataset's own do not count
        altered = [
            path
            for path, (size, sha256) in known.files.items()
            if self.sizes.get(path) != size or self.digests[path] != sha256
        ] + [path for path in self.sizes if path in owned and path not in known.files]
        if altered and not force:
            raise self._not_as_proven(known, sorted(altered))
        if altered:
            self.known = None

    def _not_as_proven(self, known: Provenance, altered: list[str]) -> VerificationError:
        said = f"{count(len(altered), 'file')} changed since then"
        if not known.files:
            said = "an old version of leconvert made it and recorded no hashes"
        there = known.repo_id or (known.source and Path(known.source).is_dir())
        source = known.place if there else "SOURCE"
        return VerificationError(
            f"Nothing proves that {self.root} is still the result of a conversion: {said}.",
            path=str(self.root),
            next_step=f"`leconvert verify {shlex.quote(str(self.root))} --source "
            f"{shlex.quote(source)} --bytes` compares it with its source. If nothing differs, run "
            "the same push again. If you changed it on purpose, --force-push pushes it as it is.",
            details=altered[:_SHOWN] if known.files else (),
        )

    def _facts_of(self, path: str) -> FileFacts | None:
        try:
            # Some file systems change inode numbers while nobody changes the files.
            return replace(FileFacts.of(self.root / path), inode=0)
        except OSError:
            return None

    def check_unchanged(self, what_was_done: str) -> None:
        """Refuse a result that changes during the push: other bytes were read than sent."""
        changed = [path for path, facts in self._facts.items() if self._facts_of(path) != facts]
        if changed:
            raise VerificationError(
                f"{count(len(changed), 'file')} of {self.root} changed during the push. "
                f"{what_was_done}",
                path=str(self.root),
                next_step="Run the same command again when no other program writes to the dataset.",
                details=changed[:_SHOWN],
            )

    def check_arrived(self, repo_id: str, revision: str, files: Mapping[str, RemoteFile]) -> None:
        """Compare the files of a revision with the result.

        Raises:
            HubConflictError: A file is missing or differs.
            VerificationError: The result itself changed.
        """
        not_tagged = f"The tag {self.version} was not set."
        self.check_unchanged(not_tagged)
        wrong = [
            path
            for path, size in self.sizes.items()
            if path != CARD_PATH
            and (
                (there := files.get(path)) is None
                or there.size_bytes != size
                or not self._is_content_of(there)
            )
        ]
        if wrong:
            raise HubConflictError(
                f"{revision} of {repo_id} is not the result: "
                f"{count(len(wrong), 'file differs', 'files differ')}.",
                next_step=f"{not_tagged} Run the same command again.",
                details=wrong[:_SHOWN],
            )

    def _is_content_of(self, there: RemoteFile) -> bool:
        """Return whether a file of the same size has the same content, if its hash is known."""
        if there.is_large:
            return self.digests.get(there.path, there.digest) == there.digest
        return there.is_content_of(self.root / there.path)


# The check before a push: may it replace what is there?


_FORCE = "To replace it in spite of this, add --force-push."
_COMMITS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Replacement:
    """A push that changes a repo's files, before anything is written."""

    repo: Repo
    state: RepoState
    plan: PushPlan
    result: Result
    progress: Progress

    def check(self) -> None:
        """Refuse to replace a dataset that the result was not made from.

        Raises:
            HubConflictError: The repo holds another dataset, or other files.
        """
        repo_id, state = self.repo.name, self.state
        info = self.result.info
        if not state.files:
            return
        if state.info is None:
            taken = sorted(self.result.sizes.keys() & state.files.keys() - {CARD_PATH})
            if taken:
                raise HubConflictError(
                    f"The repo {repo_id} is not a LeRobot dataset, but has a {taken[0]} of "
                    "its own.",
                    next_step="Check the name. " + _FORCE,
                )
            return
        version = version_of(state.info)
        if wrong := unreadable(state.info, repo_id):
            raise HubConflictError(
                f"{wrong.message} So it is unknown which files a push may replace.",
                next_step="Push to another repo with --push-repo-id.",
            )
        if version == V3_VERSION:
            if version_of(info) == version:
                if self._appends(state.info):
                    return
                raise self._refusal(f"already holds another {version} dataset")
            raise self._refusal(
                f"holds a {version} dataset, which a {version_of(info)} dataset would replace",
                "Push to another repo with --push-repo-id. " + _FORCE,
            )
        why = differs(state.info, info)
        if why is not None:
            raise self._refusal(f"holds another dataset: {why}")
        self._check_origin(self.result.known or Provenance(), Owned(state.info))

    def _appends(self, there: Mapping[str, Any]) -> bool:
        """Return whether the push adds episodes to the repo's dataset, as `convert --append` does.

        All its files of episodes stay, by content. Only tables are replaced, by tables about more
        episodes.
        """
        kept = [path for path in self.plan.unchanged if not path.startswith("meta/")]
        replaced = [path for path in self.plan.add if path in self.state.files]
        named = ("fps", "robot_type", "features", "data_path", "video_path", "chunks_size")
        before, now = (info.get("total_episodes") for info in (there, self.result.info))
        return (
            bool(kept)
            and not self.plan.delete
            and all(path.startswith("meta/") for path in replaced)
            and all(there.get(name) == self.result.info.get(name) for name in named)
            and isinstance(before, int)
            and isinstance(now, int)
            and before < now
        )

    def _check_origin(self, known: Provenance, owned: Owned) -> None:
        """Refuse if the repo's dataset is not the one that was converted, file by file."""
        there = {path: file for path, file in self.state.files.items() if path in owned}
        if known.repo_id:
            if (known.repo_id, known.commit) == (self.repo.name, self.state.head):
                return
            changed = self._changed_since(known, there, owned)
            origin, from_here = known.commit[:12], known.repo_id == self.repo.name
            said = f"changed after the converted commit {origin}: "
            if not from_here:
                said = f"holds another dataset than the converted {known.repo_id} at {origin}: "
            next_step = (
                f"`leconvert convert --repo-id {shlex.quote(self.repo.name)} --revision "
                f"{shlex.quote(self.state.head)} --root FOLDER --push-to-hub`, with a "
                "new FOLDER, converts the present state. " + _FORCE
            )
            if changed:
                said += (
                    f"{count(len(changed), 'file')} {'differs' if len(changed) == 1 else 'differ'}"
                )
                since = known.commit if from_here else ""
                kind = HubSourceChangedError if from_here else HubConflictError
                raise self._refusal(said, next_step, changed, since=since, kind=kind)
            return
        if known.source_facts and Path(known.source).is_dir():
            with kept_dataset(Path(known.source)) as source:
                local = {p: (source / p).stat().st_size for p in there if (source / p).is_file()}
                same = same_as_remote(source, local, there, {}, self.progress)
            if same >= there.keys() and facts_of(Path(known.source)) == known.source_facts:
                return
        url = str(HubName(self.repo.name, self.state.head))
        raise self._refusal(
            f"holds a dataset, and no record says that {self.result.root} was made from it",
            f"`leconvert verify {shlex.quote(str(self.result.root))} --source {shlex.quote(url)} "
            "--bytes` compares the two. If nothing differs, run the same push again. "
            f"{_FORCE}",
        )

    def _changed_since(
        self, known: Provenance, there: Mapping[str, RemoteFile], owned: Owned
    ) -> list[str]:
        try:
            before = self.repo.files_at(known.commit, known.repo_id)
        except HubUnavailableError:
            raise
        except HubError as error:
            # It cannot be known what changed: the history was squashed, or the repo was made again.
            raise self._refusal(
                f"holds a dataset, and {known.repo_id} no longer has the converted commit "
                f"{known.commit[:12]}"
            ) from error
        converted = {path: file for path, file in before.items() if path in owned}
        return sorted(
            path
            for path in converted.keys() | there.keys()
            if converted.get(path) != there.get(path)
        )

    def _refusal(
        self,
        said: str,
        next_step: str = "Check the name. " + _FORCE,
        changed: Sequence[str] = (),
        *,
        since: str = "",
        kind: type[HubConflictError] = HubConflictError,
    ) -> HubConflictError:
        """Return the error, with what the push would delete and replace."""
        held, brought = self.state.info or {}, self.result.info
        replaced = sum(path in self.state.files for path in self.plan.add)
        found = self.repo.commits(self.state.head)
        newer = takewhile(lambda commit: commit.commit_id != since, found)
        commits = [f"{c.commit_id[:12]} {c.created_at:%Y-%m-%d} {c.title}" for c in newer]
        return kind(
            f"{self.repo.name} {said}.",
            next_step=next_step,
            details=[
                f"in the repo: {_extent(held)}, {version_of(held)}; the result: {_extent(brought)}",
                f"{count(self.plan.deleted_files, 'file')} would be deleted and "
                f"{replaced:,} replaced; they would stay only in the history of the repo",
                *(f"differs: {path}" for path in changed[:_SHOWN]),
                f"{count(len(commits), 'commit')} since the conversion"
                if since
                else f"{count(len(commits), 'commit')} in all",
                *commits[:_COMMITS_SHOWN],
            ],
        )


def _extent(info: Mapping[str, Any]) -> str:
    """Return the size of a dataset in words, as far as its info.json states it."""
    totals = [(info.get(f"total_{noun}s"), noun) for noun in ("episode", "frame")]
    told = [count(number, noun) for number, noun in totals if isinstance(number, int)]
    return " and ".join(told) or "a dataset of unknown size"
