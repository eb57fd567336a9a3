"""A dataset from a store into a local folder that appears when it is complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from leconvert.errors import (
    InterruptedRunError,
    SourceChangedError,
    StorageError,
    UnreadableSourceError,
    WorkDirError,
)
from leconvert.mirrors.store import Store, StoredFile, open_store, store_errors
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.spread import Spread, do_all
from leconvert.text import count
from leconvert.workdir.durable import sync_file, write_durably
from leconvert.workdir.incoming import Incoming, incoming, not_fetched_from
from leconvert.workdir.records import encode_record, read_record

__all__ = ["download_tree", "read_notes"]

_THREADS = 8
_CHANGES_SHOWN = 20
_RECORDS = ".cache/leconvert/"
_NOTES = f"{_RECORDS}mirror.json"
_KIND, _VERSION = "mirror", 2


def download_tree(
    url: str,
    target: Path,
    *,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Path:
    """Bring every file below a URL into a folder.

    It arrives in a hidden folder beside the target and gets its name when all of it is there with
    the sizes that the store lists, and the store lists the same as in the beginning. Interrupted,
    the same call goes on with the files that are missing or listed otherwise now. A target that an
    earlier call brought from the same URL is returned if the store lists its files as then; else
    what changed is fetched again.

    Args:
        url: A folder in a store.
        target: A folder that does not exist, or was made by this function.
        stop: Set it from another thread to stop after the files under way.
        progress: Where to report.

    Returns:
        The target.

    Raises:
        UsageError: Nobody knows such URLs.
        InstallationError: What is needed for them is not installed.
        TargetError: Something else is at the target, or it was fetched from another URL.
        BusyError: Another process fetches to the same place.
        UnreadableSourceError: There is nothing, or a file arrives with another size.
        SourceChangedError: Files changed while they were fetched.
        StorageError: The store or the disk fails.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    store = open_store(url)
    _check_fetched_from(store.url, target)
    listed = _listed(store)
    if not listed:
        raise UnreadableSourceError(
            f"There is nothing at {store.url}.", path=store.url, next_step="Check the address."
        )
    with incoming(target) as arriving:
        if target.is_dir():
            same = _same_as_then(target, store.url, listed)
            if same == listed.keys():
                return target
            progress.say(
                f"{count(len(listed) - len(same), 'file')} at {store.url} changed since "
                f"{target} was fetched, or are missing there; fetching them again."
            )
            arriving.take_back()
        same = _same_as_then(arriving.tree, store.url, listed)
        arriving.keep(same)
        _note(arriving.tree, store.url, listed)
        with progress.stage("fetch", sum(f.size_bytes for f in listed.values()), "B") as stage:

            def bring(relative: str) -> None:
                if not stop.is_set():
                    if relative not in same:
                        _bring(store, relative, listed[relative], arriving)
                    stage.advance(listed[relative].size_bytes)

            for _ in do_all(bring, [(name,) for name in listed], Spread(threads=_THREADS)):
                pass
        if stop.is_set():
            raise InterruptedRunError(
                f"{store.url} is not here completely yet.",
                path=str(arriving.folder),
                next_step="Run the same command again to go on.",
            )
        _check_same(store.url, listed, _listed(store))
        arriving.finish()
    return target


def _listed(store: Store) -> dict[str, StoredFile]:
    """Return a store's files without the records of whoever fetched the dataset before."""
    files = store.list_files()
    return {name: file for name, file in files.items() if not name.startswith(_RECORDS)}


def _check_fetched_from(url: str, target: Path) -> None:
    """Refuse a folder that was not fetched from a URL: somebody else may need it.

    Raises:
        TargetError: It was not, or nothing says so.
    """
    if not os.path.lexists(target):
        return
    found = read_notes(target)[0]
    if found != url or target.is_symlink():
        raise not_fetched_from(target, url, found)


def read_notes(folder: Path) -> tuple[str | None, dict[str, StoredFile]]:
    """Return from which URL a folder was fetched, and what was listed then; None for unknown."""
    try:
        record = read_record(folder / _NOTES, _KIND, version=_VERSION)
        files = {name: StoredFile(**fields) for name, fields in record["files"].items()}
    except (OSError, StorageError, WorkDirError, KeyError, TypeError, AttributeError):
        return None, {}
    return record.get("url"), files  # version 1 has none


def _same_as_then(folder: Path, url: str, listed: Mapping[str, StoredFile]) -> set[str]:
    """Return files that were fetched from a URL and that the store still lists as then."""
    found, before = read_notes(folder)
    if found != url:
        return set()

    def is_same(name: str) -> bool:
        path = folder / name
        return (
            before.get(name) == listed[name]
            and path.is_file()
            and path.stat().st_size == listed[name].size_bytes
        )

    return {name for name in listed if is_same(name)}


def _note(folder: Path, url: str, listed: Mapping[str, StoredFile]) -> None:
    """Note what is fetched, before the first file."""
    notes = folder / _NOTES
    notes.parent.mkdir(parents=True, exist_ok=True)
    fields = {"url": url, "files": {name: asdict(file) for name, file in listed.items()}}
    write_durably(notes, encode_record(_KIND, _VERSION, "-", fields))


def _bring(store: Store, relative: str, file: StoredFile, arriving: Incoming) -> None:
    target, begun = arriving.tree / relative, arriving.part(relative)
    target.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(store.url):
        try:
            store.fs.get_file(store.path(relative), str(begun))
        except FileNotFoundError as error:
            raise _changed(store.url, [f"{relative}: it is gone"]) from error
    size_bytes = begun.stat().st_size
    if size_bytes != file.size_bytes:
        raise UnreadableSourceError(
            f"{relative} of {store.url} arrives with {size_bytes:,} bytes, {file.size_bytes:,} "
            "are listed.",
            path=store.path(relative),
            next_step="Run the same command again.",
        )
    sync_file(begun)  # the next call believes a file that has its name and its size
    begun.replace(target)


def _check_same(url: str, before: Mapping[str, StoredFile], now: Mapping[str, StoredFile]) -> None:
    changes = [
        f"{name}: {'it is gone' if name not in now else 'it is new or changed'}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changes:
        raise _changed(url, changes)


def _changed(url: str, changes: list[str]) -> SourceChangedError:
    left = len(changes) - _CHANGES_SHOWN
    more = [f"... and {left} more"] if left > 0 else []
    return SourceChangedError(
        f"{url} changed while it was fetched, in {count(len(changes), 'place')}.",
        path=url,
        details=[*changes[:_CHANGES_SHOWN], *more],
        next_step="Run the same command again when nobody writes there; it fetches what changed.",
    )
