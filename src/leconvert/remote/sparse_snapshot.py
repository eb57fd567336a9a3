"""Sparse snapshots: what a plan needs of a dataset on the Hub, in the work dir.

    WORK/outlines/<commit>/   <commit>-copies for a migration, see below
      tree/                every file at its path, with its size; the scan and the packer read it
        meta/, README.md   whole, as is everything else that is no file of an episode
        data/, videos/     small files whole; of others the headers, the rest is a hole
      listing.parquet      every file: path, size, hash, whether ``tree`` holds it whole
      outline.json         endpoint, repo, revision, commit, largest file: written last

**Why a scan of it is a scan of the source.** Every file comes from one commit: its hash is in each
request. A whole file was checked against the hash in the commit's listing. Of other files the
ranges are there that the scan reads, fetched by the code with which the scan reads them, and after
that the scan's own reader was tried on the local file: where it finds anything wrong, the file was
fetched whole, so that what the scan says of it is said of the whole file. A worker reads episodes
from files that it fetched and checked by hash, never from a hole.

**Once written, never changed.** A file comes into being under a temporary name and gets its own
when it is complete; after a crash those that are there are kept, and the others made. The planner's
lock keeps two planners apart. The plan remembers size, time and inode of each file of the tree, as
of any source, so that a tree that somebody touches is noticed.

**A migration** moves no files: its result stands in ``result/`` beside the tree, and what the
result takes over as it is are other names of the tree's files. A push lets the Hub copy these, by
the hash that the listing has of each (`contents_on_hub`). So of files that are kept no byte is
needed but what the scan reads: only tables are fetched whole where they are small, or where
quantiles of all rows are to be computed; other large files are holes. Git blobs, which have no such
hash, are fetched.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import batched, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media, tables
from leconvert.dataset.formats import open_dataset
from leconvert.dataset.formats.v2 import EPISODES_PATH, EpisodeLines, SourcePaths, load_info
from leconvert.media.boxes import read_moov
from leconvert.model.repairs import DEFAULT_COLUMNS
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
from leconvert.tables import list_sizes
from leconvert.transfer.files import Spans
from leconvert.transfer.hub import HubRepo, HubStore
from leconvert.transfer.names import folder_of
from leconvert.transfer.scratch import ScratchSlot, Window, limit_too_small
from leconvert.transfer.store import (
    Listing,
    NameGate,
    RemoteFile,
    Store,
    fetch_file,
    files_of,
    read_all,
    write_listing,
)
from leconvert.workdir.fs import sync_dir, sync_file, sync_tree, write_durably
from leconvert.workdir.incoming import part_in
from leconvert.workdir.records import WorkDir, encode_record, read_record

# A local file with the size of a remote one and those of its bytes that a scan reads.
#
# The rest is a hole. What a scan reads of a clip is its index (``moov``), of a table its footer,
# the columns that place a row, lists whose lengths their type does not say, and columns that are
# not declared; all are found here by the code that the scan itself uses, only that it reads
# ranges over the network, and every byte that was fetched is written to the same place in the local
# file. So the scan finds in it what it would find in the whole file, or the file is fetched whole
# (`leconvert.remote.sparse_snapshot` decides).


# A request costs as much time as some tens of kilobytes. Of clips, which datasets consist of, the
# index is asked for by two requests of its size.
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
        """Bring what `leconvert.media.read_clip_index` reads."""
        self._least_bytes = _LEAST_BYTES_OF_A_CLIP
        read_moov(
            self._descriptor,
            self._file.size_bytes,
            self._file.path,
            pread=self.pread,
        )

    def take_table_index(self, declared: Collection[str], *, with_images: bool) -> None:
        """Bring the footer of a parquet file, and its columns that a scan reads."""
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
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place in range(group.num_columns):
                chunk = group.column(place)
                may_be_empty = metadata.num_row_groups > 1 or _null_count(chunk) != 0
                if _is_of(chunk, wanted) or (may_be_empty and _is_of(chunk, where_empty)):
                    offsets = [chunk.data_page_offset]
                    if chunk.dictionary_page_offset is not None:
                        offsets.append(chunk.dictionary_page_offset)
                    self.take(min(offsets), chunk.total_compressed_size)

    def pread(self, _: int, count: int, position: int) -> bytes:
        """Bring a range; called like `os.pread`."""
        return self.take(position, count)

    def take(self, position: int, count: int) -> bytes:
        """Bring a range; returns it, shorter only at the end of the file."""
        size = self._file.size_bytes
        for first, stop in self._fetched.missing(position, min(position + count, size)):
            start = first
            if stop == size:  # an end is asked for backwards
                start = max(0, min(first, size - self._least_bytes))
            data = self._store.read(self._file, start, max(stop, start + self._least_bytes))
            os.pwrite(self._descriptor, data, start)
            self._fetched.add(start, start + len(data))
        return os.pread(self._descriptor, count, position)


def _is_of(chunk: pq.ColumnChunkMetaData, wanted: Collection[str]) -> bool:
    """Whether a leaf may be of one of some columns: their names, too, have dots."""
    path = chunk.path_in_schema
    return any(path == name or path.startswith(f"{name}.") for name in wanted)


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    found = chunk.statistics
    return found.null_count if found is not None and found.has_null_count else None


# The snapshot: made, kept, and opened again.


_KIND, _VERSION = "outline", 1
# Up to these sizes one request for all costs about as much as one for the header, and saves the
# worker's.
_WHOLE_TABLE_BYTES = 1024**2
_WHOLE_CLIP_BYTES = 256 * 1024
# Of a file whose bytes nobody will need.
_WHOLE_KEPT_BYTES = 2 * _LEAST_BYTES_OF_A_CLIP
# Of another file its header or footer, and what of a table places rows; about.
_SHARE_OF_INDEX = 32
_COPIES = "-copies"
_FILES_AT_A_TIME = 4096
_BLOCK_BYTES = 512
_EPISODE_FOLDERS = ("data/", "videos/")


@dataclass(frozen=True, slots=True)
class SparseSnapshot:
    """A finished outline."""

    folder: Path  # it
    repo: HubRepo  # the dataset, at the outline's commit
    origin: Origin  # what was asked for
    size_bytes: int  # bytes of all files of the dataset
    # What the largest file that a worker has to fetch takes on its disk; the least that a scratch
    # limit may be.
    largest_bytes: int

    @property
    def tree(self) -> Path:
        """The folder that stands for the dataset."""
        return self.folder / "tree"

    def listing(self) -> Listing:
        """Return the files."""
        return Listing(self.folder / "listing.parquet")

    @property
    def fetched_bytes(self) -> int:
        """What of the dataset is here, in blocks of the file system."""
        found = (Path(folder, name) for folder, _, names in os.walk(self.tree) for name in names)
        return sum(path.lstat().st_blocks for path in found) * _BLOCK_BYTES


def open_sparse_snapshot(tree: Path) -> SparseSnapshot:
    """Open a finished outline by its tree, as a plan names it."""
    folder = tree.parent
    record = read_record(folder / "outline.json", _KIND, version=_VERSION)
    origin = Origin(record["repo_id"], record["revision"], record["commit"])
    return SparseSnapshot(
        folder,
        HubRepo(origin.repo_id, origin.commit, record["endpoint"]),
        origin,
        record["size_bytes"],
        record["largest_bytes"],
    )


def make_sparse_snapshot(
    work_dir: Path,
    repo: HubRepo,
    revision: str,
    store: HubStore,
    *,
    for_copies: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SparseSnapshot:
    """Return the outline of a commit; one that is there is used, one that is begun is finished.

    Args:
        for_copies: Make that of a migration.
    """
    folder = WorkDir(work_dir).outlines_dir / _folder_name(repo, for_copies=for_copies)
    tree = folder / "tree"
    if (folder / "outline.json").exists():
        return open_sparse_snapshot(tree)
    with storage_errors(folder):
        for part in (tree, folder / "begun"):
            part.mkdir(parents=True, exist_ok=True)
        listed = read_all(repo.list_files())
        writer = _Writer(folder, store, for_copies=for_copies)
        files = [file for file in files_of(listed) if file.path.startswith("meta/")]
        with progress.stage("outline", listed.num_rows, "files") as stage:
            writer.take_all(files, lambda _: False, stage.advance)
            is_episode = _episode_files(tree, writer)
            rest = (file for file in files_of(listed) if not file.path.startswith("meta/"))
            while block := list(islice(rest, _FILES_AT_A_TIME)):
                writer.take_all(block, is_episode, stage.advance)
        write_listing(folder / "listing.parquet", listed, writer.whole)
        sync_file(folder / "listing.parquet")
        sync_tree(tree, files=False)
        sync_dir(folder)
        record = {
            "endpoint": repo.endpoint,
            "repo_id": repo.repo_id,
            "revision": revision,
            "commit": repo.commit,
            "size_bytes": sum(listed.column("size_bytes").to_pylist()),
            "largest_bytes": writer.largest_bytes,
        }
        write_durably(folder / "outline.json", encode_record(_KIND, _VERSION, "-", record))
    return open_sparse_snapshot(tree)


def _folder_name(repo: HubRepo, *, for_copies: bool) -> str:
    """Return the name of an outline's folder, that of no other dataset at the commit."""
    name = repo.commit
    if folder := folder_of(repo.repo_id):
        name += f"-{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
    return f"{name}{_COPIES if for_copies else ''}"


