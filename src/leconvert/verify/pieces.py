"""A result against its source in pieces: some consecutive episodes of one output file each.

What a piece finds depends on the files and on the piece alone, so the differences of all pieces, in
the order of the pieces, are the same however many threads or processes share them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media, tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM, IntArray, output_path
from leconvert.source import SourcePaths, tasks_of_episodes
from leconvert.source.info import DatasetInfo
from leconvert.verify.difference import Difference
from leconvert.verify.metadata import SourceEpisodes
from leconvert.verify.routes import Routes, file_runs
from leconvert.verify.rows import RowRules, RowSpan, compare_rows
from leconvert.verify.videos import Span, check_video, compare_clips
from leconvert.workdir.trouble import any_storage_errors, raise_storage_trouble

__all__ = ["Comparer", "Piece", "cut_pieces"]

# Enough that what a process does for a file is done seldom, few enough to be shared and stopped.
_EPISODES_A_PIECE = 64
_LEAST_EPISODES_A_PIECE = 4
_PIECES_WANTED = 32


class Piece(NamedTuple):
    """Some consecutive episodes of one output file, by their positions.

    Attributes:
        stream: The file's stream.
        file_first: First episode of the file.
        file_stop: The one behind the last.
        first: First episode of the piece.
        stop: The one behind the last.
    """

    stream: str
    file_first: int
    file_stop: int
    first: int
    stop: int


def cut_pieces(routes: Routes) -> list[Piece]:
    """Return the pieces of all files, stream by stream; they depend on the routes alone."""
    slices = sum(map(len, routes.file_number.values()))
    most = min(_EPISODES_A_PIECE, max(_LEAST_EPISODES_A_PIECE, slices // _PIECES_WANTED))
    return [
        Piece(stream, file_first, file_stop, first, min(first + most, file_stop))
        for stream, numbers in routes.file_number.items()
        for file_first, file_stop in file_runs(numbers)
        for first in range(file_first, file_stop, most)
    ]


class _Opened(threading.local):
    """The output file that this thread read last: the next piece is mostly of the same one."""

    def __init__(self) -> None:
        self._path = ""
        self._file: tables.StoredGroups | media.ClipIndex | None = None
        self._episodes: tables.EpisodesReader | None = None
        self._tasks: tuple[dict[int, str], dict[str, int]] | None = None

    def file(self, path: str, *, is_table: bool) -> tables.StoredGroups | media.ClipIndex:
        if self._file is None or self._path != path:
            self._file = None
            self._file = tables.StoredGroups(path) if is_table else media.read_clip_index(path)
            self._path = path
        return self._file

    def episodes(self, root: Path) -> tables.EpisodesReader:
        self._episodes = self._episodes or tables.EpisodesReader(root)
        return self._episodes

    def tasks(self, source: Path, result: Path) -> tuple[dict[int, str], dict[str, int]]:
        """Return the text that the source lists for an episode, and the result's index of one."""
        if self._tasks is None:
            listed = {text: index for index, text in reversed(tables.read_tasks(result))}
            self._tasks = tasks_of_episodes(source), listed
        return self._tasks


