"""Datasets in stores that `fsspec` knows: downloads and uploads of a folder."""

from __future__ import annotations

import hashlib
import json
import shlex
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leconvert.dataset.check.dataset import checked_result
from leconvert.dataset.files import UPLOAD_CLAIM, UPLOAD_MARKER, published_files
from leconvert.support.errors import (
    InterruptedRunError,
    StorageError,
    TargetError,
    UnreadableSourceError,
    UsageError,
    WorkDirError,
)
from leconvert.support.parallel import Spread, parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.transfer.names import HubName, is_of_the_hub
from leconvert.transfer.store import RemoteFile, download_all, incoming, not_fetched_from
from leconvert.transfer.urls import UrlStore, changed_meanwhile, open_store, store_errors
from leconvert.workdir.fs import is_there, write_durably
from leconvert.workdir.records import encode_record, read_record

__all__ = ["UploadReport", "download_tree", "read_notes", "refuse_hub", "upload_tree"]


# A dataset from a store into a local folder that appears when it is complete.


_THREADS = 8
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
    """Download every file below a URL into a folder.

    The files arrive in a hidden folder beside the target, which gets the target's name when all
    files are there with the listed sizes, and the store's listing is the same as at the beginning.
    After an interruption the same call continues with the files that are missing or now listed
    otherwise. If an earlier call downloaded the target from the same URL, it is returned if the
    store's listing is the same as then; otherwise changed files are downloaded again.

    Args:
        url: A folder in a store.
        target: A folder that does not exist, or was made by this function.
        stop: Set it from another thread to stop after the files in progress.
        progress: Receives the progress.

    Returns:
        The target.

    Raises:
        UsageError: The URL cannot be read.
        InstallationError: A library for such URLs is missing.
        TargetError: Something else is at the target, or it was downloaded from another URL.
        BusyError: Another process downloads to the same place.
        UnreadableSourceError: There is nothing, or a file arrives with another size.
        SourceChangedError: Files changed while they were downloaded.
        StorageError: The store or the disk fails.
        InterruptedRunError: ``stop`` was set.
    """
    store = open_store(url)
    if is_there(target):
        found = read_notes(target)[0]
        if found != store.url or target.is_symlink():  # somebody else may need it
            raise not_fetched_from(target, store.url, found)
    listed = _listed(store)
    if not listed:
        raise UnreadableSourceError(
            f"{store.url} does not exist or is empty.",
            path=store.url,
            next_step="Check the address.",
        )
    with incoming(target) as arriving:
        if target.is_dir():
            same = _same_as_then(target, store.url, listed)
            if same == listed.keys():
                return target
            progress.say(
                f"{count(len(listed) - len(same), 'file is', 'files are')} missing in {target} or "
                f"changed at {store.url} since the download. Downloading again."
            )
            arriving.take_back()
        same = _same_as_then(arriving.tree, store.url, listed)
        arriving.keep(same)
        _note(arriving.tree, store.url, listed)
        download_all(
            lambda _: store,
            listed.values(),
            arriving,
            is_here=lambda file: file.path in same,
            size_bytes=sum(file.size_bytes for file in listed.values()),
            stop=stop or threading.Event(),
            progress=progress,
        )
        _check_same(store.url, listed, _listed(store))
        arriving.finish()
    return target


def _listed(store: UrlStore) -> dict[str, RemoteFile]:
    """Return a store's files without the records of earlier downloads of the dataset."""
    files = store.list_files()
    return {file.path: file for file in files if not file.path.startswith(_RECORDS)}


def read_notes(folder: Path) -> tuple[str | None, dict[str, RemoteFile]]:
    """Return the URL that a folder was downloaded from, and the listing then; None if unknown."""
    try:
        record = read_record(folder / _NOTES, _KIND, version=_VERSION)
        files = {name: RemoteFile(name, **fields) for name, fields in record["files"].items()}
    except (OSError, StorageError, WorkDirError, KeyError, TypeError, AttributeError):
        return None, {}
    return record.get("url"), files  # version 1 has no URL


def _same_as_then(folder: Path, url: str, listed: Mapping[str, RemoteFile]) -> set[str]:
    """Return files that were downloaded from a URL and that the store still lists as then."""
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


def _note(folder: Path, url: str, listed: Mapping[str, RemoteFile]) -> None:
    """Record the listing, before the first file."""
    notes = folder / _NOTES
    notes.parent.mkdir(parents=True, exist_ok=True)
    files = {
        name: {"size_bytes": file.size_bytes, "mark": file.mark} for name, file in listed.items()
    }
    fields = {"url": url, "files": files}
    write_durably(notes, encode_record(_KIND, _VERSION, "-", fields))


