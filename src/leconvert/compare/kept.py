"""Files of a result that are files of its source as they are.

Whether a file is one is seen from both files alone: they have the same size and the same header or
footer. Then nothing in it was joined or written anew, and what is left to compare is whether it
serves the result: the times of its frames, the columns and the numbers of its rows; and with
``--bytes`` every byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.arrow import int64_values
from leconvert.compare.difference import Difference
from leconvert.compare.rows import (
    DataSchemas,
    RowRules,
    RowSpan,
    compare_computed_stats,
    first_difference,
    naming,
)
from leconvert.compare.videos import Span
from leconvert.errors import UnreadableSourceError
from leconvert.layout import MISFIT_SAID, changes_rows
from leconvert.model import DATA_STREAM, Misfit
from leconvert.repairs import Repairs
from leconvert.workdir.storage_errors import raise_storage_trouble

__all__ = [
    "compare_kept_clip",
    "compare_kept_columns",
    "compare_kept_table",
    "is_kept_clip",
    "is_kept_table",
]

_NUMBERS = ("index", "episode_index")


def is_kept_table(file: tables.StoredGroups, source: str, repairs: Repairs) -> bool:
    """Tell whether a data file is the source's as it is, and no repair was to change its rows."""
    if changes_rows(repairs):
        return False
    is_kept = _told_by_status(file.path, source)
    if is_kept is not None:
        return is_kept
    try:
        with tables.OpenedTable(source) as theirs:
            return file.has_footer_of(theirs)
    except UnreadableSourceError:
        return False  # what is wrong with it is said by whoever reads it


def _told_by_status(result: str, source: str) -> bool | None:
    """Tell whether a file is another as it is: it is the same one, or not as long; None if unsure.

    What cannot be asked is said by whoever reads the file.
    """
    try:
        ours, theirs = os.stat(result), os.stat(source)  # noqa: PTH116 - for every file
    except OSError:
        return False
    if os.path.samestat(ours, theirs):
        return True
    return None if ours.st_size == theirs.st_size else False


def is_kept_clip(index: media.ClipIndex, source: str) -> bool:
    """Tell whether a video file is the source's as it is, given its index."""
    is_kept = _told_by_status(index.path, source)
    if is_kept is not None:
        return is_kept
    try:
        if media.have_same_index(index.path, source):
            return True
        clip = media.read_clip_index(source)
    except UnreadableSourceError:
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


def compare_kept_table(
    path: str, file: str, span: RowSpan, rules: RowRules, *, read_bytes: bool
) -> Iterator[Difference]:
    """Yield where the numbers of a kept data file are not the result's, or its bytes not kept."""
    stream = DATA_STREAM
    if read_bytes:
        yield from _same_bytes(file, path, span.source, span.episode, stream)
    demanded = {
        "index": np.arange(span.first_index, span.first_index + span.length),
        "episode_index": np.full(span.length, span.position),
    }
    try:
        with closing(tables.open_parquet(file)) as rows:
            places = {names[0]: leaf for leaf, names in enumerate(rows.column_paths)}
            there = [name for name in _NUMBERS if name in places]
            leaves = [places[name] for name in there]
            found = rows.read_all(column_indices=leaves, use_threads=False)
            table = rows.read_all(use_threads=False) if rules.computes(span.episode) else None
    except (OSError, UnreadableSourceError, pa.ArrowException) as error:
        raise_storage_trouble(error, file)
        yield Difference("readable rows", path, "rows", str(error), span.episode, stream)
        return
    if found.num_rows != span.length:
        has = str(found.num_rows)
        yield Difference("rows", path, str(span.length), has, span.episode, stream)
        return
    for name in there:
        values = int64_values(found.column(name))
        wrong = np.flatnonzero(values != demanded[name])
        if len(wrong):
            row = int(wrong[0])
            wanted, has = str(demanded[name][row]), str(values[row])
            what = f"column {name!r}, row {row}"
            yield Difference(what, path, wanted, has, span.episode, stream)
    if table is not None:
        for what, expected, have in compare_computed_stats(span, table, rules):
            yield Difference(what, path, str(expected), str(have), span.episode, stream)


def compare_kept_columns(
    path: str, file: tables.StoredGroups, schemas: DataSchemas, position: int
) -> Iterator[Difference]:
    """Yield where a kept data file has columns that are not those of the result."""
    found, _ = file.schema_and_rows()
    wanted = schemas.of(position)
    if schemas.had_right(found, wanted, is_kept=True):
        return
    differences = list(schemas.unreadable(found, path))
    if not tables.holds_columns_of(found, wanted):
        ours, theirs = (str([f"{f.name}: {f.type}" for f in each]) for each in (found, wanted))
        differences.insert(0, Difference("columns", path, theirs, ours, stream=DATA_STREAM))
    if not differences:
        schemas.note_right(found, wanted, is_kept=True)
    yield from differences


def compare_kept_clip(
    path: str, stream: str, index: media.ClipIndex, span: Span, fps: Fraction, *, read_bytes: bool
) -> Iterator[Difference]:
    """Yield why LeRobot would miss frames in a kept video file, or where its bytes are others."""
    if read_bytes:
        yield from _same_bytes(index.path, path, span.source, span.episode, stream)
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


def _same_bytes(
    ours: str, path: str, theirs: str, episode: int, stream: str
) -> Iterator[Difference]:
    if os.path.samefile(ours, theirs):  # noqa: PTH121 - strings, for every file
        return
    sources = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in (theirs, ours)]
    try:
        with naming(ours):
            runs = [[(0, os.fstat(source).st_size)] for source in sources]
        place = first_difference(sources[0], runs[0], sources[1], runs[1], paths=(theirs, ours))
    finally:
        for source in sources:
            os.close(source)
    if place is not None:
        what = "bytes of the file"
        yield Difference(
            what, path, "the source's", f"others from byte {place} on", episode, stream
        )
