"""A whole dataset from the Hub into a folder that appears when it is complete."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

from leconvert.errors import InterruptedRunError, StorageError, TargetError, WorkDirError
from leconvert.hub.fetch import Fetcher
from leconvert.hub.listing import files_of, read_all
from leconvert.hub.origin import Origin, read_origin, write_origin
from leconvert.hub.remote import HubRepo
from leconvert.hub.remote_file import RemoteFile
from leconvert.progress import NO_PROGRESS, Progress, Stage
from leconvert.workdir.incoming import Incoming, incoming

__all__ = ["download_dataset", "known_origin"]

_THREADS = 8
_FILES_AT_A_TIME = 4096
# A scan passes over it, as do LeRobot and the Hub's client.
_NOTES = Path(".cache") / "leconvert"


def known_origin(folder: Path) -> Origin | None:
    """Return which commit a folder was downloaded from; None where nothing says so."""
    with suppress(WorkDirError, StorageError, OSError):
        return read_origin(folder / _NOTES)
    return None


def download_dataset(
    repo: HubRepo,
    revision: str,
    target: Path,
    *,
    replaces: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Origin:
    """Bring every file of a commit into a folder.

    It arrives in a hidden folder beside the target and gets the target's name when all of it is
    there, checked by hash. Interrupted, the same call goes on; files that another commit shares
    with what had arrived are kept, the others go. Files in the client's cache are copied.

    Args:
        repo: The dataset at a commit.
        revision: What was asked for.
        target: A folder that does not exist.
        replaces: A target that an earlier call downloaded may be there: what is not right in it is
            fetched again.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Raises:
        HubError: No answer.
        HubAccessError: The token does not allow it.
        TargetError: The target exists.
        BusyError: Another process downloads to the same place.
        StorageError: There is not enough space, or the disk fails.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    listed = read_all(repo.list_files())
    size_bytes = sum(listed.column("size_bytes").to_pylist())
    origin = Origin(repo.repo_id, revision, repo.commit)
    with incoming(target) as arriving:
        if os.path.lexists(target):
            if not replaces:
                raise TargetError(
                    f"{target} exists already and is not overwritten.", path=str(target)
                )
            if known_origin(target) == origin and all(
                _is_right(file, target / file.path) for file in files_of(listed)
            ):
                return origin
            arriving.take_back()
        arriving.keep({file.path for file in files_of(listed)})
        _check_space(arriving, repo, size_bytes)
        failed = threading.Event()

        def should_stop() -> bool:
            return stop.is_set() or failed.is_set()

        fetcher = Fetcher(repo, should_stop=should_stop)
        with (
            progress.stage("fetch", size_bytes, "B") as stage,
            ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch") as pool,
        ):
            files = files_of(listed)
            try:
                while block := list(islice(files, _FILES_AT_A_TIME)):
                    for _ in pool.map(
                        lambda file: _bring(repo, fetcher, file, arriving, stage), block
                    ):
                        pass
            except BaseException:
                failed.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        if stop.is_set():
            raise InterruptedRunError(
                f"{target} is not complete yet.", next_step="Run the same command again to go on."
            )
        (arriving.tree / _NOTES).mkdir(parents=True, exist_ok=True)
        write_origin(arriving.tree / _NOTES, origin, run_id="-")
        arriving.finish()
    return origin


def _bring(
    repo: HubRepo, fetcher: Fetcher, file: RemoteFile, arriving: Incoming, stage: Stage
) -> None:
    target, part = arriving.tree / file.path, arriving.part(file.path)
    if _is_right(file, target):
        stage.advance(file.size_bytes)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    cached = cached_file(repo, file.path)
    if cached is not None:
        shutil.copyfile(cached, part)
        if file.is_content_of(part):
            part.replace(target)
            stage.advance(file.size_bytes)
            return
        part.unlink()
    fetcher.download(file, target, part, on_bytes=stage.advance)


def cached_file(repo: HubRepo, path: str) -> Path | None:
    """Return a file of the client's cache; None where it has none."""
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(
        repo.repo_id,
        path,
        cache_dir=constants.HF_HUB_CACHE,
        revision=repo.commit,
        repo_type="dataset",
    )
    return Path(found) if isinstance(found, str) else None


def _is_right(file: RemoteFile, path: Path) -> bool:
    return path.is_file() and file.is_content_of(path)


def _check_space(arriving: Incoming, repo: HubRepo, size_bytes: int) -> None:
    free, there = shutil.disk_usage(arriving.folder).free, arriving.size_bytes()
    if free + there < size_bytes:
        place = arriving.folder.parent
        raise StorageError(
            f"{place} has {free:,} bytes free, {repo.repo_id} needs {size_bytes:,}.",
            path=str(place),
            next_step="Free some space, choose another place with --root, or use --orchestrate, "
            "which holds no more than --scratch-limit of the source.",
        )
