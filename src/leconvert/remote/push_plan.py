"""The plan of a push, decided from two listings, and the checks before and after it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from leconvert.dataset.files import kept_dataset
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
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.versions import V3_VERSION, unreadable
from leconvert.remote.provenance import Provenance, facts_of
from leconvert.support.errors import (
    HubConflictError,
    HubError,
    HubSourceChangedError,
    HubUnavailableError,
    VerificationError,
)
from leconvert.support.progress import Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count
from leconvert.transfer.client import hub_errors
from leconvert.transfer.hub import HubRepo, HubStore
from leconvert.transfer.names import repository_of
from leconvert.transfer.store import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import GitCommitInfo, GitRefs, HfApi

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


CARD_PATH = "README.md"
_LARGE_SUFFIXES = (".parquet", ".mp4", ".arrow")
# The Hub treats any file above 10 MiB as a large one.
_SURELY_LARGE_BYTES = 10 * 1024 * 1024
_BASE64 = 4 / 3


@dataclass(frozen=True, slots=True)
class CommitShare:
    """One commit's share of a plan: files to add, then files and folders to delete."""

    add: tuple[str, ...]
    delete: tuple[str, ...]


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
        return list(_cut(self.add, self.delete, sizes, max(operations - 1, 1), payload_bytes))


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


def _cut(
    add: tuple[str, ...],
    delete: tuple[str, ...],
    sizes: Mapping[str, int],
    operations: int,
    payload_bytes: int,
) -> Iterator[CommitShare]:
    added: list[str] = []
    payload = 0.0
    for path in add:
        cost = payload_of({path: sizes[path]})
        if added and (len(added) >= operations or payload + cost > payload_bytes):
            yield CommitShare(tuple(added), ())
            added, payload = [], 0.0
        added.append(path)
        payload += cost
    begun = tuple(added)
    room = operations - len(begun)
    yield CommitShare(begun, delete[:room])
    for start in range(room, len(delete), operations):
        yield CommitShare((), delete[start : start + operations])


def payload_of(sizes: Mapping[str, int]) -> float:
    """Return the number of bytes of files in the body of a commit; large files have none."""
    return sum(size * _BASE64 for path, size in sizes.items() if not _is_large(path, size))


def _is_large(path: str, size: int) -> bool:
    return path.endswith(_LARGE_SUFFIXES) or size > _SURELY_LARGE_BYTES


# The files of a result on disk, and whether the Hub has the same.


_THREADS = 4


def _sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(
    root: Path, sizes: Mapping[str, int], digests: dict[str, str], progress: Progress
) -> None:
    """Hash the files that have no digest yet."""
    unread = [path for path in sizes if path not in digests]
    if not unread:
        return
    with (
        progress.stage("hash", sum(sizes[path] for path in unread), "B") as stage,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool,
    ):
        places = [root / path for path in unread]
        for path, digest in zip(unread, pool.map(_sha256_of, places), strict=True):
            digests[path] = digest
            stage.advance(sizes[path])


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


# Checks around a push: is there a dataset, may it replace what is there, did it arrive?


# The state of a repo, as a push needs it before and after its actions.


KIND = "dataset"
TAGS = ("v3.0", "v2.1")
"""The versions that are pushed: LeRobot finds a dataset by a tag with the name of its version."""


@dataclass(frozen=True, slots=True)
class RepoState:
    """One look at a repo."""

    head: str  # the commit that a push would add to; that of ``main`` if the branch does not exist
    has_branch: bool  # whether the branch exists
    tag: str | None  # the commit of the tag of the result's version; None if there is no such tag
    tags: Mapping[str, str]  # the commit of every tag, by name
    pulls: Mapping[int, str]  # the head of every pull request, by number
    files: Mapping[str, RemoteFile]  # every file at ``head``
    # The dataset's info.json at ``head``; None if there is no dataset.
    info: Mapping[str, Any] | None
    card: bytes | None  # the stored card at ``head``; None if there is none


NOTHING = RepoState("", False, None, {}, {}, {}, None, None)  # a repo that does not exist yet


