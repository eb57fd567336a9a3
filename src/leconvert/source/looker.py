"""One block of a source's episodes, looked at: sizes, parquet footers, MP4 headers, statistics."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM, IntArray, camera_of
from leconvert.source.changes import FileFacts, signed_inode
from leconvert.source.clip_checks import ClipCheck, ClipFacts
from leconvert.source.info import EPISODES_PATH, STATS_PATH
from leconvert.source.legacy import parse_line, read_lines
from leconvert.source.lfs import is_pointer, refuse_pointers
from leconvert.source.paths import SourcePaths
from leconvert.source.seen import Notes, Remark, Sightings, counted, shown
from leconvert.source.stats_checks import StatsCheck
from leconvert.source.table_checks import Extremes, RowFacts, TableCheck
from leconvert.workdir.filesystem import forget_old_names
from leconvert.workdir.trouble import storage_errors

__all__ = ["NO_FILE", "Block", "Looker"]

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
    kind: str = ""


_MISSING = _Facts(size_bytes=NO_FILE)


@dataclass(slots=True, eq=False)
class Block:
    """Some consecutive episodes, n of them.

    Attributes:
        numbers: For each stream size, time, inode, frames and roll bytes, shape (n, 5).
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
    remarks: list[Remark] = field(default_factory=list)
    sightings: Sightings = field(default_factory=Sightings)
    missing_stats: dict[str, list[int]] = field(default_factory=dict)
    stale_stats: dict[str, list[int]] = field(default_factory=dict)
    clips: dict[str, ClipFacts] = field(default_factory=dict)


class Looker:
    """Looks at one block of episodes after another.

    Threads may share it, and it can be sent to another process: it holds nothing that changes but
    what it remembers to be faster.

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
    ) -> None:
        self._arguments = (
            paths, fps, features, streams, episode_index, length, stats, fleeting_inodes,
        )  # fmt: skip
        self._fleeting_inodes = fleeting_inodes
        self._paths = paths
        self._fps = fps
        self._streams = streams
        self._episode_index = episode_index
        self._length = length
        self._stats = stats
        self._check_table = TableCheck(fps, features, has_cameras=len(streams) > 1)
        self._check_stats = StatsCheck(features)
        self._check_clip = {
            stream: ClipCheck(features[camera], fps)
            for stream in streams
            if (camera := camera_of(stream)) is not None
        }
        self._columns: dict[tuple[bytes, bytes | None], tuple[pa.Schema, str]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what it remembers: another thread may be adding to that.
        return Looker, self._arguments

    @property
    def reads_no_stats(self) -> bool:
        """Whether there is no table of statistics to look at."""
        return self._stats is None

    def __call__(self, first: int, stop: int) -> Block:
        """Look at the episodes at places ``first`` to ``stop``."""
        block = Block()
        notes = Notes(block.remarks, block.sightings, folder_length=len(f"{self._paths.root}/"))
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
        notes: Notes,
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
                file_facts = FileFacts.of(path, self._fleeting_inodes)
                with tables.DataFile(path) as table:
                    facts = self._table_facts(table, file_facts)
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
        self, line: bytes | None, length: int, extremes: Extremes, notes: Notes
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

    def _table_facts(self, table: tables.DataFile, file: FileFacts) -> _Facts:
        key = table.schema_key
        known = self._columns.get(key) if key is not None else None
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
            if key is not None:
                # pandas adds the number of rows, so that there may be a schema a file.
                if len(self._columns) >= _KEPT_SCHEMAS:
                    self._columns.clear()
                self._columns[key] = known
        schema, kind = known
        for name, lengths in table.lengths(schema).items():
            kind += f"\n{name!r} of {lengths}"
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            table.counts.rows,
            table.counts.uncompressed_bytes,
            kind,
        )

    def _look_at_clips(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        notes: Notes,
        kinds: dict[str, ClipFacts],
    ) -> list[_Facts]:
        files: list[FileFacts | OSError] = []
        for path in paths:
            try:
                files.append(FileFacts.of(path, self._fleeting_inodes))
            except OSError as error:
                files.append(error)
        there = [path for path, file in zip(paths, files, strict=True) if _is_there(file)]
        clips = media.read_clip_indexes(there)
        found: list[_Facts] = []
        for path, index, length, file in zip(paths, indices, lengths, files, strict=True):
            notes.episode, notes.file = index, path
            try:
                if isinstance(file, OSError):
                    raise file
                found.append(self._clip_facts(path, next(clips), file, length, notes, kinds))
            except (OSError, UnreadableSourceError) as error:
                found.append(_unread(error, notes))
        return found

    def _clip_facts(
        self,
        path: str,
        clip: media.ClipIndex | UnreadableSourceError,
        file: FileFacts,
        length: int,
        notes: Notes,
        kinds: dict[str, ClipFacts],
    ) -> _Facts:
        if isinstance(clip, media.UnsupportedClipError):
            notes.sight("remux", f"{shown(notes.path)} will be remuxed: {clip.reason}.")
            clip = _index_of_remuxed(path, self._fps)
        elif isinstance(clip, UnreadableSourceError):
            raise clip
        if clip.num_samples == length > 0:
            if not clip.keyframes[0]:
                notes.say("no-keyframe", f"{shown(notes.path)} does not begin with a keyframe.")
            elif late := clip.frames_off_their_place(self._fps):
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
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            clip.num_samples,
            file.size_bytes,
            clip.config_key,
        )

    def _compare_lengths(
        self,
        seen: Sequence[Sequence[_Facts]],
        indices: Sequence[int],
        lengths: Sequence[int],
        notes: Notes,
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
                    has = counted(facts.frames, "row")
                    notes.say("row-count", f"{shown(notes.path)} has {has}, {says}{videos}.")
                else:
                    rows = f", its table has {table.frames} rows" if table.kind else ""
                    has = counted(facts.frames, "frame")
                    notes.say("frame-count", f"{shown(notes.path)} has {has}, {says}{rows}.")


def _is_there(file: FileFacts | OSError) -> bool:
    return not isinstance(file, OSError)


def _unread(error: OSError | UnreadableSourceError, notes: Notes) -> _Facts:
    """Say why a file cannot be read; that one is missing is said once all are known.

    Raises:
        UnreadableSourceError: This user may not read it, or it is a Git LFS pointer.
        StorageError: The mount or the server fails.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _MISSING
    _refuse_if_the_file_may_be_sound(error, notes)
    if is_pointer(notes.file):
        refuse_pointers(Path(notes.file[: notes.folder_length]), met_one=True)
    if isinstance(error, UnreadableSourceError):
        said = shown(error.message)
    else:
        said = f"{shown(notes.path)} cannot be read: {shown(error.strerror or str(error))}."
    notes.say("unreadable-file", said)
    return _Facts()


def _refuse_if_the_file_may_be_sound(error: OSError | UnreadableSourceError, notes: Notes) -> None:
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


def _index_of_remuxed(path: str, fps: Fraction) -> media.ClipIndex:
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain)
    finally:
        shutil.rmtree(folder)


def _joined(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
