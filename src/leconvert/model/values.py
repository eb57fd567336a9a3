"""The plain values that all rooms exchange, without I/O and without decisions.

A dataset is a sequence of *episodes*. An episode's **position** is its rank in that sequence,
0..E−1; its **index** is the number that the source gives it. Each episode has one **slice** in
every **stream**: ``data`` (parquet) and one ``videos/<camera key>`` a camera. A slice is a part of
one source file, or all of it. Values with one entry per episode are NumPy arrays of length E, so
that a million episodes with four cameras fit in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from enum import IntFlag
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.support.extras import lazy_module
from leconvert.support.flags import block_align, flag, make_numbers_own, megabytes, whole
from leconvert.support.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = lazy_module("numpy")

DATA_STREAM = "data"
TARGET_VERSIONS = ("v3.0", "v2.1")
"""The versions that a conversion can write, the default first."""
_VIDEO_PREFIX = "videos/"
_LONGEST_STREAM_BYTES = 200  # of the 255 that a file name may have; numbers and suffixes follow
FILES_PER_CHUNK = 1000
V3_FILES_PER_CHUNK_KEY = 1 << 31
"""More files than a chunk of any dataset has; see `v3_file_key`."""
MEBIBYTE = 1024**2
NO_FILE = -1
"""Size of a missing file."""
OVERLAY = "overlay"
"""The layout in which source files stay at their paths."""
KEEPING_LAYOUTS = ("episode-files", OVERLAY)
"""The layouts that reuse source files unchanged, if they fit."""

LEROBOT_TOLERANCE_SECONDS = 1e-4
"""How far a frame may be from its timestamp in LeRobot."""

type BoolArray = npt.NDArray[np.bool_]
type IntArray = npt.NDArray[np.int64]
type FloatArray = npt.NDArray[np.float64]


def stream_of_camera(camera_key: str) -> str:
    """Return the stream of a video feature, for example ``videos/observation.images.top``."""
    return _VIDEO_PREFIX + camera_key


def camera_of(stream: str) -> str | None:
    """Return the video feature of a stream, or None for the data stream."""
    return stream.removeprefix(_VIDEO_PREFIX) if stream.startswith(_VIDEO_PREFIX) else None


def is_depth_map(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature contains distances instead of colours.

    LeRobot's mark is ``is_depth_map`` in ``info``. Older datasets have ``video.is_depth_map`` there
    or in ``video_info``.
    """
    infos = (feature.get("info"), feature.get("video_info"))
    return any(
        bool(info.get(key))
        for info in infos
        if isinstance(info, Mapping)
        for key in ("is_depth_map", "video.is_depth_map")
    )


def is_in_metres(feature: Mapping[str, Any]) -> bool:
    """Return whether a depth camera was recorded in metres, not in millimetres."""
    info = feature.get("info")
    return isinstance(info, Mapping) and info.get("depth_unit") == "m"


DEPTH_FACTS = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
"""How a depth video stores distances: the facts in ``info``, and LeRobot's defaults."""


def depth_facts(feature: Mapping[str, Any]) -> dict[str, Any]:
    """Return `DEPTH_FACTS` of a feature: distances in metres, and the spacing of the codes."""
    info = feature.get("info")
    facts = info if isinstance(info, Mapping) else {}
    given = {name: facts.get(f"video.{name}") for name in DEPTH_FACTS}
    return {name: DEPTH_FACTS[name] if one is None else one for name, one in given.items()}