def read_refs(api: HfApi, repo_id: str) -> GitRefs | None:
    """Return branches, tags and pull requests; None if there is no repo that the token can see."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with hub_errors(repo_id):
        try:
            return api.list_repo_refs(
                repository_of(repo_id), repo_type=KIND, include_pull_requests=True
            )
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None


def head_of(refs: GitRefs, branch: str) -> str | None:
    """Return the parent of a push to a branch; None in an empty repo."""
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    return heads.get(branch, heads.get("main"))


def read_repo_state(
    api: HfApi,
    repo_id: str,
    branch: str,
    tag: str,
    refs: GitRefs | None = None,
    files: Mapping[str, RemoteFile] | None = None,
) -> RepoState | None:
    """Return the state of a repo; None if there is no repo that the token can see.

    Args:
        refs: The answer of `read_refs`, if it is known.
        files: Every file of the dataset at `head_of` the branch, if they were listed.
    """
    refs = refs or read_refs(api, repo_id)
    if refs is None:
        return None
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    tags = {ref.name: ref.target_commit for ref in refs.tags}
    pulls = {
        int(ref.ref.rsplit("/", 1)[1]): ref.target_commit
        for ref in refs.pull_requests or []
        if ref.ref.rsplit("/", 1)[1].isdigit()
    }
    head = head_of(refs, branch)
    if head is None:
        return NOTHING
    there = files_at(api, repo_id, head) if files is None else files

    def content(path: str) -> bytes | None:
        if path not in there:
            return None
        return content_of(api, repo_id, head, path, there[path].digest)

    info = content(INFO_PATH)
    return RepoState(
        head=head,
        has_branch=branch in heads,
        tag=tags.get(tag),
        tags=tags,
        pulls=pulls,
        files=there,
        info=None if info is None else _json(info),
        card=content(CARD_PATH),
    )


def find_tag(api: HfApi, repo_id: str, tag: str) -> str | None:
    """Return the current commit of a tag; None if there is no such tag."""
    with hub_errors(repo_id):
        refs = api.list_repo_refs(repository_of(repo_id), repo_type=KIND)
    return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)


def is_private(api: HfApi, repo_id: str) -> bool | None:
    """Return whether a repo is private; None if there is no repo that the token can see."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with hub_errors(repo_id):
        try:
            return bool(api.repo_info(repository_of(repo_id), repo_type=KIND).private)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None


def list_commits(api: HfApi, repo_id: str, head: str) -> list[GitCommitInfo]:
    """Return the commits up to a head, newest first."""
    with hub_errors(repo_id, head):
        return api.list_repo_commits(repository_of(repo_id), repo_type=KIND, revision=head)


def files_at(api: HfApi, repo_id: str, revision: str) -> dict[str, RemoteFile]:
    """Return every file of a dataset at a revision, by its path in the dataset's folder."""
    return {file.path: file for file in _store_at(api, repo_id, revision).list_files()}


def _store_at(api: HfApi, repo_id: str, revision: str) -> HubStore:
    """Return a store that tries once: after a failure, a push looks at everything again."""
    return HubStore(HubRepo(repo_id, revision, api.endpoint, token=api.token), tries=1)


def content_of(api: HfApi, repo_id: str, revision: str, path: str, digest: str = "") -> bytes:
    """Return the content of a small file of a repo; empty if the file does not exist.

    Args:
        api: The client.
        repo_id: The repo.
        revision: The revision.
        path: The file.
        digest: Its digest in a listing, as in `RemoteFile`.

    Raises:
        HubError: The file is listed, but does not exist.
    """
    content = _store_at(api, repo_id, revision).read_whole(path, digest)
    if content is None and digest:
        raise HubError(
            f"{repo_id} at {revision} lists the file {path}, but does not have it.",
            path=path,
            next_step="Run the same command again.",
        )
    return content or b""


def info_at(api: HfApi, repo_id: str, commit: str) -> dict[str, Any]:
    """Return the ``meta/info.json`` of a commit; empty if it has no dataset."""
    return _json(content_of(api, repo_id, commit, INFO_PATH))


