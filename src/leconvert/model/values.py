"""The plain values that everything passes around: no I/O, no decisions.

A dataset is a sequence of *episodes*. An episode's **position** is its place in that sequence,
0..E−1; its **index** is the number that the source gives it. Each episode has one **slice** in
every **stream**: ``data`` (parquet) and one ``videos/<camera key>`` a camera. A slice is a part of
one source file, or all of it. Whatever has one value per episode is a NumPy array of length E, so
that a million episodes with four cameras fit in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntFlag
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.support.flags import block_align, flag, megabytes, whole
from leconvert.support.lazy import lazy_module

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = lazy_module("numpy")

DATA_STREAM = "data"
TARGET_VERSIONS = ("v3.0", "v2.1")
"""What a conversion can write, the default first."""
_VIDEO_PREFIX = "videos/"
_LONGEST_STREAM_BYTES = 200  # of a name of 255; numbers and suffixes follow
FILES_PER_CHUNK = 1000
V3_FILES_PER_CHUNK_KEY = 1 << 31
"""More than any dataset has files in a chunk; see `v3_file_key`."""
MEBIBYTE = 1024**2
NO_FILE = -1
"""Size of a file that is not there."""
OVERLAY = "overlay"
"""The layout in which source files stay where they are, too."""
KEEPING_LAYOUTS = ("episode-files", OVERLAY)
"""Layouts in which source files are taken as they are, where they fit."""

type BoolArray = npt.NDArray[np.bool_]
type IntArray = npt.NDArray[np.int64]
type FloatArray = npt.NDArray[np.float64]


def stream_of_camera(camera_key: str) -> str:
    """Return the stream of a video feature, for example ``videos/observation.images.top``."""
    return _VIDEO_PREFIX + camera_key


def camera_of(stream: str) -> str | None:
    """Return the video feature of a stream, or None for the data stream."""
    return stream.removeprefix(_VIDEO_PREFIX) if stream.startswith(_VIDEO_PREFIX) else None


def _suffix(stream: str) -> str:
    return "parquet" if stream == DATA_STREAM else "mp4"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a dataset there is: its episodes, their frames, and its features."""

    episodes: int
    frames: int
    features: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """A flag that repairs a finding, and what it leaves of the dataset.

    Attributes:
        flag: It, with its value.
        keeps: What the result would have if this finding were the only one.
        of: What it would have if nothing had to be left out for this finding.
    """

    flag: str
    keeps: Extent
    of: Extent


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a source that its user should know.

    Attributes:
        code: A stable short name, such as ``frame-count`` or ``missing-file``.
        severity: ``error`` stops a plan, ``warning`` is shown, ``info`` is recorded, ``repaired``
            would stop it if the user had not allowed the repair.
        message: What was seen, in one sentence.
        episode: The episode's index, where it is about one.
        stream: The stream or table, where it is about one.
        path: The file relative to the source, where it is about one.
        remedy: The flag or step that helps; of several flags the one that loses least.
        remedies: All flags that help with an error, the one first that loses least.
    """

    code: str
    severity: str
    message: str
    episode: int | None = None
    stream: str | None = None
    path: str | None = None
    remedy: str | None = None
    remedies: tuple[Remedy, ...] = ()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Finding:
        """Return the finding of what ``asdict`` gave, or gave before there were `remedies`."""
        remedies = tuple(
            Remedy(entry["flag"], Extent(**entry["keeps"]), Extent(**entry["of"]))
            for entry in record.get("remedies", ())
        )
        return cls(**{**record, "remedies": remedies})


@dataclass(frozen=True, slots=True)
class CountedFinding(Finding):
    """One of several findings that differ in their file, episode and numbers alone.

    Attributes:
        count: How many there are; this is the first.
    """

    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class FileTable:
    """Source files of one stream, as they were when they were scanned; arrays have shape (F,).

    Attributes:
        key: Which file of its source it is. v2.x, where a file is an episode: the episode's index.
            v3.0: see `v3_file_key`.
        size_bytes: Size on disk; `NO_FILE` for a file that is missing.
        mtime_ns: Modification time, as the file system gives it.
        inode: Inode number; with the two above it tells a replaced file. 0 where the file system
            keeps none.
        source: Number of the source that it is in, ascending; 0 by default.
    """

    key: IntArray
    size_bytes: IntArray
    mtime_ns: IntArray
    inode: IntArray
    source: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.source) != len(self.key):
            object.__setattr__(self, "source", np.zeros(len(self.key), dtype=np.int64))

    def __len__(self) -> int:
        """Number of files, F."""
        return len(self.key)

    def by_source(self) -> Iterator[tuple[int, FileTable]]:
        """Yield the number of each source, and its files."""
        edges = (np.flatnonzero(np.diff(self.source)) + 1).tolist()
        for first, stop in pairwise([0, *edges, len(self)] if len(self) else []):
            yield int(self.source[first]), self.take(np.arange(first, stop))

    def take(self, rows: IntArray) -> FileTable:
        """Return some of the files, in the order of their rows."""
        return FileTable(*(getattr(self, name)[rows] for name in FILE_COLUMNS))


FILE_COLUMNS = tuple(field.name for field in fields(FileTable))


def v3_file_key(chunk_index: IntArray, file_index: IntArray) -> IntArray:
    """Return what a `FileTable` calls the files of a v3.0 dataset; the keys sort as the files."""
    return chunk_index * V3_FILES_PER_CHUNK_KEY + file_index


class Slice(NamedTuple):
    """One episode's rows of a table, or samples of a video in decode order.

    Attributes:
        path: The file.
        first: The first row or sample; None where the file holds nothing else.
        frames: How many there are; None for all that follow in the file.
    """

    path: str
    first: int | None = None
    frames: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StreamScan:
    """One stream's slices: what a scan learned of each, and of the files that they are parts of.

    An episode's slice is the rows ``first`` to ``first + frames`` of a parquet file, or these
    samples of a video track in decode order. A file of a v2.x dataset is one slice. Of a trimmed
    episode a video slice also has the samples without which its frames do not decode: the *lead*
    before its first frame, and what follows its last. Arrays but those of ``files`` have shape
    (E,).

    Attributes:
        stream: ``data`` or ``videos/<camera key>``.
        files: The files, each once.
        file: Row of ``files`` that the slice is in.
        first: First row or sample of the slice within its file.
        frames: Rows or samples of the slice.
        size_bytes: Bytes of the slice. A whole file: its size on disk; a part of a video: the bytes
            of its samples; a part of a table: its share of the file's bytes.
        roll_bytes: What counts towards the file size limit: uncompressed column bytes for data,
            `size_bytes` for video.
        group: Decoder configuration, numbered in order of appearance; 0 for data. A new output file
            starts where it changes.
        lead: Samples of the slice before the episode's first frame.
        misfit: Why the file cannot be taken as it is, a sum of `Misfit`; 0 where it can. The scan
            table of a plan does not store it.
        kinds: What each ``group`` is: a decoder configuration. Until a scan is settled, tables have
            groups too, of equal columns and types, and the kind of a file that cannot be read is
            "". The scan table of a plan does not store kinds.
    """

    stream: str
    files: FileTable
    file: IntArray
    first: IntArray
    frames: IntArray
    size_bytes: IntArray
    roll_bytes: IntArray
    group: IntArray
    lead: IntArray
    misfit: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kinds: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if len(self.misfit) != len(self.file):
            object.__setattr__(self, "misfit", np.zeros_like(self.file))

    @classmethod
    def of_whole_files(
        cls,
        stream: str,
        files: FileTable,
        *,
        frames: IntArray,
        roll_bytes: IntArray,
        group: IntArray,
    ) -> StreamScan:
        """Return the scan of a stream in which each episode has a file of its own, in order."""
        return cls(
            stream,
            files,
            file=np.arange(len(files), dtype=np.int64),
            first=np.zeros(len(files), dtype=np.int64),
            frames=frames,
            size_bytes=files.size_bytes,
            roll_bytes=roll_bytes,
            group=group,
            lead=np.zeros(len(files), dtype=np.int64),
        )

    @property
    def key(self) -> IntArray:
        """Key of each slice's file, shape (E,)."""
        return self.files.key[self.file]

    @property
    def is_whole(self) -> BoolArray:
        """Whether the slice is all of its file, shape (E,)."""
        whole: BoolArray = self.size_bytes == self.files.size_bytes[self.file]
        return whole

    @property
    def is_missing(self) -> BoolArray:
        """Whether the slice's file is not there, shape (E,)."""
        missing: BoolArray = self.files.size_bytes[self.file] == NO_FILE
        return missing

    @property
    def is_readable(self) -> BoolArray:
        """Whether the slice's file could be read, shape (E,)."""
        readable = np.array([bool(kind) for kind in self.kinds], dtype=np.bool_)
        found: BoolArray = readable[self.group]
        return found

    def rows(self, rows: slice) -> StreamScan:
        """Return the scan of neighbouring episodes; it has all the files of this one."""
        return replace(self, **{name: getattr(self, name)[rows] for name in SLICE_COLUMNS})

    def select(self, positions: IntArray) -> StreamScan:
        """Return the scan of some episodes, in the order given, and of their files alone."""
        rows, file = np.unique(self.file[positions], return_inverse=True)
        of_slices = {name: getattr(self, name)[positions] for name in SLICE_COLUMNS}
        of_slices["file"] = file.astype(np.int64)
        return replace(self, files=self.files.take(rows), **of_slices)


