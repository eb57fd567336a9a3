"""A result against its sources: `verify_pair`, and the files of episodes in pieces.

A piece is consecutive episodes of one or more output files. Its differences depend only on the
files and the piece. So the differences in the order of the pieces are the same for any number of
threads or processes.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media
from leconvert.dataset.files import files_below, overlaid_pair
from leconvert.dataset.formats import (
    Sources,
    SourceView,
    open_dataset,
    v2,
)
from leconvert.dataset.scan.file_checks import ClipFacts
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, FloatArray, IntArray
from leconvert.run.proof.difference import (
    Difference,
    VerificationReport,
    differences_of,
    is_as_long,
)
from leconvert.run.proof.expected import Expected, declared_repairs, file_runs, in_order
from leconvert.run.proof.files import compare_metadata, was_repaired
from leconvert.run.proof.metadata import (
    ResultTables,
    Routes,
    compare_cameras,
    tables_of,
)
from leconvert.run.proof.rows import (
    DataSchemas,
    KeptTable,
    RowRules,
    RowSpan,
    SourceRows,
    compare_footer,
    compare_rows,
)
from leconvert.run.proof.videos import (
    ClipReader,
    Span,
    check_video,
    compare_clips,
    compare_header,
    compare_kept_clip,
    is_kept_clip,
)
from leconvert.support.errors import (
    InterruptedRunError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.parallel import Spread, parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.storage_errors import any_storage_errors, raise_storage_trouble
from leconvert.support.values import dataclass
from leconvert.tables import StoredGroups
from leconvert.workdir.fs import is_folder


class Place(NamedTuple):
    """One frame: the position of its episode, and its rank in presentation order there."""

    position: int
    frame: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """A random sample that is compared in addition to, or instead of, everything.

    Attributes:
        share: Share of the episodes whose files are compared, above 0 and up to 1; at least one
            episode.
        decode: Number of images to decode on both sides.
        deep: Number of samples to load through LeRobot's dataset.
        seed: Decides which; equal seeds choose the same for equal datasets.
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
        """Return whether each episode is compared, shape (E,); None for all."""
        if self.share == 1:
            return None
        is_chosen = np.zeros(num_episodes, np.bool_)
        is_chosen[chosen(num_episodes, max(1, round(self.share * num_episodes)), self.seed)] = True
        return is_chosen

    def frames(
        self, count: int, lengths: IntArray, groups: Sequence[str] = ("",)
    ) -> list[tuple[str, Place]]:
        """Return frames of random groups, group by group and in order.

        Args:
            count: Number of frames; all if there are fewer.
            lengths: Number of frames of each episode, shape (E,).
            groups: Names of the groups, each with all frames.

        Returns:
            The group's name and the frame.
        """
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

_DEPTHS = ("structure", "bytes")


def chosen(population: int, count: int, seed: int) -> IntArray:
    """Return ``count`` different numbers below ``population``, ascending; all if there are fewer.

    It uses Python's own generator, whose results for a seed do not change with its version.
    """
    numbers = random.Random(seed).sample(range(population), min(count, population))  # noqa: S311
    return np.array(sorted(numbers), np.int64)


