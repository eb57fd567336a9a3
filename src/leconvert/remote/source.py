"""Datasets on the Hub: found, looked at, and made a folder that a conversion can begin with."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leconvert.dataset.formats.v2 import INFO_PATH
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION, unreadable
from leconvert.remote.provenance import NOTES, HubOrigin, Origin, known_origin, write_origin
from leconvert.remote.sparse_snapshot import (
    SparseSnapshot,
    make_sparse_snapshot,
    open_sparse_snapshot,
)
from leconvert.support.errors import (
    HubError,
    HubUnavailableError,
    LeconvertError,
    SourceError,
    StorageError,
    TargetError,
    WorkDirError,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.transfer.client import ask_hub, make_api
from leconvert.transfer.hub import HubRepo, HubStore
from leconvert.transfer.names import (
    download_command,
    downloaded_at,
    folder_of,
    in_folder,
    repository_of,
)
from leconvert.transfer.scratch import limit_too_small
from leconvert.transfer.store import RemoteFile, download_all, files_of, read_all
from leconvert.workdir.fs import is_there, remove_tree
from leconvert.workdir.incoming import Incoming, incoming, not_fetched_from
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import read_manifest

if TYPE_CHECKING:
    from huggingface_hub import GitRefs, HfApi

# Which commit of a repo is converted.


_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A revision, and what it was when it was asked for."""

    repo: HubRepo  # the repo at a commit
    revision: str  # the tag, branch or commit that named it


