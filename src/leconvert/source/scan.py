"""The scan: every file of a source looked at once, nothing of it kept but numbers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from leconvert import media, tables
from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.model import DATA_STREAM, Finding, IntArray, SourceScan, StreamScan, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source.changes import FileFacts, meta_digest, signed_inode
from leconvert.source.info import DatasetInfo, load_info
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH, EpisodeLines, load_tasks
from leconvert.source.paths import LEGACY_META_FILES, SourcePaths

__all__ = ["scan_source"]

_EPISODES_PER_TASK = 32
# How far LeRobot lets a frame lie from the timestamp that asks for it.
_LEROBOT_TOLERANCE_SECONDS = 1e-4
_THREADS_THAT_WAIT = 16
# Wall clock over CPU time of a block from which on a scan waits rather than computes.
_WAITING_FROM = 2.0
_TASKS_AHEAD_PER_THREAD = 4
_FOLDERS_LEFT_BEHIND = {".cache", ".git", "data", "videos"}


class _Facts(NamedTuple):
    """What a scan keeps of one slice; for a file that cannot be read, all zero."""

    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    frames: int = 0
    roll_bytes: int = 0
    config: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Some consecutive episodes: for each stream numbers of shape (n, 5), and configurations."""

    numbers: list[IntArray]
    configs: list[list[str]]
    findings: list[Finding]


