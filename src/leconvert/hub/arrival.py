"""From the name of a dataset on the Hub to a folder that a conversion can begin with."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import TargetError, WorkDirError
from leconvert.hub.download import download_dataset, known_origin
from leconvert.hub.fetch import Fetcher
from leconvert.hub.offline import cached_snapshot, is_offline
from leconvert.hub.origin import Arrival, Origin
from leconvert.hub.outline import Outline, make_outline, open_outline
from leconvert.hub.revision import check_convertible, find_v30, resolve_revision
from leconvert.hub.scratch import limit_too_small
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.workdir.incoming import not_fetched_from
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.manifest import read_manifest
from leconvert.workdir.paths import WorkDir

__all__ = ["Arrived", "already_converted", "check_same_repo", "download", "outline", "under_way"]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A source that is ready to be planned.

    Attributes:
        source: The folder: a download, a snapshot of the client's cache, or the tree of an outline.
        arrival: How it came here; None for a local dataset that nobody knows the origin of.
    """

    source: Path
    arrival: Arrival | None


def already_converted(
    repo_id: str,
    place: Path,
    *,
    endpoint: str | None = None,
    fetch: bool = True,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> str | None:
    """Say, in a line, that the Hub has the dataset in v3.x already; None where it has not.

    As LeRobot's script does, it then brings it to the place where the result would go.

    Args:
        repo_id: ``ORG/NAME``.
        place: Where the result would go; left alone if something is there.
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
    found = find_v30(repo_id, endpoint=endpoint)
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
    endpoint: str | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Arrived:
    """Provide a whole dataset on this machine.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the newest ``v2.x`` tag, else ``main``.
        local: Where it is downloaded to; a dataset that is there is used, unless it is known to be
            of another repo, or of another commit than ``revision``.
        anew: Of what is there use only what the Hub has at this moment, and fetch the rest again;
            nothing may be there but what an earlier call brought.
        endpoint: The Hub's address; None for the one that is configured.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        Where the dataset is, and where it came from.

    Raises:
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is no v2.x dataset.
        TargetError: Something else is at ``local``.
        BusyError: Another process downloads to there.
        StorageError: There is not enough space.
    """
    known = known_origin(local)
    if anew:
        if os.path.lexists(local):
            check_same_repo(local, known, repo_id)
    elif local.is_dir() and any(local.iterdir()):
        if revision is None and known:
            check_same_repo(local, known, repo_id)
        if revision is None or (known and _is_of(known, repo_id, revision)):
            return Arrived(local, Arrival(known) if known else None)
        raise TargetError(
            f"{local} exists, and nothing says that it is {repo_id} at {revision}.",
            path=str(local),
            next_step="Leave --revision away to convert what is there, or name another folder for "
            "the download with --root.",
        )
    if is_offline():
        folder, origin = cached_snapshot(repo_id, revision)
        return Arrived(folder, Arrival(origin))
    found = resolve_revision(repo_id, revision, endpoint=endpoint)
    check_convertible(found, Fetcher(found.repo))
    progress.say(f"Downloading {repo_id} at {found.revision} ({found.repo.commit[:12]})")
    if local.is_dir() and not anew:
        local.rmdir()  # empty, as a mount point or a careful user may leave it
    local.parent.mkdir(parents=True, exist_ok=True)
    origin = download_dataset(
        found.repo, found.revision, local, replaces=anew, stop=stop, progress=progress
    )
    return Arrived(local, Arrival(origin))


def check_same_repo(local: Path, known: Origin | None, repo_id: str) -> None:
    """Refuse a folder that was downloaded from another repo, or of which nobody knows.

    Args:
        local: The folder.
        known: What is known of it.
        repo_id: ``ORG/NAME``.

    Raises:
        TargetError: It was.
    """
    if known is None or known.repo_id != repo_id:
        raise not_fetched_from(local, repo_id, None if known is None else known.repo_id)


def _is_of(known: Origin, repo_id: str, revision: str) -> bool:
    """Tell whether what is known of a folder is a revision; another repo's `main` is another."""
    return revision == known.commit or (known.repo_id, known.revision) == (repo_id, revision)


def outline(
    repo_id: str,
    revision: str | None,
    work_dir: Path,
    *,
    endpoint: str | None = None,
    scratch_limit: int | None = None,
    restart: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Arrived:
    """Provide what a plan needs of a dataset; workers fetch the rest batch by batch.

    A run that is under way in the work dir goes on with the commit that it was planned with, even
    if the branch moved since.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the newest ``v2.x`` tag, else ``main``.
        work_dir: The folder that all hosts share; holds the outline.
        endpoint: The Hub's address; None for the one that is configured.
        scratch_limit: Bytes that workers may hold; None for any number.
        restart: Do not go on with a run that is under way.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        Where the outline is, and what it is the outline of.

    Raises:
        UsageError: The limit does not hold the largest file.
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
        SourceError: It is no v2.x dataset.
        BusyError: Another process plans in this work dir.
    """
    stop = stop or threading.Event()
    made = None if restart else under_way(work_dir, repo_id, revision)
    if made is not None:
        progress.say(f"Going on with {repo_id} at commit {made.origin.commit[:12]}")
    elif is_offline():
        folder, origin = cached_snapshot(repo_id, revision)
        return Arrived(folder, Arrival(origin))
    else:
        found = resolve_revision(repo_id, revision, endpoint=endpoint)
        fetcher = Fetcher(found.repo, should_stop=stop.is_set)
        check_convertible(found, fetcher)
        progress.say(f"Planning {repo_id} at {found.revision} ({found.repo.commit[:12]})")
        with planner_lock(WorkDir(work_dir)):
            made = make_outline(work_dir, found.repo, found.revision, fetcher, progress=progress)
    if scratch_limit is not None and scratch_limit < made.largest_bytes:
        raise limit_too_small(scratch_limit, made.largest_bytes)
    return Arrived(made.tree, Arrival(made.origin, made.repo.name))


def under_way(work_dir: Path, repo_id: str, revision: str | None) -> Outline | None:
    """Return the outline that the work dir's current run was planned with, if it is of this.

    Args:
        work_dir: The work dir, which need not exist.
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for any.
    """
    work = WorkDir(work_dir)
    run_id = work.current_run_id()
    if run_id is None:
        return None
    try:
        manifest = read_manifest(work.run(run_id), run_id)
        if manifest.outline is None:
            return None
        made = open_outline(Path(manifest.source))
    except (FileNotFoundError, WorkDirError):
        return None  # whoever opens the run says what is wrong with it
    if made.origin.repo_id != repo_id:
        return None
    return made if revision in (None, made.origin.revision, made.origin.commit) else None
