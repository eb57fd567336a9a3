"""One block of a source's episodes, looked at: sizes, parquet footers, MP4 headers, statistics."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.findings import Observation, ObservationLog, RepeatedObservations
from leconvert.dataset.formats.v2 import (
    EPISODES_PATH,
    STATS_PATH,
    DatasetInfo,
    EpisodeTable,
    SourcePaths,
    TaskTable,
    is_pointer,
    parse_line,
    read_lines,
    refuse_pointers,
)
from leconvert.dataset.scan.changes import facts_of_opened
from leconvert.dataset.scan.file_checks import (
    NOT_KNOWN,
    ClipCheck,
    ClipFacts,
    Extremes,
    RowFacts,
    StatsCheck,
    TableCheck,
)
from leconvert.model.values import (
    DATA_STREAM,
    FileTable,
    FloatArray,
    IntArray,
    Misfit,
    StreamScan,
    camera_of,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count, shown
from leconvert.workdir.fs import forget_old_names, status_now

__all__ = [
    "NO_FILE",
    "Block",
    "BoolArray",
    "EpisodePaths",
    "EpisodeScanner",
    "Gathered",
    "ScanAccumulator",
    "ScannedSource",
    "Scanner",
    "Slices",
    "TableKinds",
    "index_of_remuxed",
    "say_unread",
]


# Size of a file that is not there.
NO_FILE = -1

_KEPT_SCHEMAS = 256


class _Facts(NamedTuple):
    """What a scan keeps of one slice; for a file that cannot be read, all zero."""

    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    frames: int = 0
    roll_bytes: int = 0
    misfit: int = 0
    kind: str = ""


_MISSING = _Facts(size_bytes=NO_FILE)
_FIT = Misfit(0)


@dataclass(slots=True, eq=False)
class Block:
    """Some consecutive episodes, n of them.

    Attributes:
        numbers: For each stream size, time, inode, frames, roll bytes and `Misfit`, shape (n, 6).
        kinds: For each stream what equal slices share: columns and types of a table, the decoder
            configuration of a clip; empty where a file cannot be read.
        rows: What the tables' rows say.
        remarks: About single episodes.
        sightings: About many.
        missing_stats: Features whose statistics are missing, and in which episodes.
        stale_stats: Those whose statistics are stale, likewise.
        clips: What clips of each decoder configuration are.
    """

    numbers: list[IntArray] = field(default_factory=list)
    kinds: list[list[str]] = field(default_factory=list)
    rows: list[RowFacts] = field(default_factory=list)
    remarks: list[Observation] = field(default_factory=list)
    sightings: RepeatedObservations = field(default_factory=RepeatedObservations)
    missing_stats: dict[str, list[int]] = field(default_factory=dict)
    stale_stats: dict[str, list[int]] = field(default_factory=dict)
    clips: dict[str, ClipFacts] = field(default_factory=dict)


class Scanner:
    """A scan's work on one piece of a source.

    Threads may share it, and it can be sent to another process, which makes it anew from its
    arguments: not with what it remembers to be faster, which another thread may be adding to.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Keep what it is made from."""
        made = super().__new__(cls)
        made._made_from = arguments, options
        return made

    _made_from: tuple[tuple[Any, ...], dict[str, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, options = self._made_from
        return partial(type(self), **options), arguments


class EpisodeScanner(Scanner):
    """Looks at one block of episodes after another.

    Args:
        paths: Where the source's files are.
        fps: Frames a second.
        features: Declared features, without those that are left out.
        streams: What to look at in each episode: data first, then cameras.
        episode_index: Indices of all episodes, shape (E,).
        length: Their frames, shape (E,).
        stats: The table of statistics and where in it the episodes' lines begin, -1 for those
            without; None in versions that have no such table.
        fleeting_inodes: Devices whose files have no lasting inode numbers.
        checks_steps: Whether the distances of timestamps are looked at as LeRobot 0.3.3 does.
    """

    def __init__(
        self,
        paths: SourcePaths,
        fps: Fraction,
        features: Mapping[str, Mapping[str, Any]],
        streams: Sequence[str],
        episode_index: IntArray,
        length: IntArray,
        stats: tuple[Path, IntArray] | None,
        fleeting_inodes: frozenset[int] = frozenset(),
        checks_steps: bool = False,
    ) -> None:
        self._fleeting_inodes = fleeting_inodes
        self._paths = paths
        self._fps = fps
        self._streams = streams
        self._episode_index = episode_index
        self._length = length
        self._stats = stats
        self._check_table = TableCheck(
            fps, features, has_cameras=len(streams) > 1, checks_steps=checks_steps
        )
        self._check_stats = StatsCheck(features)
        self._check_clip = {
            stream: ClipCheck(features[camera], fps)
            for stream in streams
            if (camera := camera_of(stream)) is not None
        }
        self._kind_of = TableKinds()

    @property
    def reads_no_stats(self) -> bool:
        """Whether there is no table of statistics to look at."""
        return self._stats is None

    def __call__(self, first: int, stop: int) -> Block:
        """Look at the episodes at places ``first`` to ``stop``."""
        block = Block()
        notes = ObservationLog(
            block.remarks, block.sightings, folder_length=len(f"{self._paths.root}/")
        )
        indices = self._episode_index[first:stop].tolist()
        lengths = self._length[first:stop].tolist()
        seen: list[list[_Facts]] = []
        for stream in self._streams:
            notes.stream = stream
            paths = list(self._paths.absolute(stream, indices))
            forget_old_names(paths)
            if stream == DATA_STREAM:
                facts = self._look_at_tables(paths, indices, lengths, first, notes, block)
            else:
                facts = self._look_at_clips(paths, indices, lengths, notes, block.clips)
            seen.append(facts)
            block.numbers.append(np.array([fact[:-1] for fact in facts], dtype=np.int64))
            block.kinds.append([fact.kind for fact in facts])
        self._compare_lengths(seen, indices, lengths, notes)
        return block

    def _look_at_tables(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        first: int,
        notes: ObservationLog,
        block: Block,
    ) -> list[_Facts]:
        found: list[_Facts] = []
        for path, index, length, line in zip(
            paths, indices, lengths, self._stats_lines(first, len(paths)), strict=True
        ):
            notes.episode, notes.file = index, path
            row_facts = RowFacts()
            extremes: Extremes = {}
            try:
                with self._opened_table(path) as table:
                    facts = self._table_facts(table, path)
                    if facts.frames == length > 0:
                        extremes = table.extremes
                        row_facts = self._check_table(table, extremes, notes)
            except (OSError, UnreadableSourceError) as error:
                facts = _unread(error, notes)
            # Nobody expects statistics of an episode without frames.
            if self._stats is not None and length:
                missing, stale = self._check_line(line, length, extremes, notes)
                for names, episodes in (missing, block.missing_stats), (stale, block.stale_stats):
                    for name in names:
                        episodes.setdefault(name, []).append(index)
            found.append(facts)
            block.rows.append(row_facts)
        return found

    def _check_line(
        self, line: bytes | None, length: int, extremes: Extremes, notes: ObservationLog
    ) -> tuple[list[str], list[str]]:
        """Check an episode's line of statistics: one at a time, parsed it is many objects."""
        assert self._stats is not None
        try:
            record = None if line is None else parse_line(self._stats[0], line)
        except UnreadableSourceError as error:
            notes.sight("missing-stats", shown(error.message), path=STATS_PATH)
            return self._check_stats.features, []
        return self._check_stats(record, length, extremes, notes)

    def _stats_lines(self, first: int, number: int) -> list[bytes | None]:
        if self._stats is None:
            return [None] * number
        path, offsets = self._stats
        return read_lines(path, offsets[first : first + number].tolist())

    def _opened_table(self, path: str) -> tables.DataFile:
        try:
            return tables.DataFile(path)
        except UnreadableSourceError:
            # What is no regular file, or cannot be opened, says so when its status is asked for.
            facts_of_opened(path, status_now(path), self._fleeting_inodes)
            raise

    def _table_facts(self, table: tables.DataFile, path: str) -> _Facts:
        file = facts_of_opened(path, table.table.status, self._fleeting_inodes)
        kind = self._kind_of(table)
        return _Facts(*file, table.rows, table.uncompressed_bytes, kind=kind)

    def _look_at_clips(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        notes: ObservationLog,
        kinds: dict[str, ClipFacts],
    ) -> list[_Facts]:
        found: list[_Facts] = []
        clips = media.read_clips(paths)
        for path, index, length, (status, clip) in zip(paths, indices, lengths, clips, strict=True):
            notes.episode, notes.file = index, path
            try:
                # A file that cannot be read says why when its status is asked for.
                file = facts_of_opened(path, status or status_now(path), self._fleeting_inodes)
                found.append(self._clip_facts(path, clip, file, length, notes, kinds))
            except (OSError, UnreadableSourceError) as error:
                found.append(_unread(error, notes))
        return found

    def _clip_facts(
        self,
        path: str,
        clip: media.ClipIndex | UnreadableSourceError,
        file: tuple[int, int, int],
        length: int,
        notes: ObservationLog,
        kinds: dict[str, ClipFacts],
    ) -> _Facts:
        misfit, seconds = _FIT, None
        if isinstance(clip, media.UnsupportedClipError):
            notes.sight("remux", f"{shown(notes.path)} will be remuxed: {clip.reason}.")
            (clip, seconds), misfit = index_of_remuxed(path, self._fps), Misfit.REMUXED
        elif isinstance(clip, UnreadableSourceError):
            raise clip
        elif media.may_be_damaged(clip):
            media.check_decodes(clip)
        frames = len(clip.sizes)
        if frames == length > 0:
            if not clip.keyframes[0]:
                notes.say("no-keyframe", f"{shown(notes.path)} does not begin with a keyframe.")
            elif late := _frames_off_their_place(clip, seconds, self._fps):
                notes.sight(
                    "frame-times",
                    f"{shown(notes.path)} shows {late} of {length} frames half a frame or more "
                    "from frame / fps; they are placed by their order.",
                )
        if clip.other_tracks:
            tracks = ", ".join(map(shown, clip.other_tracks))
            said = f"{shown(notes.path)} also holds {tracks} tracks, which are left out."
            notes.sight("other-tracks", said)
        self._check_clip[notes.stream](clip, notes)
        if clip.config_key not in kinds:
            kinds[clip.config_key] = ClipFacts.of(clip)
        misfit = misfit or clip.misfit(self._fps)
        return _Facts(*file, frames, file[0], misfit, clip.config_key)

    def _compare_lengths(
        self,
        seen: Sequence[Sequence[_Facts]],
        indices: Sequence[int],
        lengths: Sequence[int],
        notes: ObservationLog,
    ) -> None:
        """Compare the frames of each episode's slices with its length."""
        wrong = {
            place
            for facts in seen
            for place, (fact, length) in enumerate(zip(facts, lengths, strict=True))
            if fact.frames != length and fact.kind
        }
        for place in sorted(wrong):
            index, length = indices[place], lengths[place]
            table, *clips = [facts[place] for facts in seen]
            notes.episode = index
            frames = sorted({clip.frames for clip in clips if clip.kind})
            says = f"{EPISODES_PATH} says {length}"
            for stream, facts in zip(self._streams, (table, *clips), strict=True):
                if not facts.kind or facts.frames == length:
                    continue
                notes.stream, notes.file = stream, next(self._paths.absolute(stream, [index]))
                if facts is table:
                    videos = f", its videos have {_joined(frames)} frames" if frames else ""
                    has = count(facts.frames, "row")
                    notes.say("row-count", f"{shown(notes.path)} has {has}, {says}{videos}.")
                else:
                    rows = f", its table has {table.frames} rows" if table.kind else ""
                    has = count(facts.frames, "frame")
                    notes.say("frame-count", f"{shown(notes.path)} has {has}, {says}{rows}.")