def scan_source(
    root: Path, *, progress: Progress = NO_PROGRESS, num_threads: int | None = None
) -> SourceScan:
    """Look at every file of a v2.1 dataset: sizes, parquet footers, MP4 headers.

    Errors of single files are collected, so that one run tells the user about all of them; the
    caller decides by the findings' severity.

    Args:
        root: The dataset folder.
        progress: Where to report.
        num_threads: Threads that read headers; by default as many as the file system's latency asks
            for.

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
    look = _Looker(paths, info.fps, streams, episodes.episode_index, length)
    columns = [_Columns(stream) for stream in streams]
    with progress.stage("scan", len(episodes) * len(streams), "files") as stage:
        for block in _in_order(look, len(episodes), num_threads):
            for column, numbers, configs in zip(columns, block.numbers, block.configs, strict=True):
                column.add(numbers, configs)
            findings += block.findings
            stage.advance(sum(map(len, block.numbers)))
    scans = [column.scan() for column in columns]

    schema = b""
    with suppress(UnreadableSourceError):  # a missing first file is a finding already
        first = paths.absolute(DATA_STREAM, int(episodes.episode_index[0]))
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


@dataclass(frozen=True, slots=True)
class _Remark:
    """A finding before it knows where it was made."""

    code: str
    message: str
    severity: str = "error"


class _Looker:
    """Looks at one block of episodes; called from several threads, shares nothing mutable."""

    def __init__(
        self,
        paths: SourcePaths,
        fps: Fraction,
        streams: Sequence[str],
        episode_index: IntArray,
        length: IntArray,
    ) -> None:
        self._paths = paths
        self._fps = fps
        self._streams = streams
        self._episode_index = episode_index
        self._length = length

    def __call__(self, first: int, stop: int) -> _Block:
        block = _Block([], [], [])
        indices = self._episode_index[first:stop].tolist()
        lengths = self._length[first:stop].tolist()
        for stream in self._streams:
            paths = [self._paths.absolute(stream, index) for index in indices]
            clips = None if stream == DATA_STREAM else media.read_clip_indexes(paths)
            seen: list[_Facts] = []
            for index, length, path in zip(indices, lengths, paths, strict=True):
                remarks: list[_Remark] = []
                clip = None if clips is None else next(clips)
                try:
                    facts = (
                        self._table(path, length, remarks)
                        if clip is None
                        else self._clip(path, clip, length, remarks)
                    )
                except FileNotFoundError:
                    remarks.append(_Remark("missing-file", f"{path} is missing."))
                    facts = _Facts()
                except UnreadableSourceError as error:
                    remarks.append(_Remark("unreadable-file", error.message))
                    facts = _Facts()
                except OSError as error:
                    said = f"{path} cannot be read: {error.strerror or error}."
                    remarks.append(_Remark("unreadable-file", said))
                    facts = _Facts()
                seen.append(facts)
                for remark in remarks:
                    block.findings.append(
                        Finding(
                            remark.code,
                            remark.severity,
                            remark.message,
                            episode=index,
                            stream=stream,
                            path=self._paths.relative(stream, index),
                        )
                    )
            block.numbers.append(np.array([facts[:-1] for facts in seen], dtype=np.int64))
            block.configs.append([facts.config for facts in seen])
        return block

    def _table(self, path: str, length: int, remarks: list[_Remark]) -> _Facts:
        file = FileFacts.of(path)
        footer = tables.read_data_footer(path)
        if footer.rows != length:
            said = f"{path} has {footer.rows} rows, {EPISODES_PATH} says {length}."
            remarks.append(_Remark("row-count", said))
        elif footer.timestamp_range is not None:
            begin, end = footer.timestamp_range
            last = float((length - 1) / self._fps)
            if max(abs(begin), abs(end - last)) >= _LEROBOT_TOLERANCE_SECONDS:
                said = (
                    f"{path} has timestamps from {begin:g} to {end:g} s, its {length} frames stand "
                    f"at 0 to {last:g} s; LeRobot will not find frames by such timestamps."
                )
                remarks.append(_Remark("timestamps", said, "warning"))
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            footer.rows,
            footer.uncompressed_bytes,
        )

    def _clip(
        self,
        path: str,
        clip: media.ClipIndex | UnreadableSourceError,
        length: int,
        remarks: list[_Remark],
    ) -> _Facts:
        file = FileFacts.of(path)
        if isinstance(clip, media.UnsupportedClipError):
            said = f"{path} will be remuxed: {clip.reason}."
            remarks.append(_Remark("remux", said, "info"))
            clip = _index_of_remuxed(path, self._fps)
        elif isinstance(clip, UnreadableSourceError):
            raise clip
        if clip.num_samples != length:
            said = f"{path} has {clip.num_samples} frames, {EPISODES_PATH} says {length}."
            remarks.append(_Remark("frame-count", said))
        elif not clip.keyframes[0]:
            remarks.append(_Remark("no-keyframe", f"{path} does not begin with a keyframe."))
        elif late := clip.frames_off_their_place(self._fps):
            said = (
                f"{path} stores {late} of {length} frames half a frame or more away from their "
                "place at i/fps; frames are placed by their order."
            )
            remarks.append(_Remark("frame-times", said, "warning"))
        if clip.other_tracks:
            said = f"{path} also holds {', '.join(clip.other_tracks)} tracks, which are left out."
            remarks.append(_Remark("other-tracks", said, "warning"))
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            clip.num_samples,
            file.size_bytes,
            clip.config_key,
        )


def _index_of_remuxed(path: str, fps: Fraction) -> media.ClipIndex:
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain)
    finally:
        shutil.rmtree(folder)


def threads_for(cpu_seconds: float, wall_seconds: float) -> int:
    """Return how many threads a scan wants, from what its first block cost.

    Args:
        cpu_seconds: CPU time of the thread that did it.
        wall_seconds: How long it took.
    """
    return _THREADS_THAT_WAIT if wall_seconds > _WAITING_FROM * cpu_seconds else 1


def _in_order(look: _Looker, num_episodes: int, threads: int | None) -> Iterator[_Block]:
    """Look at all blocks and yield them in order, few of them waiting at a time.

    Parsing headers holds Python's lock, so threads gain nothing where files answer at once (and
    lose half to the lock). Where they do not, as over a network, many threads wait at a time: the
    first block tells which it is.
    """
    edges = [*range(0, num_episodes, _EPISODES_PER_TASK), num_episodes]
    blocks = deque(pairwise(edges))
    if threads is None:
        cpu, wall = time.thread_time(), time.perf_counter()
        yield look(*blocks.popleft())
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        threads = threads_for(cpu, wall)
    if threads == 1:
        for first, stop in blocks:
            yield look(first, stop)
        return
    waiting: deque[Future[_Block]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        try:
            for first, stop in blocks:
                waiting.append(pool.submit(look, first, stop))
                if len(waiting) > threads * _TASKS_AHEAD_PER_THREAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


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
    found: list[str] = []
    for folder, folders, files in os.walk(root):
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