@dataclass(slots=True, eq=False)
class Comparer:
    """Compares pieces. Threads may share it, and it can be sent to another process.

    Attributes:
        result: The v3.0 dataset.
        paths: Where the source's files are.
        info: The source's ``info.json``.
        episodes: The source's episodes as the result must hold them.
        routes: Where the result says that they are.
        read_bytes: Compare coded bytes and rows, not only headers.
        clip_digests: See `leconvert.verify.verify_pair`.
        chosen: Which episodes to compare, shape (E,); None for all.
    """

    result: Path
    paths: SourcePaths
    info: DatasetInfo
    episodes: SourceEpisodes
    routes: Routes
    read_bytes: bool
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None
    chosen: npt.NDArray[np.bool_] | None = None
    _opened: _Opened = field(default_factory=_Opened, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what it remembers, which is of this process.
        return Comparer, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    def __call__(self, *piece: Any) -> list[Difference]:
        """Return what differs in a piece, given by the fields of a `Piece`.

        Raises:
            UnreadableSourceError: A file of the source cannot be read.
            StorageError: The disk fails, or this user may not read a file of the result.
        """
        with any_storage_errors():
            try:
                return list(self._compare(Piece(*piece)))
            except UnreadableSourceError as error:
                # The functions that read the source read the result as well.
                if error.path is not None and Path(error.path).is_relative_to(self.result):
                    raise_storage_trouble(error, error.path)
                raise

    def num_compared(self, piece: Piece) -> int:
        """Return how many episodes of a piece are compared."""
        return len(self._positions(piece))

    def frames_of(self, piece: Piece) -> int:
        """Return how many frames or rows a piece compares."""
        return int(self.episodes.length[self._positions(piece)].sum())

    @property
    def compared_lengths(self) -> IntArray:
        """Frames of each episode, 0 for those that are not compared, shape (E,)."""
        lengths = self.episodes.length
        return lengths if self.chosen is None else np.where(self.chosen, lengths, 0)

    @property
    def row_rules(self) -> RowRules:
        """What rows must be."""
        return RowRules(self.info, self.episodes.repairs, self._computed_stats, self._task_of)

    def path_of(self, stream: str, position: int) -> str:
        """Return the output file of an episode, relative to the result."""
        return output_path(stream, int(self.routes.file_number[stream][position]))

    def place_in_file(self, stream: str, position: int) -> int:
        """Return how many episodes stand before one in its output file."""
        numbers = self.routes.file_number[stream]
        before = np.flatnonzero(numbers[:position] != numbers[position])
        return position - (int(before[-1]) + 1 if len(before) else 0)

    def row_span(self, position: int) -> RowSpan:
        """Return where an episode's rows are on both sides."""
        first = position - self.place_in_file(DATA_STREAM, position)
        (span,) = self._row_spans(first, np.array([position]))
        return span

    def _task_of(self, episode: int) -> int | None:
        texts, indices = self._opened.tasks(self.paths.root, self.result)
        text = texts.get(episode)
        return None if text is None else indices.get(text, -1)

    def _positions(self, piece: Piece) -> IntArray:
        positions = np.arange(piece.first, piece.stop)
        return positions if self.chosen is None else positions[self.chosen[positions]]

    def _compare(self, piece: Piece) -> Iterator[Difference]:
        path = self.path_of(piece.stream, piece.first)
        positions = self._positions(piece)
        begins_file = piece.first == piece.file_first
        if not begins_file and not len(positions):
            return
        try:
            file = self._opened.file(str(self.result / path), is_table=piece.stream == DATA_STREAM)
        except (UnreadableSourceError, OSError, pa.ArrowException) as error:
            raise_storage_trouble(error, self.result / path)
            if begins_file:
                is_table = piece.stream == DATA_STREAM
                what, wanted = ("parquet", "a footer") if is_table else ("MP4", "an index")
                yield Difference(f"readable {what}", path, wanted, str(error), None, piece.stream)
            return
        if isinstance(file, tables.StoredGroups):
            yield from self._compare_table(piece, path, file, positions)
        else:
            yield from self._compare_video(piece, path, file, positions)

    def _compare_table(
        self, piece: Piece, path: str, file: tables.StoredGroups, positions: IntArray
    ) -> Iterator[Difference]:
        episodes = piece.file_stop - piece.file_first
        if len(file.rows) != episodes:
            if piece.first == piece.file_first:
                what, found = "row groups, one an episode", len(file.rows)
                yield Difference(what, path, str(episodes), str(found), None, piece.stream)
            return
        spans = self._row_spans(piece.file_first, positions)
        yield from compare_rows(path, file, spans, self.row_rules, read_rows=self.read_bytes)

    def _row_spans(self, file_first: int, positions: IntArray) -> Iterator[RowSpan]:
        lengths = self.episodes.length
        stop = int(positions[-1]) + 1 if len(positions) else 0
        begins = np.cumsum(lengths[:stop]) - lengths[:stop]
        indices = self.episodes.index[positions].tolist()
        return map(
            RowSpan,
            indices,
            lengths[positions].tolist(),
            self.paths.absolute(DATA_STREAM, indices),
            positions.tolist(),
            begins[positions].tolist(),
            (positions - file_first).tolist(),
        )

    def _compare_video(
        self, piece: Piece, path: str, index: media.ClipIndex, positions: IntArray
    ) -> Iterator[Difference]:
        in_file = self.episodes.length[piece.file_first : piece.file_stop]
        frames = int(in_file.sum())
        if piece.first == piece.file_first:
            fps = self.info.fps
            yield from check_video(self.result, path, piece.stream, index, frames, fps)
        if index.num_samples != frames:
            return
        indices = self.episodes.index[positions].tolist()
        first_frames = (np.cumsum(in_file) - in_file)[positions - piece.file_first]
        spans = map(
            Span,
            indices,
            self.episodes.length[positions].tolist(),
            first_frames.tolist(),
            self.routes.from_timestamp[piece.stream][positions].tolist(),
            self.routes.to_timestamp[piece.stream][positions].tolist(),
            self.paths.absolute(piece.stream, indices),
            self._digests(piece.stream, positions),
        )
        yield from compare_clips(
            path, piece.stream, index, list(spans), self.info.fps, read_bytes=self.read_bytes
        )

    def _digests(self, stream: str, positions: IntArray) -> Iterator[str | None]:
        known = None if self.clip_digests is None else self.clip_digests.get(stream)
        if known is None:
            return itertools.repeat(None, len(positions))
        return (digest.decode("ascii") for digest in known[positions].tolist())

    def _computed_stats(self, position: int) -> dict[str, Any]:
        names = self.episodes.repairs.computed_stats
        prefixes = tuple(f"stats/{name}/" for name in names)
        reader = self._opened.episodes(self.result)
        rows = next(reader.rows(position, position + 1, lambda name: name.startswith(prefixes)))
        row: dict[str, Any] = rows.to_pylist()[0]
        return row