class TableKinds:
    """Says what equal tables share: names and types of columns, and lengths of lists in them.

    Threads may share it: it only remembers schemas, to be faster.
    """

    def __init__(self) -> None:
        self._columns: dict[object, tuple[pa.Schema, str]] = {}

    def __call__(self, table: tables.DataFile) -> str:
        """Return the kind of a table, which is never empty."""
        key = table.schema_key
        known = self._columns.get(key)
        if known is None:
            schema = tables.read_data_schema(table.path)
            twice = [name for name, times in Counter(schema.names).items() if times > 1]
            if twice:
                raise UnreadableSourceError(
                    f"Columns of {table.path} have the same name, {shown(twice[0])}.",
                    path=table.path,
                )
            kind = "\n".join(sorted(f"{field.name!r}: {field.type}" for field in schema)) or "none"
            known = schema, kind
            # pandas adds the number of rows, so that there may be a schema a file.
            if len(self._columns) >= _KEPT_SCHEMAS:
                self._columns.clear()
            self._columns[key] = known
        schema, kind = known
        for name, lengths in table.lengths(schema).items():
            kind += f"\n{name!r} of {lengths}"
        return kind


def _unread(error: OSError | UnreadableSourceError, notes: ObservationLog) -> _Facts:
    """Say why a file cannot be read; that one is missing is said once all are known."""
    return _MISSING if say_unread(error, notes) else _Facts()


