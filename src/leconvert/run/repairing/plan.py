"""The plan of a repair of a v3.0 dataset, decided from the findings of a check.

A repair only repairs findings of `leconvert.dataset.check`, and its plan says for every finding
whether it is repaired. The new times of a file and the new statistics of a feature go through the
same check before anything is written: a change that would leave the finding is not planned.

Only the position of an episode's frames in a video file cannot be read directly, because its
``from_timestamp`` may be wrong. If the episodes of the file have as many frames as the file, the
frames are counted, in the order of the episodes' times or, if these have no order, of the episodes.
They must begin at keyframes at least as often as with the stored times. In other files (for example
a cut file with frames of no episode) the stored time decides, and episodes must not overlap.

Readers find rows of ``meta/episodes`` and ``meta/tasks.parquet`` by the position of the row, and
writers by the number in the row. If the two differ, another column decides: for episodes their
ranges of rows in the data, for tasks the tasks that the episodes list. If that column fits neither,
nothing is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.dataset.check import (
    AS_STORED,
    DatasetCheck,
    EpisodeSpans,
    NewOrder,
    VideoFrames,
    check_feature_stats,
    frames_of,
    spans_findings,
    spans_of,
)
from leconvert.dataset.findings import found
from leconvert.dataset.formats import v3
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.values import DATA_STREAM, Extent, Finding, IntArray, camera_of
from leconvert.support.errors import SourceError, StorageError, UnreadableSourceError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import CHECK_DISK, storage_errors
from leconvert.support.text import count
from leconvert.support.values import dataclass

_TIMES = frozenset({"frame-times", "shared-frames", "video-end", "video-neighbours", "frame-count"})
# Findings that a file with exact times may also have.
_OF_EXACT_TIMES = frozenset({"float32-reach", "no-keyframe"})
INDEX_COLUMNS = {
    "global-index": "index",
    "episode-index": "episode_index",
    "frame-index": "frame_index",
}
"""Findings about columns that only count, with the column of each."""
_RETIMED = {"timestamps": "timestamp"}
_STATS = frozenset({"stats-aggregate", "stats-missing", "stats-shape", "stats-value"})
# With these findings, the lengths of episodes or the owners of rows are unknown.
_ROWS_IN_DOUBT = frozenset({"row-count", "stray-rows", "episode-order", "file-order", "stray-data"})


@dataclass(frozen=True, slots=True)
class VideoRepair:
    """A video file whose samples go into a new file, in which frame *i* is at i / fps.

    Attributes:
        path: The file, relative to the dataset.
        how: ``join``: the samples are joined, as in a conversion. ``remux``: FFmpeg copies them,
            with sound and subtitles.
        frames: Number of its frames.
        begins: Its first sample, and the first samples of episodes that can be cut out.
    """

    path: str
    how: Literal["join", "remux"]
    frames: int
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DataRepair:
    """A data file that is written again with columns computed from its rows' positions.

    Attributes:
        path: The file, relative to the dataset.
        columns: The computed columns, sorted.
        episodes: Its episodes, shape (K,).
        start: First row of each episode in the dataset, shape (K,).
        length: Number of rows of each episode, which become its row groups, shape (K,).
        task_numbers: The current number of each task in the rows, ascending; None to keep numbers.
    """

    path: str
    columns: tuple[str, ...]
    episodes: IntArray
    start: IntArray
    length: IntArray
    task_numbers: IntArray | None = None

    def values(self, fps: Fraction, stored: Path) -> dict[str, npt.NDArray[Any]]:
        """Return the new values of each column, arrays of shape (rows,)."""
        frame = np.arange(self.length.sum())
        frame -= np.repeat(np.cumsum(self.length) - self.length, self.length)
        values: dict[str, npt.NDArray[Any]] = {
            "index": np.repeat(self.start, self.length) + frame,
            "episode_index": np.repeat(self.episodes, self.length),
            "frame_index": frame,
            "timestamp": v3.seconds_of(frame, fps),
        }
        if self.task_numbers is not None:
            with storage_errors(stored):
                column = pq.read_table(stored, columns=["task_index"]).column(0)
            values["task_index"] = np.searchsorted(self.task_numbers, column.to_numpy())
        return {name: values[name] for name in self.columns}


@dataclass(frozen=True, slots=True, eq=False)
class RepairPlan:
    """All changes of a repair; everything else stays.

    Attributes:
        root: The dataset.
        fps: Its frame rate.
        videos: Video files that change, sorted by path.
        data: Data files that change, sorted by path.
        episodes: New values of columns of ``meta/episodes``, arrays of shape (E,).
        episode_rows: The stored row of each episode, shape (E,), if rows of ``meta/episodes`` are
            reordered; else None.
        task_rows: The stored row of each task, shape (T,), if rows of ``meta/tasks.parquet`` are
            reordered or renumbered; else None.
        info: New values in ``meta/info.json``.
        stats: New statistics by feature, for ``meta/stats.json``.
        derived: New tables below ``meta/``, relative to the dataset.
        mended: Findings that will be gone.
        left: Findings that will stay.
        remarks: Further remarks, one sentence each.
        extent: Number of episodes, frames and features of the dataset; None if unknown.
    """

    root: Path
    fps: Fraction
    videos: tuple[VideoRepair, ...] = ()
    data: tuple[DataRepair, ...] = ()
    episodes: Mapping[str, npt.NDArray[Any] | pa.Array] = field(default_factory=dict)
    episode_rows: IntArray | None = None
    task_rows: IntArray | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    mended: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()
    extent: Extent | None = None

    def __bool__(self) -> bool:
        changed = (self.videos, self.data, self.episodes, self.info, self.stats, self.derived)
        return self.puts_in_order or any(changed)

    @property
    def puts_in_order(self) -> bool:
        """Whether rows of tables get other positions or numbers."""
        tables = self.episode_rows is not None or self.task_rows is not None
        return tables or "episode_index" in self.episodes

    @property
    def names_other_files(self) -> bool:
        """Whether episodes get other files, or files another template."""
        return any(finding.code in ("wrong-files", "path-template") for finding in self.mended)

    @property
    def errors_left(self) -> tuple[Finding, ...]:
        """Findings that stay and with which LeRobot loads the dataset wrongly or not at all."""
        return tuple(finding for finding in self.left if finding.severity == "error")

    def summary(self) -> tuple[str, ...]:
        """Return the changes, one line per kind."""
        lines = []
        if self.derived:
            lines.append(f"{', '.join(self.derived)} derived from rows and files")
        if self.videos:
            files = count(len(self.videos), "video file")
            frames = count(sum(video.frames for video in self.videos), "frame")
            lines.append(f"new times in the index of {files} ({frames})")
        if self.data:
            names = sorted({name for data in self.data for name in data.columns})
            lines.append(f"{', '.join(names)} in {count(len(self.data), 'data file')}")
        if self.episode_rows is not None:
            lines.append(f"the order of the rows of {v3.EPISODES_DIR}")
        if self.task_rows is not None:
            is_moved = _moved(self.task_rows) is not None
            what = "the order and numbers of the rows" if is_moved else "task_index"
            lines.append(f"{what} of {v3.TASKS_PATH}")
        if self.episodes:
            names = sorted({name.rpartition("/")[2] for name in self.episodes})
            lines.append(f"{', '.join(names)} in {v3.EPISODES_DIR}")
        if self.info:
            changes = ", ".join(
                f"{key} = {value if isinstance(value, str) else f'{value:,}'}"
                for key, value in sorted(self.info.items())
            )
            lines.append(f"{changes} in {v3.INFO_PATH}")
        if self.stats:
            lines.append(f"statistics of {', '.join(sorted(self.stats))} in {v3.STATS_PATH}")
        return tuple(lines)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "videos": [
                {
                    "path": video.path,
                    "how": video.how,
                    "frames": video.frames,
                    "patched_bytes": None,
                }
                for video in self.videos
            ],
            "data": [{"path": data.path, "columns": list(data.columns)} for data in self.data],
            "episodes": sorted(self.episodes),
            "orders_episodes": self.episode_rows is not None,
            "orders_tasks": self.task_rows is not None,
            "info": dict(self.info),
            "stats": sorted(self.stats),
            "derived": list(self.derived),
            "mended": [asdict(finding) for finding in self.mended],
            "left": [asdict(finding) for finding in self.left],
            "remarks": list(self.remarks),
        }


def _rows_are_certain(check: DatasetCheck) -> bool:
    """Return whether the episode of every row is known and no row is missing."""
    return not any(
        finding.code in _ROWS_IN_DOUBT
        or (finding.code in ("missing-file", "unreadable-file") and finding.stream == DATA_STREAM)
        for finding in check.findings
    )


def _moved(rows: IntArray | None) -> IntArray | None:
    """Return an order if it differs from the stored one; else None."""
    return None if rows is None or np.array_equal(rows, np.arange(len(rows))) else rows


def plan_repair(
    check: DatasetCheck,
    raw: Mapping[str, Any],
    *,
    retime: bool = False,
    progress: Progress = NO_PROGRESS,
) -> RepairPlan:
    """Return the changes of a repair.

    Files are read, nothing is written.

    Args:
        check: The report of a check.
        raw: The dataset's ``info.json``.
        retime: Whether timestamps of rows become ``frame_index / fps``, if they differ.
        progress: Receives the progress of another check, of the dataset with reordered tables.
    """
    order, ordered = _find_order(check, raw, progress)
    if ordered.declared is None or ordered.table is None:
        return RepairPlan(check.root, Fraction(1), left=tuple(ordered.findings))
    planner = _Planner(ordered, ordered.declared, ordered.table, order, retime)
    plan = planner.plan()
    there = {(finding.code, finding.stream, finding.path) for finding in ordered.findings}
    by_order = tuple(
        finding
        for finding in check.findings
        if (finding.code, finding.stream, finding.path) not in there
    )
    return replace(plan, mended=by_order + plan.mended)


@dataclass(eq=False)
class _Planner:
    """Collects changes and, with each, the findings that it repairs."""

    check: DatasetCheck
    declared: v3.Declared
    table: v3.EpisodeTable
    order: NewOrder
    retime: bool
    episodes: dict[str, npt.NDArray[Any] | pa.Array] = field(default_factory=dict)
    videos: list[VideoRepair] = field(default_factory=list)
    data: list[DataRepair] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._episode_rows = _moved(self.order.episodes)
        self._untimed = self.check.untimed.copy()
        self._findings = list(self.check.findings)
        self._of_path: defaultdict[str | None, list[Finding]] = defaultdict(list)
        for finding in self._findings:
            self._of_path[finding.path].append(finding)
        # By identity: two findings may be equal.
        self._gone: dict[int, Finding] = {}

    def plan(self) -> RepairPlan:
        codes = {finding.code for finding in self.check.findings}
        if self.order.episodes is not None and self._episode_rows is None:
            self.episodes["episode_index"] = np.arange(len(self.table))
        if _rows_are_certain(self.check):
            self._plan_ranges(codes)
            self._plan_data()
            self._plan_tasks()
        self._plan_locations(codes)
        self._plan_files()
        self._plan_videos()
        self._plan_stats()
        derived = self.check.derived
        if derived is not None:
            self.info |= derived.info
        return RepairPlan(
            self.check.root,
            self.declared.fps,
            tuple(sorted(self.videos, key=lambda video: video.path)),
            tuple(sorted(self.data, key=lambda data: data.path)),
            self.episodes,
            self._episode_rows,
            self.order.tasks,
            self.info,
            self.stats,
            () if derived is None else derived.files,
            tuple(self._gone.values()),
            tuple(self._left),
            tuple(self.remarks),
            Extent(self.check.episodes, self.check.frames, len(self.declared.features)),
        )

    def _codes(self, path: str) -> set[str]:
        """Return the codes of a file's remaining findings."""
        return {each.code for each in self._of_path.get(path, ()) if id(each) not in self._gone}

    def _mend(self, codes: Collection[str], path: str | None = None) -> None:
        """Mark findings with these codes, of one file or of all, as repaired."""
        among = self._findings if path is None else self._of_path.get(path, [])
        self._gone.update({id(each): each for each in among if each.code in codes})

    @property
    def _left(self) -> list[Finding]:
        return [each for each in self._findings if id(each) not in self._gone]

    def _plan_ranges(self, codes: set[str]) -> None:
        start, length = self.table.start, self.table.length
        if "episode-range" in codes:
            if length.min() < 1:
                return
            wanted = {
                "dataset_from_index": start,
                "dataset_to_index": start + length,
                "length": length,
            }
            self.episodes |= wanted
            self._mend({"episode-range"})
        if "stale-total" in codes:
            totals = {
                "total_episodes": len(self.table),
                "total_frames": int(length.sum()),
                "total_tasks": None if self.check.tasks is None else len(self.check.tasks),
            }
            for key, value in totals.items():
                if value is not None and self.declared.raw.get(key) != value:
                    self.info[key] = value
            self._mend({"stale-total"})

    def _plan_locations(self, codes: set[str]) -> None:
        reader = v3.EpisodesReader(self.check.root)
        moves_far = self._episode_rows is not None and len(reader.paths) > 1
        if "episodes-location" not in codes and not moves_far:
            return
        columns: dict[str, list[int]] = {name: [] for name in v3.LOCATION_COLUMNS}
        for path, rows in reader.rows_of_files.items():
            if not set(v3.LOCATION_COLUMNS) <= set(reader.schema(path).names):
                return
            numbers = [part.rpartition("-")[2] for part in Path(path).with_suffix("").parts[-2:]]
            if not all(number.isdecimal() for number in numbers):
                return
            for name, number in zip(v3.LOCATION_COLUMNS, numbers, strict=True):
                columns[name] += [int(number)] * len(rows)
        self.episodes |= {name: np.array(values) for name, values in columns.items()}
        self._mend({"episodes-location"})

    def _plan_data(self) -> None:
        wanted = INDEX_COLUMNS | (_RETIMED if self.retime else {})
        numbers = self.order.task_numbers
        if numbers is not None and np.array_equal(numbers, np.arange(len(numbers))):
            numbers = None  # rows use the row numbers that tasks will have
        frames = int(self.table.length.sum())
        for routed in self.check.files.get(DATA_STREAM, []):
            codes = self._codes(routed.path) & wanted.keys()
            if codes:
                stored = pq.read_schema(self.check.root / routed.path)
                # The types stay; a conversion has others.
                codes = {
                    code
                    for code in codes
                    if v3.holds_counts(stored.field(wanted[code]).type, wanted[code], frames)
                }
            columns = {wanted[code] for code in codes}
            if numbers is not None:
                columns.add("task_index")
            if not columns:
                continue
            self.data.append(
                DataRepair(
                    routed.path,
                    tuple(sorted(columns)),
                    routed.episodes,
                    self.table.start[routed.episodes],
                    self.table.length[routed.episodes],
                    numbers,
                )
            )
            self._mend({*codes, "row-groups"}, routed.path)
            if "timestamps" in codes:
                self._untimed[routed.episodes] = False

    def _plan_tasks(self) -> None:
        """Add to each episode's list the tasks that only its rows have.

        A task that only the list has may be a person's better knowledge, so the user decides.
        """
        texts = self.check.tasks
        if texts is None or not self.check.other_tasks:
            return
        reader = v3.EpisodesReader(self.check.root)
        listed: list[list[str]] = []
        for block in reader.blocks(lambda name: name == "tasks"):
            listed += block.column(0).to_pylist()
        if self._episode_rows is not None:
            listed = [listed[row] for row in self._episode_rows]
        is_changed = False
        for path, other in self.check.other_tasks.items():
            added = {
                episode: sorted(tasks.of_rows - tasks.listed)
                for episode, tasks in other.items()
                if tasks.listed < tasks.of_rows
            }
            for episode, tasks in added.items():
                listed[episode] = [*listed[episode], *(texts[task] for task in tasks)]
            if added:
                is_changed = True
                self._mend({"task-mismatch"}, path)
                rest = {episode: told for episode, told in other.items() if episode not in added}
                if rest:
                    self._findings.append(v3.episode_tasks_finding(path, rest))
        if is_changed:
            self.episodes["tasks"] = pa.array(listed, pa.list_(pa.string()))

    def _plan_files(self) -> None:
        """Name the files in which the check found the episodes."""
        for stream, places in self.check.located.places.items():
            self.episodes |= {
                f"{stream}/chunk_index": places.chunk,
                f"{stream}/file_index": places.file,
            }
            if camera_of(stream) is not None:
                self.episodes |= {
                    f"{stream}/from_timestamp": places.begin_seconds,
                    f"{stream}/to_timestamp": places.end_seconds,
                }
        self.info |= self.check.located.info
        self._gone |= {id(finding): finding for finding in self.check.misplaced}

    def _plan_videos(self) -> None:
        for stream, files in self.check.files.items():
            if stream == DATA_STREAM:
                continue
            for routed in files:
                codes = self._codes(routed.path) & _TIMES
                if codes:
                    self._plan_video(stream, routed, codes)

    def _plan_video(self, stream: str, routed: v3.RoutedFile, codes: set[str]) -> None:
        path = self.check.root / routed.path
        try:
            index = media.read_clip_index(path)
        except UnreadableSourceError as error:
            self.remarks.append(f"{routed.path} is not repaired: {error.message}")
            return
        placed, fps = self.table.placed[stream], self.declared.fps
        frames = frames_of(index)
        spans = _located(frames, routed, self.table, fps)
        if spans is None:
            self.remarks.append(
                f"{routed.path} is not repaired: the first frames of its episodes are unknown, "
                "since the times of the episodes overlap and their frames do not add up to "
                "those of the file."
            )
            return
        exact = replace(frames, seconds=v3.seconds_of(np.arange(len(frames.seconds)), fps))
        timed = ~self._untimed[spans.episodes]
        expected = {
            code: (message, int(spans.episodes[at]))
            for code, message, at in spans_findings(exact, spans, fps, timed)
        }
        if codes <= expected.keys():
            return  # the times prove none of these findings wrong
        if not media.has_exact_times(index, fps):
            if index.other_tracks and not index.begins_at(0):
                # FFmpeg, which copies its tracks, would mark the first frame as a keyframe.
                self.remarks.append(
                    f"{routed.path} is not repaired: it has sound or another further track "
                    "and does not begin with a keyframe."
                )
                return
            try:
                self.videos.append(self._video_repair(routed.path, index, spans))
            except UnreadableSourceError as error:  # FFmpeg cannot copy its tracks
                self.remarks.append(f"{routed.path} is not repaired: {error.message}")
                return
        for name, stored, exact_seconds in (
            ("from_timestamp", placed.begin_seconds, spans.from_seconds),
            ("to_timestamp", placed.end_seconds, spans.to_seconds),
        ):
            column = f"{stream}/{name}"
            changed = self.episodes.get(column, stored).copy()
            changed[spans.episodes] = exact_seconds
            if not np.array_equal(changed, self.episodes.get(column, stored)):
                self.episodes[column] = changed
        present = self._codes(routed.path)
        self._mend((_TIMES | _OF_EXACT_TIMES) - expected.keys(), routed.path)
        for code, (message, episode) in expected.items():
            if code not in present:  # wrong times hid it
                said = f"{routed.path}: {message}"
                self._findings.append(
                    found(code, said, episode=episode, stream=stream, path=routed.path)
                )

    def _video_repair(self, path: str, index: media.ClipIndex, spans: EpisodeSpans) -> VideoRepair:
        lost = len(index.other_tracks) and (
            len(index.other_tracks) - media.carried_tracks(index.path)
        )
        if lost:
            self.remarks.append(
                f"{count(lost, 'further track')} of {path} cannot be copied. The kept "
                "dataset still has all tracks."
            )
        if index.other_tracks:
            return VideoRepair(path, "remux", index.num_samples, ())
        cuts = {*spans.begin.tolist(), *spans.stop.tolist()} - {0, index.num_samples}
        begins = [0]
        if index.begins_at(0):  # else it can only be copied whole
            begins += [cut for cut in sorted(cuts) if index.begins_at(cut)]
        return VideoRepair(path, "join", index.num_samples, tuple(begins))

    def _plan_stats(self) -> None:
        of_stats = [
            finding
            for finding in self._left
            if finding.code in _STATS or finding.path == v3.STATS_PATH
        ]
        stale = {finding.stream for finding in of_stats if finding.severity != "info"}
        if not stale & {None, *self.declared.features}:
            return
        features = self.declared.features
        is_gone = None in stale
        wanted = {
            key: feature
            for key, feature in features.items()
            if (key in self.check.stats and (is_gone or key in stale))
            or (is_gone and key in DEFAULT_COLUMNS)
        }
        if not wanted or DATA_STREAM not in self.check.files:
            return
        tables = [str(self.check.root / each.path) for each in self.check.files[DATA_STREAM]]
        # The stored rows of columns that are counted again are not the result's.
        as_stored = wanted.keys() - (DEFAULT_COLUMNS.keys() if self.data else ())
        fresh = _aggregated(self.check.root, wanted, as_stored, tables)
        stored = self._stored_stats(is_gone=is_gone)
        for key, feature in wanted.items():
            total = fresh.get(key)
            if total is None:
                continue
            entry = {name: np.asarray(value).tolist() for name, value in total.items()}
            old = stored.get(key)
            if isinstance(old, Mapping):
                kept = [name for name in old if name not in entry]
                if kept:
                    names = ", ".join(kept)
                    self.remarks.append(
                        f"{names} of {key} are not repaired: the episodes have no such statistics "
                        "to add up."
                    )
                entry |= {name: old[name] for name in kept}
            added_up = self.check.stats.get(key)
            if any(check_feature_stats(feature, entry, added_up, int(self.table.length.max()))):
                continue
            self.stats[key] = entry
        for finding in of_stats:
            is_all = is_gone and finding.stream is None and bool(self.stats)
            if finding.stream in self.stats or is_all:
                self._gone[id(finding)] = finding

    def _stored_stats(self, *, is_gone: bool) -> Mapping[str, Any]:
        """Return the content of the file; empty if it is missing or damaged.

        Raises:
            StorageError: The file could not be read at first, but now it can.
        """
        path = self.check.root / v3.STATS_PATH
        stored = stored_stats(self.check.root)
        if is_gone and stored:
            raise StorageError(
                f"{path} could not be read at first, but could be read later.",
                path=str(path),
                next_step=CHECK_DISK,
            )
        return stored


