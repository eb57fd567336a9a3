"""Datasets on the Hub: find them, inspect them, and provide a folder for a conversion."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leconvert.dataset.formats.v2 import INFO_PATH
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION, unreadable
from leconvert.remote.provenance import NOTES, Origin, SparseOrigin, known_origin, write_origin
from leconvert.remote.sparse_snapshot import (
    SparseSnapshot,
    make_sparse_snapshot,
    needs_all_bytes,
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
from leconvert.support.values import dataclass
from leconvert.transfer.client import ask_hub, make_api
from leconvert.transfer.hub import HubStore
from leconvert.transfer.names import (
    download_command,
    folder_of,
    in_folder,
    repository_of,
)
from leconvert.transfer.options import MAIN
from leconvert.transfer.store import (
    Incoming,
    RemoteFile,
    download_all,
    files_of,
    incoming,
    not_fetched_from,
    read_all,
)
from leconvert.workdir.fs import is_there, remove_tree
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import read_manifest

if TYPE_CHECKING:
    from huggingface_hub import GitRefs

# The commit of a repo that is converted.


def resolve_revision(repo_id: str, revision: str | None = None, *, to: str = "v3.0") -> Origin:
    """Find the commit of a revision.

    Args:
        repo_id: ``ORG/NAME``, or ``ORG/NAME/path/to/dataset``.
        revision: A tag, branch or commit. None for the newest tag that can be converted, otherwise
            ``main``. For a folder of a repo, None means ``main``, since its tags are for the whole
            repo.
        to: The version to write; it decides which tags count.

    Raises:
        HubError: There is no such repo or revision, or no answer.
    """
    if revision is None and folder_of(repo_id):
        revision = MAIN
    elif revision is None:
        refs = refs_of(repo_id)
        commits = {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
        revision = _default_revision([ref.name for ref in refs.tags], to)
        if revision in commits:
            return Origin(repo_id, revision, commits[revision])
    info = ask_hub(
        repo_id,
        revision,
        lambda: make_api().repo_info(
            repository_of(repo_id), revision=revision, repo_type="dataset"
        ),
    )
    assert info.sha is not None
    return Origin(repo_id, revision, info.sha)


def refs_of(repo_id: str, *, with_pulls: bool = False) -> GitRefs:
    """Return the branches and tags of a repo, and its pull requests if wanted."""
    return ask_hub(
        repo_id,
        None,
        lambda: make_api().list_repo_refs(
            repository_of(repo_id), repo_type="dataset", include_pull_requests=with_pulls
        ),
    )


def has_same_files(repo_id: str, commit: str, other: str) -> bool:
    """Return whether a dataset has the same files at two commits of its repo.

    For a folder of a repo, other commits may have changed only other folders. A commit that is gone
    has other files.
    """
    if commit == other or not folder_of(repo_id):
        return commit == other
    try:
        one, another = (
            {
                file.path: file.digest
                for file in files_of(read_all(Origin(repo_id, each, each).store().list_files()))
            }
            for each in (commit, other)
        )
    except HubUnavailableError:
        raise
    except HubError:
        return False
    return one == another


def find_converted(
    repo_id: str, to: str = "v3.0", *, source: Origin | None = None
) -> Origin | None:
    """Return the tag of a version if its ``info.json`` agrees; None if there is none.

    A folder of a repo has no tag of its own, so its version on ``main`` counts.

    Args:
        repo_id: ``ORG/NAME``.
        to: The version.
        source: The revision that the tag should have been made from. If this revision has other
            episodes and is newer, the tag is ignored.
    """
    if folder_of(repo_id):
        found, source = source or resolve_revision(repo_id), None
    else:
        tagged = [ref.target_commit for ref in refs_of(repo_id).tags if ref.name == to]
        if not tagged:
            return None
        found = Origin(repo_id, to, tagged[0])
    info = read_info(found.store())
    if unreadable(info, repo_id) or info["codebase_version"] != to:
        return None
    return None if source is not None and _came_after(source, found, info) else found


def _came_after(source: Origin, converted: Origin, info: Mapping[str, Any]) -> bool:
    """Return whether a dataset has other episodes than its converted form, and is newer.

    An older LeRobot may still record: it pushes to ``main`` and moves the tag of its own version.
    """
    own = read_info(source.store())
    totals = ("total_episodes", "total_frames")
    if [own.get(name) for name in totals] == [info.get(name) for name in totals]:
        return False
    commits = ask_hub(
        converted.repo_id,
        converted.commit,
        lambda: make_api().list_repo_commits(
            repository_of(converted.repo_id), repo_type="dataset", revision=converted.commit
        ),
    )
    return source.commit not in {commit.commit_id for commit in commits}


def _default_revision(tags: list[str], to: str) -> str:
    older = [*reversed(SOURCE_VERSIONS), MAIN]
    wanted = older if to == V3_VERSION else [V3_VERSION, *older]
    return next(name for name in wanted if name in (*tags, MAIN))


def read_info(store: HubStore) -> dict[str, Any]:
    """Return ``meta/info.json`` with one request; empty if there is no dataset."""
    return info_in(store.read_whole(INFO_PATH) or b"")


def info_in(content: bytes) -> dict[str, Any]:
    """Return the JSON object of an info.json; empty for content that describes no dataset."""
    with suppress(ValueError):
        info = json.loads(content)
        if isinstance(info, dict):
            return info
    return {}


def check_convertible(
    found: Origin, store: HubStore, *, also_v3: bool = False, is_whole: bool = True
) -> None:
    """Refuse a dataset that cannot be converted, before anything else is downloaded.

    Args:
        found: The revision.
        store: Its files.
        also_v3: Accept v3.0 datasets, too, if the whole dataset is downloaded.
        is_whole: Whether the whole dataset is downloaded.

    Raises:
        SourceError: It is not a dataset, or its version cannot be converted.
    """
    repo_id, revision = found.repo_id, found.revision
    info = read_info(store)
    if not isinstance(info.get("codebase_version"), str):
        raise SourceError(
            f"{repo_id} at {revision} is not a LeRobot dataset: it has no {INFO_PATH} "
            "with a codebase_version.",
            path=store.name,
            next_step="Check the name, or give another revision.",
        )
    if wrong := unreadable(info, f"{repo_id} at {revision}", store.name):
        raise wrong
    if info["codebase_version"] in SOURCE_VERSIONS:
        return
    if also_v3:
        if is_whole:
            return
        raise needs_all_bytes(found)
    raise SourceError(
        f"{repo_id} at {revision} is already {V3_VERSION}. There is nothing to convert.",
        path=store.name,
        next_step="Give the tag or commit of the v2.x dataset with --revision.",
    )


# The client's cache, for use without the Hub.


def is_offline() -> bool:
    """Return whether ``HF_HUB_OFFLINE`` forbids requests to the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached_snapshot(repo_id: str, revision: str | None, to: str) -> FetchedSource:
    """Return a revision in the client's cache.

    Its files are links into the cache. Without the Hub, nobody knows whether all files are there.
    The scan finds missing files.

    Raises:
        HubError: The cache does not have the revision.
    """
    from huggingface_hub import constants

    repository = repository_of(repo_id).replace("/", "--")
    top = Path(constants.HF_HUB_CACHE) / f"datasets--{repository}"
    if revision is None and folder_of(repo_id):
        revision = MAIN
    if revision is None:
        revision = _default_revision([path.name for path in (top / "refs").glob("v*")], to)
    ref = top / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = top / "snapshots" / commit / folder_of(repo_id)
    if not folder.is_dir():
        raise HubError(
            f"HF_HUB_OFFLINE is set, but {repo_id} at {revision} is not in the cache.",
            path=str(top),
            next_step="Unset HF_HUB_OFFLINE, or download it where there is a network: "
            + download_command(repo_id, revision, None),
        )
    return FetchedSource(folder, Origin(repo_id, revision, commit))


