"""The scan: every file of a source looked at once, nothing of it kept but numbers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

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

_EPISODES_PER_TASK = 64
_TASKS_AHEAD_PER_THREAD = 4
_MOST_FINDINGS_SHOWN = 20
_FOLDERS_LEFT_BEHIND = {".cache", ".git", "data", "videos"}


@dataclass(frozen=True, slots=True)
class _SliceFacts:
    file: FileFacts
    frames: int
    roll_bytes: int
    config: str


def scan_source(
    root: Path, *, progress: Progress = NO_PROGRESS, num_threads: int | None = None
) -> SourceScan:
    """Look at every file of a v2.1 dataset: sizes, parquet footers, MP4 headers.

    Errors of single files are collected, so that one run tells the user about all of them; the
    caller decides by the findings' severity.

    Args:
        root: The dataset folder.
        progress: Where to report.
        num_threads: Threads that read headers; the default hides some network latency.

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
    facts: list[list[_SliceFacts | None]] = [[] for _ in streams]
    threads = num_threads or min(8, 2 * (os.cpu_count() or 1))
    with progress.stage("scan", len(episodes) * len(streams), "files") as stage:
        for block, block_findings in _in_order(look, len(episodes), threads):
            for per_stream, seen in zip(facts, block, strict=True):
                per_stream.extend(seen)
            findings.extend(block_findings)
            stage.advance(sum(len(seen) for seen in block))
    scans: list[StreamScan] = []
    for stream, seen in zip(streams, facts, strict=True):
        scans.append(_as_columns(stream, seen))
        seen.clear()

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

    def __call__(
        self, first: int, stop: int
    ) -> tuple[list[list[_SliceFacts | None]], list[Finding]]:
        findings: list[Finding] = []
        block: list[list[_SliceFacts | None]] = []
        indices = self._episode_index[first:stop].tolist()
        lengths = self._length[first:stop].tolist()
        for stream in self._streams:
            look = self._table if stream == DATA_STREAM else self._clip
            seen: list[_SliceFacts | None] = []
            for index, length in zip(indices, lengths, strict=True):
                path = self._paths.absolute(stream, index)

                def find(code: str, message: str, severity: str = "error") -> None:
                    findings.append(
                        Finding(
                            code,
                            severity,
                            message,
                            episode=index,  # noqa: B023 - called before the loop moves on
                            stream=stream,  # noqa: B023
                            path=self._paths.relative(stream, index),  # noqa: B023
                        )
                    )

                try:
                    seen.append(look(path, FileFacts.of(path), length, find))
                except FileNotFoundError:
                    find("missing-file", f"{path} is missing.")
                    seen.append(None)
                except UnreadableSourceError as error:
                    find("unreadable-file", error.message)
                    seen.append(None)
                except OSError as error:
                    find("unreadable-file", f"{path} cannot be read: {error.strerror or error}.")
                    seen.append(None)
            block.append(seen)
        return block, findings

    def _table(
        self, path: str, file: FileFacts, length: int, find: Callable[..., None]
    ) -> _SliceFacts:
        footer = tables.read_data_footer(path)
        if footer.rows != length:
            find("row-count", f"{path} has {footer.rows} rows, {EPISODES_PATH} says {length}.")
        return _SliceFacts(file, footer.rows, footer.uncompressed_bytes, "")

    def _clip(
        self, path: str, file: FileFacts, length: int, find: Callable[..., None]
    ) -> _SliceFacts:
        try:
            clip = media.read_clip_index(path)
        except media.UnsupportedClipError as error:
            find("remux", f"{path} will be remuxed: {error.reason}.", "info")
            clip = _index_of_remuxed(path, self._fps)
        if clip.num_samples != length:
            find(
                "frame-count",
                f"{path} has {clip.num_samples} frames, {EPISODES_PATH} says {length}.",
            )
        elif not clip.keyframes[0]:
            find("no-keyframe", f"{path} does not begin with a keyframe.")
        else:
            late = _frames_off_their_place(clip, self._fps)
            if late:
                find(
                    "frame-times",
                    f"{path} stores {late} of {length} frames half a frame or more away from their "
                    "place at i/fps; frames are placed by their order.",
                    "warning",
                )
        if clip.other_tracks:
            find(
                "other-tracks",
                f"{path} also holds {', '.join(clip.other_tracks)} tracks, which are left out.",
                "warning",
            )
        return _SliceFacts(file, clip.num_samples, file.size_bytes, clip.config_key)


def _index_of_remuxed(path: str, fps: Fraction) -> media.ClipIndex:
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain)
    finally:
        shutil.rmtree(folder)


def _frames_off_their_place(clip: media.ClipIndex, fps: Fraction) -> int:
    """Count frames whose stored time is half a frame or more from rank/fps."""
    # |time / timescale - rank / fps| >= 1 / (2 fps), in integers:
    # |2 time fps.num - 2 rank timescale fps.den| >= timescale fps.den
    frame = clip.timescale * fps.denominator
    off = np.abs(2 * clip.presentation_times * fps.numerator - 2 * clip.ranks * frame)
    return int(np.count_nonzero(off >= frame))


def _in_order(
    look: _Looker, num_episodes: int, threads: int
) -> Iterator[tuple[list[list[_SliceFacts | None]], list[Finding]]]:
    """Look at all blocks in parallel and yield them in order, few of them waiting at a time."""
    starts = range(0, num_episodes, _EPISODES_PER_TASK)
    waiting: deque[Future[tuple[list[list[_SliceFacts | None]], list[Finding]]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        try:
            for first in starts:
                stop = min(first + _EPISODES_PER_TASK, num_episodes)
                waiting.append(pool.submit(look, first, stop))
                if len(waiting) > threads * _TASKS_AHEAD_PER_THREAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _as_columns(stream: str, seen: Sequence[_SliceFacts | None]) -> StreamScan:
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(s.config, len(numbers)) if s else 0 for s in seen]

    def column(values: Iterator[int]) -> IntArray:
        return np.fromiter(values, dtype=np.int64, count=len(seen))

    return StreamScan(
        stream=stream,
        size_bytes=column(s.file.size_bytes if s else 0 for s in seen),
        mtime_ns=column(s.file.mtime_ns if s else 0 for s in seen),
        # Some file systems number inodes with all 64 bits; the sign does not matter here.
        inode=column(signed_inode(s.file.inode) if s else 0 for s in seen),
        frames=column(s.frames if s else 0 for s in seen),
        roll_bytes=column(s.roll_bytes if s else 0 for s in seen),
        group=np.array(groups, dtype=np.int64),
    )


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