def verify_pair(
    result: str | os.PathLike[str],
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
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

    The order of differences does not depend on who finds them: metadata first, then file by file.

    Args:
        result: The dataset that was written, v3.0 or v2.1.
        source: The dataset that it was made from, or all datasets that were merged. The result's
            record of their tables tells them apart, else its record of their folders, else their
            order. For an overlay in place, the ``meta/`` that it replaced.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Receives the progress.
        max_workers: Number of processes that compare at a time, including this one; by default one
            per core, and only this one if there is little to do. If storage is slow to answer,
            threads of this process are used instead, by default many.
        spread: Threads and processes, instead of deciding by the cost of the first pieces.
        clip_digests: For each camera's stream, the `leconvert.media.order_digest` of each episode's
            clip from a worker that read it, shape (E,) of 16 bytes; ``structure`` then does not
            read the clips again. Empty for a clip that no worker read.
        read_rows: With ``structure``, also compare the rows of this many first episodes.
        repairs: The requested changes, for several sources one entry each; by default the changes
            in the result's own record. Anything else that differs is a difference.
        sampling: The share of episodes whose files are compared, and images and samples that are
            also decoded and loaded.
        keeps_further: Whether the result may have files of no episode that the source lacks, which
            an append keeps.
        stop: Set it from another thread to stop after the current pieces.

    Returns:
        The report; its ``ok`` is true if nothing differs.

    Raises:
        UsageError: ``depth`` is neither of the two, or the result was made from another number of
            datasets.
        SourceError: The source itself cannot be read.
        StorageError: The disk fails, or this user may not read a file of the result, so it is
            unknown whether it differs.
        InstallationError: Samples are to be loaded through LeRobot, which is not installed.
        InterruptedRunError: ``stop`` was set.
    """
    if depth not in _DEPTHS:
        raise UsageError(f"depth must be {' or '.join(_DEPTHS)}, not {depth!r}.")
    result = Path(result)
    originals = [source] if isinstance(source, str | os.PathLike) else source
    # An NFS client that did not find the result once continues to miss it for half a minute.
    is_folder(result)
    told = [repairs] if isinstance(repairs, Repairs) else repairs
    with overlaid_pair(result, list(map(Path, originals))) as (tree, given):
        tables, roots = tables_of(tree), in_order(tree, given)
        sources = Sources(
            SourceView(open_dataset(root, own), own)
            for root, own in zip(roots, told or declared_repairs(tree, len(roots)), strict=True)
        )
        for original in sources:
            original.dataset.slices(DATA_STREAM)  # raises if its tables do not say where files are
        if sampling.deep:
            _check_deep(tables)
        reads_bytes = depth == "bytes"
        found = compare_metadata(
            tables, sources, told, read_bytes=reads_bytes, keeps_further=keeps_further
        )
        pa.default_memory_pool().release_unused()  # memory for reading the tables of all episodes
        if found.content is None:
            return VerificationReport(depth, [*found.of_info, *found.of_others], 0, 0, 0, 0)
        expected, routes = found.content
        files, of_files = _files(tables, routes)
        of_files += _left_over(tree, files)
        chosen = sampling.episodes(len(expected))
        compare = Comparer(tables, expected, routes, reads_bytes, clip_digests, chosen, read_rows)
        frames, streams = int(compare.compared_lengths.sum()), len(expected.streams)
        with progress.stage("verify", frames * streams, "rows and camera frames") as stage:
            of_pieces, cameras = _compare_pieces(compare, stage, spread, max_workers, stop)
        of_cameras = compare_cameras(expected.sources.features, cameras, expected.sources.fps)
        differences = [*found.of_info, *of_cameras, *found.of_others, *of_files, *of_pieces]
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


def _check_deep(tables: ResultTables) -> None:
    """Check that samples can be loaded through LeRobot, before the work.

    Raises:
        UsageError: The result is not v3.0.
        InstallationError: LeRobot is not installed.
    """
    if tables.target.version != "v3.0":
        raise UsageError(
            f"--deep works only for v3.0 datasets, which LeRobot can load; {tables.root} is "
            f"{tables.target.version}.",
            next_step="Use --bytes to compare every packet and row, and --decode to compare "
            "pictures.",
        )
    from leconvert.run.proof.samples import check_lerobot

    check_lerobot()


def _compare_pieces(
    compare: Comparer,
    stage: Stage,
    spread: Spread | None,
    workers: int | None,
    stop: threading.Event | None,
) -> tuple[list[Difference], Mapping[str, Counter[ClipFacts]]]:
    """Compare every piece.

    Returns:
        The differences in order, those of whole files last; and, for each camera's stream, the
        facts of its images, with the number of episodes that have them.
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
            check_stop(stop)
    differing = {difference.path for difference in found}
    found += (each for each in of_files if each.stream == DATA_STREAM or each.path not in differing)
    return found, cameras


def _look_closer(
    compare: Comparer, sampling: Sampling, progress: Progress, stop: threading.Event | None
) -> tuple[int, int, list[Difference]]:
    """Decode images and load samples; return the number of each, and the differences."""
    from leconvert.run.proof.samples import compare_pictures, compare_samples  # mostly not needed

    found: list[Difference] = []
    counts = [0, 0]

    def advance(which: int, stage: Stage) -> Callable[[int], None]:
        def by(amount: int) -> None:
            counts[which] += amount
            stage.advance(amount)
            check_stop(stop)

        return by

    if sampling.decode:
        with progress.stage("decode", sampling.decode, "pictures") as stage:
            found += compare_pictures(compare, sampling, advance(0, stage))
    if sampling.deep:
        with progress.stage("load", sampling.deep, "samples") as stage:
            found += compare_samples(compare, sampling, advance(1, stage))
    return counts[0], counts[1], found


def check_stop(stop: threading.Event | None) -> None:
    """Raise the error for a comparison that is to end, if it is."""
    if stop is not None and stop.is_set():
        raise InterruptedRunError(
            "The comparison was interrupted.",
            next_step="Run the same command again. It compares everything from the start.",
        )


def _files(tables: ResultTables, routes: Routes) -> tuple[set[str], list[Difference]]:
    """Return all files of episodes, and a difference for each that several runs share."""
    files: set[str] = set()
    found: list[Difference] = []
    for stream, numbers in routes.file_number.items():
        for first, _ in file_runs(numbers):
            path = tables.target.names.path(stream, int(numbers[first]))
            if path in files:
                found.append(Difference("episodes of a file", path, "one run", "several"))
            files.add(path)
    return files, found


def _left_over(result: Path, expected: set[str]) -> Iterator[Difference]:
    found = {path for path, _ in files_below(result) if path.startswith(("data/", "videos/"))}
    for path in sorted(found - expected):
        yield Difference("file", path, "no such file", "a file that no episode names")
    for path in sorted(expected - found):
        yield Difference("file", path, "a file", "nothing")


# Large enough that a process's work per file is rare, small enough to be shared and stopped.
_EPISODES_A_PIECE = 64
_LEAST_EPISODES_A_PIECE = 4
_PIECES_WANTED = 32


class Piece(NamedTuple):
    """Consecutive episodes of one output file, or of several whole files, by their positions.

    Attributes:
        stream: The stream.
        file_first: First episode of the file, or of the first of several.
        file_stop: The position after the last episode of the last file.
        first: First episode of the piece.
        stop: The position after its last episode.
    """

    stream: str
    file_first: int
    file_stop: int
    first: int
    stop: int


@dataclass(slots=True)
class Compared:
    """The comparison of a piece.

    Attributes:
        differences: Differences of its episodes.
        of_files: Differences in the headers or footers of the files that it begins.
        facts: Facts of the images of each video file that it begins, with the number of episodes.
    """

    differences: list[Difference] = field(default_factory=list)
    of_files: list[Difference] = field(default_factory=list)
    facts: list[tuple[ClipFacts, int]] = field(default_factory=list)


class _File[Where](NamedTuple):
    """An output file of a piece.

    Attributes:
        path: The file, relative to the result.
        first: Its first episode.
        stop: The position after its last episode.
        begins: Whether the piece has its first episode, and so compares the file as a whole.
        spans: The positions on both sides of its episodes that are compared.
    """

    path: str
    first: int
    stop: int
    begins: bool
    spans: Sequence[Where]


class _Files(NamedTuple):
    """The files of a stream.

    Attributes:
        starts: First position of each file and, last, E; shape (files + 1,).
        ends: Number of rows or samples of all episodes before each one and, last, of all; shape
            (E + 1,).
    """

    starts: IntArray
    ends: IntArray


def cut_pieces(routes: Routes, source_starts: Sequence[int] = ()) -> list[Piece]:
    """Return the pieces of all files, stream by stream; they depend only on the arguments.

    Args:
        routes: The files of the episodes.
        source_starts: First position of each source, and the number of episodes; a piece has only
            one source.
    """
    slices = sum(map(len, routes.file_number.values()))
    most = min(_EPISODES_A_PIECE, max(_LEAST_EPISODES_A_PIECE, slices // _PIECES_WANTED))
    pieces: list[Piece] = []
    for stream, numbers in routes.file_number.items():
        for file_first, file_stop in file_runs(numbers):
            last = pieces[-1] if pieces else None
            if (
                # Whole files; small ones share a piece, since a piece costs as much as one of them.
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
                for begin, stop in itertools.pairwise(
                    [file_first, *_starts_inside(file_first, file_stop, source_starts), file_stop]
                )
                for first in range(begin, stop, most)
            )
    return pieces


def _starts_inside(first: int, stop: int, source_starts: Sequence[int]) -> Sequence[int]:
    return source_starts[bisect_right(source_starts, first) : bisect_left(source_starts, stop)]


type _Index = media.ClipIndex | UnreadableSourceError


class _Opened:
    """The files of one stream that were read last; the next piece mostly needs them again."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._table: StoredGroups | None = None
        self.rows = SourceRows()
        self.clips = ClipReader()
        self.videos = ClipReader()

    def table(self, path: str) -> StoredGroups:
        """Return the footer of a data file of the result."""
        if self._table is None or self._table.path != path:
            self._table = None  # before the next is read, since two may be large
            self._table = StoredGroups(path)
        return self._table


@dataclass(slots=True, eq=False)
class Comparer:
    """Compares pieces. Threads may share it, and it can be sent to another process.

    Attributes:
        tables: The result.
        expected: The content that it must hold.
        routes: The positions of the episodes in the result's tables.
        read_bytes: Compare coded bytes and rows, not only headers.
        clip_digests: See `verify_pair`.
        read_rows: See `verify_pair`.
        chosen: Whether each episode is compared, shape (E,); None for all.
    """

    tables: ResultTables
    expected: Expected
    routes: Routes
    read_bytes: bool
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None
    chosen: npt.NDArray[np.bool_] | None = None
    read_rows: int = 0
    # Each piece takes one and gives it back. So there are as many as pieces are compared at a time,
    # whatever the number of threads: for a large file, one takes a kilobyte an episode.
    _idle: list[_Opened] = field(default_factory=list, init=False, repr=False)
    _tasks: dict[Path, tuple[dict[int, str], dict[str, int]]] = field(
        default_factory=dict, init=False, repr=False
    )
    _files_of: dict[str, _Files] = field(default_factory=dict, init=False, repr=False)
    _schemas: DataSchemas = field(init=False, repr=False)
    # Repairs of earlier versions patched files in place: if tables of times became shorter, the
    # rest of their space became a box without meaning.
    _may_be_free: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._schemas = DataSchemas(self.expected, self.tables.target.list_entry)
        self._may_be_free = was_repaired(self.result)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the memory of the last files, which is for this process.
        return Comparer, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    def __call__(self, *piece: Any) -> Compared:
        """Return the comparison of a piece, given by the fields of a `Piece`."""
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
        """Number of frames of each episode, 0 for episodes that are not compared, shape (E,)."""
        lengths = self.expected.length
        return lengths if self.chosen is None else np.where(self.chosen, lengths, 0)

    def row_rules(self, position: int) -> RowRules:
        """Return the rules for rows of an episode's source."""
        source = self.expected.source_of(position)
        stats, task_of = self.tables.computed_stats, partial(self._task_of, source)
        return RowRules(
            self.expected.sources.fps, source.dataset.features, source.repairs, stats, task_of
        )

    def path_of(self, stream: str, position: int) -> str:
        """Return the output file of an episode, relative to the result."""
        return self.tables.target.names.path(stream, int(self.routes.file_number[stream][position]))

    def files(self, stream: str) -> _Files:
        """Return the files of a stream."""
        if stream not in self._files_of:  # at worst two threads make the same
            numbers = self.routes.file_number[stream]
            samples = self.expected.samples(stream, np.arange(len(numbers)))
            starts = np.array([0, *(stop for _, stop in file_runs(numbers))])
            self._files_of[stream] = _Files(starts, np.concatenate(([0], np.cumsum(samples))))
        return self._files_of[stream]

    def place_in_data_file(self, position: int) -> int:
        """Return how many episodes are before this one in its data file."""
        starts = self.files(DATA_STREAM).starts
        return position - int(starts[np.searchsorted(starts, position, side="right") - 1])

    def row_span(self, position: int) -> RowSpan:
        """Return the positions of an episode's rows on both sides."""
        at, place = np.array([position]), np.array([self.place_in_data_file(position)])
        (span,) = self._row_spans(at, place, at)
        return span

    def _task_of(self, source: SourceView, episode: int) -> int | None:
        root = source.root
        if root not in self._tasks:  # at worst two threads read the same
            self._tasks[root] = v2.tasks_of_episodes(root), self.tables.task_indices()
        texts, indices = self._tasks[root]
        text = texts.get(episode)
        return None if text is None else indices.get(text, -1)

    def _positions(self, piece: Piece) -> IntArray:
        positions = np.arange(piece.first, piece.stop)
        return positions if self.chosen is None else positions[self.chosen[positions]]

    @contextmanager
    def _files_open(self, stream: str) -> Iterator[_Opened]:
        """Provide the files that an earlier piece of the stream read last, for this piece alone."""
        opened = None
        with suppress(IndexError):
            opened = self._idle.pop()
        if opened is None or opened.stream != stream:
            opened = _Opened(stream)
        yield opened
        self._idle.append(opened)

    def _compare(self, piece: Piece) -> Compared:
        compared = Compared()
        with self._files_open(piece.stream) as opened:
            if piece.stream == DATA_STREAM:
                rules = self.row_rules(piece.first)
                for table in self._files(piece, self._row_spans):
                    self._compare_table(piece, table, rules, opened, compared)
                return compared
            videos = list(self._files(piece, partial(self._clip_spans, piece.stream)))
            read = [*opened.videos.read([f"{self.result}/{file.path}" for file in videos])]
            sources = self._alike_sources(piece.stream, videos, [index for _, index in read])
            for video, (head, index) in zip(videos, read, strict=True):
                source = sources.get(video.path)
                self._compare_video(piece, video, head, index, source, opened.clips, compared)
        return compared

    def _files[Where](
        self, piece: Piece, spans_of: Callable[[IntArray, IntArray, IntArray], Iterator[Where]]
    ) -> Iterator[_File[Where]]:
        """Yield the files of a piece that it begins, or whose episodes it compares.

        Arrays are read once for all files.

        Args:
            piece: The piece.
            spans_of: Called with the positions of episodes, each one's number within its file, and
                its first row or sample there.
        """
        starts, ends = self.files(piece.stream)
        first, last = np.searchsorted(starts, (piece.file_first, piece.file_stop))
        edges, positions = starts[first : last + 1], self._positions(piece)
        of_file = edges[np.searchsorted(edges, positions, side="right") - 1]
        spans = list(spans_of(positions, positions - of_file, ends[positions] - ends[of_file]))
        stops, done = np.searchsorted(positions, edges[1:]).tolist(), 0
        for (begin, end), stop in zip(itertools.pairwise(edges.tolist()), stops, strict=True):
            begins = piece.first <= begin
            if done < stop or begins:
                path = self.path_of(piece.stream, begin)
                yield _File(path, begin, end, begins, spans[done:stop])
            done = stop

    def _first_source(self, stream: str, file: _File[RowSpan] | _File[Span]) -> str:
        """Return the source's file of a file's first episode."""
        spans = file.spans if len(file.spans) == file.stop - file.first else ()
        return spans[0].source if spans else self.expected.path(stream, file.first)

    def _is_one(self, stream: str, file: _File[Any]) -> bool:
        """Return whether a file holds exactly one episode, without samples kept for decoding."""
        length = self.expected.length[file.first]
        return file.stop - file.first == 1 and self._num_samples(stream, file) == length

    def _num_samples(self, stream: str, file: _File[Any]) -> int:
        """Return how many rows or samples a file must hold."""
        ends = self.files(stream).ends
        return int(ends[file.stop] - ends[file.first])

    def _compare_table(
        self,
        piece: Piece,
        file: _File[RowSpan],
        rules: RowRules,
        opened: _Opened,
        compared: Compared,
    ) -> None:
        path, name = file.path, f"{self.result}/{file.path}"
        read_rows = self.read_bytes or max(piece.first, file.first) < self.read_rows
        kept = None
        if self._is_one(piece.stream, file):
            kept = KeptTable.found(name, self._first_source(piece.stream, file), rules.repairs)
        if kept is not None:
            with kept:
                for span in file.spans:
                    said = kept.compare_rows(span, rules, read_bytes=read_rows)
                    compared.differences += differences_of(said, path, span.episode, piece.stream)
                said = kept.compare_columns(self._schemas, file.first)
                compared.of_files += differences_of(said, path, stream=piece.stream)
            return
        try:
            table = opened.table(name)
        except (UnreadableSourceError, OSError, pa.ArrowException) as error:
            self._say_unreadable(file, error, piece.stream, compared)
            return
        episodes = file.stop - file.first
        if not read_rows and self.clip_digests is None:  # nobody has just read them
            for source in dict.fromkeys(span.source for span in file.spans):
                if not Path(source).exists():
                    gone = f"The parquet file {source} does not exist."
                    raise UnreadableSourceError(gone, path=source, code="missing-file")
        if len(table.rows) == episodes:
            compared.differences += compare_rows(
                path, table, file.spans, rules, opened.rows, read_rows=read_rows
            )
        elif file.begins:
            what = "row groups (one for each episode)"
            said = [(what, episodes, len(table.rows))]
            compared.differences += differences_of(said, path, stream=piece.stream)
        if file.begins:
            compared.of_files += compare_footer(path, table, self._schemas, file.first, file.stop)

    def _alike_sources(
        self, stream: str, files: Sequence[_File[Span]], indexes: Sequence[_Index]
    ) -> dict[str, media.ClipIndex]:
        """Return the source's index for files with one episode and the size of its clip.

        The keys are paths in the result. Only such a file can be an unchanged clip.
        """
        sources: dict[str, str] = {}
        for file, index in zip(files, indexes, strict=True):
            if isinstance(index, media.ClipIndex) and self._is_one(stream, file):
                source = self._first_source(stream, file)
                if is_as_long(source, index.file_size_bytes):
                    sources[file.path] = source
        found = zip(sources, media.read_clip_indexes(list(sources.values())), strict=True)
        return {path: index for path, index in found if isinstance(index, media.ClipIndex)}

    def _compare_video(
        self,
        piece: Piece,
        file: _File[Span],
        head: bytes,
        index: _Index,
        source: media.ClipIndex | None,
        clips: ClipReader,
        compared: Compared,
    ) -> None:
        path, stream, fps = file.path, piece.stream, self.expected.sources.fps
        read_bytes = self.read_bytes
        if isinstance(index, UnreadableSourceError):
            self._say_unreadable(file, index, stream, compared)
            return
        if file.begins:
            compared.facts.append((ClipFacts.of(index), file.stop - file.first))
        if source is not None and is_kept_clip(index, source):
            for span in file.spans:
                said = compare_kept_clip(index, span, fps, read_bytes=read_bytes)
                compared.differences += differences_of(said, path, span.episode, stream)
            return
        found, frames = list[Difference](), self._num_samples(stream, file)
        if file.begins:
            found += differences_of(check_video(index, frames, fps), path, stream=stream)
        if index.num_samples == frames:
            found += compare_clips(
                path, stream, index, file.spans, fps, clips, read_bytes=read_bytes
            )
        compared.differences += found
        if file.begins and not found:
            said = compare_header(
                index,
                np.diff(self.files(stream).ends[file.first : file.stop + 1]).tolist(),
                self._first_source(stream, file),
                fps,
                clips,
                head=head,
                may_be_free=self._may_be_free,
            )
            compared.of_files += differences_of(said, path, stream=stream)

    def _say_unreadable(
        self, file: _File[Any], error: Exception, stream: str, compared: Compared
    ) -> None:
        raise_storage_trouble(error, self.result / file.path)
        if file.begins:
            what, wanted = ("parquet", "a footer") if stream == DATA_STREAM else ("MP4", "an index")
            said = [(f"readable {what}", wanted, error)]
            compared.differences += differences_of(said, file.path, stream=stream)

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


_SECONDS_AN_EPISODE = 0.000_03
_BYTES_A_SECOND = 1e9  # for both sides together


def expected_seconds(compare: Comparer, pieces: Sequence[Piece]) -> list[float]:
    """Return how long one process needs for each piece, in seconds; an estimate."""
    sizes: dict[str, int] = {}
    seconds = []
    for piece in pieces:
        episodes = compare.num_compared(piece)
        needed = episodes * _SECONDS_AN_EPISODE
        if compare.read_bytes:
            share = episodes / (piece.file_stop - piece.file_first)
            starts = compare.files(piece.stream).starts
            begin, end = np.searchsorted(starts, (piece.file_first, piece.file_stop))
            for first in starts[begin:end].tolist():
                path = compare.path_of(piece.stream, first)
                if path not in sizes:
                    sizes[path] = 0
                    with suppress(OSError):
                        sizes[path] = (compare.result / path).stat().st_size
                needed += sizes[path] * share / _BYTES_A_SECOND
        seconds.append(needed)
    return seconds
