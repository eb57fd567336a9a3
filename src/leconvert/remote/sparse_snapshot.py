"""Sparse snapshots: the parts of a dataset on the Hub that a plan needs, in the work dir.

    WORK/outlines/<commit>/        <commit>-copies for a migration, see below
        tree/                      every file at its path, with its size; scan and packer read it
            meta/, README.md       whole, as are all files that are not of an episode
            data/, videos/         small files whole; of others the headers, the rest is a hole
        listing.parquet            every file: path, size, hash, whether ``tree`` holds it whole
        outline.json               endpoint, repo, revision, commit, largest file: written last

**Why a scan of the snapshot is a scan of the source.** Every file comes from one commit: its hash
is in each request. A whole file was checked against the hash in the commit's listing. For other
files, the ranges that the scan reads were fetched by the same code that the scan uses. After that
the scan's own reader was tried on the local file: if it found any fault, the file was fetched
whole, so that a finding of the scan is always about a whole file. A worker reads episodes only from
files that it fetched and checked by hash, never from a hole.

**Never changed once written.** A file is made under a temporary name and gets its own name when it
is complete. After a crash the complete files are kept, and the others are made. The planner's lock
keeps two planners apart. The plan records size, time and inode of each file of the tree, as of any
source, so a changed tree is noticed.

**A migration** moves no files. Its result is in ``result/`` beside the tree, and files that the
result keeps unchanged are hard links to the tree's files. A push lets the Hub copy these, by the
hash that the listing has of each (`contents_on_hub`). So a kept file needs only the bytes that the
scan reads. Only tables are fetched whole, if they are small or if quantiles of all rows are to be
computed; other large files are holes. Git blobs, which have no such hash, are fetched.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import batched, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media, tables
from leconvert.dataset.formats import open_dataset
from leconvert.dataset.formats.v2 import EPISODES_PATH, EpisodeLines, SourcePaths, load_info
from leconvert.dataset.formats.v3 import has_files_of_v3
from leconvert.media.boxes import read_moov
from leconvert.model.repairs import DEFAULT_COLUMNS, Repairs
from leconvert.model.values import DATA_STREAM
from leconvert.remote.provenance import Origin
from leconvert.support.errors import (
    HubAccessError,
    HubError,
    InterruptedRunError,
    LeconvertError,
    SourceChangedError,
    SourceError,
)
from leconvert.support.parallel import THREADS_THAT_WAIT, Spread, parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.values import dataclass
from leconvert.tables import chunk_range, list_sizes
from leconvert.transfer.files import Spans
from leconvert.transfer.hub import HubStore
from leconvert.transfer.names import download_command, downloaded_at, folder_of
from leconvert.transfer.scratch import ScratchSlot, Window, bytes_in, limit_too_small
from leconvert.transfer.store import (
    NameGate,
    RemoteFile,
    Store,
    fetch_file,
    files_of,
    find_listed,
    part_in,
    read_all,
    write_listing,
)
from leconvert.workdir.fs import sync_dir, sync_file, sync_tree, write_durably
from leconvert.workdir.records import (
    DamagedRecordError,
    WorkDir,
    encode_record,
    fields_of,
    read_record,
)

# A local file with the size of a remote one, and with only the bytes that a scan reads.
#
# The rest is a hole. The scan reads the index of a clip (``moov``). In a table it reads the footer,
# the columns that place a row, lists whose lengths their type leaves open, and columns that are not
# declared. The code that the scan itself uses finds these bytes here; it reads ranges over the
# network, and every fetched byte is written to the same offset in the local file. So the scan finds
# the same in it as in the whole file, or the file is fetched whole
# (`leconvert.remote.sparse_snapshot` decides).


# A request costs as much time as some tens of kilobytes. Clips are the most frequent files, and
# their index takes two requests of its own size.
_LEAST_BYTES = 64 * 1024
_LEAST_BYTES_OF_A_CLIP = 4 * 1024
# The length of the footer and the magic.
_TRAILER_BYTES = 8


class SparseCopy:
    """The local file; not for several threads."""

    def __init__(self, file: RemoteFile, store: Store, descriptor: int) -> None:
        self._file = file
        self._store = store
        self._descriptor = descriptor
        self._fetched = Spans()
        self._least_bytes = _LEAST_BYTES
        os.truncate(descriptor, file.size_bytes)

    def take_clip_index(self) -> None:
        """Fetch the bytes that `leconvert.media.read_clip_index` reads."""
        self._least_bytes = _LEAST_BYTES_OF_A_CLIP
        read_moov(
            self._descriptor,
            self._file.size_bytes,
            self._file.path,
            pread=self.pread,
        )

    def take_table_index(self, declared: Collection[str], *, with_images: bool) -> None:
        """Fetch the footer of a parquet file, and the columns that a scan reads.

        Raises:
            ValueError: The footer is larger than the file.
        """
        end = self._file.size_bytes - _TRAILER_BYTES
        footer_bytes = int.from_bytes(self.take(max(0, end), 4), "little")
        if footer_bytes > end:
            raise ValueError("the footer is larger than the file")
        self.take(end - footer_bytes, footer_bytes + _TRAILER_BYTES)
        with open(self._descriptor, "rb", closefd=False) as file:
            metadata = pq.read_metadata(file)
        wanted, where_empty = set(DEFAULT_COLUMNS), set()
        for field in metadata.schema.to_arrow_schema():
            sizes = list_sizes(field.type)
            may_be_image = pa.types.is_struct(field.type) or "binary" in str(field.type)
            if None in sizes or (field.name not in declared and (with_images or not may_be_image)):
                wanted.add(field.name)
            elif sizes:
                where_empty.add(field.name)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        may_be_empty = [
            any(_null_count(group.column(place)) != 0 for group in groups)
            for place in range(metadata.num_columns)
        ]
        for group in groups:
            for place in range(group.num_columns):
                chunk = group.column(place)
                if _is_of(chunk, wanted) or (may_be_empty[place] and _is_of(chunk, where_empty)):
                    self.take(chunk_range(chunk)[0], chunk.total_compressed_size)

    def pread(self, _: int, count: int, position: int) -> bytes:
        """Fetch a range; called like `os.pread`."""
        return self.take(position, count)

    def take(self, position: int, count: int) -> bytes:
        """Fetch and return a range; it is shorter only at the end of the file."""
        size = self._file.size_bytes
        for first, stop in self._fetched.missing(position, min(position + count, size)):
            start = first
            if stop == size:  # a range at the end is extended backwards
                start = max(0, min(first, size - self._least_bytes))
            data = self._store.read(self._file, start, max(stop, start + self._least_bytes))
            os.pwrite(self._descriptor, data, start)
            self._fetched.add(start, start + len(data))
        return os.pread(self._descriptor, count, position)


def _is_of(chunk: pq.ColumnChunkMetaData, wanted: Collection[str]) -> bool:
    """Return whether a leaf may be of one of these columns; names of columns contain dots, too."""
    path = chunk.path_in_schema
    return any(path == name or path.startswith(f"{name}.") for name in wanted)


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    found = chunk.statistics
    return found.null_count if found is not None and found.has_null_count else None


# The snapshot: made, kept, and opened again.


_KIND, _VERSION = "outline", 1
# Up to these sizes, one request for the whole file costs about as much as one for the header, and
# saves the worker's request.
_WHOLE_TABLE_BYTES = 1024**2
_WHOLE_CLIP_BYTES = 256 * 1024
# The same for a file whose other bytes nobody will need.
_WHOLE_KEPT_BYTES = 2 * _LEAST_BYTES_OF_A_CLIP
# The approximate share of a file that is header or footer, or a table's columns that place rows.
_SHARE_OF_INDEX = 32
_COPIES = "-copies"
_FILES_AT_A_TIME = 4096
_EPISODE_FOLDERS = ("data/", "videos/")
# The files of episodes are the same whatever rate a user gives for one that info.json lacks.
_ANY_RATE = Repairs(assumed_fps="1")


@dataclass(frozen=True, slots=True)
class SparseSnapshot:
    """A finished outline."""

    folder: Path  # its folder
    store: HubStore  # the dataset, at the outline's commit
    origin: Origin  # the repo and revision that were asked for
    size_bytes: int  # bytes of all files of the dataset
    # Disk space of the largest file that a worker has to fetch; the minimum for a scratch limit.
    largest_bytes: int

    @property
    def tree(self) -> Path:
        """The folder that stands for the dataset."""
        return self.folder / "tree"

    def check_limit(self, limit_bytes: int | None) -> None:
        """Refuse a scratch limit that does not hold the largest file."""
        if limit_bytes is not None and limit_bytes < self.largest_bytes:
            raise limit_too_small(limit_bytes, self.largest_bytes)

    def find(self, paths: Sequence[str]) -> list[tuple[RemoteFile, bool]]:
        """Return files of the listing by path, each with whether the tree holds it whole."""
        return find_listed(self.folder / "listing.parquet", paths)

    @property
    def fetched_bytes(self) -> int:
        """Bytes of the dataset that are here, in blocks of the file system."""
        return bytes_in(self.tree)


def open_sparse_snapshot(tree: Path) -> SparseSnapshot:
    """Open a finished outline by its tree, as a plan names it.

    Raises:
        WorkDirError: The record cannot be used.
    """
    folder, path = tree.parent, tree.parent / "outline.json"
    record = read_record(path, _KIND, version=_VERSION)
    with fields_of(path):
        origin = Origin(record["repo_id"], record["revision"], record["commit"])
        return SparseSnapshot(
            folder,
            HubStore(origin.repo_id, origin.commit, record["endpoint"]),
            origin,
            record["size_bytes"],
            record["largest_bytes"],
        )


def make_sparse_snapshot(
    work_dir: Path,
    origin: Origin,
    store: HubStore,
    *,
    for_copies: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SparseSnapshot:
    """Return the outline of a commit; make or finish it if needed.

    Args:
        work_dir: The folder that all hosts share.
        origin: The dataset, at the commit.
        store: Reads the dataset's files.
        for_copies: Whether to make the outline of a migration.
        progress: Receives the progress.
    """
    name = origin.commit
    if place := folder_of(origin.repo_id):  # one of the datasets of the commit
        name += f"-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
    folder = WorkDir(work_dir).outlines_dir / f"{name}{_COPIES if for_copies else ''}"
    tree = folder / "tree"
    with suppress(FileNotFoundError, DamagedRecordError):
        return open_sparse_snapshot(tree)
    with storage_errors(folder):
        for part in (tree, folder / "begun"):
            part.mkdir(parents=True, exist_ok=True)
        listed = read_all(store.list_files())
        writer = _Writer(folder, store, for_copies=for_copies)
        files = [file for file in files_of(listed) if file.path.startswith("meta/")]
        with progress.stage("outline", listed.num_rows, "files") as stage:
            writer.take_all(files, lambda _: False, stage.advance)
            is_episode = _episode_files(tree, writer)
            if is_episode is None:
                raise needs_all_bytes(origin)
            rest = (file for file in files_of(listed) if not file.path.startswith("meta/"))
            while block := list(islice(rest, _FILES_AT_A_TIME)):
                writer.take_all(block, is_episode, stage.advance)
        write_listing(folder / "listing.parquet", listed, writer.whole)
        sync_file(folder / "listing.parquet")
        sync_tree(tree, files=False)
        sync_dir(folder)
        record = {
            "endpoint": None,  # the configured one
            **asdict(origin),
            "size_bytes": sum(listed.column("size_bytes").to_pylist()),
            "largest_bytes": writer.largest_bytes,
        }
        write_durably(folder / "outline.json", encode_record(_KIND, _VERSION, "-", record))
    return open_sparse_snapshot(tree)


def needs_all_bytes(origin: Origin) -> SourceError:
    """Return the error for a v3.0 dataset, whose scan reads rows."""
    return SourceError(
        f"{origin.repo_id} at {origin.revision} is v3.0. Only v2.x datasets can be planned "
        "without downloading them first.",
        path=origin.store().name,
        next_step=f"Download it, `{download_command(origin.repo_id, origin.revision, 'DIR')}`, "
        f"and give {downloaded_at(origin.repo_id, 'DIR')}.",
    )


def _episode_files(tree: Path, writer: _Writer) -> Callable[[str], bool] | None:
    """Return a function that recognises episodes' files; without usable names, it recognises none.

    The writer is told which parts a scan will read. None if the files are those of v3.0.
    """
    if has_files_of_v3(tree):
        return None
    try:
        info = load_info(tree, _ANY_RATE)
        paths = SourcePaths(tree, info)
        writer.declared = info.features.keys()
        writer.whole_tables = writer.for_copies and open_dataset(tree, _ANY_RATE).has_quantiles
        lines = EpisodeLines(tree / EPISODES_PATH, validated=True)
        if len(lines):
            writer.first_table = paths.relative(DATA_STREAM, int(lines.episode_index.min()))
    except SourceError:
        return lambda _: False  # the scan reports what is wrong
    # --locate-files may use a file that is not at its template's path.
    return lambda path: (paths.slice_of(path) or paths.misplaced(path)) is not None


class _Writer:
    """Makes files of the tree."""

    def __init__(self, folder: Path, store: HubStore, *, for_copies: bool) -> None:
        self._folder = folder
        self.for_copies = for_copies
        self.whole_tables = False
        self._store = store
        self._lock = threading.Lock()
        self._gate = NameGate()  # the folder may be removed once `take_all` has ended
        self._noted = folder / "begun" / "whole.txt"
        self.whole = set(self._noted.read_text().splitlines()) if self._noted.exists() else set()
        self.largest_bytes = 0
        self.declared: Collection[str] = ()
        self.first_table = ""

    def take_all(
        self,
        files: list[RemoteFile],
        is_episode: Callable[[str], bool],
        advance: Callable[[int], None],
    ) -> None:
        """Make the tree's file for each; the first error ends it."""
        pieces = [(file, is_episode) for file in files]
        try:
            for _ in parallel_map(self._take, pieces, Spread(threads=THREADS_THAT_WAIT)):
                advance(1)
        except BaseException:
            self._gate.close()
            raise

    def _take(self, file: RemoteFile, is_episode: Callable[[str], bool]) -> None:
        target = self._folder / "tree" / file.path
        if not target.exists():
            self._make(file, target, of_an_episode=is_episode(file.path))
        if file.path not in self.whole and is_episode(file.path):
            with self._lock:
                self.largest_bytes = max(self.largest_bytes, file.charge_bytes)

    def _make(self, file: RemoteFile, target: Path, *, of_an_episode: bool) -> None:
        # A file that the Hub copies must have a hash of its content.
        is_blob = self.for_copies and not file.is_large
        if not of_an_episode:
            # Files below data/ and videos/ that belong to no episode, and files that the Hub
            # copies, are needed only by name.
            is_kept = self.for_copies and file.size_bytes > _WHOLE_TABLE_BYTES
            is_kept &= not file.path.startswith("meta/")
            if (is_kept and not is_blob) or file.path.startswith(_EPISODE_FOLDERS):
                self._make_hole(file, target)
            else:
                self._fetch_whole(file, target)
            return
        is_clip = file.path.endswith(".mp4")
        limit = _WHOLE_TABLE_BYTES
        if is_clip:
            limit = _WHOLE_KEPT_BYTES if self.for_copies else _WHOLE_CLIP_BYTES
        whole = is_blob or file.size_bytes <= limit or (self.whole_tables and not is_clip)
        if whole or not self._make_sparse(file, target, is_clip=is_clip):
            self._fetch_whole(file, target)

    def _fetch_whole(self, file: RemoteFile, target: Path) -> None:
        begun = part_in(self._folder, file.path)
        fetch_file(self._store, file, begun, begun.with_suffix(".part"), gate=self._gate)
        self._name(file, begun, target, whole=True)

    def _name(self, file: RemoteFile, begun: Path, target: Path, *, whole: bool) -> None:
        """Give a complete file its name, once it is on the disk; later calls trust the name."""
        with self._gate.passed(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                # Note it before it has its name. After a crash in between it is noted again; if
                # another version of leconvert then makes a file with holes, the note is removed: a
                # file with holes must not be read as whole.
                self.whole.discard(file.path)
                if whole:
                    with self._noted.open("a") as notes:
                        notes.write(f"{file.path}\n")
                    self.whole.add(file.path)
            sync_file(begun)
            begun.replace(target)

    def _begin(self, begun: Path) -> int:
        """Open an empty temporary file, and return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with self._gate.passed(begun):
            return os.open(begun, flags, 0o666)

    def _make_hole(self, file: RemoteFile, target: Path) -> None:
        begun = part_in(self._folder, file.path)
        with open(self._begin(begun), "wb") as out:  # noqa: PTH123 (of a descriptor)
            out.truncate(file.size_bytes)
        self._name(file, begun, target, whole=False)

    def _make_sparse(self, file: RemoteFile, target: Path, *, is_clip: bool) -> bool:
        """Make a file of headers; return False if the scan's own reader finds a fault."""
        begun = part_in(self._folder, file.path)
        descriptor = self._begin(begun)
        try:
            copy = SparseCopy(file, self._store, descriptor)
            if is_clip:
                copy.take_clip_index()
                if media.may_be_damaged(media.read_clip_index(begun), pread=copy.pread):
                    raise ValueError("the scan decodes it")
            else:
                copy.take_table_index(self.declared, with_images=file.path == self.first_table)
                with tables.DataFile(str(begun)) as table:
                    table.lengths(tables.read_data_schema(begun))
        except (HubError, HubAccessError, InterruptedRunError):
            raise
        except (LeconvertError, pa.ArrowException, ValueError):
            return False
        finally:
            os.close(descriptor)
        self._name(file, begun, target, whole=False)
        return True


# The disk space of a migration, and the files of its result that are already on the Hub.


def copies_bytes(files: Iterable[RemoteFile]) -> int:
    """Return an estimate of the disk space of a migration's snapshot with its result."""
    total = 0
    for file in files:
        is_clip = file.path.endswith(".mp4")
        limit = _WHOLE_KEPT_BYTES if is_clip else _WHOLE_TABLE_BYTES
        charge = file.charge_bytes
        if file.path.startswith("meta/"):
            charge *= 2  # the result has its own copies
        elif file.is_large and file.size_bytes > limit:
            least = _LEAST_BYTES_OF_A_CLIP if is_clip else _LEAST_BYTES
            charge = min(charge, 2 * least + file.size_bytes // _SHARE_OF_INDEX)
        total += charge
    return total


def contents_on_hub(tree: Path, taken: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the SHA-256 of each file of a migration's result that the Hub has, by its path.

    The local files may be holes; the hashes are those of the planned commit's listing.

    Args:
        tree: The snapshot's tree.
        taken: For each file that is kept unchanged, its path in the result and in the tree.
    """
    snapshot = open_sparse_snapshot(tree)
    found: dict[str, str] = {}
    for kept in batched(taken, _FILES_AT_A_TIME):
        listed = snapshot.find([source for _, source in kept])
        for (path, _), (file, _) in zip(kept, listed, strict=True):
            if file.is_large:
                found[path] = file.digest
    return found


# The source files of one shard on a worker's disk, for a run whose source is a sparse snapshot.


class HubInputs:
    """Fetches a shard's files into the worker's slot, and removes them when the shard is written.

    The worker gets only bytes with the hash of the planned commit's listing. If the slot's room
    does not hold all files of a shard, they are fetched and removed in the order in which they are
    read.

    Args:
        tree: The outline's tree, which is the plan's source.
        slot: The worker's part of the scratch folder.

    Raises:
        UsageError: The limit is below the largest file's size.
    """

    def __init__(self, tree: Path, slot: ScratchSlot) -> None:
        outline = open_sparse_snapshot(tree)
        outline.check_limit(slot.limit_bytes)
        self._tree = tree
        self._slot = slot
        self._outline = outline

    @contextmanager
    def files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> Iterator[Callable[[int], str]]:
        """Provide a shard's files while the block runs.

        Args:
            sources: Paths of the files in the tree.
            should_stop: Called while waiting.

        Yields:
            A function from a number in ``sources`` to the path of the whole file. The path is valid
            until the next call, or until the block ends.
        """
        prefix = f"{self._tree}/"
        listed = self._outline.find([source.removeprefix(prefix) for source in sources])
        # One file may hold several slices.
        fetched = list(dict.fromkeys(file for file, is_whole in listed if not is_whole))
        if not fetched:
            yield sources.__getitem__
            return
        numbers = {file: number for number, file in enumerate(fetched)}
        waiting = threading.Event()
        store = replace(self._outline.store, should_stop=should_stop)

        def fetch(file: RemoteFile, target: Path) -> None:
            part = part_in(self._slot.files_dir, file.path)
            part.parent.mkdir(exist_ok=True)
            fetch_file(store, file, target, part)
            _check_same_index(self._tree, file.path, target)

        with (
            self._slot.reserved(fetched, should_stop=should_stop, pause=waiting.wait) as granted,
            Window(
                fetched,
                self._slot.files_dir,
                fetch,
                budget_bytes=granted,
                should_stop=should_stop,
            ) as window,
        ):

            def path(place: int) -> str:
                file, is_whole = listed[place]
                return sources[place] if is_whole else window.path(numbers[file])

            yield path


def _check_same_index(tree: Path, relative: str, fetched: Path) -> None:
    """Check that a clip's index, which locates its bytes, equals the one in the checked file.

    The ranges of an outline have no hash of their own.

    Raises:
        SourceChangedError: The indices differ.
    """
    if fetched.suffix != ".mp4":
        return  # rows are read from the fetched file alone
    outlined = tree / relative
    indices = []
    for path in (outlined, fetched):
        with path.open("rb") as file:
            found = read_moov(file.fileno(), os.fstat(file.fileno()).st_size, str(path))
        assert found is not None
        indices.append(found.payload)
    if indices[0] != indices[1]:
        raise SourceChangedError(
            f"{outlined} does not match the file on the Hub.",
            path=str(outlined),
            next_step=f"Move {tree.parent} elsewhere, then plan again with --restart.",
        )
