"""The scan: every file of a source looked at once, nothing of it kept but numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from leconvert import tables
from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.model import DATA_STREAM, Finding, IntArray, SourceScan, StreamScan, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source.changes import meta_digest
from leconvert.source.info import DatasetInfo, load_info
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH, EpisodeLines, load_tasks
from leconvert.source.looker import Looker
from leconvert.source.paths import LEGACY_META_FILES, SourcePaths
from leconvert.source.spread import Spread, look_at_all

__all__ = ["scan_source"]

_FOLDERS_LEFT_BEHIND = {".cache", ".git", "data", "videos"}


def scan_source(
    root: Path, *, progress: Progress = NO_PROGRESS, spread: Spread | None = None
) -> SourceScan:
    """Look at every file of a v2.1 dataset: sizes, parquet footers, MP4 headers.

    Errors of single files are collected, so that one run tells the user about all of them; the
    caller decides by the findings' severity.

    Args:
        root: The dataset folder.
        progress: Where to report.
        spread: Threads or processes that read headers; by default as many as the first block's
            cost asks for.

    Raises:
        UnreadableSourceError: A table under ``meta/`` is missing or malformed.
        SourceError: The dataset as a whole cannot be converted.
    """
    info = load_info(root)
    paths = SourcePaths(root, info)
    load_tasks(root)  # for its checks; the packer reads it again when it writes the table
    episodes = EpisodeLines(root / EPISODES_PATH)
    episode_stats = EpisodeLines(root / STATS_PATH)
    if not len(episodes):
        raise SourceError(
            f"{root / EPISODES_PATH} lists no episodes.", path=str(root / EPISODES_PATH)
        )
    _check_indices(episodes, episode_stats)
    length = _lengths(episodes)
    findings: list[Finding] = []

    streams = [DATA_STREAM, *(stream_of_camera(key) for key in info.camera_keys)]
    look = Looker(paths, info.fps, streams, episodes.episode_index, length)
    columns = [_Columns(stream) for stream in streams]
    with (
        progress.stage("scan", len(episodes) * len(streams), "files") as stage,
        closing(look_at_all(look, len(episodes), spread)) as blocks,
    ):
        for block in blocks:
            for column, numbers, configs in zip(columns, block.numbers, block.configs, strict=True):
                column.add(numbers, configs)
            findings += block.findings
            stage.advance(sum(map(len, block.numbers)))
    scans = [column.scan() for column in columns]

    schema = b""
    with suppress(UnreadableSourceError):  # a missing first file is a finding already
        first = next(paths.absolute(DATA_STREAM, [int(episodes.episode_index[0])]))
        schema = tables.serialize_schema(
            tables.output_schema(tables.read_data_schema(first), info.features)
        )
    return SourceScan(
        root=str(root),
        info=info.raw,
        fps=info.fps,
        episode_index=episodes.episode_index,
        length=length,
        streams=scans,
        extra_files=_extra_files(root),
        meta_digest=meta_digest(root),
        data_schema=schema,
        findings=(
            *sorted(findings, key=lambda finding: (finding.episode, finding.stream)),
            *_total_findings(info, length),
        ),
    )


class _Columns:
    """One stream's numbers, gathered block by block; 48 bytes an episode."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._numbers: list[IntArray] = []
        self._groups: list[IntArray] = []
        self._group_of: dict[str, int] = {}

    def add(self, numbers: IntArray, configs: Sequence[str]) -> None:
        self._numbers.append(numbers)
        groups = [self._group_of.setdefault(config, len(self._group_of)) for config in configs]
        self._groups.append(np.array(groups, dtype=np.int64))

    def scan(self) -> StreamScan:
        size_bytes, mtime_ns, inode, frames, roll_bytes = np.concatenate(self._numbers).T.copy()
        return StreamScan(
            self._stream, size_bytes, mtime_ns, inode, frames, roll_bytes,
            np.concatenate(self._groups),
        )  # fmt: skip


def _check_indices(episodes: EpisodeLines, episode_stats: EpisodeLines) -> None:
    expected = np.arange(len(episodes))
    if not np.array_equal(episodes.episode_index, expected):
        gap = int(expected[episodes.episode_index != expected][0])
        raise SourceError(
            f"{episodes.path} has no episode {gap}: indices must run from 0 without gaps.",
            path=str(episodes.path),
            next_step="Renumber the episodes, their files and their columns.",
        )
    if not np.array_equal(episode_stats.episode_index, episodes.episode_index):
        missing = np.setdiff1d(episodes.episode_index, episode_stats.episode_index)
        extra = np.setdiff1d(episode_stats.episode_index, episodes.episode_index)
        what = (
            f"lacks episode {int(missing[0])}" if len(missing) else f"has episode {int(extra[0])}"
        )
        raise SourceError(
            f"{episode_stats.path} {what}, unlike {EPISODES_PATH}.", path=str(episode_stats.path)
        )


def _lengths(episodes: EpisodeLines) -> IntArray:
    lengths = np.empty(len(episodes), dtype=np.int64)
    for position, record in enumerate(episodes):
        length, episode_tasks = record.get("length"), record.get("tasks")
        if type(length) is not int or length < 1:
            raise SourceError(
                f"{episodes.path} gives episode {record['episode_index']} the length {length!r}.",
                path=str(episodes.path),
            )
        if not isinstance(episode_tasks, list) or not all(
            isinstance(task, str) for task in episode_tasks
        ):
            raise SourceError(
                f"{episodes.path} gives episode {record['episode_index']} tasks that are no list "
                "of texts.",
                path=str(episodes.path),
            )
        lengths[position] = length
    return lengths


def _total_findings(info: DatasetInfo, length: IntArray) -> list[Finding]:
    findings = []
    for key, found in (("total_episodes", len(length)), ("total_frames", int(length.sum()))):
        declared = info.raw.get(key)
        if declared != found:
            findings.append(
                Finding(
                    "stale-total",
                    "warning",
                    f"info.json says {key} {declared!r}, {EPISODES_PATH} holds {found}; the result "
                    "states the latter.",
                    path="meta/info.json",
                )
            )
    return findings


def _extra_files(root: Path) -> tuple[str, ...]:
    """Return what comes along unchanged: every file that the conversion does not replace."""

    def fail(error: OSError) -> None:
        # By default a folder that cannot be listed is passed over, and what is in it is lost.
        raise UnreadableSourceError(
            f"{error.filename} cannot be listed: {error.strerror}.",
            path=str(error.filename),
            next_step="Check the disk or the network and run the same command again.",
        ) from error

    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=fail):
        relative = Path(folder).relative_to(root)
        if relative == Path():
            folders[:] = [name for name in folders if name not in _FOLDERS_LEFT_BEHIND]
        for name in files:
            path = (relative / name).as_posix()
            if not _is_replaced(path) and (root / path).is_file():
                found.append(path)
    return tuple(sorted(found))


def _is_replaced(path: str) -> bool:
    return (
        path in LEGACY_META_FILES
        or path == "meta/tasks.parquet"
        or path.startswith("meta/episodes/")
    )