def _suffix(stream: str) -> str:
    return "parquet" if stream == DATA_STREAM else "mp4"


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a dataset: numbers of episodes, frames and features."""

    episodes: int
    frames: int
    features: int


NOTHING = Extent(0, 0, 0)
"""No episode and no feature."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A flag that repairs a finding, and how much of the dataset remains with it.

    Attributes:
        flag: The flag, with its value.
        keeps: The size of the result if this finding were the only one.
        of: The size of the result if nothing had to be left out for this finding.
    """

    flag: str
    keeps: Extent
    of: Extent


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark about a source that its user should know.

    Attributes:
        code: A stable short name, such as ``frame-count`` or ``missing-file``.
        severity: ``error`` stops a plan, ``warning`` is shown, ``info`` is recorded; ``repaired``
            is an error whose repair the user has allowed.
        message: The observation, in one sentence.
        episode: The episode's index, if the finding is about one episode.
        stream: The stream or table, if the finding is about one.
        path: The file relative to the source, if the finding is about one file.
        remedy: The flag or step that helps; of several flags the one that loses least.
        remedies: All flags that help with an error, the one that loses least first.
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
        """Return the finding of an ``asdict`` record, also of one older than `remedies`."""
        remedies = tuple(
            Remedy(entry["flag"], Extent(**entry["keeps"]), Extent(**entry["of"]))
            for entry in record.get("remedies", ())
        )
        return cls(**{**record, "remedies": remedies})


@dataclass(frozen=True, slots=True)
class CountedFinding(Finding):
    """A group of findings that differ only in file, episode and numbers.

    Attributes:
        count: Number of findings in the group; the other attributes are those of the first.
    """

    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class FileTable:
    """Source files of one stream, as they were at the scan; arrays have shape (F,).

    Attributes:
        key: Identifies the file within its source. In v2.x, with one file per episode, it is the
            episode's index; for v3.0 see `v3_file_key`.
        size_bytes: Size on disk; `NO_FILE` for a missing file.
        mtime_ns: Modification time in nanoseconds, as the file system reports it.
        inode: Inode number. Together with size and time it reveals a replaced file. 0 on file
            systems without inode numbers.
        source: Number of the file's source, ascending; 0 by default.
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
        """Yield the number of each source with its files."""
        edges = (np.flatnonzero(np.diff(self.source)) + 1).tolist()
        for first, stop in pairwise([0, *edges, len(self)] if len(self) else []):
            yield int(self.source[first]), self.take(np.arange(first, stop))

    def take(self, rows: IntArray) -> FileTable:
        """Return the files of these rows, in their order."""
        return FileTable(*(getattr(self, name)[rows] for name in FILE_COLUMNS))


FILE_COLUMNS = tuple(field.name for field in fields(FileTable))


def v3_file_key(chunk_index: IntArray, file_index: IntArray) -> IntArray:
    """Return the `FileTable` keys of a v3.0 dataset's files; keys sort as the files do."""
    return chunk_index * V3_FILES_PER_CHUNK_KEY + file_index


class Slice(NamedTuple):
    """One episode's rows of a table, or its samples of a video in decode order.

    Attributes:
        path: The file.
        first: The first row or sample; None if the slice is the whole file.
        frames: Number of rows or samples; None for all from ``first`` to the end of the file.
    """

    path: str
    first: int | None = None
    frames: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StreamScan:
    """The slices of one stream, as a scan found them, and the files that contain them.

    An episode's slice is the rows ``first`` to ``first + frames`` of a parquet file, or these
    samples of a video track in decode order. A file of a v2.x dataset is one slice. A video slice
    of a trimmed episode also holds the samples needed to decode its frames: the *lead* before its
    first frame, and any after its last. All arrays except those of ``files`` have shape (E,).

    Attributes:
        stream: ``data`` or ``videos/<camera key>``.
        files: The files, each once.
        file: Row of ``files`` for the file that holds the slice.
        first: First row or sample of the slice within its file.
        frames: Rows or samples of the slice.
        size_bytes: Bytes of the slice. A whole file: its size on disk; a part of a video: the bytes
            of its samples; a part of a table: its share of the file's bytes.
        roll_bytes: Bytes that count towards the file size limit: uncompressed column bytes for
            data, `size_bytes` for video.
        group: Decoder configuration, numbered in order of appearance; 0 for data. A new output file
            starts at each change.
        lead: Samples of the slice before the episode's first frame.
        misfit: Why the file cannot be reused unchanged, a sum of `Misfit`; 0 if it can. The scan
            table of a plan does not store it.
        kinds: The decoder configuration of each ``group``. Until a scan is settled, tables have
            groups too, of equal columns and types, and the kind of an unreadable file is "". The
            scan table of a plan does not store kinds.
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
        """Whether the slice's file is missing, shape (E,)."""
        missing: BoolArray = self.files.size_bytes[self.file] == NO_FILE
        return missing

    @property
    def is_readable(self) -> BoolArray:
        """Whether the slice's file could be read, shape (E,)."""
        readable = np.array([bool(kind) for kind in self.kinds], dtype=np.bool_)
        found: BoolArray = readable[self.group]
        return found

    def select(self, positions: IntArray) -> StreamScan:
        """Return the scan of some episodes, in the order given, with their files only."""
        rows, file = np.unique(self.file[positions], return_inverse=True)
        of_slices = {name: getattr(self, name)[positions] for name in SLICE_COLUMNS}
        of_slices["file"] = file.astype(np.int64)
        return replace(self, files=self.files.take(rows), **of_slices)