def stored_stats(root: Path) -> dict[str, Any]:
    """Return the content of ``meta/stats.json``; empty if it is missing, damaged or a folder."""
    path = root / v3.STATS_PATH
    with storage_errors(path), suppress(FileNotFoundError, ValueError):
        if not path.is_dir():
            return v3.read_json_object(path)
    return {}


def _located(
    frames: VideoFrames, routed: v3.RoutedFile, table: v3.EpisodeTable, fps: Fraction
) -> EpisodeSpans | None:
    """Return the positions and exact times of a file's episodes; None if they are uncertain."""
    num_frames, stored = len(frames.seconds), spans_of(frames, routed, table)
    episodes, begin, length = stored.episodes, stored.begin, stored.length
    if int(length.sum()) == num_frames:
        counted = v3.place_frames(num_frames, routed, table, fps)
        if not counted.is_counted:
            return None
        # Frames without a keyframe before them show that the file was cut and filled.
        if _keyframes(frames, counted.first) < _keyframes(frames, begin):
            return None
        order = np.lexsort((counted.length, counted.first))
        episodes, begin, length = (
            each[order] for each in (routed.episodes, counted.first, counted.length)
        )
    elif (begin[1:] < stored.stop[:-1]).any() or int(stored.stop.max()) > num_frames:
        return None
    begins, ends = v3.seconds_of(begin, fps), v3.seconds_of(begin + length, fps)
    return EpisodeSpans(episodes, begin, length, begins, ends)