# From the name of a dataset on the Hub to a folder for a conversion.


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """A source that is ready for a plan.

    Attributes:
        source: The folder: a download, a snapshot in the client's cache, or a sparse snapshot.
        arrival: Its origin on the Hub; None for a local dataset of unknown origin.
        replaces_run: Whether the work dir has an unfinished run of another commit.
    """

    source: Path
    arrival: Origin | None
    replaces_run: bool = False


def already_converted(
    repo_id: str,
    place: Path,
    *,
    to: str = "v3.0",
    fetch: bool = True,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> str | None:
    """Return a line for the user if the Hub already has the dataset in this version; else None.

    As LeRobot's script does, it then downloads that dataset to the place of the result.

    Args:
        repo_id: ``ORG/NAME``.
        place: Path of the result; an existing folder there is left alone.
        to: The version.
        fetch: Whether to download it.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Raises:
        HubError: There is no such repo, or no answer.
        HubAccessError: The token does not allow it.
        StorageError: There is not enough space.
    """
    if is_offline():
        return None
    source = resolve_revision(repo_id, to=to)
    found = find_converted(repo_id, to, source=source)
    if found is None:
        return None
    said = f"{repo_id} is already {to} on the Hub"
    if fetch and not place.exists():
        download_dataset(found, place, stop=stop, progress=progress)
        said += f" and was downloaded to {place}"
    return f"{said}. --force-conversion converts it again."


def download(
    repo_id: str,
    revision: str | None,
    local: Path,
    *,
    anew: bool = False,
    to: str = "v3.0",
    also_v3: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> FetchedSource:
    """Provide a whole dataset on this machine.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the one of `resolve_revision`.
        local: Folder for the download. A dataset that is already there is used, unless it is known
            to be of another repo, or of another commit than ``revision``.
        anew: Update an earlier download: keep files that the Hub has unchanged now, and download
            the rest again. The folder must come from an earlier call.
        to: The version to write.
        also_v3: Accept v3.0 datasets, too.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Returns:
        The dataset's folder and origin.

    Raises:
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is no dataset that is accepted.
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
            return FetchedSource(local, known)
        raise TargetError(
            f"{local} exists, but no record says that it is {repo_id} at {revision}.",
            path=str(local),
            next_step="Leave the revision out to use this folder, or give another folder with "
            "--root to download to.",
        )
    if is_offline():
        return _cached_snapshot(repo_id, revision, to)
    found = resolve_revision(repo_id, revision, to=to)
    check_convertible(found, found.store(), also_v3=also_v3)
    progress.say(f"Downloading {repo_id} at {found.revision} ({found.commit[:12]})")
    if local.is_dir() and not anew:
        # Empty, for example a mount point. Another process may have put a dataset there since.
        with suppress(OSError):
            local.rmdir()
    local.parent.mkdir(parents=True, exist_ok=True)
    download_dataset(found, local, replaces=anew, stop=stop, progress=progress)
    return FetchedSource(local, found)


def check_same_repo(local: Path, known: Origin | None, repo_id: str) -> None:
    """Refuse a folder that was downloaded from another repo, or whose origin is unknown."""
    if known is None or known.repo_id != repo_id:
        raise not_fetched_from(local, repo_id, None if known is None else known.repo_id)


def _is_of(known: Origin, repo_id: str, revision: str) -> bool:
    """Return whether a known origin is a revision of a repo. Other repos have a `main`, too."""
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
    scratch_limit: int | None = None,
    for_copies: bool = False,
    restart: bool = False,
    found: Origin | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> FetchedSource:
    """Provide the parts of a dataset that a plan needs; workers fetch the rest batch by batch.

    An unfinished run in the work dir continues with its planned commit, even if the branch moved
    since.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the one of `resolve_revision`.
        work_dir: The folder that all hosts share; it gets the snapshot.
        to: The version to write.
        also_v3: Whether the error for a v3.0 dataset, which is refused, advises to download it.
        scratch_limit: Bytes that workers may hold; None for any number.
        for_copies: Whether the Hub copies unchanged files, so that little is downloaded.
        restart: Do not continue an unfinished run.
        found: The commit, if the revision is already resolved. An unfinished run of another commit
            is not continued.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Returns:
        The sparse snapshot, and its commit.

    Raises:
        UsageError: The limit is below the largest file's size.
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is not a v2.x dataset.
        BusyError: Another process plans in this work dir.
    """
    stop = stop or threading.Event()
    replaces_run = False
    made = None if restart else under_way(work_dir, repo_id, revision)
    if made is not None and found is not None and made.origin.commit != found.commit:
        made = None
    if made is not None:
        progress.say(f"Continuing with {repo_id} at commit {made.origin.commit[:12]}")
    elif found is None and is_offline():
        return _cached_snapshot(repo_id, revision, to)
    else:
        found = found or resolve_revision(repo_id, revision, to=to)
        store = found.store(should_stop=stop.is_set)
        check_convertible(found, store, also_v3=also_v3, is_whole=False)
        progress.say(f"Planning {repo_id} at {found.revision} ({found.commit[:12]})")
        with planner_lock(WorkDir(work_dir)):
            made = make_sparse_snapshot(
                work_dir, found, store, for_copies=for_copies, progress=progress
            )
            planned = None if restart else under_way(work_dir, repo_id, None)
            replaces_run = planned is not None and planned.folder != made.folder
            if for_copies and (planned is None or replaces_run):
                # Files that an abandoned run made from this commit.
                remove_tree(WorkDir.migrated(made.tree), inside=made.folder)
    made.check_limit(scratch_limit)
    return FetchedSource(made.tree, SparseOrigin(**asdict(made.origin)), replaces_run)


def under_way(work_dir: Path, repo_id: str, revision: str | None) -> SparseSnapshot | None:
    """Return the sparse snapshot of the current run, if it is of this repo and revision."""
    work = WorkDir(work_dir)
    run_id = work.current_run_id()
    if run_id is None:
        return None
    try:
        manifest = read_manifest(work.run(run_id))
        if manifest.outline is None:
            return None
        made = open_sparse_snapshot(Path(manifest.source))
    except (FileNotFoundError, WorkDirError):
        return None  # the process that opens the run reports its faults
    if made.origin.repo_id != repo_id:
        return None
    return made if revision in (None, made.origin.revision, made.origin.commit) else None


def pinned_revision(tree: Path) -> str | None:
    """Return the revision of a sparse snapshot, if it still has the same commit."""
    origin = open_sparse_snapshot(tree).origin
    with suppress(HubError):
        if resolve_revision(origin.repo_id, origin.revision).commit == origin.commit:
            return origin.revision
    return None


# A whole dataset from the Hub into a folder that appears when it is complete.


def download_dataset(
    origin: Origin,
    target: Path,
    *,
    listed: pa.Table | None = None,
    replaces: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Download every file of a commit into a folder; ``listed`` is the listing, if known.

    The files arrive in a hidden folder beside the target. It gets the target's name when all files
    are there, checked by hash. After an interruption the same call continues. Earlier files that
    are also in this commit are kept, others are removed. Files in the client's cache are copied.

    Raises:
        TargetError: The target exists, and ``replaces`` is false.
        StorageError: There is not enough space.
        InterruptedRunError: ``stop`` was set.
    """
    listed = read_all(origin.store().list_files()) if listed is None else listed
    size_bytes = sum(listed.column("size_bytes").to_pylist())
    with incoming(target) as arriving:
        if is_there(target):
            if not replaces:
                raise TargetError(
                    f"{target} exists already. It was not overwritten.",
                    path=str(target),
                    next_step="Another process may have put it there. Run the same command again "
                    "to go on with that dataset, or give another folder.",
                )
            if known_origin(target) == origin and all(
                _is_right(file, target) for file in files_of(listed)
            ):
                return
            arriving.take_back()
        arriving.keep({file.path for file in files_of(listed)})
        _check_space(arriving, origin.repo_id, size_bytes)
        download_all(
            lambda should_stop: origin.store(should_stop=should_stop),
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


def _is_right(file: RemoteFile, tree: Path) -> bool:
    path = tree / file.path
    return path.is_file() and file.is_content_of(path)


def _check_space(arriving: Incoming, repo_id: str, size_bytes: int) -> None:
    free, there = shutil.disk_usage(arriving.folder).free, arriving.size_bytes()
    if free + there < size_bytes:
        place = arriving.folder.parent
        raise StorageError(
            f"{place} has only {free:,} bytes free, but {repo_id} needs {size_bytes:,}.",
            path=str(place),
            next_step="Free disk space, choose another folder with --root, or add --engine "
            "local, which needs only --scratch-limit of disk space for the source.",
        )


# Overviews of datasets on the Hub: those of a user, an organisation or a collection.
#
# Each dataset takes three requests, for its tags, the listing of its files and ``meta/info.json``,
# and one more for each thousand files. For datasets in the folders of a repo, its tags and listing
# are read once.


_COLLECTION = re.compile(r"(?:hf:/|https?://[^/]+)/collections/([\w.-]+/[\w.-]+)/?\Z")
_THREADS = 8
_OWNER = re.compile(r"(?:hf:/|https?://[^/]+)/(?:datasets/)?([\w.-]+)/?\Z")


@dataclass(frozen=True, slots=True)
class HubGroup:
    """Datasets that belong together on the Hub.

    Attributes:
        name: The user or organisation, or the collection as ``OWNER/SLUG``.
        is_collection: Whether it is a collection.
    """

    name: str
    is_collection: bool


def parse_group(text: str) -> HubGroup | None:
    """Return the group that ``hf://ORG``, ``hf://collections/ORG/SLUG`` or a page's URL names."""
    if found := _COLLECTION.match(text):
        return HubGroup(found[1], is_collection=True)
    if found := _OWNER.match(text):
        return HubGroup(found[1], is_collection=False)
    return None


def datasets_of(group: HubGroup) -> list[str]:
    """Return the names of a group's datasets that this token can see, sorted.

    Raises:
        HubError: There is no such collection.
    """
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
                f"The Hub has no collection {group.name}, or this token may not see it.",
                next_step="Give the address of the collection's page.",
            ) from error
        return [item.item_id for item in items if item.item_type == "dataset"]

    return sorted({*ask_hub(group.name, None, ask)})


@dataclass(frozen=True, slots=True)
class HubGlance:
    """An overview of a dataset on the Hub.

    Attributes:
        origin: The revision that would be converted; without commit if there is none.
        version: Its version, or that of the tag ``v3.x`` if the Hub already has it converted; None
            if its ``meta/info.json`` is missing or states none.
        info: The contents of ``meta/info.json``.
        size_bytes: Bytes of its files.
        problem: Why it cannot be read; None if it can.
    """

    origin: Origin
    version: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    size_bytes: int = 0
    problem: str | None = None

    @property
    def episodes(self) -> int | None:
        """The number of episodes in its ``info.json``; None if it is not stated."""
        with suppress(KeyError, TypeError, ValueError):
            return int(self.info["total_episodes"])
        return None


def glance_at(repo_id: str, revision: str | None = None) -> HubGlance:
    """Look at a dataset. Problems of the dataset are returned, not raised.

    Raises:
        HubUnavailableError: The Hub does not answer.
    """
    return _look(repo_id, revision)[0]


def glances_at(repo_id: str, revision: str | None = None) -> list[HubGlance]:
    """Look at a dataset, or at the datasets in the folders of a repo without one at its top."""
    seen, sizes = _look(repo_id, revision)
    bytes_in = {} if seen.info else _bytes_of_datasets(sizes)
    if not bytes_in:
        return [seen]

    def look(folder: str) -> HubGlance:
        here = replace(seen.origin, repo_id=in_folder(repo_id, folder))
        return _told(here, bytes_in[folder])

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hub") as pool:
        return list(pool.map(look, bytes_in))


def _bytes_of_datasets(sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the bytes of each file of the datasets in the folders of a repo, sorted.

    A dataset in the folder of another dataset is a part of that dataset.
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


def _look(repo_id: str, revision: str | None) -> tuple[HubGlance, Mapping[str, int]]:
    """Look at a dataset; return also the bytes of its files."""
    try:
        found = find_converted(repo_id) if revision is None else None
        found = found or resolve_revision(repo_id, revision)
        sizes = {file.path: file.size_bytes for file in found.store().list_files()}
        return _told(found, [*sizes.values()], is_there=INFO_PATH in sizes), sizes
    except HubUnavailableError:
        raise
    except LeconvertError as error:
        return HubGlance(Origin(repo_id, "", ""), problem=error.message), {}


def _told(found: Origin, sizes: Sequence[int], *, is_there: bool = True) -> HubGlance:
    """Return the facts of a dataset's ``info.json``, with the bytes of its files."""
    info = read_info(found.store(tries=1)) if is_there else {}
    version = info.get("codebase_version")
    wrong = unreadable(info, f"{found.repo_id} at {found.revision}") if info else None
    return HubGlance(
        found,
        version if isinstance(version, str) else None,
        info,
        sum(sizes),
        problem=wrong.message if wrong else None,
    )