def _check_same(url: str, before: Mapping[str, RemoteFile], now: Mapping[str, RemoteFile]) -> None:
    changes = [
        f"{name}: {'it no longer exists' if name not in now else 'it is new or changed'}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changes:
        raise changed_meanwhile(url, changes)


# Upload of a finished dataset to a store, where nothing looks like a dataset before it is complete.
#
# Stores cannot rename folders. Readers recognise a dataset by ``meta/info.json``, so that file is
# sent last: before it a reader finds no dataset, after it all of it. A claim distinguishes an
# interrupted upload from the files of others. It is sent first and removed last, and its name
# identifies the tree.
#
# **Two uploads to one empty place.** Each sends its claim, then looks again; an upload that finds
# anything else removes its claim and ends. So at most one of two different trees goes on, as long
# as the store lists everything that was sent before the listing. Two uploads of the same tree are
# equivalent: both send the same bytes.


_SHOWN = 20
_INFO = "meta/info.json"


@dataclass(frozen=True, slots=True)
class UploadReport:
    """The outcome of an upload.

    Attributes:
        url: Address of the dataset.
        files: Number of its files.
        sent: Number of files that were sent now; the others were there from an interrupted upload.
        sent_bytes: Bytes of these files.
        left_out: Why a file or folder of the dataset was not sent, by its path.
    """

    url: str
    files: int
    sent: int
    sent_bytes: int
    left_out: Mapping[str, str]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def refuse_hub(root: Path, url: str) -> None:
    """Refuse to upload to the Hub, and to a name that may be a repo, a URL or a folder.

    Args:
        root: The dataset.
        url: The address or name.

    Raises:
        UsageError: ``url`` is an address on the Hub, ``ORG/NAME`` without a folder ``ORG`` here, or
            a path such as ``s3:/BUCKET/NAME`` without a folder ``s3:`` here.
    """
    named = HubName.parse(url)
    repo_id = "ORG/NAME" if named is None else named.repo_id
    push = (
        f"`leconvert push {shlex.quote(str(root))} --push-repo-id {shlex.quote(repo_id)}` pushes "
        "to the Hub"
    )
    if is_of_the_hub(url):
        raise UsageError(
            f"{url} is on the Hub, but this command uploads only to other storage.",
            path=url,
            next_step=f"{push}.",
        )
    if named is not None and not Path(url).parent.is_dir():
        raise UsageError(
            f"{url} may be a repo on the Hub or a folder.",
            path=url,
            next_step=f"{push}; write ./{url} for the folder.",
        )
    first = url.partition("/")[0]
    if ":" in first and "://" not in url and not Path(first).is_dir():
        raise UsageError(
            f"{url} may be a URL or a folder.",
            path=url,
            next_step=f"A URL has two slashes, as s3://BUCKET/NAME; write ./{url} for the folder.",
        )


def upload_tree(
    root: Path,
    url: str,
    *,
    create_bucket: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> UploadReport:
    """Upload a v3.0 dataset to an empty folder of a store.

    After an interruption the same call continues: files that are there with their size are not sent
    again, as long as the tree has the same names, sizes and times.

    Args:
        root: The dataset.
        url: The folder; it must not exist or be empty.
        create_bucket: Make a missing bucket, too. By default a missing bucket is refused, since its
            name may be mistyped.
        stop: Set it from another thread to stop after the files in progress.
        progress: Receives the progress.

    Returns:
        The address, and the number of files and bytes that were sent.

    Raises:
        UsageError: The URL cannot be read, or may be on the Hub.
        SourceError: ``root`` is no v3.0 dataset, or has links that lead outside.
        VerificationError: The dataset is not complete.
        TargetError: The URL holds something else, before or during the upload; or there is no such
            bucket.
        StorageError: The store fails, or keeps a file with another size.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    refuse_hub(root, url)
    store = open_store(url)
    checked_result(root, progress=progress)
    published = published_files(root)
    for line in published.remarks():
        progress.say(line)
    sizes = published.sizes
    digest = _digest(root, sizes)
    if create_bucket:
        store.make_bucket()
    there = _claim(store, digest)
    missing = [
        name
        for name in sizes
        if name != _INFO and (name not in there or there[name].size_bytes != sizes[name])
    ]
    size_bytes = sum(sizes[name] for name in [*missing, _INFO])
    with progress.stage("upload", size_bytes, "B") as stage:

        def send(name: str) -> None:
            if stop.is_set():
                return
            path = store.path(name)
            store.make_folder(path.rpartition("/")[0])
            with store_errors(store.url):
                store.fs.put_file(str(root / name), path)
            stage.advance(sizes[name])

        for _ in parallel_map(send, [(name,) for name in missing], Spread(threads=_THREADS)):
            pass
        if stop.is_set():
            raise InterruptedRunError(
                f"The upload to {store.url} is not complete yet.",
                path=store.url,
                next_step="Run the same command again to continue.",
            )
        _check_arrived(store, {name: size for name, size in sizes.items() if name != _INFO})
        send(_INFO)
        _check_arrived(store, sizes)
    for claim in (_claim_of(digest), UPLOAD_MARKER):
        _remove(store, claim)
    sent = [*missing, _INFO]
    sent_bytes = sum(sizes[name] for name in sent)
    return UploadReport(store.url, len(sizes), len(sent), sent_bytes, published.left_out)


def _claim_of(digest: str) -> str:
    return f"{UPLOAD_CLAIM}{digest[:32]}.json"


def _claim(store: UrlStore, digest: str) -> dict[str, RemoteFile]:
    """Claim a place; return the files of an interrupted upload of the same tree."""
    mine = _claim_of(digest)
    content = json.dumps({"format": "leconvert/upload", "version": 1, "tree": digest}).encode()
    there = _everything(store)
    if there.keys() & {mine, UPLOAD_MARKER}:
        found = {name for name in there if name.startswith(UPLOAD_CLAIM) and name != mine}
        if UPLOAD_MARKER in there:  # earlier versions gave this name to the claim of any tree
            with store_errors(store.url):
                if store.fs.cat_file(store.path(UPLOAD_MARKER)) != content:
                    found.add(UPLOAD_MARKER)
        if found:
            raise _taken(store, there)
        return there
    if there:
        raise _taken(store, there)
    store.make_folder(store.root)
    try:
        with store_errors(store.url):
            store.fs.pipe_file(store.path(mine), content)
    except FileNotFoundError as error:
        raise TargetError(
            f"The bucket {store.bucket or store.root} of {store.url} does not exist.",
            path=store.url,
            next_step="Check the address, or add --create-bucket to make the bucket.",
        ) from error
    others = _everything(store)
    others.pop(mine, None)
    if others:
        _remove(store, mine)
        raise _taken(store, others)
    return {}


def _everything(store: UrlStore) -> dict[str, RemoteFile]:
    return {file.path: file for file in store.list_files()}


def _taken(store: UrlStore, there: Mapping[str, RemoteFile]) -> TargetError:
    claims = any(name.startswith((UPLOAD_CLAIM, UPLOAD_MARKER)) for name in there)
    return TargetError(
        f"{store.url} is not empty: it has "
        f"{count(len(there), 'file')}{' of another, unfinished upload' if claims else ''}.",
        path=store.url,
        next_step="Give the URL of an empty or new folder.",
    )


def _check_arrived(store: UrlStore, sizes: Mapping[str, int]) -> None:
    """Check that the store now holds all files with their sizes, and no others."""
    there = _everything(store)
    for name, size_bytes in sizes.items():
        found = there.get(name)
        if found is None or found.size_bytes != size_bytes:
            kept = "nothing" if found is None else f"{found.size_bytes:,} bytes"
            raise StorageError(
                f"{store.url} stored {kept} of {name} instead of {size_bytes:,} bytes.",
                path=store.path(name),
                next_step="Run the same command again.",
            )
    others = sorted(
        name
        for name in there.keys() - sizes.keys() - {_INFO}
        if not name.startswith((UPLOAD_CLAIM, UPLOAD_MARKER))
    )
    if others:
        raise TargetError(
            f"Somebody else is uploading to {store.url}: "
            f"{count(len(others), 'file there does', 'files there do')} not belong to this "
            "dataset.",
            path=store.url,
            details=others[:_SHOWN],
            next_step="Run the command again with the URL of an empty or new folder.",
        )


def _remove(store: UrlStore, name: str) -> None:
    with store_errors(store.url), suppress(FileNotFoundError):
        store.fs.rm_file(store.path(name))


def _digest(root: Path, sizes: dict[str, int]) -> str:
    digest = hashlib.sha256()
    for name, size_bytes in sizes.items():
        digest.update(f"{name}\0{size_bytes}\0{(root / name).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()
