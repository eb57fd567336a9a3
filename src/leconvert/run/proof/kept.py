"""Files of a result that are files of its source as they are.

Whether a file is one is seen from both files alone: they have the same size and the same header or
footer. Then nothing in it was joined or written anew, and what is left to compare is whether it
serves the result: the times of its frames, its columns, the range of ``index``; and with
``--bytes`` the number of each row and every byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media, tables
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, IntArray, Misfit
from leconvert.run.layout import MISFIT_SAID, changes_rows
from leconvert.run.proof.difference import Difference
from leconvert.run.proof.rows import (
    DataSchemas,
    RowRules,
    RowSpan,
    compare_computed_stats,
    first_difference,
    naming,
)
from leconvert.run.proof.videos import Span
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.storage_errors import raise_storage_trouble

__all__ = ["KeptTable", "compare_kept_clip", "is_kept_clip"]


class KeptTable:
    """A data file of a result that is the source's as it is; both files are open.

    Args:
        ours: The file of the result.
        theirs: That of the source, with the same footer.
    """

    def __init__(self, ours: tables.DataFile, theirs: tables.OpenedTable) -> None:
        self._ours = ours
        self._theirs = theirs

    @classmethod
    def found(cls, path: str, source: str, repairs: Repairs) -> Self | None:
        """Return the file at a path if it is the source's, and no repair was to change its rows.

        What is wrong with a file that cannot be read is said by whoever reads it.
        """
        if changes_rows(repairs) or not _are_as_long(path, source):
            return None
        with ExitStack() as opened:
            try:
                ours = opened.enter_context(tables.DataFile(path))
                theirs = opened.enter_context(tables.OpenedTable(source))
            except UnreadableSourceError:
                return None
            if not ours.has_footer_of(theirs):
                return None
            opened.pop_all()
            return cls(ours, theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.table.close()
        self._theirs.close()

    def compare_rows(
        self, path: str, span: RowSpan, rules: RowRules, *, read_bytes: bool
    ) -> Iterator[Difference]:
        """Yield where the numbers in the file are not the result's, or its bytes not kept."""
        file, episode, stream = self._ours, span.episode, DATA_STREAM
        if read_bytes:
            both = (self._theirs.descriptor, self._theirs.path), (file.table.descriptor, file.path)
            yield from _same_bytes(both, path, episode, stream)
        if file.rows != span.length:
            has = str(file.rows)
            yield Difference("rows", path, str(span.length), has, episode, stream)
            return
        try:
            wanted = {
                "index": np.arange(span.first_index, span.first_index + span.length),
                "episode_index": np.full(span.length, span.position),
            }
            columns = [
                column
                for column, numbers in wanted.items()
                if column in file.columns and (read_bytes or not self._has_range(column, numbers))
            ]
            if columns:
                for column, found in zip(columns, file.numbers(*columns), strict=True):
                    yield from _same_numbers(column, wanted[column], found, path, episode)
            table = None
            if rules.computes(episode):
                with closing(tables.open_parquet(file.path)) as rows:
                    table = rows.read_all(use_threads=False)
        except (OSError, UnreadableSourceError, pa.ArrowException) as error:
            raise_storage_trouble(error, getattr(error, "path", None) or file.path)
            yield Difference("readable rows", path, "rows", str(error), episode, stream)
            return
        if table is not None:
            for what, expected, have in compare_computed_stats(span, table, rules):
                yield Difference(what, path, str(expected), str(have), episode, stream)

    def _has_range(self, column: str, wanted: IntArray) -> bool:
        """Tell whether a column is the source's, and states the least and greatest that it must."""
        file = self._ours
        return (
            len(wanted) > 0
            and file.null_count(column) == 0
            and file.extremes.get(column) == (wanted[0], wanted[-1])
            and file.is_column_of(column, self._theirs)
        )

    def compare_columns(
        self, path: str, schemas: DataSchemas, position: int
    ) -> Iterator[Difference]:
        """Yield where the file has columns that are not those of the result."""
        found = self._ours.schema()
        wanted = schemas.given(found, position)
        if schemas.had_right(found, wanted, is_kept=True):
            return
        differences = list(schemas.unreadable(found, path))
        if not tables.holds_columns_of(found, wanted):
            ours, theirs = (str([f"{f.name}: {f.type}" for f in each]) for each in (found, wanted))
            differences.insert(0, Difference("columns", path, theirs, ours, stream=DATA_STREAM))
        if not differences:
            schemas.note_right(found, wanted, is_kept=True)
        yield from differences


