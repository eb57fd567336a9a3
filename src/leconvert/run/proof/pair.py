"""A result against its source: metadata and totals here, files in pieces."""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media
from leconvert.dataset.files import files_below, overlaid_pair, special_files
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    SourceRecord,
    Sources,
    SourceView,
    open_dataset,
    read_provenance,
    v2,
    v3,
)
from leconvert.dataset.scan.changes import meta_digest
from leconvert.dataset.scan.file_checks import ClipFacts
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import DATA_STREAM, FloatArray, IntArray
from leconvert.run.proof.difference import Difference, VerificationReport
from leconvert.run.proof.files import compare_other_files, was_repaired
from leconvert.run.proof.kept import KeptTable, compare_kept_clip, is_kept_clip
from leconvert.run.proof.metadata import (
    Expected,
    Routes,
    compare_aggregate_form,
    compare_cameras,
    compare_provenance,
    compare_repairs,
    file_runs,
    unreadable_metadata,
)
from leconvert.run.proof.result import ResultTables, tables_of
from leconvert.run.proof.rows import (
    DataSchemas,
    RowRules,
    RowSpan,
    SourceRows,
    compare_footer,
    compare_rows,
)
from leconvert.run.proof.videos import (
    SourceClips,
    Span,
    as_joined,
    check_video,
    compare_clips,
    compare_header,
)
from leconvert.support.errors import (
    InterruptedRunError,
    SourceError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.parallel import Spread, parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.storage_errors import any_storage_errors, raise_storage_trouble
from leconvert.tables import StoredGroups
from leconvert.workdir.fs import is_folder

__all__ = ["Comparer", "Place", "Sampling", "chosen", "verify_pair"]


# ------------------------------------------------------------------------------------------------
# A result against its source in pieces: some consecutive episodes of one output file, or of some.
#
# What a piece finds depends on the files and on the piece alone, so the differences of all
# pieces, in the order of the pieces, are the same however many threads or processes share them.


# Enough that what a process does for a file is done seldom, few enough to be shared and stopped.
_EPISODES_A_PIECE = 64
_LEAST_EPISODES_A_PIECE = 4
_PIECES_WANTED = 32


class Piece(NamedTuple):
    """Some consecutive episodes of one output file, or all of several, by their positions.

    Attributes:
        stream: The stream.
        file_first: First episode of the file, or of the first of several.
        file_stop: The one behind the last of the last file.
        first: First episode of the piece.
        stop: The one behind the last.
    """

    stream: str
    file_first: int
    file_stop: int
    first: int
    stop: int


@dataclass(slots=True)
class Compared:
    """What was found in a piece.

    Attributes:
        differences: Of its episodes.
        of_files: Of the headers or footers of the files that it begins.
        facts: What the pictures of each video file are that it begins, and of how many episodes.
    """

    differences: list[Difference] = field(default_factory=list)
    of_files: list[Difference] = field(default_factory=list)
    facts: list[tuple[ClipFacts, int]] = field(default_factory=list)


class _File[Where](NamedTuple):
    """An output file of a piece.

    Attributes:
        path: The file, relative to the result.
        first: Its first episode.
        stop: The one behind the last.
        lengths: Rows or samples of each of its episodes.
        spans: Where those of its episodes that are compared are on both sides.
    """

    path: str
    first: int
    stop: int
    lengths: list[int]
    spans: Sequence[Where]


def cut_pieces(routes: Routes, source_starts: Sequence[int] = ()) -> list[Piece]:
    """Return the pieces of all files, stream by stream; they depend on the arguments alone.

    Args:
        source_starts: Positions at which another source begins, and the number of episodes; a piece
            is of one source.
    """
    slices = sum(map(len, routes.file_number.values()))
    most = min(_EPISODES_A_PIECE, max(_LEAST_EPISODES_A_PIECE, slices // _PIECES_WANTED))
    pieces: list[Piece] = []
    for stream, numbers in routes.file_number.items():
        for file_first, file_stop in file_runs(numbers):
            last = pieces[-1] if pieces else None
            if (
                # Whole files, small ones together: a piece costs as much as one of them.
                last is not None
                and last.stream == stream
                and last.first == last.file_first
                and last.stop == last.file_stop == file_first
                and file_stop - last.first <= most
                and not _starts_inside(last.first, file_stop, source_starts)
            ):
                pieces[-1] = Piece(stream, last.first, file_stop, last.first, file_stop)
                continue
            pieces += (
                Piece(stream, file_first, file_stop, first, min(first + most, stop))
                for begin, stop in _runs_of_sources(file_first, file_stop, source_starts)
                for first in range(begin, stop, most)
            )
    return pieces


def _runs_of_sources(
    first: int, stop: int, source_starts: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield first and stop of each source's run of the episodes of a file."""
    yield from itertools.pairwise([first, *_starts_inside(first, stop, source_starts), stop])


def _starts_inside(first: int, stop: int, source_starts: Sequence[int]) -> Sequence[int]:
    return source_starts[bisect_right(source_starts, first) : bisect_left(source_starts, stop)]


type Clip = tuple[media.ClipIndex, media.StoredIndex | None]


class _Opened(threading.local):
    """The output file that this thread read last: the next piece is mostly of the same one."""

    def __init__(self) -> None:
        self._path = ""
        self._file: StoredGroups | Clip | None = None
        self._tasks: dict[Path, tuple[dict[int, str], dict[str, int]]] = {}
        self.rows = SourceRows()
        self.clips = SourceClips()

    def table(self, path: str) -> StoredGroups:
        if self._path != path or not isinstance(self._file, StoredGroups):
            self._file = None
            self._path, self._file = path, StoredGroups(path)
        return self._file

    def clip(self, path: str) -> Clip:
        if self._path != path or not isinstance(self._file, tuple):
            self._file = None
            stored = media.read_stored_index(path)
            index = media.read_clip_index(path) if stored is None else stored.parse()
            self._path, self._file = path, (index, stored)
        return self._file

    def tasks(self, source: Path, result: ResultTables) -> tuple[dict[int, str], dict[str, int]]:
        """Return the text that the source lists for an episode, and the result's index of one."""
        if source not in self._tasks:
            self._tasks[source] = v2.tasks_of_episodes(source), result.task_indices()
        return self._tasks[source]


@dataclass(slots=True, eq=False)
class Comparer:
    """Compares pieces. Threads may share it, and it can be sent to another process.

    Attributes:
        tables: The result.
        expected: The source, as the result must hold it.
        routes: Where the result says that its episodes are.
        read_bytes: Compare coded bytes and rows, not only headers.
        clip_digests: See `leconvert.run.proof.pair.verify_pair`.
        read_rows: Likewise.
        chosen: Which episodes to compare, shape (E,); None for all.
    """

    tables: ResultTables
    expected: Expected
    routes: Routes
    read_bytes: bool
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None
    chosen: npt.NDArray[np.bool_] | None = None
    read_rows: int = 0
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False)
    _schemas: DataSchemas = field(init=False, repr=False)
    # Where a repair put shorter tables of times the rest of their room is a box that means nothing.
    _may_be_free: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._schemas = DataSchemas(self.expected, self.tables.target.list_entry)
        self._may_be_free = was_repaired(self.result)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what it remembers, which is of this process.
        return Comparer, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    def __call__(self, *piece: Any) -> Compared:
        """Return what is found in a piece, given by the fields of a `Piece`."""
        with any_storage_errors():
            try:
                return self._compare(Piece(*piece))
            except UnreadableSourceError as error:
                # The functions that read the source read the result as well.
                if error.path is not None and Path(error.path).is_relative_to(self.result):
                    raise_storage_trouble(error, error.path)
                raise

    @property
    def result(self) -> Path:
        """The result's folder."""
        return self.tables.root

    def num_compared(self, piece: Piece) -> int:
        """Return how many episodes of a piece are compared."""
        return len(self._positions(piece))

    def frames_of(self, piece: Piece) -> int:
        """Return how many frames or rows a piece compares."""
        return int(self.expected.length[self._positions(piece)].sum())

    @property
    def compared_lengths(self) -> IntArray:
        """Frames of each episode, 0 for those that are not compared, shape (E,)."""
        lengths = self.expected.length
        return lengths if self.chosen is None else np.where(self.chosen, lengths, 0)

    def row_rules(self, position: int) -> RowRules:
        """Return what rows of the source of an episode must be."""
        source = self.expected.source_of(position)
        stats, task_of = self.tables.computed_stats, partial(self._task_of, source)
        return RowRules(self.expected.fps, source.dataset.features, source.repairs, stats, task_of)

    def path_of(self, stream: str, position: int) -> str:
        """Return the output file of an episode, relative to the result."""
        return self.tables.target.path(stream, int(self.routes.file_number[stream][position]))

    def files_of(self, piece: Piece) -> list[int]:
        """Return the numbers of the output files of a piece."""
        numbers = self.routes.file_number[piece.stream][piece.first : piece.stop]
        found: list[int] = numbers[:1].tolist() + numbers[1:][np.diff(numbers) != 0].tolist()
        return found

    def place_in_data_file(self, position: int) -> int:
        """Return how many episodes stand before one in its data file."""
        numbers = self.routes.file_number[DATA_STREAM]
        before = np.flatnonzero(numbers[:position] != numbers[position])
        return position - (int(before[-1]) + 1 if len(before) else 0)

    def row_span(self, position: int) -> RowSpan:
        """Return where an episode's rows are on both sides."""
        at, place = np.array([position]), np.array([self.place_in_data_file(position)])
        (span,) = self._row_spans(at, place, at)
        return span

    def _task_of(self, source: SourceView, episode: int) -> int | None:
        texts, indices = self._opened.tasks(source.root, self.tables)
        text = texts.get(episode)
        return None if text is None else indices.get(text, -1)

    def _positions(self, piece: Piece) -> IntArray:
        positions = np.arange(piece.first, piece.stop)
        return positions if self.chosen is None else positions[self.chosen[positions]]

    def _compare(self, piece: Piece) -> Compared:
        compared = Compared()
        if piece.stream == DATA_STREAM:
            rules = self.row_rules(piece.first)
            for table in self._files(piece, self._row_spans):
                self._compare_table(piece, table, rules, compared)
        else:
            videos = list(self._files(piece, partial(self._clip_spans, piece.stream)))
            kept = self._kept_clips(videos)
            for number, video in enumerate(videos):
                # The first file of a piece is always parsed: comparing headers with what the writer
                # would write cannot find what it does wrong with all of them.
                self._compare_video(
                    piece, video, kept.get(video.path), compared, by_header=number > 0
                )
        return compared

    def _files[Where](
        self, piece: Piece, spans_of: Callable[[IntArray, IntArray, IntArray], Iterator[Where]]
    ) -> Iterator[_File[Where]]:
        """Yield the files of a piece that it begins or compares episodes of.

        What is asked of arrays is asked once for all of them.

        Args:
            spans_of: Called with the positions of episodes, the place of each among those of its
                file, and its first row or sample there.
        """
        expected, stream, begin = self.expected, piece.stream, piece.file_first
        numbers = self.routes.file_number[stream][begin : piece.file_stop]
        samples = expected.samples(stream, np.arange(begin, piece.file_stop))
        before = np.cumsum(samples) - samples
        positions = self._positions(piece)
        # Counted from the first episode of the first file: each compared one, and that of its file.
        own, runs = positions - begin, list(file_runs(numbers))
        firsts = np.array([first for first, _ in runs])
        of_file = firsts[np.searchsorted(firsts, own, side="right") - 1]
        spans = list(spans_of(positions, own - of_file, before[own] - before[of_file]))
        ends = np.searchsorted(own, [stop for _, stop in runs]).tolist()
        lengths, done = samples.tolist(), 0
        for (first, stop), end in zip(runs, ends, strict=True):
            if done < end or piece.first <= begin + first:
                path = self.tables.target.path(stream, int(numbers[first]))
                where = begin + first, begin + stop
                yield _File(path, *where, lengths[first:stop], spans[done:end])
            done = end

    def _first_source(self, stream: str, file: _File[RowSpan] | _File[Span]) -> str:
        """Return the source's file of a file's first episode."""
        spans = file.spans if len(file.spans) == file.stop - file.first else ()
        return spans[0].source if spans else self.expected.path(stream, file.first)

    def _is_one(self, file: _File[Any]) -> bool:
        """Tell whether a file holds one episode and nothing else."""
        return file.lengths == [int(self.expected.length[file.first])]

    def _compare_table(
        self, piece: Piece, file: _File[RowSpan], rules: RowRules, compared: Compared
    ) -> None:
        path, name, begins = file.path, f"{self.result}/{file.path}", piece.first <= file.first
        read_rows = self.read_bytes or max(piece.first, file.first) < self.read_rows
        kept = None
        if self._is_one(file):
            kept = KeptTable.found(name, self._first_source(piece.stream, file), rules.repairs)
        if kept is not None:
            with kept:
                for span in file.spans:
                    found = kept.compare_rows(path, span, rules, read_bytes=read_rows)
                    compared.differences += found
                compared.of_files += kept.compare_columns(path, self._schemas, file.first)
            return
        try:
            table = self._opened.table(name)
        except (UnreadableSourceError, OSError, pa.ArrowException) as error:
            self._say_unreadable(file, error, piece.stream, compared, begins=begins)
            return
        episodes = file.stop - file.first
        if len(table.rows) == episodes:
            rows = self._opened.rows
            compared.differences += compare_rows(
                path, table, file.spans, rules, rows, read_rows=read_rows
            )
        elif begins:
            what, has = "row groups, one an episode", str(len(table.rows))
            said = Difference(what, path, str(episodes), has, None, piece.stream)
            compared.differences.append(said)
        if begins:
            positions = range(file.first, file.stop)
            indices = self.expected.begins[file.first : file.stop].tolist()
            compared.of_files += compare_footer(
                path, table, self._schemas, file.lengths, positions, indices
            )

    def _kept_clips(self, files: Sequence[_File[Span]]) -> dict[str, media.ClipIndex]:
        """Return the indices of files that are the source's as they are, read all at once.

        By their paths in the result. Not all such files need be among them.
        """
        ones = [
            file
            for file in files
            if file.spans and file.spans[0].source_first is None and self._is_one(file)
        ]
        names = [f"{self.result}/{file.path}" for file in ones]
        indexes = media.read_alike(names, [file.spans[0].source for file in ones])
        found = zip(ones, indexes, strict=True)
        return {file.path: index for file, index in found if index is not None}

    def _compare_video(
        self,
        piece: Piece,
        file: _File[Span],
        kept: media.ClipIndex | None,
        compared: Compared,
        *,
        by_header: bool,
    ) -> None:
        path, stream, fps = file.path, piece.stream, self.expected.fps
        if kept is not None:
            (span,), read_bytes = file.spans, self.read_bytes
            found = list(compare_kept_clip(path, stream, kept, span, fps, read_bytes=read_bytes))
            compared.differences += found
            compared.facts.append((ClipFacts.of(kept), 1))
            return
        begins, is_one = piece.first <= file.first, self._is_one(file)
        if by_header and is_one and file.spans and not self.read_bytes:
            name = f"{self.result}/{path}"
            clip = as_joined(name, file.spans[0], fps, self._opened.clips)
            if clip is not None:
                compared.facts.append((ClipFacts.of(clip), 1))
                return
        try:
            index, stored = self._opened.clip(f"{self.result}/{path}")
        except (UnreadableSourceError, OSError) as error:
            self._say_unreadable(file, error, stream, compared, begins=begins)
            return
        frames = sum(file.lengths)
        source = self._first_source(stream, file)
        is_kept = is_one and is_kept_clip(index, stored, source)
        found = list[Difference]()
        if begins and not is_kept:
            found += check_video(path, stream, index, frames, fps)
        if is_kept:
            for span in file.spans:
                found += compare_kept_clip(
                    path, stream, index, span, fps, read_bytes=self.read_bytes
                )
        elif index.num_samples == frames:
            clips = self._opened.clips
            found += compare_clips(
                path, stream, index, file.spans, fps, clips, read_bytes=self.read_bytes
            )
        if begins:
            compared.facts.append((ClipFacts.of(index), file.stop - file.first))
        if begins and not is_kept and not found:
            compared.of_files += compare_header(
                path,
                stream,
                index,
                file.lengths,
                source,
                fps,
                self._opened.clips,
                may_be_free=self._may_be_free,
                head=b"" if stored is None else stored.head,
            )
        compared.differences += found

    def _say_unreadable(
        self, file: _File[Any], error: Exception, stream: str, compared: Compared, *, begins: bool
    ) -> None:
        raise_storage_trouble(error, self.result / file.path)
        if begins:
            what, wanted = ("parquet", "a footer") if stream == DATA_STREAM else ("MP4", "an index")
            said = Difference(f"readable {what}", file.path, wanted, str(error), None, stream)
            compared.differences.append(said)

    def _row_spans(
        self, positions: IntArray, row_groups: IntArray, _: IntArray
    ) -> Iterator[RowSpan]:
        expected, stream = self.expected, DATA_STREAM
        return map(
            RowSpan,
            expected.index[positions].tolist(),
            expected.length[positions].tolist(),
            expected.paths(stream, positions),
            expected.first_in_file(stream, positions),
            positions.tolist(),
            expected.begins[positions].tolist(),
            row_groups.tolist(),
        )

    def _clip_spans(
        self, stream: str, positions: IntArray, _: IntArray, first_samples: IntArray
    ) -> Iterator[Span]:
        expected = self.expected
        return map(
            Span,
            expected.index[positions].tolist(),
            expected.length[positions].tolist(),
            first_samples.tolist(),
            _seconds(self.routes.from_timestamp, stream, positions),
            _seconds(self.routes.to_timestamp, stream, positions),
            expected.paths(stream, positions),
            expected.first_in_file(stream, positions),
            self._digests(stream, positions),
            expected.lead(stream, positions).tolist(),
            expected.samples(stream, positions).tolist(),
        )

    def _digests(self, stream: str, positions: IntArray) -> Iterator[str | None]:
        known = None if self.clip_digests is None else self.clip_digests.get(stream)
        if known is None:
            return itertools.repeat(None, len(positions))
        return (digest.decode("ascii") or None for digest in known[positions].tolist())


def _seconds(
    times: Mapping[str, FloatArray], stream: str, positions: IntArray
) -> Iterable[float | None]:
    found = times.get(stream)
    return itertools.repeat(None) if found is None else found[positions].tolist()


# ------------------------------------------------------------------------------------------------
# How long pieces will take, a guess that decides who shares them.


class _Seconds(NamedTuple):
    """What is compared of a table or a video costs, in seconds.

    Attributes:
        a_slice: An episode's own, besides its bytes.
        a_file: A file.
        an_episode: Each episode that the footer or header of a file tells of.
    """

    a_slice: float
    a_file: float
    an_episode: float


_ROWS = _Seconds(0.000_004, 0.000_09, 0.000_023)
_CLIPS = _Seconds(0.000_009, 0.000_03, 0.000_008)
_BYTES_A_SECOND = 1e9  # on both sides


def expected_seconds(compare: Comparer, pieces: Sequence[Piece]) -> list[float]:
    """Return for each piece how long one process will take for it."""
    sizes: dict[str, int] = {}
    seconds = []
    for piece in pieces:
        numbers = compare.files_of(piece)
        costs = _ROWS if piece.stream == DATA_STREAM else _CLIPS
        needed = compare.num_compared(piece) * costs.a_slice
        if compare.read_bytes:
            for number in numbers:
                path = compare.tables.target.path(piece.stream, number)
                if path not in sizes:
                    sizes[path] = 0
                    with suppress(OSError):
                        sizes[path] = (compare.result / path).stat().st_size
                share = compare.num_compared(piece) / (piece.file_stop - piece.file_first)
                needed += sizes[path] * share / _BYTES_A_SECOND
        if piece.first == piece.file_first:
            needed += len(numbers) * costs.a_file
            needed += (piece.file_stop - piece.file_first) * costs.an_episode
        seconds.append(needed)
    return seconds


# ------------------------------------------------------------------------------------------------
# Which episodes and frames a verification looks at more closely, or at all.


class Place(NamedTuple):
    """One frame: the position of its episode, and its place in the order of presentation there."""

    position: int
    frame: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is looked at beside, or instead of, everything.

    Attributes:
        share: Share of the episodes whose files are compared, above 0 and up to 1; one at least.
        decode: Pictures to decode on both sides.
        deep: Samples to load through LeRobot's dataset.
        seed: Decides which; equal seeds choose the same of equal datasets.
    """

    share: float = 1.0
    decode: int = 0
    deep: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"sample must be above 0 and at most 1, not {self.share:g}.")
        for name, count in (("decode", self.decode), ("deep", self.deep)):
            if count < 0:
                raise UsageError(f"--{name} takes 0 or more, not {count}.")

    def episodes(self, num_episodes: int) -> npt.NDArray[np.bool_] | None:
        """Return which episodes are compared, shape (E,); None for all."""
        if self.share == 1:
            return None
        is_chosen = np.zeros(num_episodes, np.bool_)
        is_chosen[chosen(num_episodes, max(1, round(self.share * num_episodes)), self.seed)] = True
        return is_chosen

    def frames(
        self, count: int, lengths: IntArray, groups: Sequence[str] = ("",)
    ) -> list[tuple[str, Place]]:
        """Return frames of random groups, group by group and in order."""
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        found = []
        for number in chosen(total * len(groups), count, self.seed).tolist():
            group, frame = divmod(number, total)
            position = int(np.searchsorted(ends, frame, side="right"))
            first = int(ends[position] - lengths[position])
            found.append((groups[group], Place(position, frame - first)))
        return found


EVERYTHING = Sampling()
"""All episodes; nothing is decoded."""


def chosen(population: int, count: int, seed: int) -> IntArray:
    """Return ``count`` different numbers below ``population``, ascending; all if there are fewer.

    Python's own generator is used: what it gives for a seed does not change with its version.
    """
    numbers = random.Random(seed).sample(range(population), min(count, population))  # noqa: S311
    return np.array(sorted(numbers), np.int64)


# ------------------------------------------------------------------------------------------------
# A result against its source: metadata and totals here, files in pieces.


def verify_pair(
    result: Path,
    source: Path | Sequence[Path],
    *,
    depth: str = "structure",
    progress: Progress = NO_PROGRESS,
    max_workers: int | None = None,
    spread: Spread | None = None,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
    read_rows: int = 0,
    repairs: Repairs | Sequence[Repairs] | None = None,
    sampling: Sampling = EVERYTHING,
    keeps_further: bool = False,
    stop: threading.Event | None = None,
) -> VerificationReport:
    """Compare a result with the dataset that it was converted from.

    Differences come in the same order whoever finds them: metadata first, then file by file.

    Args:
        result: The dataset that was written, v3.0 or v2.1.
        source: The dataset that it was made from, or all that were merged; which is which says
            what the result tells of their tables, else of their folders, else their order. Of an
            overlay in place the ``meta/`` that it replaced.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Where to report.
        max_workers: Processes that compare at a time, this one included; by default one a core,
            and this one alone where there is little to do. Where storage makes it wait, threads
            of this process instead, by default many.
        spread: Threads and processes, instead of deciding by what the first pieces cost.
        clip_digests: For each camera's stream, what `leconvert.media.order_digest` gave for each
            episode's clip when a worker read it, shape (E,) of 16 bytes; ``structure`` then does
            not read the clips again. Empty for a clip that none read.
        read_rows: Compare the rows of the first so many episodes also with ``structure``.
        repairs: What the conversion was told to change, of several sources for each; by default
            what the result says of itself. Anything else that differs is a difference.
        sampling: A share of the episodes whose files are compared, and pictures and samples that
            are decoded and loaded besides.
        keeps_further: Whether the result may have files beside those of episodes that the source
            does not give: an append leaves them where they are.
        stop: Set it from another thread to stop after the pieces that are being compared.

    Returns:
        What differs, and how much was compared; ``ok`` says whether nothing differs.

    Raises:
        SourceError: The source itself cannot be read.
        StorageError: The disk fails, or this user may not read a file of the result: whether that
            differs is not known.
        InstallationError: Samples shall be loaded through LeRobot, which is not installed.
        InterruptedRunError: ``stop`` was set.
    """
    # An NFS client that looked for the result in vain goes on missing it for half a minute.
    is_folder(result)
    with overlaid_pair(result, [source] if isinstance(source, Path) else source) as pair:
        return _verified(
            *pair,
            depth=depth,
            progress=progress,
            max_workers=max_workers,
            spread=spread,
            clip_digests=clip_digests,
            read_rows=read_rows,
            repairs=repairs,
            sampling=sampling,
            keeps_further=keeps_further,
            stop=stop,
        )


def compare_tables(result: Path, sources: Sources) -> list[Difference]:
    """Compare what stands beside the files of a result's episodes with what a conversion writes.

    That is ``info.json``, statistics, what is said of each episode, and the files that come along,
    to the byte. No video is opened, and of a data file its rows where quantiles are counted. Tasks
    are not compared, nor is what tells of repairs; further files are none of it.
    """
    tables, expected = tables_of(result), Expected.of(sources)
    found = [
        *tables.compare_info(expected),
        *compare_other_files(tables, expected, read_bytes=True, keeps_further=True),
        *tables.compare_episodes(expected),
        *tables.compare_stats(expected),
    ]
    return [each for each in found if each.path not in {v3.REPAIRS_PATH, PROVENANCE_PATH}]


def _verified(
    result: Path,
    roots: Sequence[Path],
    *,
    depth: str,
    progress: Progress,
    max_workers: int | None,
    spread: Spread | None,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None,
    read_rows: int,
    repairs: Repairs | Sequence[Repairs] | None,
    sampling: Sampling,
    keeps_further: bool,
    stop: threading.Event | None,
) -> VerificationReport:
    roots = _in_order(result, roots)
    told = [repairs] if isinstance(repairs, Repairs) else repairs
    sources = Sources(
        SourceView(open_dataset(root, own), own)
        for root, own in zip(roots, told or _declared(result, len(roots)), strict=True)
    )
    for original in sources:
        original.dataset.check()
    differences: list[Difference] = []
    reads_bytes = depth == "bytes"
    tables = tables_of(result)
    if sampling.deep:
        from leconvert.run.proof.samples import check_lerobot

        if tables.target.version != "v3.0":
            raise UsageError(
                f"--deep loads samples through a LeRobot that reads v3.0; {result} is "
                f"{tables.target.version}.",
                next_step="Leave it out: --bytes compares every packet and row, --decode pictures.",
            )
        check_lerobot()  # it fails before the work, not after it

    try:
        differences += [
            Difference("file", path, "a file", "a pipe, a socket or a device")
            for path in sorted(special_files(result))
        ]
        if differences:
            return VerificationReport(depth, differences, 0, 0, 0, 0)
        if len(sources) == 1:
            known = None if told is None else told[0]
            differences += compare_repairs(v3.read_repairs(result), known, sources[0].dataset)
        expected = Expected.of(sources)
        differences += compare_provenance(result, expected)
        streams, frames = expected.streams, expected.num_frames
        differences += tables.compare_info(expected)
        differences += tables.compare_tasks(expected)
        unusable = [*tables.unusable(streams)]
        if unusable:
            return VerificationReport(depth, [*differences, *unusable], 0, 0, 0, 0)
        differences += tables.compare_form()
        routes = tables.routes(streams)
        of_episodes = [*tables.compare_episodes(expected)]
    except (OSError, KeyError, ValueError, pa.ArrowException, SourceError) as error:
        differences.append(_held_against(result, error))
        return VerificationReport(depth, differences, 0, 0, 0, 0)
    differences_of_info = len(differences)
    differences += compare_other_files(
        tables, expected, read_bytes=reads_bytes, keeps_further=keeps_further
    )
    differences += of_episodes
    if reads_bytes:
        try:
            differences += tables.compare_stats(expected)
        except UnreadableSourceError as error:
            differences.append(_held_against(result, error, "statistics"))
    else:
        differences += compare_aggregate_form(result)
    if not len(expected):
        differences.append(Difference("episodes", "meta/episodes", "one at least", "none"))
    if tables.num_episodes != len(expected) or not len(expected):
        return VerificationReport(depth, differences, 0, 0, 0, 0)

    if any(len(numbers) != len(expected) for numbers in routes.file_number.values()):
        # A folder that could not be listed looks like an empty one.
        what = "other episodes than when they were counted"
        differences.append(Difference("episodes", "meta/episodes", str(len(expected)), what))
        return VerificationReport(depth, differences, 0, 0, 0, 0)
    files, found = _files(tables, routes)
    differences += found
    differences += _left_over(result, files)
    chosen = sampling.episodes(len(expected))
    compare = Comparer(tables, expected, routes, reads_bytes, clip_digests, chosen, read_rows)
    frames = int(compare.compared_lengths.sum())
    with progress.stage("verify", frames * len(streams), "rows and camera frames") as stage:
        found, cameras = _compare_pieces(compare, stage, spread, max_workers, stop)
    differences += found
    differences[differences_of_info:differences_of_info] = compare_cameras(
        expected.features, cameras, expected.fps
    )
    pictures = samples = 0
    if not differences:
        pictures, samples, differences = _look_closer(compare, sampling, progress, stop)
    return VerificationReport(
        depth=depth,
        differences=tuple(differences),
        files=len(files),
        episodes=int(np.count_nonzero(compare.compared_lengths)),
        video_frames=frames * len(expected.cameras),
        rows=frames,
        share=sampling.share,
        pictures=pictures,
        samples=samples,
    )


def _in_order(result: Path, roots: Sequence[Path]) -> list[Path]:
    """Return sources in the order in which a result has their episodes, as far as it says so."""
    left = list(roots)
    provenance = read_provenance(result) if len(left) > 1 else None
    if provenance is None or len(provenance.sources) != len(left):
        return left
    found: dict[int, Path] = {}
    # A copy may have another name, a source that was changed has other tables.
    for is_it in (_has_tables, lambda told, root: root.name == told.name, lambda *_: True):
        for number, told in enumerate(provenance.sources):
            if number not in found:
                root = next((root for root in left if is_it(told, root)), None)
                if root is not None:
                    found[number] = root
                    left.remove(root)
    return [found[number] for number in sorted(found)]


def other_sources(result: Path, roots: Sequence[Path]) -> list[str]:
    """Return the datasets that a result was made of, as far as it says so, and none given is."""
    try:
        provenance = read_provenance(result)
    except UnreadableSourceError:
        return []
    told = () if provenance is None else provenance.sources
    return [each.name for each in told if not any(_has_tables(each, root) for root in roots)]


def _has_tables(told: SourceRecord, root: Path) -> bool:
    with suppress(OSError, SourceError):
        return meta_digest(root, told.codebase_version) == told.meta_digest
    return False


def _declared(result: Path, num_sources: int) -> list[Repairs]:
    """Return what a result says that was changed about each of its sources."""
    try:
        provenance = read_provenance(result)
        if num_sources == 1 and (provenance is None or len(provenance.sources) == 1):
            return [v3.read_repairs(result)]
    except UnreadableSourceError:
        if num_sources > 1:
            raise
        return [NO_REPAIRS]  # what is wrong with it is said where it is compared
    of = 1 if provenance is None else len(provenance.sources)
    if provenance is None or of != num_sources:
        raise UsageError(
            f"{result} was made from {of} {'dataset' if of == 1 else 'datasets'}, not from "
            f"{num_sources}.",
            path=str(result),
            next_step="Give that one alone as --source."
            if provenance is None
            else f"Give each as --source: {', '.join(each.name for each in provenance.sources)}.",
        )
    return [source.repairs for source in provenance.sources]


def _compare_pieces(
    compare: Comparer,
    stage: Stage,
    spread: Spread | None,
    workers: int | None,
    stop: threading.Event | None,
) -> tuple[list[Difference], Mapping[str, Counter[ClipFacts]]]:
    """Compare every piece.

    Returns:
        What differs, in order, that of whole files last; and of each stream of a camera in how many
        episodes its pictures are what.
    """
    found: list[Difference] = []
    of_files: list[Difference] = []
    cameras: dict[str, Counter[ClipFacts]] = {}
    pieces = cut_pieces(compare.routes, compare.expected.source_starts)
    weights = expected_seconds(compare, pieces)
    with closing(
        parallel_map(compare, pieces, spread, weights=weights, workers=workers)
    ) as compared:
        for piece, each in zip(pieces, compared, strict=True):
            found += each.differences
            of_files += each.of_files
            for facts, episodes in each.facts:
                cameras.setdefault(piece.stream, Counter())[facts] += episodes
            stage.advance(compare.frames_of(piece))
            _check_stop(stop)
    differing = {difference.path for difference in found}
    found += (each for each in of_files if each.stream == DATA_STREAM or each.path not in differing)
    return found, cameras


def _look_closer(
    compare: Comparer, sampling: Sampling, progress: Progress, stop: threading.Event | None
) -> tuple[int, int, list[Difference]]:
    """Decode pictures and load samples; return how many of each, and what differs."""
    found: list[Difference] = []
    counts = [0, 0]

    def advance(which: int, stage: Stage) -> Callable[[int], None]:
        def by(amount: int) -> None:
            counts[which] += amount
            stage.advance(amount)
            _check_stop(stop)

        return by

    if sampling.decode:
        from leconvert.run.proof.samples import compare_pictures

        with progress.stage("decode", sampling.decode, "pictures") as stage:
            found += compare_pictures(compare, sampling, advance(0, stage))
    if sampling.deep:
        from leconvert.run.proof.samples import compare_samples

        with progress.stage("load", sampling.deep, "samples") as stage:
            found += compare_samples(compare, sampling, advance(1, stage))
    return counts[0], counts[1], found


def _check_stop(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise InterruptedRunError(
            "Verification was interrupted.",
            next_step="Run the same command again; it compares everything anew.",
        )


def _files(tables: ResultTables, routes: Routes) -> tuple[set[str], list[Difference]]:
    """Return every file that episodes lead to, and those that several runs of them lead to."""
    files: set[str] = set()
    found: list[Difference] = []
    for stream, numbers in routes.file_number.items():
        for first, _ in file_runs(numbers):
            path = tables.target.path(stream, int(numbers[first]))
            if path in files:
                found.append(Difference("episodes of a file", path, "one run", "several"))
            files.add(path)
    return files, found


def _held_against(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference that an unreadable table of the result is; raise what is the source's.

    Both sides are read by the same functions, whose errors are those of a source.
    """
    if isinstance(error, SourceError) and (
        error.path is None or not Path(error.path).is_relative_to(result)
    ):
        raise error
    raise_storage_trouble(error, getattr(error, "path", None) or result)
    return unreadable_metadata(result, error, expected)


def _left_over(result: Path, expected: set[str]) -> Iterator[Difference]:
    found = {path for path, _ in files_below(result) if path.startswith(("data/", "videos/"))}
    for path in sorted(found - expected):
        yield Difference("file", path, "no such file", "a file that no episode names")
    for path in sorted(expected - found):
        yield Difference("file", path, "a file", "nothing")
