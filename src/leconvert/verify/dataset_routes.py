"""From ``meta/episodes`` to files: which episodes each file holds, and which files nobody names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np

from leconvert.model import DATA_STREAM, Finding, IntArray, camera_of
from leconvert.source.info import INFO_PATH
from leconvert.tables.paths import EPISODES_DIR
from leconvert.verify.catalogue import found
from leconvert.verify.declared import Declared
from leconvert.verify.episode_rows import EpisodeTable

__all__ = [
    "Ranges",
    "RoutedFile",
    "check_order",
    "check_ranges",
    "files_of",
    "left_over",
    "streaming_findings",
]


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The rows of each episode in the whole dataset, arrays of shape (E,)."""

    start: IntArray
    length: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class RoutedFile:
    """One file and the episodes that name it, ascending.

    Attributes:
        stream: Its stream.
        path: Relative to the dataset.
        episodes: Rows of meta/episodes.
    """

    stream: str
    path: str
    episodes: IntArray


def check_ranges(table: EpisodeTable, declared: Declared) -> tuple[Ranges, list[Finding]]:
    """Return the rows of each episode, and where the table contradicts itself or info.json.

    Lengths and ranges say the same thing twice. Where they differ, those are believed that add up
    to ``total_frames``.
    """
    findings: list[Finding] = []
    number = np.arange(len(table))
    rows = np.flatnonzero(table.episode_index != number)
    if len(rows):
        first = int(rows[0])
        message = (
            f"{len(rows):,} rows, first row {first}: episode_index is {table.episode_index[first]}."
        )
        findings.append(
            found("episode-order", message, episode=first, stream="episodes", path=EPISODES_DIR)
        )
    ends = np.cumsum(table.length)
    wrong = (
        (table.length < 1) | (table.from_index != ends - table.length) | (table.to_index != ends)
    )
    length = table.length
    if wrong.any():
        first = int(np.argmax(wrong))
        message = (
            f"{np.count_nonzero(wrong):,} episodes, first {first}: length {length[first]}, rows "
            f"{table.from_index[first]} to {table.to_index[first]}; the lengths before it add up "
            f"to {ends[first] - length[first]}."
        )
        findings.append(
            found("episode-range", message, episode=first, stream="episodes", path=EPISODES_DIR)
        )
        spans = table.to_index - table.from_index
        chained = np.array_equal(table.from_index[1:], table.to_index[:-1])
        if chained and table.from_index[0] == 0 and spans.min() > 0:
            total = declared.raw.get("total_frames")
            if length.min() < 1 or (ends[-1] != total and spans.sum() == total):
                length = spans
    length = np.maximum(length, 0)
    totals = {"total_episodes": len(table), "total_frames": int(length.sum())}
    for key, value in totals.items():
        said = declared.raw.get(key)
        if said != value:
            message = f"{key} is {said!r}; meta/episodes has {value:,}."
            findings.append(found("totals", message, path=INFO_PATH))
    return Ranges(np.cumsum(length) - length, length), findings


def files_of(table: EpisodeTable, declared: Declared, stream: str) -> list[RoutedFile]:
    """Return a stream's files in the order of their first episode."""
    placed = table.placed[stream]
    order = np.lexsort((placed.file, placed.chunk))
    chunk, file = placed.chunk[order], placed.file[order]
    edges = np.flatnonzero((np.diff(chunk) != 0) | (np.diff(file) != 0)) + 1
    files = [
        RoutedFile(
            stream,
            declared.path(stream, int(placed.chunk[episodes[0]]), int(placed.file[episodes[0]])),
            np.sort(episodes),
        )
        for episodes in np.split(order, edges)
    ]
    return sorted(files, key=lambda routed: int(routed.episodes[0]))


def check_order(files: list[RoutedFile]) -> Iterator[Finding]:
    """Yield the first data file whose name or episodes break the order of rows.

    Loaders concatenate data files in the order of their names.
    """
    for before, after in pairwise(files):
        out_of_order = PurePosixPath(after.path) <= PurePosixPath(before.path)
        if out_of_order or int(before.episodes[-1]) > int(after.episodes[0]):
            message = f"{after.path} comes after {before.path} by its episodes, not by its name."
            yield found(
                "file-order",
                message,
                episode=int(after.episodes[0]),
                stream=DATA_STREAM,
                path=after.path,
            )
            return


def left_over(root: Path, routed: Mapping[str, object], complete: bool) -> Iterator[Finding]:
    """Yield files below data/, videos/ and meta/episodes that nobody names.

    Args:
        root: The dataset.
        routed: Paths that episodes name.
        complete: Whether these are all; otherwise only files of other kinds are found.
    """
    for folder in ("data", "videos", EPISODES_DIR):
        for path in _files_below(root, folder):
            pure = PurePosixPath(path)
            depth = len(pure.relative_to(folder).parts)
            is_table = pure.suffix == ".parquet" and depth == 2
            if path in routed or (folder == EPISODES_DIR and is_table):
                continue
            if folder == "data" and is_table:
                if complete:
                    message = f"{path} belongs to no episode."
                    yield found("stray-data", message, stream=DATA_STREAM, path=path)
            elif complete or pure.suffix not in (".parquet", ".mp4"):
                # Desktop and download tools leave such files everywhere.
                hidden = any(part.startswith(".") for part in pure.parts)
                yield found(
                    "stray-file",
                    f"{path} belongs to no episode.",
                    path=path,
                    severity="info" if hidden else None,
                )


def _files_below(root: Path, folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(root / folder):
        folders.sort()
        relative = Path(place).relative_to(root)
        for name in sorted(names):
            yield (relative / name).as_posix()


def streaming_findings(files: Mapping[str, list[RoutedFile]]) -> Iterator[Finding]:
    """Yield the cameras that LeRobot 0.6.1 cannot stream."""
    for stream, routed in files.items():
        if camera_of(stream) is not None and len(routed) > 1:
            yield found("streaming-video", f"{len(routed):,} video files.", stream=stream)