def _episode_files(tree: Path, writer: _Writer) -> Callable[[str], bool]:
    """Return what tells episodes' files from others; of a dataset without usable names, none.

    The writer is told what a scan will read of them.
    """
    try:
        info = load_info(tree, guess_version=True)
        paths = SourcePaths(tree, info)
        writer.declared = info.features.keys()
        writer.whole_tables = writer.for_copies and open_dataset(tree).has_quantiles
        lines = EpisodeLines(tree / EPISODES_PATH, validated=True)
        if len(lines):
            writer.first_table = paths.relative(DATA_STREAM, int(lines.episode_index.min()))
    except SourceError:
        return lambda _: False  # the scan says what is wrong
    # A file that lies elsewhere than its template says may be asked for with --locate-files.
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
        # What the Hub copies must have a hash that names its content.
        is_blob = self.for_copies and not file.is_large
        if not of_an_episode:
            # Of files below data/ and videos/ that belong to no episode only the name matters, and
            # of those that the Hub copies.
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
        begun = self._temporary(file)
        fetch_file(self._store, file, begun, begun.with_suffix(".part"), gate=self._gate)
        self._name(file, begun, target, whole=True)

    def _name(self, file: RemoteFile, begun: Path, target: Path, *, whole: bool) -> None:
        """Give a complete file its name, once it is on the disk: one that has it is trusted."""
        with self._gate.passed(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if whole:
                self._note_whole(file)
            else:  # one with holes that was noted in vain as whole must not be read as one
                with self._lock:
                    self.whole.discard(file.path)
            sync_file(begun)
            begun.replace(target)

    def _begin(self, begun: Path) -> int:
        """Open an empty file that has no name of the tree's yet, and return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with self._gate.passed(begun):
            return os.open(begun, flags, 0o666)

    def _note_whole(self, file: RemoteFile) -> None:
        with self._lock:
            # Noted before it has its name: a name that is noted in vain is noted again, or, where
            # another version of this program goes on and makes holes, struck out.
            with self._noted.open("a") as notes:
                notes.write(f"{file.path}\n")
            self.whole.add(file.path)

    def _make_hole(self, file: RemoteFile, target: Path) -> None:
        begun = self._temporary(file)
        with open(self._begin(begun), "wb") as out:  # noqa: PTH123 (of a descriptor)
            out.truncate(file.size_bytes)
        self._name(file, begun, target, whole=False)

    def _make_sparse(self, file: RemoteFile, target: Path, *, is_clip: bool) -> bool:
        """Make a file of headers; False where the scan's own reader is not content with it."""
        begun = self._temporary(file)
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

    def _temporary(self, file: RemoteFile) -> Path:
        """Return a name for a file that is not complete; the same one after a crash."""
        return self._folder / "begun" / hashlib.sha256(file.path.encode()).hexdigest()


# What a migration takes here, and what of its result is on the Hub already.


def copies_bytes(files: Iterable[RemoteFile]) -> int:
    """Return about what the snapshot of a migration, and its result beside it, take on the disk."""
    total = 0
    for file in files:
        is_clip = file.path.endswith(".mp4")
        limit = _WHOLE_KEPT_BYTES if is_clip else _WHOLE_TABLE_BYTES
        charge = file.charge_bytes
        if file.path.startswith("meta/"):
            charge *= 2  # the result has them of its own
        elif file.is_large and file.size_bytes > limit:
            least = _LEAST_BYTES_OF_A_CLIP if is_clip else _LEAST_BYTES
            charge = min(charge, 2 * least + file.size_bytes // _SHARE_OF_INDEX)
        total += charge
    return total


def contents_on_hub(tree: Path, taken: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the SHA-256 of each file of a migration's result that the Hub has, by its path.

    Here they may be holes; the hashes are those of the planned commit's listing.

    Args:
        tree: The snapshot's tree.
        taken: The path of each file that is taken over as it is, in the result and in the tree.
    """
    listing = open_sparse_snapshot(tree).listing()
    found: dict[str, str] = {}
    for kept in batched(taken, _FILES_AT_A_TIME):
        listed = listing.find([source for _, source in kept])
        for (path, _), (file, _) in zip(kept, listed, strict=True):
            if file.is_large:
                found[path] = file.digest
    return found


# The source files of one shard on a worker's disk, for a run whose source is a sparse snapshot.


class HubInputs:
    """Fetches what a shard needs into the worker's slot, and removes it when the shard is written.

    Only bytes that have the hash of the planned commit's listing are ever handed out. Where the
    slot's room does not hold all files of a shard, they come and go in the order in which they are
    read.

    Args:
        tree: The outline's tree, the plan's source.
        slot: The worker's part of the scratch folder.
        limit_bytes: What may lie in the scratch folder; None for no limit.

    Attributes:
        peak_bytes: The most that lay in the slot at a time.

    Raises:
        UsageError: The limit does not hold the largest file.
    """

    def __init__(self, tree: Path, slot: ScratchSlot, limit_bytes: int | None) -> None:
        outline = open_sparse_snapshot(tree)
        if limit_bytes is not None and limit_bytes < outline.largest_bytes:
            raise limit_too_small(limit_bytes, outline.largest_bytes)
        self._tree = tree
        self._slot = slot
        self._repo = outline.repo
        self._listing = outline.listing()
        self.peak_bytes = 0

    @contextmanager
    def files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> Iterator[Callable[[int], str]]:
        """Provide a shard's files for the block.

        Args:
            should_stop: Asked while anybody waits.

        Yields:
            What returns the path of the whole file at a place; valid until the next call, and
            until the block ends where no other file is asked for.
        """
        prefix = f"{self._tree}/"
        listed = self._listing.find([source.removeprefix(prefix) for source in sources])
        fetched: list[RemoteFile] = []
        numbers: dict[str, int] = {}  # of what is fetched, which several slices may be parts of
        places: dict[int, int] = {}
        for place, (file, is_whole) in enumerate(listed):
            if is_whole:
                continue
            if file.path not in numbers:
                numbers[file.path] = len(fetched)
                fetched.append(file)
            places[place] = numbers[file.path]
        if not fetched:
            yield sources.__getitem__
            return
        waiting = threading.Event()
        store = HubStore(self._repo, should_stop=should_stop)

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
            try:
                yield (
                    lambda place: window.path(places[place]) if place in places else sources[place]
                )
            finally:
                self.peak_bytes = max(self.peak_bytes, window.peak_bytes)


def _check_same_index(tree: Path, relative: str, fetched: Path) -> None:
    """Check that a clip's index, by which its bytes are found, is the one in the checked file.

    Ranges that make an outline have no hash of their own.
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
            f"{outlined} holds another index than the file on the Hub.",
            path=str(outlined),
            next_step=f"Move {tree.parent} elsewhere, and plan again with --restart.",
        )
