"""The places of a v3.0 dataset's files, found from the files, if its tables are wrong.

A data file holds the episodes that its column ``episode_index`` names. The count of frames
tells the episodes of a camera's file: if the files that the template finds, in the order of their
numbers, have together as many frames as all episodes, and no episode begins in one file and ends in
the next, each episode has its place. Anything less would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.dataset.files import files_below
from leconvert.dataset.findings import Observation
from leconvert.dataset.formats.v3.episodes import EpisodeTable, StreamPlaces
from leconvert.dataset.formats.v3.meta import EPISODES_DIR, INFO_PATH, Declared, template_problem
from leconvert.dataset.formats.v3.rows import ROWS_AT_A_TIME
from leconvert.model.values import (
    DATA_STREAM,
    Finding,
    FloatArray,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.arrow import integers

# With these an episode may have another file than ``meta/episodes`` says.
_FILES_IN_DOUBT = frozenset(
    {"missing-file", "row-count", "frame-count", "shared-frames", "episode-index", "file-order"}
)
_MOST_DIGITS = 18


def files_there(root: Path, declared: Declared, stream: str) -> list[tuple[int, int, str]]:
    """Return chunk, number and path of each file that the template of a stream finds, ascending."""
    template, pattern, names = declared.templates[stream], "", []
    for literal, name, _, _ in Formatter().parse(template):
        pattern += re.escape(literal)
        if name == "video_key":
            pattern += re.escape(str(camera_of(stream)))
        elif name is not None:
            pattern += f"([0-9]{{1,{_MOST_DIGITS}}})"
            names.append(name)
    folder = template.partition("{")[0].rpartition("/")[0]
    found = []
    for path, is_file in files_below(root, f"{folder}/" if folder else ""):
        match = re.fullmatch(pattern, path) if is_file else None
        if match is not None:
            at = dict(zip(names, map(int, match.groups()), strict=True))
            chunk, file = at["chunk_index"], at["file_index"]
            if declared.path(stream, chunk, file) == path:
                found.append((chunk, file, path))
    return sorted(found)


def fitted(lengths: IntArray, frames: IntArray) -> tuple[IntArray, IntArray] | None:
    """Return the file of each episode and its first frame there; None where they do not fit.

    Args:
        lengths: Frames of each episode, shape (E,).
        frames: Frames of each file, in the order of the files, shape (F,).
    """
    stops, ends = np.cumsum(lengths), np.cumsum(frames)
    is_whole = len(stops) and len(ends) and stops[-1] == ends[-1]
    if not is_whole or lengths.min() < 1 or frames.min() < 1 or not np.isin(ends, stops).all():
        return None
    file = np.searchsorted(ends, stops - lengths, side="right")
    return file, stops - lengths - (ends - frames)[file]


InDoubt = Mapping[str, tuple[int | None, str]]
"""Streams that may have other files than they name: an episode, and the observation."""


def streams_in_doubt(seen: Iterable[Finding | Observation]) -> dict[str, tuple[int | None, str]]:
    """Return the streams of which something was seen that may come of wrong files."""
    wrong: dict[str, tuple[int | None, str]] = {}
    for each in seen:
        if each.stream and each.code in _FILES_IN_DOUBT:
            wrong.setdefault(each.stream, (each.episode, each.message))
    return wrong


class Located(NamedTuple):
    """The places of files that are not where a dataset says.

    Attributes:
        info: Path templates that find them, by their key in ``info.json``.
        places: The places of all episodes in streams of which other files are named.
    """

    info: Mapping[str, str] = MappingProxyType({})
    places: Mapping[str, StreamPlaces] = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.info or self.places)

    def told(
        self, raw: Mapping[str, Any], wrong: InDoubt
    ) -> Iterator[tuple[str, str | None, int | None, str]]:
        """Yield each difference: the file that says it wrongly, stream, episode, and a sentence.

        Args:
            raw: The dataset's ``info.json``.
            wrong: The observations of the files that a stream names.
        """
        for key, template in self.info.items():
            said = f"{key} is {raw.get(key)!r}, but the files are named {template!r}."
            yield INFO_PATH, None, None, said
        for stream in sorted(self.places):
            episode, seen = wrong[stream]
            yield EPISODES_DIR, stream, episode, f"{EPISODES_DIR} names wrong files: {seen}"


NOTHING_LOCATED = Located()


def locate_files(
    root: Path,
    declared: Declared,
    table: EpisodeTable,
    lengths: IntArray,
    streams: Collection[str],
) -> Located:
    """Look for the files of streams with wrong ones, and return what differs from what is said.

    Args:
        lengths: Frames of each episode, shape (E,).
    """
    cameras = {stream_of_camera(key) for key in declared.cameras}
    info, templates = {}, dict(declared.templates)
    for key, own in (("data_path", {DATA_STREAM}), ("video_path", cameras)):
        # One template is for all cameras: where one of them has its files it stays.
        template = _other_template(root, declared, own) if own and own.issubset(streams) else None
        if template is not None:
            info[key] = template
            templates |= dict.fromkeys(own, template)
    declared = replace(declared, templates=templates)
    places = {}
    for stream in streams:
        if stream not in declared.templates or stream not in table.placed:
            continue
        found, stored = _located_places(root, declared, lengths, stream), table.placed[stream]
        if found is not None and not (
            np.array_equal(found.chunk, stored.chunk) and np.array_equal(found.file, stored.file)
        ):
            places[stream] = found
    return Located(info, places)


def _other_template(root: Path, declared: Declared, streams: Collection[str]) -> str | None:
    """Return the one template that finds files of all of some streams where theirs finds none."""
    found: set[str] | None = None
    for stream in streams:
        if stream in declared.templates and files_there(root, declared, stream):
            return None
        camera = camera_of(stream)
        begin, end = ("data/", ".parquet") if camera is None else ("", ".mp4")
        names = {
            _template_of(path, camera)
            for path, is_file in files_below(root, begin)
            if is_file and path.endswith(end)
        }
        own = {each for each in names if each and template_problem(each, stream) is None}
        if own:  # of a camera that is wholly absent nothing tells
            found = own if found is None else found & own
    return found.pop() if found and len(found) == 1 else None


def _template_of(path: str, camera: str | None) -> str | None:
    """Return the template that a file's name is of, if it has a number of a chunk and of a file."""
    stem, dot, suffix = path.rpartition(".")
    begin, key, end = stem.partition(camera) if camera else ("", "", stem)
    if camera and not key:
        return None
    names = iter(("file_index", "chunk_index"))
    parts = []
    for part in reversed(re.split("([0-9]+)", f"{begin}\0{end}")):
        name = next(names, None) if part.isdecimal() else None
        parts.append(part if name is None else f"{{{name}:0{len(part)}d}}")
    template = "".join(reversed(parts)).replace("\0", "{video_key}" if camera else "")
    return template + dot + suffix