def say_unread(error: OSError | UnreadableSourceError, notes: ObservationLog) -> bool:
    """Say why a file cannot be read, and return whether it is missing, which is said later."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return True
    _refuse_if_the_file_may_be_sound(error, notes)
    if is_pointer(notes.file):
        refuse_pointers(Path(notes.file[: notes.folder_length]), met_one=True)
    if isinstance(error, UnreadableSourceError):
        said = shown(error.message)
    else:
        said = f"{shown(notes.path)} cannot be read: {shown(error.strerror or str(error))}."
    notes.say("unreadable-file", said)
    return False


def _refuse_if_the_file_may_be_sound(
    error: OSError | UnreadableSourceError, notes: ObservationLog
) -> None:
    """Raise what is no fault of the episode, which would be lost if it were dropped for it.

    An input/output error is not among it: that is how a damaged disk answers, too.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or cause.errno == errno.EIO:
        return
    if isinstance(cause, PermissionError):
        raise UnreadableSourceError(
            f"{notes.file} cannot be read: permission is denied.",
            path=notes.file,
            next_step="Let this user read the dataset, then run the same command again.",
        ) from cause
    with suppress(OSError), storage_errors(notes.file):
        raise cause


def _frames_off_their_place(
    clip: media.ClipIndex, seconds: FloatArray | None, fps: Fraction
) -> int:
    """Count frames half a frame or more from rank / ``fps``; of a clip to be remuxed as it is."""
    if seconds is None:
        return clip.frames_off_their_place(fps)
    return int(np.count_nonzero(np.abs(seconds * float(fps) - np.arange(len(seconds))) >= 0.5))