def _same_numbers(
    column: str, wanted: IntArray, found: npt.NDArray[Any], path: str, episode: int
) -> Iterator[Difference]:
    if len(found) != len(wanted):
        what, demanded, has = f"rows of column {column!r}", str(len(wanted)), str(len(found))
        yield Difference(what, path, demanded, has, episode, DATA_STREAM)
        return
    wrong = np.flatnonzero(found != wanted)
    if len(wrong):
        row = int(wrong[0])
        what, demanded, has = f"column {column!r}, row {row}", str(wanted[row]), str(found[row])
        yield Difference(what, path, demanded, has, episode, DATA_STREAM)


def _are_as_long(path: str, other: str) -> bool:
    """Tell whether two files have the same size; False where they cannot be asked."""
    try:
        return os.stat(path).st_size == os.stat(other).st_size  # noqa: PTH116 - for every file
    except OSError:
        return False


def is_kept_clip(index: media.ClipIndex, stored: media.StoredIndex | None, source: str) -> bool:
    """Tell whether a video file is the source's as it is, given its index, parsed and as stored."""
    try:
        if os.stat(source).st_size != index.file_size_bytes:  # noqa: PTH116 - for every file
            return False
        theirs = None if stored is None else media.read_stored_index(source)
        if stored is not None and theirs is not None and stored.equals(theirs):
            return True
        clip = media.read_clip_index(source) if theirs is None else theirs.parse()
    except (OSError, UnreadableSourceError):
        return False
    return (
        (index.file_size_bytes, index.timescale, index.duration, index.other_tracks)
        == (clip.file_size_bytes, clip.timescale, clip.duration, clip.other_tracks)
        and (index.sample_entry, index.geometry) == (clip.sample_entry, clip.geometry)
        and all(
            np.array_equal(getattr(index, name), getattr(clip, name))
            for name in ("sizes", "offsets", "presentation_times", "keyframes")
        )
    )


def compare_kept_clip(
    path: str, stream: str, index: media.ClipIndex, span: Span, fps: Fraction, *, read_bytes: bool
) -> Iterator[Difference]:
    """Yield why LeRobot would miss frames in a kept video file, or where its bytes are others."""
    if read_bytes:
        with ExitStack() as opened:
            both = [(_opened(name, opened), name) for name in (span.source, index.path)]
            yield from _same_bytes(both, path, span.episode, stream)
    misfit = index.misfit(fps)
    for reason in Misfit:
        if reason in misfit:
            what, wanted = "a file that LeRobot reads as it is", "one of even frames from 0 on"
            said = f"it {MISFIT_SAID[reason]}"
            yield Difference(what, path, wanted, said, span.episode, stream)
    if index.num_samples != span.length:
        frames = str(index.num_samples)
        yield Difference("number of frames", path, str(span.length), frames, span.episode, stream)
    timescale, frame_ticks = media.frame_ticks(fps)
    for name, have, frames_before in (
        ("from_timestamp", span.from_timestamp, 0),
        ("to_timestamp", span.to_timestamp, span.length),
    ):
        seconds = frames_before * frame_ticks / timescale
        if have is not None and have != seconds:
            yield Difference(name, path, str(seconds), str(have), span.episode, stream)


def _opened(path: str, files: ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    files.callback(os.close, descriptor)
    return descriptor


def _same_bytes(
    files: Sequence[tuple[int, str]], path: str, episode: int, stream: str
) -> Iterator[Difference]:
    """Compare all bytes of two files, each given open and by name, the source's first."""
    (theirs, their_name), (ours, our_name) = files
    with naming(our_name):
        status = os.fstat(theirs), os.fstat(ours)
    if os.path.samestat(*status):
        return
    runs = [[(0, each.st_size)] for each in status]
    place = first_difference(theirs, runs[0], ours, runs[1], paths=(their_name, our_name))
    if place is not None:
        what, said = "bytes of the file", f"others from byte {place} on"
        yield Difference(what, path, "the source's", said, episode, stream)