SLICE_COLUMNS = tuple(field.name for field in fields(StreamScan))[2:-1]


class Misfit(IntFlag):
    """Why a source file cannot be a file of a v3.0 dataset as it is; several may hold of one.

    A file without any of them is *fit*: it holds one episode and nothing else, LeRobot finds each
    of its frames or rows with both of its decoders, and what its rows say of their place holds in
    the result.
    """

    SHARED = 1
    LATE_START = 2
    UNEVEN_TIMES = 4
    OTHER_RATE = 8
    OTHER_TRACKS = 16
    REMUXED = 32
    OTHER_COLUMNS = 64
    CHANGED_ROWS = 128
    OTHER_NUMBERS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One source of a conversion, as it was when it was scanned.

    Attributes:
        root: Its folder.
        codebase_version: The format of its files: ``v2.0``, ``v2.1`` or ``v3.0``.
        meta_digest: SHA-256 over names and contents of the ``meta/`` files that are converted.
        extra_files: Files that come along unchanged, relative paths, sorted.
        repairs: What the conversion changes about it.
    """

    root: str
    codebase_version: str
    meta_digest: str
    extra_files: Sequence[str]
    repairs: Repairs = NO_REPAIRS


@dataclass(frozen=True, slots=True, eq=False)
class SourceScan:
    """One source, or several one behind the other, as the planner sees them.

    Attributes:
        sources: The sources, by their numbers.
        fps: Frame rate as the exact fraction of the decimal in ``info.json``.
        episode_index: Index of each episode in its source, shape (E,).
        length: Frames of each episode, shape (E,).
        streams: One scan a stream: data first, then cameras in sorted order.
        data_schema: Arrow schema of the data files, IPC-serialised.
        findings: What the user should know; errors stop the plan.
        features: Features of the result.
        robot_type: What ``info.json`` says of the robot.
        source: Number of each episode's source, ascending, shape (E,); 0 by default.
    """

    sources: Sequence[Source]
    fps: Fraction
    episode_index: IntArray
    length: IntArray
    streams: Sequence[StreamScan]
    data_schema: bytes
    findings: Sequence[Finding]
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    robot_type: object = None
    source: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.source) != len(self.length):
            object.__setattr__(self, "source", np.zeros(len(self.length), dtype=np.int64))

    @property
    def only(self) -> Source:
        """The source of a scan of one."""
        (only,) = self.sources
        return only

    @property
    def repairs(self) -> Repairs:
        """What the conversion changes about the only source."""
        return self.only.repairs

    @property
    def num_episodes(self) -> int:
        """Number of episodes, E."""
        return len(self.episode_index)

    @property
    def source_bytes(self) -> int:
        """Bytes of all slices, which for v2.x are the sizes of all data and video files."""
        return sum(int(stream.size_bytes.sum()) for stream in self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Options that decide where every byte of the result goes.

    Attributes:
        data_file_size_in_mb: Limit of a data file's uncompressed columns, in MiB.
        video_file_size_in_mb: Limit of a video file's source clips, in MiB.
        episodes_per_batch: Episodes a batch covers over all streams, or None for a batch an
            output file. It moves work between batches, never bytes in the result.
        block_align: Block size in bytes that episodes in video files keep their source offset
            modulo; 0 for none, None to decide by the mean clip size. See
            `leconvert.run.layout.choose_block_align`.
        layout: ``reference`` cuts files as LeRobot's converter does, each stream for itself;
            ``streaming`` cuts data and cameras together, for loading; ``episode-files`` makes a
            file for each episode and stream, the source's own where it is fit (`Misfit`);
            ``overlay`` leaves the source's files where they are and writes ``meta/`` alone.
        loader_workers: Data files that ``streaming`` makes at least, where there are enough
            episodes: a file is what one worker of a streaming loader reads.
        to: The version to write: ``v3.0``, or ``v2.1``, which has a file for each episode and
            stream whatever the limits and ``layout`` are.
        append: Where the output is the result of the source's first episodes already, add those
            that follow in files of their own, and leave its files as they are. Where nothing is
            there, the whole source is converted.
    """

    data_file_size_in_mb: float = flag(
        100, "a data file's limit, uncompressed (default: 100)", "MB", megabytes
    )
    video_file_size_in_mb: float = flag(200, "a video file's limit (default: 200)", "MB", megabytes)
    episodes_per_batch: int | None = flag(
        None,
        "N episodes per batch, with all their cameras (default: whole output files); changes how "
        "work is shared, not the result",
        "N",
        whole(1),
    )
    block_align: int | None = flag(
        None,
        "align episodes in video files to blocks, so that XFS, btrfs and NFS over them share "
        "their bytes with the source (default: auto, by the size of the clips)",
        "auto|BYTES|0",
        block_align,
    )
    layout: str = flag(
        "reference",
        "reference: files as LeRobot's converter cuts them; streaming: data and cameras cut "
        "together, so that every frame loads and many workers can stream; episode-files: a file "
        "for each episode, the source's own where it serves v3.0 as it is; overlay: the source's "
        "files stay where they are, and meta/ alone is new (default: reference)",
        choices=("reference", "streaming", *KEEPING_LAYOUTS),
    )
    loader_workers: int = flag(
        16,
        "with --layout streaming: data files to make at least, one a loading worker (default: 16)",
        "N",
        whole(1),
    )
    to: str = flag(
        TARGET_VERSIONS[0],
        "the version to write: v3.0, or v2.1 with a file for each episode, for GR00T, openpi and "
        "LeRobot up to 0.3.3 (default: v3.0)",
        choices=TARGET_VERSIONS,
    )
    append: bool = flag(
        False,
        "where the output is the v3.0 result of the dataset's first episodes: add those that "
        "follow, in files of their own, and leave its files as they are",
    )

    @property
    def can_migrate(self) -> bool:
        """Whether files of a dataset on the Hub can stay there."""
        return self.layout in KEEPING_LAYOUTS and self.to == TARGET_VERSIONS[0] and not self.append

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping, which a manifest keeps and a resumed run compares."""
        record = asdict(self)
        record["block_align"] = "auto" if self.block_align is None else self.block_align
        if self.layout == LayoutOptions().layout:
            del record["layout"], record["loader_workers"]
        if self.to == LayoutOptions().to:
            del record["to"]
        if not self.append:
            del record["append"]
        return record


class StreamLayout(NamedTuple):
    """The output files of one stream: file *f* holds positions ``starts[f]`` to ``starts[f+1]``.

    Attributes:
        stream: ``data`` or ``videos/<camera key>``.
        starts: First position of each file and, last, E; shape (files + 1,), ascending. There is
            at least one file.
    """

    stream: str
    starts: IntArray

    @property
    def num_files(self) -> int:
        """Number of output files."""
        return len(self.starts) - 1

    def file_numbers(self, positions: IntArray) -> IntArray:
        """Return the file number of each position."""
        return np.searchsorted(self.starts, positions, side="right").astype(np.int64) - 1

    def file(self, number: int) -> OutputFile:
        """Return one output file."""
        return OutputFile(
            self.stream, number, int(self.starts[number]), int(self.starts[number + 1])
        )


class OutputFile(NamedTuple):
    """One file of a stream: episodes ``first`` up to but not including ``stop``."""

    stream: str
    number: int
    first: int
    stop: int


class Shard(NamedTuple):
    """What a worker writes: an output file or, with ``whole`` false, a part of one.

    Attributes:
        stream: The stream of the output file.
        number: The output file's number in its stream.
        first: First episode position.
        stop: Position after the last.
        whole: Whether the shard is the complete output file.
        keep: Whether it is the source's file as it is, of one episode and nothing else.
    """

    stream: str
    number: int
    first: int
    stop: int
    whole: bool
    keep: bool = False

    @property
    def name(self) -> str:
        """Name inside an attempt folder, which has no folders in it; a part has its first position.

        Each folder would be made and forced to the disk for one file.
        """
        stream = self.stream.replace("%", "%25").replace("/", "%2F")
        raw = stream.encode(errors="surrogateescape")
        if len(raw) > _LONGEST_STREAM_BYTES:
            # The name of a camera may be as long as a file system allows. No other stream has "%~".
            head = raw[: _LONGEST_STREAM_BYTES - 20].decode(errors="ignore")
            stream = f"{head}%~{hashlib.sha256(raw).hexdigest()[:16]}"
        part = "" if self.whole else f".from-{self.first:09d}"
        return f"{stream}.file-{self.number:06d}{part}.{_suffix(self.stream)}"


class Batch(NamedTuple):
    """The unit that a worker leases.

    Attributes:
        batch_id: Its number, from 0; the most expensive batches come first.
        shards: What to write.
        source_bytes: Source bytes that it reads.
        frames: Video frames and table rows in it.
    """

    batch_id: int
    shards: tuple[Shard, ...]
    source_bytes: int
    frames: int
