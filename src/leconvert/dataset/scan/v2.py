"""The scan of a v2.x dataset, block by block of episodes: sizes, footers, indices, statistics."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.findings import ObservationLog
from leconvert.dataset.formats.v2 import (
    EPISODES_PATH,
    STATS_PATH,
    SourcePaths,
    is_pointer,
    parse_line,
    read_lines,
    refuse_pointers,
)
from leconvert.dataset.scan.changes import facts_of_opened
from leconvert.dataset.scan.file_checks import (
    ClipCheck,
    ClipFacts,
    Extremes,
    RowFacts,
    StatsCheck,
    TableCheck,
)
from leconvert.dataset.scan.gathering import SLICE_NUMBERS, Look, Scanner, SeenSlices
from leconvert.model.values import (
    DATA_STREAM,
    NO_FILE,
    FloatArray,
    IntArray,
    Misfit,
    camera_of,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count, shown
from leconvert.workdir.fs import forget_old_names, status_now

_KEPT_SCHEMAS = 256


class _Facts(NamedTuple):
    """What a scan keeps of one slice, which is a whole file; all zero if it cannot be read."""

    file_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    frames: int = 0
    roll_bytes: int = 0
    misfit: int = 0
    kind: str = ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """`SLICE_NUMBERS` of the slice."""
        return *self[:-1], 0, max(0, self.file_bytes), 0


_MISSING = _Facts(file_bytes=NO_FILE)
_FIT = Misfit(0)


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

    def __call__(self, first: int, stop: int) -> Look:
        """Look at the episodes at places ``first`` to ``stop``."""
        look = Look((stop - first) * len(self._streams))
        notes = ObservationLog(
            look.remarks, look.sightings, folder_length=len(f"{self._paths.root}/")
        )
        indices = self._episode_index[first:stop].tolist()
        lengths = self._length[first:stop].tolist()
        seen: list[list[_Facts]] = []
        for stream in self._streams:
            notes.stream = stream
            paths = list(self._paths.absolute(stream, indices))
            forget_old_names(paths)
            if stream == DATA_STREAM:
                facts = self._look_at_tables(paths, indices, lengths, first, notes, look)
            else:
                facts = self._look_at_clips(paths, indices, lengths, notes, look.clips)
            seen.append(facts)
            numbers = np.array([fact.numbers for fact in facts], SLICE_NUMBERS)
            kinds = [fact.kind for fact in facts]
            look.slices.append(SeenSlices(stream, np.arange(first, stop), numbers, kinds))
        self._compare_lengths(seen, indices, lengths, notes)
        return look

    def _look_at_tables(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        first: int,
        notes: ObservationLog,
        look: Look,
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
                for names, episodes in (missing, look.missing_stats), (stale, look.stale_stats):
                    for name in names:
                        episodes.setdefault(name, []).append(index)
            found.append(facts)
            look.rows.append(row_facts)
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