def index_of_remuxed(path: str, fps: Fraction) -> tuple[media.ClipIndex, FloatArray]:
    """Return the index that a clip has once it is remuxed, and when it shows each frame until then.

    The times are seconds, ascending.
    """
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        seconds = media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain), seconds
    finally:
        shutil.rmtree(folder)


def _joined(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


# ------------------------------------------------------------------------------------------------
# What a look at every file found, gathered block by block: numbers, never files.


BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """The slices of one stream.

    Attributes:
        stream: The stream.
        numbers: Size, time and inode of the file, frames, roll bytes and `Misfit` of the slice,
            shape (E, 6).
        kind: Number of each slice's kind, in order of appearance, shape (E,).
        kinds: The kinds: columns and types of a table, the decoder configuration of a clip, empty
            where a file cannot be read.
        key: Which file it is, as `FileTable.key`, shape (E,).
        first: First row or sample of the slice in it, shape (E,).
        size_bytes: Bytes of the slice, shape (E,).
        lead: Samples of it before the episode's first frame, shape (E,).
    """

    stream: str
    numbers: IntArray
    kind: IntArray
    kinds: Sequence[str]
    key: IntArray
    first: IntArray
    size_bytes: IntArray
    lead: IntArray

    @property
    def is_missing(self) -> BoolArray:
        """Whether there is no such file, shape (E,)."""
        missing: BoolArray = self.numbers[:, 0] == NO_FILE
        return missing

    @property
    def misfit(self) -> IntArray:
        """What is known of each slice's `Misfit` without its neighbours, shape (E,)."""
        return self.numbers[:, 5]

    @property
    def is_readable(self) -> BoolArray:
        """Whether the file could be read, shape (E,)."""
        readable = np.array([bool(kind) for kind in self.kinds], dtype=np.bool_)
        found: BoolArray = readable[self.kind]
        return found

    def kinds_of(self, kept: BoolArray) -> list[str]:
        """Return the kinds of the episodes that are kept, in order of appearance."""
        numbers, firsts = np.unique(self.kind[kept], return_index=True)
        return [self.kinds[number] for number in numbers[np.argsort(firsts)].tolist()]

    def scan(self, kept: BoolArray, *, grouped: bool) -> StreamScan:
        """Return the scan of the episodes that are kept; a group is a kind, see `kinds_of`."""
        size_bytes, mtime_ns, inode, frames, roll_bytes, _ = self.numbers[kept].T.copy()
        keys, rows, file = np.unique(self.key[kept], return_index=True, return_inverse=True)
        files = FileTable(keys, np.maximum(size_bytes, 0)[rows], mtime_ns[rows], inode[rows])
        group: IntArray = np.zeros(len(frames), dtype=np.int64)
        if grouped and len(group):
            _, firsts, numbers = np.unique(self.kind[kept], return_index=True, return_inverse=True)
            order: IntArray = np.empty(len(firsts), dtype=np.int64)
            order[np.argsort(firsts)] = np.arange(len(firsts))
            group = order[numbers]
        return StreamScan(
            self.stream,
            files,
            file.astype(np.int64),
            self.first[kept],
            frames,
            np.maximum(self.size_bytes[kept], 0),
            roll_bytes,
            group,
            self.lead[kept],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What was found in all files; arrays have shape (E,).

    Attributes:
        slices: Data first, then cameras.
        first_index: The column ``index`` of each table's first row, `NOT_KNOWN` where it is not
            known or not count by one.
        has_rows: Whether the table's rows were looked at.
        task: The only task of a table's rows, `NOT_KNOWN` where there are several or none.
        tasks: The tasks of those with several, by position.
        remarks: What was said about single episodes.
        sightings: What was said about many.
        missing_stats: Features whose statistics are missing, and in which episodes.
        stale_stats: Those whose statistics are stale, likewise.
        clips: What clips of each decoder configuration are.
    """

    slices: Sequence[Slices]
    first_index: IntArray
    has_rows: BoolArray
    task: IntArray
    tasks: Mapping[int, tuple[int, ...]]
    remarks: list[Observation]
    sightings: RepeatedObservations
    missing_stats: Mapping[str, Sequence[int]]
    stale_stats: Mapping[str, Sequence[int]]
    clips: Mapping[str, ClipFacts]

    def usual_clip(self, slices: Slices, kept: BoolArray) -> ClipFacts | None:
        """Return what most clips of a stream are; of as many the first. None without any."""
        kinds, firsts, counts = np.unique(
            slices.kind[kept & slices.is_readable], return_index=True, return_counts=True
        )
        found: Counter[ClipFacts] = Counter()
        for place in np.argsort(firsts).tolist():
            found[self.clips[slices.kinds[kinds[place]]]] += int(counts[place])
        return max(found, key=found.__getitem__, default=None)

    @property
    def num_files(self) -> int:
        """Files that are there."""
        return sum(int(np.count_nonzero(~stream.is_missing)) for stream in self.slices)


class EpisodePaths(Protocol):
    """Where the file of each episode's slice is."""

    @property
    def root(self) -> Path:
        """The dataset folder."""

    @property
    def are_usual(self) -> bool:
        """Whether all files of episodes are below ``data`` and ``videos``."""

    def relative(self, stream: str, episode_index: int, /) -> str:
        """Return the path of a slice's file, relative to the dataset."""

    def absolute(self, stream: str, episode_indices: Iterable[int], /) -> Iterator[str]:
        """Yield the path of each slice's file."""

    def slice_of(self, relative: str, /) -> tuple[str, int] | None:
        """Return the stream and an episode that a file's name stands for; None for others."""

    def misplaced(self, relative: str, /) -> tuple[str, int] | None:
        """Return the slice that a file may be of that does not lie where it should."""


class ScannedSource(NamedTuple):
    """A source of any version, read and looked at; what it means is decided afterwards.

    Attributes:
        info: Its ``info.json``.
        paths: Where its files are.
        episodes: Its episodes.
        tasks: Its tasks.
        gathered: What was found in its files.
        remarks: What is to be said of its tables.
        reads_stats: Whether it has statistics of episodes that were looked at.
    """

    info: DatasetInfo
    paths: EpisodePaths
    episodes: EpisodeTable
    tasks: TaskTable
    gathered: Gathered
    remarks: list[Observation]
    reads_stats: bool


class ScanAccumulator:
    """Takes blocks in order; some 100 bytes an episode and stream are kept of them."""

    def __init__(self, streams: Sequence[str], episode_index: IntArray) -> None:
        self._streams = streams
        self._episode_index = episode_index
        num_episodes = len(episode_index)
        self._numbers = [np.zeros((num_episodes, 6), dtype=np.int64) for _ in streams]
        self._kind = [np.zeros(num_episodes, dtype=np.int64) for _ in streams]
        self._kinds: list[dict[str, int]] = [{} for _ in streams]
        self._first_index = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
        self._has_rows = np.zeros(num_episodes, dtype=np.bool_)
        self._task = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
        self._tasks: dict[int, tuple[int, ...]] = {}
        self._remarks: list[Observation] = []
        self._sightings = RepeatedObservations()
        self._missing_stats: dict[str, list[int]] = {}
        self._stale_stats: dict[str, list[int]] = {}
        self._clips: dict[str, ClipFacts] = {}
        self._done = 0

    def add(self, block: Block) -> int:
        """Add the next block; return how many files it looked at."""
        first, stop = self._done, self._done + len(block.rows)
        for place, (numbers, kinds) in enumerate(zip(block.numbers, block.kinds, strict=True)):
            known = self._kinds[place]
            self._numbers[place][first:stop] = numbers
            self._kind[place][first:stop] = [known.setdefault(kind, len(known)) for kind in kinds]
        for position, facts in enumerate(block.rows, first):
            self._first_index[position] = facts.first_index
            self._has_rows[position] = facts.was_looked_at
            if len(facts.tasks) == 1:
                self._task[position] = facts.tasks[0]
            elif facts.tasks:
                self._tasks[position] = facts.tasks
        self._remarks += block.remarks
        self._sightings.merge(block.sightings)
        for name, episodes in block.missing_stats.items():
            self._missing_stats.setdefault(name, []).extend(episodes)
        for name, episodes in block.stale_stats.items():
            self._stale_stats.setdefault(name, []).extend(episodes)
        self._clips |= block.clips
        self._done = stop
        return len(block.rows) * len(self._streams)

    def gathered(self) -> Gathered:
        """Return everything."""
        index = self._episode_index
        slices = [
            Slices(
                *columns,
                key=index,
                first=np.zeros_like(index),
                size_bytes=columns[1][:, 0],
                lead=np.zeros_like(index),
            )
            for columns in zip(
                self._streams, self._numbers, self._kind, map(tuple, self._kinds), strict=True
            )
        ]
        return Gathered(
            slices,
            self._first_index,
            self._has_rows,
            self._task,
            self._tasks,
            self._remarks,
            self._sightings,
            self._missing_stats,
            self._stale_stats,
            self._clips,
        )