def _keyframes(frames: VideoFrames, begin: IntArray) -> int:
    last = len(frames.seconds) - 1
    return int(np.count_nonzero(frames.keyframes[begin.clip(0, last)]))


def _aggregated(
    root: Path,
    features: Mapping[str, v3.Feature],
    as_stored: Collection[str],
    tables: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Return the aggregate of episodes' statistics as in a conversion, with quantiles from rows."""
    from leconvert.dataset.statistics import columns_with_quantiles, dataset_quantiles

    declared = {name: {"dtype": feature.dtype} for name, feature in features.items()}
    aggregate = v3.StatsAggregator(declared)
    try:
        done = 0
        for rows in v3.EpisodesReader(root).blocks(lambda name: _stats_feature(name) in features):
            aggregate.update_block(v3.stats_of_rows(rows), range(done, done + rows.num_rows))
            done += rows.num_rows
        total: dict[str, dict[str, Any]] = aggregate.result()
    except SourceError:
        return {}
    names = columns_with_quantiles(total, {name: declared[name] for name in as_stored})
    shapes = {name: np.shape(total[name]["mean"]) for name in names}
    with suppress(UnreadableSourceError):  # else their bounds stay
        for name, found in dataset_quantiles(tables, shapes).items():
            total[name] |= found
    return total


def _stats_feature(column: str) -> str | None:
    """Return the feature of a statistics column of ``meta/episodes``; None for other columns."""
    if not column.startswith(v3.STATS_PREFIX):
        return None
    return column.removeprefix(v3.STATS_PREFIX).rpartition("/")[0]


# Rows may use task numbers that are no rows of the table.
_ANY_NUMBER = 1 << 31


# The right order of the rows of tables.


def _find_order(
    check: DatasetCheck, raw: Mapping[str, Any], progress: Progress
) -> tuple[NewOrder, DatasetCheck]:
    """Find the right order of tables, and check the dataset as if they had it."""
    order = AS_STORED
    for code, told in (("episode-order", _order_of_episodes), ("tasks-order", _order_of_tasks)):
        if not any(finding.code == code for finding in check.findings):
            continue
        wanted = told(check, order)
        if wanted is None:
            continue
        again = DatasetCheck(check.root, raw, progress, wanted)
        again.derived = check.derived
        if _rows_are_certain(again):
            order, check = wanted, again
    return order, check


def _order_of_episodes(check: DatasetCheck, order: NewOrder) -> NewOrder | None:
    """Order episodes by their ranges of rows, if these are consecutive by row or by number."""
    if check.table is None:
        return None
    number, first_row = check.table.episode_index, check.table.from_index
    if np.all(np.diff(first_row) > 0):
        return replace(order, episodes=np.arange(len(number)))
    rows = np.argsort(number, kind="stable")
    if not np.array_equal(number[rows], np.arange(len(number))) or np.any(
        np.diff(first_row[rows]) <= 0
    ):
        return None
    reader = v3.EpisodesReader(check.root)
    file = np.repeat(np.arange(len(reader.paths)), [*map(len, reader.rows_of_files.values())])
    schemas = [reader.schema(path) for path in reader.paths]
    if np.any(file[rows] != file) and not all(schema.equals(schemas[0]) for schema in schemas):
        return None  # a file lacks a column of a row from another file
    return replace(order, episodes=rows)


def _order_of_tasks(check: DatasetCheck, order: NewOrder) -> NewOrder | None:
    """Order tasks by their numbers, or number them by row; the episodes' lists decide."""
    texts, table = check.tasks, check.table
    if texts is None or table is None or not _rows_are_certain(check):
        return None
    if len(set(texts)) < len(texts):
        return None
    try:
        listed, _ = v3.read_episode_table(
            v3.EpisodesReader(check.root), [], task_rows={text: n for n, text in enumerate(texts)}
        )
        numbers = v3.read_task_numbers(check.root)
        of_rows = _tasks_of_rows(check)
    except (UnreadableSourceError, OSError, pa.ArrowException):
        return None
    if listed is None or not len(listed.task_ends):
        return None
    if order.episodes is not None:
        listed = listed.in_order(order.episodes)

    def fits(row_of: Mapping[int, int]) -> bool:
        return all(
            {row_of.get(task) for task in of_rows.get(episode, ())} == listed.tasks_of(episode)
            for episode in range(len(listed))
        )

    if not all(number is None or isinstance(number, int | float) for number in numbers):
        return None
    whole = [int(n) for n in numbers if isinstance(n, int | float) and float(n).is_integer()]
    row_of = {number: row for row, number in enumerate(whole)}
    if len(row_of) == len(numbers) and min(row_of) >= 0 and fits(row_of):
        rows = np.array([row_of[number] for number in sorted(row_of)], np.int64)
        return replace(order, tasks=rows, task_numbers=np.array(sorted(row_of), np.int64))
    if fits({row: row for row in range(len(texts))}):
        return replace(order, tasks=np.arange(len(texts)))
    return None


def _tasks_of_rows(check: DatasetCheck) -> dict[int, tuple[int, ...]]:
    """Return the task numbers in the rows of each episode."""
    assert check.table is not None
    assert check.declared is not None
    found: dict[int, tuple[int, ...]] = {}
    for routed in check.files.get(DATA_STREAM, []):
        rows = v3.RowCheck(routed, check.table, check.declared, _ANY_NUMBER)
        with pq.ParquetFile(check.root / routed.path) as file:
            rows.read(file)
        found |= rows.tasks
    return found