SLICE_COLUMNS = tuple(field.name for field in fields(StreamScan))[2:-1]


class Misfit(IntFlag):
    """Reasons why a source file cannot be a v3.0 file unchanged; a file can have several.

    A file without any is *fit*: it holds one episode and nothing else, LeRobot finds each of its
    frames or rows with both of its decoders, and the numbers in its rows are right for the result.
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

    @property
    def said(self) -> str:
        """A single reason in words, to follow the name of the file."""
        return _MISFIT_SAID[self]


_MISFIT_SAID: Mapping[Misfit, str] = {
    Misfit.SHARED: "does not contain exactly one episode",
    Misfit.LATE_START: "does not show its first frame at time 0",
    Misfit.UNEVEN_TIMES: "shows frames for different lengths of time",
    Misfit.OTHER_RATE: "has another frame rate than fps",
    Misfit.OTHER_TRACKS: "has sound or other further tracks",
    Misfit.REMUXED: "has an index that cannot be used as it is",
    Misfit.OTHER_COLUMNS: "has other columns or types than the result",
    Misfit.CHANGED_ROWS: "has rows that a repair changes",
    Misfit.OTHER_NUMBERS: "has another index or episode_index than the result",
}


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One source of a conversion, as it was at the scan.

    Attributes:
        root: The source's folder.
        codebase_version: The format of its files: ``v2.0``, ``v2.1`` or ``v3.0``.
        meta_digest: SHA-256 over names and contents of the ``meta/`` files that are converted.
        extra_files: Further files, which are copied unchanged; relative paths, sorted.
        repairs: The changes that the conversion makes to this source.
    """

    root: str
    codebase_version: str
    meta_digest: str
    extra_files: Sequence[str]
    repairs: Repairs = NO_REPAIRS


