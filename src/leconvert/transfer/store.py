"""A store: files elsewhere that are listed, read in ranges and fetched whole.

`leconvert.transfer.hub.HubStore` is a repo of the Hub at one commit, and
`leconvert.transfer.urls.UrlStore` a folder behind any URL that `fsspec` knows. Both write a file
into an open one. `fetch_file` and `download_all` name files on this machine, and `incoming` names a
whole dataset.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    TargetError,
    UnreadableSourceError,
)
from leconvert.support.file_calls import folded_name, is_same_path
from leconvert.support.progress import Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import sync_dir, sync_tree
from leconvert.workdir.locks import hold_lock

_SHA256_DIGITS = 64
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a store, as a listing shows it."""

    path: str  # its path in the store
    size_bytes: int  # its size
    # SHA-256 of its content if it is in large-file storage (64 hexadecimal digits), else the id of
    # its Git blob (40); empty if the store has none.
    digest: str = ""
    # Other metadata of the store that changes when the content does, such as an ETag; may be empty.
    mark: str = ""

    @property
    def is_large(self) -> bool:
        """Whether it is in large-file storage."""
        return len(self.digest) == _SHA256_DIGITS

    @property
    def charge_bytes(self) -> int:
        """Its size on a disk with blocks of 4 KiB."""
        return -(-self.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def is_content_of(self, path: Path) -> bool:
        """Return whether a local file has the listed size and content.

        A file without a digest is compared by size alone.
        """
        with storage_errors(path), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self.size_bytes:
                return False
            made = partial(_digester, self.digest, self.size_bytes)
            return not self.digest or hashlib.file_digest(file, made).hexdigest() == self.digest


def is_content(content: bytes | bytearray, digest: str) -> bool:
    """Return whether a content has a digest, as in `RemoteFile`; an empty digest always matches."""
    digester = _digester(digest, len(content))
    digester.update(content)
    return digest in ("", digester.hexdigest())


def _digester(digest: str, size_bytes: int) -> Any:
    """Return a hash object of the kind that made a digest.

    Git names a blob by the SHA-1 of ``blob <size>``, a zero byte and the content.
    """
    if len(digest) == _SHA256_DIGITS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


class Store(Protocol):
    """Files elsewhere. Threads may share it."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def list_files(self, folder: str = "") -> Iterator[RemoteFile]:
        """Yield the files below a folder; nothing if the folder does not exist."""

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes, cut at the file's end."""

    def fetch(
        self, file: RemoteFile, out: BinaryIO, *, on_bytes: Callable[[int], None], anew: bool
    ) -> None:
        """Append the missing bytes of a whole file.

        Args:
            file: The file.
            out: The local file, open for appending.
            on_bytes: Called with the number of bytes as they arrive, including existing ones.
            anew: Whether an earlier copy had other content than the listing says.
        """


class NameGate:
    """Lets threads make, rename and remove files, until the gate is closed before removing them.

    Guaranteed: once `close` has returned, no thread makes, renames or removes a file. Not
    guaranteed: that the threads have ended. A thread may wait for a server for minutes, and then
    write to a file that it opened before. That file has no name any more, or the next process that
    continues it checks its content.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self.is_closed = False

    @contextmanager
    def passed(self, path: Path) -> Iterator[None]:
        """Hold the gate open while the block runs; the block must only use the disk.

        Raises:
            InterruptedRunError: The gate is closed.
        """
        with self._changed:
            if self.is_closed:
                raise _stopped(path)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the gate, and wait for the threads inside it."""
        with self._changed:
            self.is_closed = True
            self._changed.wait_for(lambda: not self._inside)


# The first copy may come from the client's cache; two attempts with the store are enough.
_TRIES = (False, True, True)


def fetch_file(
    store: Store,
    file: RemoteFile,
    target: Path,
    part: Path,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    gate: NameGate | None = None,
) -> None:
    """Fetch a whole file to a path that does not exist; the folders of file and part must exist.

    The file gets its name only when the bytes on the disk are as listed. Before that it is the
    part, and the next fetch continues after its bytes.

    Args:
        store: The store.
        file: The file.
        target: The path of the complete file.
        part: The path until it is complete.
        on_bytes: Called with the number of bytes as they arrive.
        gate: Stops changes of names once it is closed.

    Raises:
        UnreadableSourceError: It arrives with other content.
        InterruptedRunError: The store was told to stop, or the gate is closed.
    """
    gate = gate or NameGate()
    for anew in _TRIES:
        with storage_errors(part):
            with gate.passed(part):
                out = part.open("a+b")
            with out:
                store.fetch(file, out, on_bytes=on_bytes, anew=anew)
        is_right = file.is_content_of(part)
        with gate.passed(part):
            if is_right:
                part.replace(target)
                return
            on_bytes(-part.stat().st_size)
            part.unlink()
    raise other_content(file.path, store.name)


def stopped_while_fetching(path: str) -> InterruptedRunError:
    """Return the error for a fetch that was told to stop."""
    return InterruptedRunError(
        f"Stopped while fetching {path}.",
        path=path,
        next_step="Run the same command again to continue.",
    )


def other_content(path: str, store: str) -> UnreadableSourceError:
    """Return the error for a file that was changed on its way, or in its storage."""
    return UnreadableSourceError(
        f"The downloaded {path} of {store} does not have the listed content.",
        path=path,
        next_step="Try again later. If the message stays, the stored file is damaged.",
    )


# A downloaded dataset: it arrives in a hidden folder and gets its name when it is complete.
#
# The folder is ``.<name>.leconvert-download``, beside the dataset's future path. Complete files
# are in ``tree``, under their paths. Incomplete files are in ``begun``, outside the tree, so their
# names cannot collide with a dataset's files. One process at a time downloads to a path: ``lock``
# excludes others.


def download_dir(target: Path) -> Path:
    """Return the folder of an incoming dataset: ``.<name>.leconvert-download``."""
    return target.with_name(f".{target.name.lstrip('.')}.leconvert-download")


def part_in(folder: Path, path: str) -> Path:
    """Return the path of a file while it is incomplete; the same one after a crash."""
    return folder / "begun" / hashlib.sha256(os.fsencode(path)).hexdigest()


def not_fetched_from(folder: Path, place: str, found: str | None) -> TargetError:
    """Return the error for a folder that is neither used as a download nor replaced."""
    said = f"{folder} exists, but no record says that it was downloaded from {place}."
    if found is not None:
        said = f"{folder} was downloaded from {found}, not from {place}."
    aside = folder.with_name(f"{folder.name.lstrip('.')}.other")
    return TargetError(
        said,
        path=str(folder),
        next_step=f"Move the folder away with `mv {shlex.quote(str(folder))} "
        f"{shlex.quote(str(aside))}`, then run the same command again.",
    )


class Incoming:
    """A folder in which a dataset arrives; see `incoming`.

    Attributes:
        target: The dataset's path.
        folder: The hidden folder.
        tree: Complete files, under their paths.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = download_dir(target)
        self.tree = self.folder / "tree"

    def part(self, path: str) -> Path:
        """Return the path of a file while it is incomplete."""
        return part_in(self.folder, path)

    def keep(self, wanted: Collection[str]) -> None:
        """Remove files that are not wanted, their incomplete parts, and folders without files.

        Their room is needed, and a file may now have the name of an earlier folder, or the reverse.
        """
        begun = self.folder / "begun"
        for folder in (self.tree, begun):
            folder.mkdir(exist_ok=True)
        parts = {self.part(path) for path in wanted}
        spelled = {folded_name(path): path for path in wanted if not path.isascii()}
        for path in begun.iterdir():
            if path not in parts:
                path.unlink()
        for path in sorted(self.tree.rglob("*"), reverse=True):  # children before their folder
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # the folder is not empty
                    path.rmdir()
            else:
                name = path.relative_to(self.tree).as_posix()
                other = spelled.get(folded_name(name))
                is_other = other and is_same_path(str(path), str(self.tree / other))
                if name not in wanted and not is_other:
                    path.unlink()

    def size_bytes(self) -> int:
        """Return the number of bytes that have arrived."""
        found = (path for name in ("tree", "begun") for path in (self.folder / name).rglob("*"))
        return sum(path.lstat().st_size for path in found if path.is_file())

    def take_back(self) -> None:
        """Move an earlier download back, to arrive again: unchanged files are already there."""
        if self.tree.exists():
            shutil.rmtree(self.tree)
        self.target.rename(self.tree)

    def finish(self) -> None:
        """Sync everything to disk and give it its name: **the commit point**."""
        sync_tree(self.tree)
        self.tree.rename(self.target)
        sync_dir(self.target.parent)


@contextmanager
def incoming(target: Path) -> Iterator[Incoming]:
    """Hold the folder in which a dataset arrives; its files stay for the next call.

    Raises:
        BusyError: Another process downloads to the same path.
    """
    arriving = Incoming(target)
    with storage_errors(arriving.folder), ExitStack() as stack:
        arriving.folder.mkdir(parents=True, exist_ok=True)
        lock = arriving.folder / "lock"
        try:
            stack.enter_context(hold_lock(lock, "download", run_id="-"))
        except (BusyError, FileNotFoundError) as error:  # or its holder ended at this moment
            raise BusyError(
                f"Another process is downloading a dataset to {target}.",
                path=str(arriving.folder),
                next_step="Wait for that process or stop it. Then run the same command again.",
            ) from error
        try:
            yield arriving
        finally:
            _remove_if_nothing_is_left(arriving.folder)


def _remove_if_nothing_is_left(folder: Path) -> None:
    with suppress(OSError):
        for name in ("begun", "tree"):
            with suppress(FileNotFoundError):
                (folder / name).rmdir()
        for path in folder.glob("lock*"):
            path.unlink()
        folder.rmdir()


_THREADS = 8
_FILES_AT_A_TIME = 4096


def download_all(
    open_store: Callable[[Callable[[], bool]], Store],
    files: Iterable[RemoteFile],
    arriving: Incoming,
    *,
    is_here: Callable[[RemoteFile], bool],
    size_bytes: int,
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Fetch files in parallel into an incoming tree; the first error ends it.

    It does not wait for threads that wait for an answer, which may take minutes. After it has
    ended, nothing in the folder changes any more, so the folder can be removed.

    Args:
        open_store: Makes the store, given a function that returns whether to stop.
        files: The files.
        arriving: The tree. Parts of files stay there for the next call.
        is_here: Returns whether the tree has a file already.
        size_bytes: Bytes of all files.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Raises:
        InterruptedRunError: ``stop`` was set.
        UnreadableSourceError: A file arrives with other content.
    """
    gate = NameGate()

    def should_stop() -> bool:
        return stop.is_set() or gate.is_closed

    store = open_store(should_stop)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")
    with progress.stage("fetch", size_bytes, "B") as stage:

        def bring(file: RemoteFile) -> None:
            if should_stop():
                return
            if is_here(file):
                stage.advance(file.size_bytes)
                return
            target, part = arriving.tree / file.path, arriving.part(file.path)
            with gate.passed(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
            fetch_file(store, file, target, part, on_bytes=stage.advance, gate=gate)

        try:
            for block in batched(files, _FILES_AT_A_TIME):
                for each in [pool.submit(bring, file) for file in block]:
                    each.result()
        except BaseException:
            gate.close()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
    if stop.is_set():
        raise _stopped(arriving.folder, arriving.target)


def _stopped(path: Path, unfinished: Path | None = None) -> InterruptedRunError:
    return InterruptedRunError(
        f"The download of {unfinished or path} is not complete yet.",
        path=str(path),
        next_step="Run the same command again to continue.",
    )


# A listing as a table, which the planner writes once and workers look up. It is sorted by path. The
# footers of its row groups hold their first and last path, so a worker reads only the groups that
# hold its files.

_ROWS_PER_GROUP = 16_384
_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("digest", pa.string()), ("whole", "bool")]
)