def _located_places(
    root: Path, declared: Declared, lengths: IntArray, stream: str
) -> StreamPlaces | None:
    """Return where all episodes are in the files of a stream; None where that is not certain.

    Args:
        lengths: Frames of each episode, shape (E,).
    """
    there = files_there(root, declared, stream)
    try:
        if camera_of(stream) is None:
            rows = [episodes_in(root / path) for _, _, path in there]
            file = np.repeat(np.arange(len(rows)), [len(episodes) for episodes, _ in rows])
            episodes, counts = (np.concatenate([each[at] for each in rows]) for at in (0, 1))
            if not np.array_equal(episodes, np.arange(len(lengths))):
                return None
            if not np.array_equal(counts, lengths):
                return None
            begin: FloatArray = np.zeros(0)
            end = begin
        else:
            frames = np.array([frames_in(root / path) for _, _, path in there], np.int64)
            found = fitted(lengths, frames)
            if found is None:
                return None
            file, first = found
            begin, end = (_seconds(at, declared.fps) for at in (first, first + lengths))
    except (UnreadableSourceError, OSError, ValueError, pa.ArrowException):
        return None
    chunks, numbers = (np.array([each[at] for each in there], np.int64)[file] for at in (0, 1))
    return StreamPlaces(chunks, numbers, begin, end)


def episodes_in(path: Path) -> tuple[IntArray, IntArray]:
    """Return the episodes of a data file in the order of their rows, and the rows of each."""
    blocks = []
    with pq.ParquetFile(path) as file:
        if "episode_index" not in file.schema_arrow.names or not file.metadata.num_rows:
            raise ValueError(f"{path} does not say which episodes its rows are of")
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["episode_index"]):
            values = integers(batch.column(0))
            if values is None:
                raise ValueError(f"{path} has rows of no episode")
            edges = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
            blocks.append((values[edges], np.diff(edges, append=len(values))))
    episodes, rows = (np.concatenate([block[at] for block in blocks]) for at in (0, 1))
    begins = np.flatnonzero(np.diff(episodes, prepend=episodes[0] - 1))
    return episodes[begins], np.add.reduceat(rows, begins)


def frames_in(path: Path) -> int:
    """Return the number of frames of a video file."""
    try:
        return media.read_clip_index(path).num_samples
    except media.UnsupportedClipError:
        return sum(1 for _ in media.packet_times(path))


def _seconds(frames: IntArray, fps: Fraction) -> FloatArray:
    # Both are whole numbers below 2**53, so that only the division rounds.
    seconds: FloatArray = frames * fps.denominator / fps.numerator
    return seconds