@dataclass(frozen=True, slots=True, eq=False)
class SourceScan:
    """One source, or a sequence of sources, as the planner sees it.

    Attributes:
        sources: The sources, by their numbers.
        fps: Frame rate as the exact fraction of the decimal in ``info.json``.
        episode_index: Index of each episode in its source, shape (E,).
        length: Frames of each episode, shape (E,).
        streams: One scan a stream: data first, then cameras in sorted order.
        data_schema: Arrow schema of the data files, IPC-serialised.
        findings: Remarks for the user; errors stop the plan.
        features: Features of the result.
        robot_type: The robot named in ``info.json``.
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
        """The source, if there is exactly one.

        Raises:
            ValueError: There are several sources.
        """
        (only,) = self.sources
        return only

    @property
    def repairs(self) -> Repairs:
        """The changes that the conversion makes to the only source."""
        return self.only.repairs

    @property
    def num_episodes(self) -> int:
        """Number of episodes, E."""
        return len(self.episode_index)

    @property
    def num_frames(self) -> int:
        """Number of frames of all episodes."""
        return int(self.length.sum())

    @property
    def source_bytes(self) -> int:
        """Bytes of all slices; for v2.x the sizes of all data and video files."""
        return sum(int(stream.size_bytes.sum()) for stream in self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Options that decide the position of every byte of the result.

    Attributes:
        to: The version to write: ``v3.0``, or ``v2.1``, which has a file for each episode and
            stream whatever the limits and ``layout`` are.
        data_file_size_in_mb: Limit of a data file's uncompressed columns, in MiB.
        video_file_size_in_mb: Limit of a video file's source clips, in MiB.
        episodes_per_batch: Episodes a batch covers over all streams; None for one batch per output
            file. It changes how work is shared, not the result.
        block_align: Block size in bytes. Episodes in video files keep their source offset modulo
            this size. 0 for none, None to decide by the mean clip size; see
            `leconvert.run.layout.choose_block_align`.
        layout: ``reference`` cuts files as LeRobot's converter does, each stream by itself;
            ``streaming`` cuts data and cameras together, for loading; ``episode-files`` makes a
            file for each episode and stream, the source's own if it is fit (`Misfit`); ``overlay``
            leaves the source's files at their paths and writes only ``meta/``.
        loader_workers: Minimum number of data files for ``streaming``, if there are enough
            episodes: one worker of a streaming loader reads one file.
        append: If the output is already the result of the source's first episodes, add the episodes
            that follow in files of their own and leave its files unchanged. If there is no output,
            the whole source is converted.
    """

    to: str = flag(
        TARGET_VERSIONS[0],
        "the version to write: v3.0; or v2.1, with one file for each episode, for GR00T, openpi "
        "and LeRobot up to 0.3.3 (default: v3.0)",
        choices=TARGET_VERSIONS,
    )
    data_file_size_in_mb: float = flag(
        100, "size limit of a data file, uncompressed (default: 100)", "MB", megabytes
    )
    video_file_size_in_mb: float = flag(
        200, "size limit of a video file (default: 200)", "MB", megabytes
    )
    episodes_per_batch: int | None = flag(
        None,
        "episodes in each batch of work, with all their cameras (default: as many as fill an "
        "output file); does not change the result",
        "N",
        whole(1),
    )
    block_align: int | None = flag(
        None,
        "let each episode in a video file begin at a block of the file system; on XFS, on btrfs "
        "and on NFS servers that use them, the result can then share blocks with the source and "
        "needs no second copy of the video bytes (default: auto, which decides by the size of the "
        "clips)",
        "auto|BYTES|0",
        block_align,
    )
    layout: str = flag(
        "reference",
        "reference: files as LeRobot's converter writes them; streaming: each data file has "
        "its own video files, so many workers can stream at once; episode-files: one file for "
        "each episode, unchanged if v3.0 allows it; overlay: only meta/ is written, all other "
        "files stay where they are (default: reference)",
        choices=("reference", "streaming", *KEEPING_LAYOUTS),
    )
    loader_workers: int = flag(
        16,
        "make at least this many data files with --layout streaming, one for each loading worker "
        "(default: 16)",
        "N",
        whole(1),
    )
    append: bool = flag(
        False,
        "add only new episodes to the output of an earlier conversion of this dataset; data and "
        "video files in the output do not change",
    )

    def __post_init__(self) -> None:
        make_numbers_own(self)

    @property
    def can_migrate(self) -> bool:
        """Whether files of a dataset on the Hub can stay there."""
        return self.layout in KEEPING_LAYOUTS and self.to == TARGET_VERSIONS[0] and not self.append

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping; manifests store it, resumed runs compare it."""
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
        starts: First position of each file, then E; shape (files + 1,), ascending. There is at
            least one file.
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
    """One file of a stream, with the episodes from ``first`` up to but not including ``stop``."""

    stream: str
    number: int
    first: int
    stop: int


class Shard(NamedTuple):
    """The file that a worker writes: an output file or, if ``whole`` is false, a part of one.

    Attributes:
        stream: The stream of the output file.
        number: The output file's number in its stream.
        first: First episode position.
        stop: Position after the last episode.
        whole: Whether the shard is the complete output file.
        keep: Whether the shard is the source's file, unchanged, with one episode and nothing else.
    """

    stream: str
    number: int
    first: int
    stop: int
    whole: bool
    keep: bool = False

    @property
    def name(self) -> str:
        """Name inside an attempt folder, without subfolders; a part's holds its first position.

        A subfolder would have to be created and synced to disk for a single file.
        """
        part = "" if self.whole else f".from-{self.first:09d}"
        return f"{_in_one_name(self.stream)}.file-{self.number:06d}{part}.{_suffix(self.stream)}"


@lru_cache(maxsize=64)
def _in_one_name(stream: str) -> str:
    name = stream.replace("%", "%25").replace("/", "%2F")
    raw = name.encode(errors="surrogateescape")
    if len(raw) <= _LONGEST_STREAM_BYTES:
        return name
    # A camera's name may be as long as a file system allows. No other stream name holds "%~".
    head = raw[: _LONGEST_STREAM_BYTES - 20].decode(errors="ignore")
    return f"{head}%~{hashlib.sha256(raw).hexdigest()[:16]}"


class Batch(NamedTuple):
    """The unit of work that a worker leases.

    Attributes:
        batch_id: The batch's number, from 0; the most expensive batches come first.
        shards: The files to write.
        source_bytes: Source bytes to read.
        frames: Number of video frames and table rows.
    """

    batch_id: int
    shards: tuple[Shard, ...]
    source_bytes: int
    frames: int
