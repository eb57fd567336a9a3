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
from leconvert.hub.fetch import PARTIAL_SUFFIX, Fetcher, partial_path
from leconvert.hub.listing import files_of, read_all
from leconvert.hub.origin import Origin, read_origin, write_origin
from leconvert.hub.remote import HubRepo
from leconvert.hub.remote_file import Content, RemoteFile
from leconvert.progress import NO_PROGRESS, Progress, Stage
from leconvert.workdir.durable import storage_errors, sync_dir, sync_tree

__all__ = ["download_dataset", "known_origin"]

_THREADS = 8
_FILES_AT_A_TIME = 4096
# A scan passes over it, as do LeRobot and the Hub's client.
_NOTES = Path(".cache") / "leconvert"


def download_dir(target: Path) -> Path:
    """Return where a dataset is while it arrives: ``.<name>.leconvert-download``."""
    return target.with_name(f".{target.name}.leconvert-download")


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
        stop: Set it from another thread to stop.
        progress: Where to report.

    Raises:
        HubError: No answer.
        HubAccessError: The token does not allow it.
        TargetError: The target exists.
        StorageError: There is not enough space, or the disk fails.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    folder = download_dir(target)
    if os.path.lexists(target):
        raise TargetError(f"{target} exists already and is not overwritten.", path=str(target))
    listed = read_all(repo.list_files())
    size_bytes = sum(listed.column("size_bytes").to_pylist())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_others(folder, {file.path for file in files_of(listed)})
        _check_space(folder, repo, size_bytes)
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
                        lambda file: _bring(repo, fetcher, file, folder, stage), block
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
        origin = Origin(repo.repo_id, revision, repo.commit)
        (folder / _NOTES).mkdir(parents=True, exist_ok=True)
        write_origin(folder / _NOTES, origin, run_id="-")
        sync_tree(folder)
        folder.rename(target)
        sync_dir(target.parent)
    return origin


def _bring(repo: HubRepo, fetcher: Fetcher, file: RemoteFile, folder: Path, stage: Stage) -> None:
    target = folder / file.path
    if target.is_file() and _is_right(file, target):
        stage.advance(file.size_bytes)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    cached = cached_file(repo, file.path)
    if cached is not None and _is_right(file, cached):
        begun = partial_path(target)
        shutil.copyfile(cached, begun)
        begun.replace(target)
        stage.advance(file.size_bytes)
        return
    fetcher.download(file, target, on_bytes=stage.advance)


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
    if path.stat().st_size != file.size_bytes:
        return False
    content = Content(file)
    content.add_file(path)
    return content.is_right


def _remove_others(folder: Path, wanted: set[str]) -> None:
    """Remove what an earlier commit had and this one has not, and folders that hold nothing.

    Their room is needed, and a file may be now where a folder was, or a folder where a file was.
    """
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it holds something
                path.rmdir()
        elif name not in wanted and name.removesuffix(PARTIAL_SUFFIX) not in wanted:
            path.unlink()


def _check_space(folder: Path, repo: HubRepo, size_bytes: int) -> None:
    there = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if free + there < size_bytes:
        raise StorageError(
            f"{folder.parent} has {free:,} bytes free, {repo.repo_id} needs {size_bytes:,}.",
            path=str(folder.parent),
            next_step="Free some space, choose another place with --root, or use --orchestrate, "
            "which holds no more than --scratch-limit of the source.",
        )
