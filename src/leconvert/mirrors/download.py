"""A dataset from a store into a local folder that appears when it is complete."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from leconvert.errors import (
    InterruptedRunError,
    SourceChangedError,
    UnreadableSourceError,
    WorkDirError,
)
from leconvert.mirrors.store import Store, StoredFile, open_store, store_errors
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.spread import Spread, do_all
from leconvert.text import count
from leconvert.workdir.durable import storage_errors, sync_dir, sync_tree, write_durably
from leconvert.workdir.records import encode_record, read_record

__all__ = ["download_tree", "source_dir"]

_THREADS = 8
_CHANGES_SHOWN = 20
# A scan passes over it.
_NOTES = Path(".cache") / "leconvert" / "mirror.json"
_KIND, _VERSION = "mirror", 1


def source_dir(target: Path) -> Path:
    """Return where the source of a result is brought: ``.<name>.leconvert-source`` beside it."""
    return target.with_name(f".{target.name}.leconvert-source")


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
    the same call goes on with the files that are missing or listed otherwise now. A target that is
    there is what an earlier call brought, and is returned.

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
        UnreadableSourceError: There is nothing, or a file arrives with another size.
        SourceChangedError: Files changed while they were fetched.
        StorageError: The store or the disk fails.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    if target.is_dir():
        return target
    store = open_store(url)
    listed = store.list_files()
    if not listed:
        raise UnreadableSourceError(
            f"There is nothing at {url}.", path=url, next_step="Check the address."
        )
    folder = target.with_name(f".{target.name.lstrip('.')}.leconvert-download")
    with storage_errors(folder):
        _keep_unchanged(folder, listed)
        with progress.stage("fetch", sum(f.size_bytes for f in listed.values()), "B") as stage:

            def bring(relative: str) -> None:
                if not stop.is_set():
                    _bring(store, relative, listed[relative], folder)
                    stage.advance(listed[relative].size_bytes)

            for _ in do_all(bring, [(name,) for name in listed], Spread(threads=_THREADS)):
                pass
        if stop.is_set():
            raise InterruptedRunError(
                f"{url} is not here completely yet.",
                path=str(folder),
                next_step="Run the same command again to go on.",
            )
        _check_same(url, listed, store.list_files())
        sync_tree(folder)
        folder.rename(target)
        sync_dir(target.parent)
    return target


def _keep_unchanged(folder: Path, listed: Mapping[str, StoredFile]) -> None:
    """Keep files of an earlier call that the store still lists as then; note the new listing."""
    notes = folder / _NOTES
    before: dict[str, StoredFile] = {}
    with suppress(FileNotFoundError, WorkDirError):
        record = read_record(notes, _KIND, version=_VERSION)
        before = {name: StoredFile(**fields) for name, fields in record["files"].items()}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder).as_posix()
        is_same = relative in listed and before.get(relative) == listed[relative]
        if path != notes and not path.is_dir() and not is_same:
            path.unlink()
    notes.parent.mkdir(parents=True, exist_ok=True)
    fields = {"files": {name: asdict(file) for name, file in listed.items()}}
    write_durably(notes, encode_record(_KIND, _VERSION, "-", fields))


def _bring(store: Store, relative: str, file: StoredFile, folder: Path) -> None:
    target = folder / relative
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    begun = target.with_name(target.name + ".part")
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