def resolve_revision(
    repo_id: str, revision: str | None = None, *, to: str = "v3.0", endpoint: str | None = None
) -> Resolved:
    """Find the commit that a revision names.

    Tags tell the version of a repository that is one dataset: of a folder of one the default is
    ``main``.
    """
    api = make_api(endpoint=endpoint)
    if revision is None and folder_of(repo_id):
        revision = _MAIN
    elif revision is None:
        refs = _refs(api, repo_id)
        commits = {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
        revision = _default_revision([ref.name for ref in refs.tags], to)
        if revision in commits:
            return Resolved(HubRepo(repo_id, commits[revision], endpoint), revision)
    info = ask_hub(
        repo_id,
        revision,
        lambda: api.repo_info(repository_of(repo_id), revision=revision, repo_type="dataset"),
    )
    assert info.sha is not None
    return Resolved(HubRepo(repo_id, info.sha, endpoint), revision)


def _refs(api: HfApi, repo_id: str) -> GitRefs:
    """Return the branches and tags of a repo."""
    repository = repository_of(repo_id)
    return ask_hub(repo_id, None, lambda: api.list_repo_refs(repository, repo_type="dataset"))


def find_converted(
    repo_id: str, to: str = "v3.0", *, source: Resolved | None = None, endpoint: str | None = None
) -> Resolved | None:
    """Return the tag of a version if its ``info.json`` says the same; None where there is none.

    A folder of a repository has no tag of its own: it is in the version that ``main`` has.

    Args:
        repo_id: ``ORG/NAME``.
        to: The version.
        source: What it should have been made of: where this has other episodes, and came after,
            the tag is passed over.
        endpoint: The Hub's address; None for the one that is configured.
    """
    api = make_api(endpoint=endpoint)
    if folder_of(repo_id):
        found, source = source or resolve_revision(repo_id, endpoint=endpoint), None
    elif to not in [ref.name for ref in _refs(api, repo_id).tags]:
        return None
    else:
        found = resolve_revision(repo_id, to, endpoint=endpoint)
    info = read_info(HubStore(found.repo))
    if unreadable(info, repo_id) or info["codebase_version"] != to:
        return None
    return None if source is not None and _came_after(source, found, info) else found


def _came_after(source: Resolved, converted: Resolved, info: Mapping[str, Any]) -> bool:
    """Tell whether a dataset has other episodes than its converted form, and is younger.

    An older LeRobot goes on recording, pushes to ``main`` and moves the tag of its own version.
    """
    own = read_info(HubStore(source.repo))
    totals = ("total_episodes", "total_frames")
    if [own.get(name) for name in totals] == [info.get(name) for name in totals]:
        return False
    repo = converted.repo
    commits = ask_hub(
        repo.repo_id,
        repo.commit,
        lambda: make_api(endpoint=repo.endpoint).list_repo_commits(
            repo.repository, repo_type="dataset", revision=repo.commit
        ),
    )
    return source.repo.commit not in {commit.commit_id for commit in commits}


def _default_revision(tags: list[str], to: str) -> str:
    older = [*reversed(SOURCE_VERSIONS), _MAIN]
    wanted = older if to == V3_VERSION else [V3_VERSION, *older]
    return next(name for name in wanted if name in (*tags, _MAIN))


def read_info(store: HubStore) -> dict[str, Any]:
    """Return ``meta/info.json`` by one request; empty where there is no dataset."""
    with suppress(ValueError):
        info = json.loads(store.read_whole(INFO_PATH) or b"")
        if isinstance(info, dict):
            return info
    return {}


def check_convertible(
    found: Resolved, store: HubStore, *, also_v3: bool = False, is_whole: bool = True
) -> None:
    """Refuse what is no v2.x dataset, before anything else is fetched.

    Args:
        also_v3: Take v3.0 datasets, too, as long as they are fetched whole.
        is_whole: Whether all of it is fetched.
    """
    repo, revision = found.repo, found.revision
    info = read_info(store)
    if not isinstance(info.get("codebase_version"), str):
        raise SourceError(
            f"{repo.repo_id} at {revision} is no LeRobot dataset: it has no {INFO_PATH} that names "
            "a codebase_version.",
            path=repo.name,
            next_step="Check the name, and give another revision if there is one.",
        )
    if wrong := unreadable(info, f"{repo.repo_id} at {revision}", repo.name):
        raise wrong
    if info["codebase_version"] in SOURCE_VERSIONS:
        return
    if also_v3:
        if is_whole:
            return
        raise SourceError(
            f"{repo.repo_id} at {revision} is v3.0; only v2.x datasets are planned without "
            "downloading them whole.",
            path=repo.name,
            next_step=f"Download it, `{download_command(repo.repo_id, revision, 'DIR')}`, and give "
            f"{downloaded_at(repo.repo_id, 'DIR')}.",
        )
    raise SourceError(
        f"{repo.repo_id} at {revision} is already {V3_VERSION}; there is nothing to convert.",
        path=repo.name,
        next_step="Give the tag or commit of the v2.x dataset with --revision.",
    )


# What the client's cache holds of a dataset, for when the Hub is not to be asked.


def is_offline() -> bool:
    """Tell whether ``HF_HUB_OFFLINE`` forbids to ask the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def cached_snapshot(repo_id: str, revision: str | None, to: str = "v3.0") -> tuple[Path, Origin]:
    """Return the folder of a revision in the client's cache, and which commit it is.

    Its files are links into the cache; whether all are there is not known without the Hub: the
    scan finds what is missing.
    """
    from huggingface_hub import constants

    repository = repository_of(repo_id).replace("/", "--")
    top = Path(constants.HF_HUB_CACHE) / f"datasets--{repository}"
    if revision is None and folder_of(repo_id):
        revision = _MAIN
    if revision is None:
        revision = _default_revision([path.name for path in (top / "refs").glob("v*")], to)
    ref = top / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = top / "snapshots" / commit / folder_of(repo_id)
    if not folder.is_dir():
        raise HubError(
            f"HF_HUB_OFFLINE is set, and the cache has no {repo_id} at {revision}.",
            path=str(top),
            next_step="Unset HF_HUB_OFFLINE, or download it where there is a network: "
            + download_command(repo_id, revision, None),
        )
    return folder, Origin(repo_id, revision, commit)


# From the name of a dataset on the Hub to a folder that a conversion can begin with.


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """A source that is ready to be planned.

    Attributes:
        source: The folder: a download, a snapshot of the client's cache, or the tree of an outline.
        arrival: How it came here; None for a local dataset that nobody knows the origin of.
    """

    source: Path
    arrival: HubOrigin | None


def already_converted(
    repo_id: str,
    place: Path,
    *,
    to: str = "v3.0",
    endpoint: str | None = None,
    fetch: bool = True,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> str | None:
    """Say, in a line, that the Hub has the dataset in this version already; None where it has not.

    As LeRobot's script does, it then brings it to the place where the result would go.

    Args:
        repo_id: ``ORG/NAME``.
        place: Where the result would go; left alone if something is there.
        to: The version.
        endpoint: The Hub's address; None for the one that is configured.
        fetch: Whether to download it.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        The line, or None.

    Raises:
        HubError: There is no such repo, or no answer.
        HubAccessError: The token does not allow it.
        StorageError: There is not enough space.
    """
    if is_offline():
        return None
    source = resolve_revision(repo_id, to=to, endpoint=endpoint)
    found = find_converted(repo_id, to, source=source, endpoint=endpoint)
    if found is None:
        return None
    said = f"{repo_id} is on the Hub in {found.revision} already"
    if fetch and not place.exists():
        download_dataset(found.repo, found.revision, place, stop=stop, progress=progress)
        said += f" and was downloaded to {place}"
    return f"{said}; --force-conversion converts it anew."


def download(
    repo_id: str,
    revision: str | None,
    local: Path,
    *,
    anew: bool = False,
    to: str = "v3.0",
    also_v3: bool = False,
    endpoint: str | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> FetchedSource:
    """Provide a whole dataset on this machine.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the one of `resolve_revision`.
        local: Where it is downloaded to; a dataset that is there is used, unless it is known to be
            of another repo, or of another commit than ``revision``.
        anew: Of what is there use only what the Hub has at this moment, and fetch the rest again;
            nothing may be there but what an earlier call brought.
        to: The version to write.
        also_v3: Take v3.0 datasets, too.
        endpoint: The Hub's address; None for the one that is configured.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        Where the dataset is, and where it came from.

    Raises:
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is no dataset that is taken.
        TargetError: Something else is at ``local``.
        BusyError: Another process downloads to there.
        StorageError: There is not enough space.
    """
    known = known_origin(local)
    if anew:
        if is_there(local):
            check_same_repo(local, known, repo_id)
    elif local.is_dir() and any(local.iterdir()):
        if revision is None and known:
            check_same_repo(local, known, repo_id)
        if revision is None or (known and _is_of(known, repo_id, revision)):
            return FetchedSource(local, HubOrigin(known) if known else None)
        raise TargetError(
            f"{local} exists, and nothing says that it is {repo_id} at {revision}.",
            path=str(local),
            next_step="Leave the revision away to take what is there, or move that folder away; "
            "`leconvert convert` downloads to another one with --root.",
        )
    if is_offline():
        folder, origin = cached_snapshot(repo_id, revision, to)
        return FetchedSource(folder, HubOrigin(origin))
    found = resolve_revision(repo_id, revision, to=to, endpoint=endpoint)
    check_convertible(found, HubStore(found.repo), also_v3=also_v3)
    progress.say(f"Downloading {repo_id} at {found.revision} ({found.repo.commit[:12]})")
    if local.is_dir() and not anew:
        local.rmdir()  # empty, as a mount point or a careful user may leave it
    local.parent.mkdir(parents=True, exist_ok=True)
    origin = download_dataset(
        found.repo, found.revision, local, replaces=anew, stop=stop, progress=progress
    )
    return FetchedSource(local, HubOrigin(origin))


def check_same_repo(local: Path, known: Origin | None, repo_id: str) -> None:
    """Refuse a folder that was downloaded from another repo, or of which nobody knows."""
    if known is None or known.repo_id != repo_id:
        raise not_fetched_from(local, repo_id, None if known is None else known.repo_id)


def _is_of(known: Origin, repo_id: str, revision: str) -> bool:
    """Tell whether what is known of a folder is a revision; another repo's `main` is another."""
    if revision == known.commit and folder_of(known.repo_id) == folder_of(repo_id):
        return True
    return (known.repo_id, known.revision) == (repo_id, revision)


def fetch_sparse(
    repo_id: str,
    revision: str | None,
    work_dir: Path,
    *,
    to: str = "v3.0",
    also_v3: bool = False,
    endpoint: str | None = None,
    scratch_limit: int | None = None,
    for_copies: bool = False,
    restart: bool = False,
    found: Resolved | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> FetchedSource:
    """Provide what a plan needs of a dataset; workers fetch the rest batch by batch.

    A run that is under way in the work dir goes on with the commit that it was planned with, even
    if the branch moved since.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the one of `resolve_revision`.
        work_dir: The folder that all hosts share; holds the snapshot.
        to: The version to write.
        also_v3: Whether there is something to do about a v3.0 dataset, which is refused.
        endpoint: The Hub's address; None for the one that is configured.
        scratch_limit: Bytes that workers may hold; None for any number.
        for_copies: The Hub copies files that are kept as they are: fetch as little as can be.
        restart: Do not go on with a run that is under way.
        found: The commit, where the revision was resolved already; a run under way that was planned
            with another one is not gone on with.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        Where the sparse snapshot is, and of which commit.

    Raises:
        UsageError: The limit does not hold the largest file.
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is no v2.x dataset.
        BusyError: Another process plans in this work dir.
    """
    stop = stop or threading.Event()
    made = None if restart else under_way(work_dir, repo_id, revision)
    if made is not None and found is not None and made.repo.commit != found.repo.commit:
        made = None
    if made is not None:
        progress.say(f"Going on with {repo_id} at commit {made.origin.commit[:12]}")
    elif found is None and is_offline():
        folder, origin = cached_snapshot(repo_id, revision, to)
        return FetchedSource(folder, HubOrigin(origin))
    else:
        found = found or resolve_revision(repo_id, revision, to=to, endpoint=endpoint)
        store = HubStore(found.repo, should_stop=stop.is_set)
        check_convertible(found, store, also_v3=also_v3, is_whole=False)
        progress.say(f"Planning {repo_id} at {found.revision} ({found.repo.commit[:12]})")
        with planner_lock(WorkDir(work_dir)):
            made = make_sparse_snapshot(
                work_dir,
                found.repo,
                found.revision,
                store,
                for_copies=for_copies,
                progress=progress,
            )
            planned = None if restart else under_way(work_dir, repo_id, None)
            if for_copies and (planned is None or planned.folder != made.folder):
                # What a run that was given up has made of this commit.
                remove_tree(WorkDir.migrated(made.tree), inside=made.folder)
    if scratch_limit is not None and scratch_limit < made.largest_bytes:
        raise limit_too_small(scratch_limit, made.largest_bytes)
    return FetchedSource(made.tree, HubOrigin(made.origin, made.repo.name))


def under_way(work_dir: Path, repo_id: str, revision: str | None) -> SparseSnapshot | None:
    """Return the outline that the work dir's current run was planned with, if it is of this."""
    work = WorkDir(work_dir)
    run_id = work.current_run_id()
    if run_id is None:
        return None
    try:
        manifest = read_manifest(work.run(run_id), run_id)
        if manifest.outline is None:
            return None
        made = open_sparse_snapshot(Path(manifest.source))
    except (FileNotFoundError, WorkDirError):
        return None  # whoever opens the run says what is wrong with it
    if made.origin.repo_id != repo_id:
        return None
    return made if revision in (None, made.origin.revision, made.origin.commit) else None


def pinned_revision(tree: Path) -> str | None:
    """Return the revision that a sparse snapshot is of if it still names the same commit."""
    origin = open_sparse_snapshot(tree).origin
    with suppress(HubError):
        if resolve_revision(origin.repo_id, origin.revision).repo.commit == origin.commit:
            return origin.revision
    return None


# A whole dataset from the Hub into a folder that appears when it is complete.


def download_dataset(
    repo: HubRepo,
    revision: str,
    target: Path,
    *,
    listed: pa.Table | None = None,
    replaces: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Origin:
    """Bring every file of a commit into a folder; ``listed`` has them, where that is known.

    It arrives in a hidden folder beside the target and gets the target's name when all of it is
    there, checked by hash. Interrupted, the same call goes on; files that another commit shares
    with what had arrived are kept, the others go. Files in the client's cache are copied.
    """
    listed = read_all(repo.list_files()) if listed is None else listed
    size_bytes = sum(listed.column("size_bytes").to_pylist())
    origin = Origin(repo.repo_id, revision, repo.commit)
    with incoming(target) as arriving:
        if is_there(target):
            if not replaces:
                raise TargetError(
                    f"{target} exists already and is not overwritten.", path=str(target)
                )
            if known_origin(target) == origin and all(
                _is_right(file, target) for file in files_of(listed)
            ):
                return origin
            arriving.take_back()
        arriving.keep({file.path for file in files_of(listed)})
        _check_space(arriving, repo, size_bytes)
        download_all(
            lambda should_stop: HubStore(repo, should_stop=should_stop),
            files_of(listed),
            arriving,
            is_here=lambda file: _is_right(file, arriving.tree),
            size_bytes=size_bytes,
            stop=stop or threading.Event(),
            progress=progress,
        )
        (arriving.tree / NOTES).mkdir(parents=True, exist_ok=True)
        write_origin(arriving.tree / NOTES, origin, run_id="-")
        arriving.finish()
    return origin


def _is_right(file: RemoteFile, tree: Path) -> bool:
    path = tree / file.path
    return path.is_file() and file.is_content_of(path)


def _check_space(arriving: Incoming, repo: HubRepo, size_bytes: int) -> None:
    free, there = shutil.disk_usage(arriving.folder).free, arriving.size_bytes()
    if free + there < size_bytes:
        place = arriving.folder.parent
        raise StorageError(
            f"{place} has {free:,} bytes free, {repo.repo_id} needs {size_bytes:,}.",
            path=str(place),
            next_step="Free some space, choose another place with --root, or use --engine local, "
            "which holds no more than --scratch-limit of the source.",
        )


# Datasets of the Hub at a glance: those of a user, an organisation or a collection.
#
# Of a dataset no more is read than its tags, the listing of its files and ``meta/info.json``: three
# requests, and one more for each thousand files. Of a repository with datasets in its folders tags
# and listing are read once, and ``meta/info.json`` of each.


_COLLECTION = re.compile(r"(?:hf:/|https?://[^/]+)/collections/([\w.-]+/[\w.-]+)/?\Z")
_THREADS = 8
_OWNER = re.compile(r"(?:hf:/|https?://[^/]+)/(?:datasets/)?([\w.-]+)/?\Z")


@dataclass(frozen=True, slots=True)
class HubGroup:
    """Datasets that belong together on the Hub.

    Attributes:
        name: The user or organisation, or the collection as ``OWNER/SLUG``.
        is_collection: Which of the two.
    """

    name: str
    is_collection: bool


def parse_group(text: str) -> HubGroup | None:
    """Return what ``hf://ORG``, ``hf://collections/ORG/SLUG`` or such a page's address names."""
    if found := _COLLECTION.match(text):
        return HubGroup(found[1], is_collection=True)
    if found := _OWNER.match(text):
        return HubGroup(found[1], is_collection=False)
    return None


def datasets_of(group: HubGroup) -> list[str]:
    """Return the names of a group's dataset repositories: those that this token can see, sorted."""
    from huggingface_hub.errors import HfHubHTTPError

    api = make_api()

    def ask() -> list[str]:
        if not group.is_collection:
            return [found.id for found in api.list_datasets(author=group.name)]
        try:
            items = api.get_collection(group.name).items
        except HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
            raise HubError(
                f"{group.name} is no collection on the Hub, or this token may not see it.",
                next_step="Copy the address of the collection's page.",
            ) from error
        return [item.item_id for item in items if item.item_type == "dataset"]

    return sorted({*ask_hub(group.name, None, ask)})


@dataclass(frozen=True, slots=True)
class HubGlance:
    """What a dataset on the Hub says of itself.

    Attributes:
        repo_id: ``ORG/NAME``.
        revision: The revision that would be converted; empty where there is none.
        commit: Its commit; likewise.
        version: Its version, or that of the tag ``v3.x`` where the Hub has it converted already;
            None where it has no ``meta/info.json`` that says it.
        info: What ``meta/info.json`` says.
        files: Files of the repo.
        size_bytes: Their bytes.
        problem: Why it cannot be read; None where it can.
    """

    repo_id: str
    revision: str = ""
    commit: str = ""
    version: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    problem: str | None = None

    @property
    def episodes(self) -> int | None:
        """How many episodes it says that it has; None where it does not say."""
        with suppress(KeyError, TypeError, ValueError):
            return int(self.info["total_episodes"])
        return None


def glance_at(
    repo_id: str, revision: str | None = None, *, endpoint: str | None = None
) -> HubGlance:
    """Look at a dataset; what is wrong with it is told, not raised."""
    return _look(repo_id, revision, endpoint)[0]


def glances_at(repo_id: str, revision: str | None = None) -> list[HubGlance]:
    """Look at a dataset, or at those in the folders of a repository that is none itself."""
    seen, sizes = _look(repo_id, revision, None)
    bytes_in = {} if seen.info else _bytes_of_datasets(sizes)
    if not bytes_in:
        return [seen]

    def look(folder: str) -> HubGlance:
        repo = HubRepo(in_folder(repo_id, folder), seen.commit)
        return _told(Resolved(repo, seen.revision), bytes_in[folder])

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hub") as pool:
        return list(pool.map(look, bytes_in))


def _bytes_of_datasets(sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the bytes of each file of the datasets in the folders of a repository, sorted.

    What lies in the folder of another dataset is a part of that.
    """
    found: dict[str, list[int]] = {}
    tops = sorted(p.removesuffix(f"/{INFO_PATH}") for p in sizes if p.endswith(f"/{INFO_PATH}"))
    for top in tops:
        if _top_of(top, found) is None:
            found[top] = []
    for path, size_bytes in sizes.items():
        if (owner := _top_of(path, found)) is not None:
            found[owner].append(size_bytes)
    return found


def _top_of(path: str, tops: Collection[str]) -> str | None:
    parents = (str(parent) for parent in PurePosixPath(path).parents)
    return next((parent for parent in parents if parent in tops), None)


def _look(
    repo_id: str, revision: str | None, endpoint: str | None
) -> tuple[HubGlance, Mapping[str, int]]:
    """Look at a dataset; return the bytes of its files, too."""
    try:
        if revision is None and (done := find_converted(repo_id, endpoint=endpoint)) is not None:
            found = done
        else:
            found = resolve_revision(repo_id, revision, endpoint=endpoint)
        sizes = {file.path: file.size_bytes for file in found.repo.list_files()}
        return _told(found, [*sizes.values()], is_there=INFO_PATH in sizes), sizes
    except HubUnavailableError:
        raise
    except LeconvertError as error:
        return HubGlance(repo_id, problem=error.message), {}


def _told(found: Resolved, sizes: Sequence[int], *, is_there: bool = True) -> HubGlance:
    """Return what a dataset says of itself, given the bytes of each of its files."""
    repo_id = found.repo.repo_id
    info = read_info(HubStore(found.repo, tries=1)) if is_there else {}
    version = info.get("codebase_version")
    wrong = unreadable(info, f"{repo_id} at {found.revision}") if info else None
    return HubGlance(
        repo_id,
        found.revision,
        found.repo.commit,
        version if isinstance(version, str) else None,
        info,
        len(sizes),
        sum(sizes),
        problem=wrong.message if wrong else None,
    )