def read_all(files: Iterable[RemoteFile]) -> pa.Table:
    """Return a listing as a table sorted by path; it takes some 100 bytes a file."""
    batches = []
    for block in batched(files, _ROWS_PER_GROUP):
        columns = [
            [file.path for file in block],
            [file.size_bytes for file in block],
            [file.digest for file in block],
            [False] * len(block),
        ]
        batches.append(pa.table(columns, schema=_SCHEMA))
    return pa.concat_tables(batches or [_SCHEMA.empty_table()]).sort_by("path")


def files_of(table: pa.Table) -> Iterator[RemoteFile]:
    """Yield the files of a table, in its order."""
    for batch in table.to_batches(max_chunksize=_ROWS_PER_GROUP):
        columns = [batch.column(place).to_pylist() for place in range(3)]
        yield from map(RemoteFile, *columns)


def write_listing(path: Path, table: pa.Table, whole: Iterable[str]) -> None:
    """Write a sorted table.

    Args:
        path: The file.
        table: The listing.
        whole: Paths of the files that the outline holds whole.
    """
    import pyarrow.compute as pc  # takes 50 ms, which conversions of folders need not spend

    held = pc.is_in(table.column("path"), pa.array(list(whole), pa.string()))
    table = table.set_column(table.schema.get_field_index("whole"), "whole", held)
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="zstd")


def find_listed(path: Path, wanted: Sequence[str]) -> list[tuple[RemoteFile, bool]]:
    """Return files of a written listing by path, each with whether the outline holds it whole.

    Raises:
        KeyError: A path is not listed.
    """
    import pyarrow.compute as pc  # as above

    field = pc.field("path")
    # The bounds leave out row groups by their statistics; pyarrow does not derive them from a list.
    within = (field >= min(wanted)) & (field <= max(wanted)) & field.isin(wanted)
    found: dict[str, tuple[RemoteFile, bool]] = {}
    for row in pq.read_table(path, filters=within, use_threads=False).to_pylist():
        is_whole = row.pop("whole")
        found[row["path"]] = RemoteFile(**row), is_whole
    return [found[each] for each in wanted]