def _json(content: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else, which describes no dataset."""
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


# Checks around a push: is there a dataset, may it replace what is there, did it arrive?


_FORCE = "To replace it in spite of this, add --force-push."
_SHOWN = 20
_COMMITS_SHOWN = 5


def altered_files(
    result: Path,
    info: Mapping[str, Any],
    known: Provenance,
    sizes: Mapping[str, int],
    digests: dict[str, str],
    progress: Progress,
) -> list[str]:
    """Return the files of a result that are not as proven; files of unchanged size are read."""
    alike = {path: size for path, (size, _) in known.files.items() if sizes.get(path) == size}
    hash_files(result, alike, digests, progress)
    return known.altered(info, sizes, digests)


def not_as_proven(result: Path, known: Provenance, altered: list[str]) -> VerificationError:
    """Return the error that refuses to push a result that is not as proven."""
    changed = f"{count(len(altered), 'file')} changed since then"
    said = (
        changed if known.files else ("an old version of leconvert made it and recorded no hashes")
    )
    there = known.repo_id or (known.source and Path(known.source).is_dir())
    source = known.place if there else "SOURCE"
    return VerificationError(
        f"Nothing proves that {result} is still the result of a conversion: {said}.",
        path=str(result),
        next_step=f"`leconvert verify {shlex.quote(str(result))} --source {shlex.quote(source)} "
        "--bytes` compares it with its source. If nothing differs, run the same push "
        "again. If you changed it on purpose, --force-push pushes it as it is.",
        details=altered[:_SHOWN] if known.files else (),
    )


@dataclass(frozen=True, slots=True)
class Replacement:
    """A push that changes a repo's files, before anything is written."""

    api: HfApi
    repo_id: str
    state: RepoState
    plan: PushPlan
    result: Path
    info: Mapping[str, Any]
    sizes: Mapping[str, int]
    known: Provenance | None
    progress: Progress

    def check(self) -> None:
        """Refuse to replace a dataset that the result was not made from.

        Raises:
            HubConflictError: The repo holds another dataset, or other files.
        """
        repo_id, state = self.repo_id, self.state
        if not state.files:
            return
        if state.info is None:
            taken = sorted(self.sizes.keys() & state.files.keys() - {CARD_PATH})
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
            if version_of(self.info) == version:
                if self._appends(state.info):
                    return
                raise self._refusal(f"already holds another {version} dataset")
            raise self._refusal(
                f"holds a {version} dataset, which a {version_of(self.info)} dataset would replace",
                "Push to another repo with --push-repo-id. " + _FORCE,
            )
        why = differs(state.info, self.info)
        if why is not None:
            raise self._refusal(f"holds another dataset: {why}")
        self._check_origin(self.known or Provenance(), Owned(state.info))

    def _appends(self, there: Mapping[str, Any]) -> bool:
        """Return whether the push adds episodes to the repo's dataset, as `convert --append` does.

        All its files of episodes stay, by content. Only tables are replaced, by tables about more
        episodes.
        """
        kept = [path for path in self.plan.unchanged if not path.startswith("meta/")]
        replaced = [path for path in self.plan.add if path in self.state.files]
        named = ("fps", "robot_type", "features", "data_path", "video_path", "chunks_size")
        before, now = (info.get("total_episodes") for info in (there, self.info))
        return (
            bool(kept)
            and not self.plan.delete
            and all(path.startswith("meta/") for path in replaced)
            and all(there.get(name) == self.info.get(name) for name in named)
            and isinstance(before, int)
            and isinstance(now, int)
            and before < now
        )

    def _check_origin(self, known: Provenance, owned: Owned) -> None:
        """Refuse if the repo's dataset is not the one that was converted, file by file."""
        there = {path: file for path, file in self.state.files.items() if path in owned}
        if known.repo_id:
            if (known.repo_id, known.commit) == (self.repo_id, self.state.head):
                return
            changed = self._changed_since(known, there, owned)
            origin, from_here = known.commit[:12], known.repo_id == self.repo_id
            said = f"changed after the converted commit {origin}: "
            if not from_here:
                said = f"holds another dataset than the converted {known.repo_id} at {origin}: "
            next_step = (
                f"`leconvert convert --repo-id {shlex.quote(self.repo_id)} --revision "
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
        url = f"hf://datasets/{self.repo_id}@{self.state.head}"
        raise self._refusal(
            f"holds a dataset, and no record says that {self.result} was made from it",
            f"`leconvert verify {shlex.quote(str(self.result))} --source {shlex.quote(url)} "
            "--bytes` compares the two. If nothing differs, run the same push again. "
            f"{_FORCE}",
        )

    def _changed_since(
        self, known: Provenance, there: Mapping[str, RemoteFile], owned: Owned
    ) -> list[str]:
        try:
            before = files_at(self.api, known.repo_id, known.commit)
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
        held, brought = self.state.info or {}, self.info
        replaced = sum(path in self.state.files for path in self.plan.add)
        found = list_commits(self.api, self.repo_id, self.state.head)
        newer = takewhile(lambda commit: commit.commit_id != since, found)
        commits = [f"{c.commit_id[:12]} {c.created_at:%Y-%m-%d} {c.title}" for c in newer]
        return kind(
            f"{self.repo_id} {said}.",
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


def check_complete(
    repo_id: str,
    revision: str,
    files: Mapping[str, RemoteFile],
    sizes: Mapping[str, int],
    digests: Mapping[str, str],
    root: Path,
    tag: str,
) -> None:
    """Compare a listing with the result.

    Raises:
        HubConflictError: A file is missing or differs.
    """
    wrong = []
    for path, size in sizes.items():
        there = files.get(path)
        if path == CARD_PATH or (
            there is not None
            and there.size_bytes == size
            and _is_same(there, digests.get(path), root / path)
        ):
            continue
        wrong.append(path)
    if wrong:
        raise HubConflictError(
            f"{revision} of {repo_id} is not the result: "
            f"{count(len(wrong), 'file differs', 'files differ')}.",
            next_step=f"The tag {tag} was not set. Run the same command again.",
            details=wrong[:_SHOWN],
        )


def _is_same(there: RemoteFile, digest: str | None, path: Path) -> bool:
    """Return whether a file of the same size has the same content, as far as its hash is known."""
    if there.is_large:
        return digest is None or digest == there.digest
    return there.is_content_of(path)
