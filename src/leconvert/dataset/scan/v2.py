"""The scan of a v2.x dataset: its tables, then its files, a block of episodes at a time."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.findings import (
    Observation,
    ObservationLog,
    RepeatedObservations,
    check_dropped_features,
)
from leconvert.dataset.formats import StatsBlock, frame_rate, v2
from leconvert.dataset.formats.dataset import is_deeper
from leconvert.dataset.scan.changes import facts_of_opened, survey_folder
from leconvert.dataset.scan.dataset_checks import check_declarations, located_remarks
from leconvert.dataset.scan.file_checks import (
    ClipFacts,
    Extremes,
    RowFacts,
    StatsCheck,
    TableCheck,
    clip_checks,
)
from leconvert.dataset.scan.gathering import (
    NO_TASK,
    SLICE_NUMBERS,
    EpisodeTable,
    Gathered,
    Look,
    ScannedSource,
    Scanner,
    SeenSlices,
    TaskTable,
    gather,
    tasks_helps,
)
from leconvert.model.repairs import LocatedFile, RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import (
    DATA_STREAM,
    NO_FILE,
    FloatArray,
    IntArray,
    Misfit,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import said_version
from leconvert.support.errors import SourceError, StorageError, UnreadableSourceError
from leconvert.support.file_calls import devices_with_fleeting_inodes, mount_of
from leconvert.support.parallel import Spread
from leconvert.support.progress import Progress
from leconvert.support.storage_errors import CHECK_DISK, denied, storage_errors
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.workdir.fs import forget_old_names, status_now

_KEPT_SCHEMAS = 256
# A v3.0 column would have the same name as a key with one of these names.
_TAKEN_PREFIXES = ("stats/", "meta/episodes/")
_SHOWN = 5
# Arrow reads parquet columns of up to 100 levels, and a list takes two.
_MOST_LEVELS = 40
_EPISODES_PER_BLOCK = 32
# Large datasets have enough blocks, so their blocks are larger, which is cheaper.
_MOST_EPISODES_PER_BLOCK = 64
_BLOCKS = 32


def read_v2_source(
    root: Path,
    options: RepairOptions,
    selection: EpisodeSelection,
    to: str,
    progress: Progress,
    spread: Spread | None,
) -> ScannedSource:
    """Read the tables of a v2.x dataset, and look at all files that its templates name."""
    dataset = v2.Dataset(root, options.reading)
    info = dataset.declared
    v2.refuse_pointers(root)
    remarks = [
        *_info_remarks(info),
        *check_declarations(info.features),
    ]
    tasks = read_task_table(root, remarks)
    episodes = read_episode_table(root, tasks, remarks, selection)
    remarks = [
        replace(remark, helps=tasks_helps(remark.code, bool(episodes.has_one_text.all())))
        if remark.code == "missing-tasks"
        else remark
        for remark in remarks
    ]
    streams = [
        DATA_STREAM,
        *(stream_of_camera(key) for key in info.camera_keys if key not in options.drop_features),
    ]
    try:
        paths = dataset.paths
    except v2.PathTemplateError as error:
        check_dropped_features(options.drop_features, list(info.features))
        survey = survey_folder(root, lambda _: None, lambda _: True, ())
        near = survey.stray_near(DATA_STREAM)
        said = error.message.removesuffix(".")
        said += f"; the disk has {shown(near)}." if near else "; the disk has no table."
        remarks.append(Observation("path-template", said, path=v2.INFO_PATH, helps=()))
        return ScannedSource(
            dataset, episodes, tasks, Gathered.nothing(), remarks, reads_stats=False
        )
    if options.locate_files:
        located = _located(root, paths, episodes, info, options.drop_features)
        dataset = v2.Dataset(root, replace(options.reading, located_files=located))
        info, paths = dataset.declared, dataset.paths
        remarks += located_remarks(info, paths)
    if paths.other_names:
        names = ", ".join(f"{{{name}}}" for name in paths.other_names)
        said = (
            f"{v2.INFO_PATH} has path templates with {names}. LeRobot uses other names, but "
            "leconvert can read these path templates."
        )
        remarks.append(Observation("template-names", said, path=v2.INFO_PATH))
    look = EpisodeScanner(
        paths,
        info.fps,
        {key: value for key, value in info.features.items() if key not in options.drop_features},
        streams,
        episodes.index,
        episodes.length,
        _stats_lines(root, dataset, episodes, remarks),
        devices_with_fleeting_inodes(),
        checks_steps=to == "v2.1",
    )
    blocks = _blocks(len(episodes.index))
    gathered = gather(
        look,
        blocks,
        dict.fromkeys(streams, episodes.index),
        np.ones(len(episodes.index), np.bool_),
        progress,
        spread,
        weights=[stop - first for first, stop in blocks],
        num_files=len(episodes.index) * len(streams),
    )
    return ScannedSource(
        dataset, episodes, tasks, gathered, remarks, reads_stats=look.stats is not None
    )


def _located(
    root: Path,
    paths: v2.SourcePaths,
    episodes: EpisodeTable,
    info: v2.DatasetInfo,
    left_out: Sequence[str],
) -> tuple[LocatedFile, ...]:
    """Return the places of files that are elsewhere than stated, if only one file fits each."""
    survey = survey_folder(
        root,
        paths.slice_of,
        episodes.lists,
        info.camera_keys,
        misplaced=paths.misplaced,
    )
    return tuple(
        LocatedFile(stream, episode, found[0])
        for (stream, episode), found in sorted(survey.misplaced.items())
        if len(found) == 1
        and camera_of(stream) not in left_out
        and not (root / paths.template_path(stream, episode)).exists()
    )


def read_task_table(root: Path, remarks: list[Observation]) -> TaskTable:
    """Read ``tasks.jsonl``."""
    exists = (root / v2.TASKS_PATH).exists()
    listed = v2.load_tasks(root) if exists else []
    first_index: dict[int, int] = {}
    of_text: dict[str, int] = {}
    texts: dict[int, str] = {}
    conflicts: list[int] = []
    duplicates: list[int] = []
    for index, text in listed:
        if texts.setdefault(index, text) != text:
            conflicts.append(index)
        elif text in of_text:
            duplicates.append(index)
        first_index.setdefault(index, of_text.setdefault(text, index))
    if not listed:
        what = "lists no task" if exists else "is missing"
        said = f"{v2.TASKS_PATH} {what}, so the task indices of rows have no text."
        remarks.append(Observation("missing-tasks", said, path=v2.TASKS_PATH))
    if conflicts:
        said = f"{v2.TASKS_PATH} has different texts for task {_few(conflicts)}."
        remarks.append(Observation("task-conflict", said, path=v2.TASKS_PATH))
    if duplicates:
        said = f"{v2.TASKS_PATH} lists a text again as task {_few(duplicates)}."
        remarks.append(Observation("task-duplicate", said, path=v2.TASKS_PATH))
    if list(texts) != list(range(len(texts))):
        said = f"{v2.TASKS_PATH} numbers its {count(len(texts), 'task')} {_few(list(texts))}: "
        said += "readers of v3.0 find a task by its row number."
        remarks.append(Observation("task-gap", said, path=v2.TASKS_PATH))
    return TaskTable(listed, first_index, of_text, bool(listed))


def read_episode_table(
    root: Path,
    tasks: TaskTable,
    remarks: list[Observation],
    selection: EpisodeSelection = EpisodeSelection(),
) -> EpisodeTable:
    """Read the lines of selected episodes in ``episodes.jsonl``."""
    # Every line is parsed below. Here, a line that begins with its index need not be.
    lines = v2.EpisodeLines(root / v2.EPISODES_PATH, validated=True)
    if not len(lines):
        raise SourceError(
            f"{lines.path} lists no episodes.",
            path=str(lines.path),
            next_step="Restore the table from another copy of the dataset.",
        )
    selected = selection.keeps(lines.episode_index, lambda: map(_texts, lines))
    chosen = lines.episode_index[selected]
    length = np.empty(len(chosen), dtype=np.int64)
    task = np.full(len(chosen), NO_TASK, dtype=np.int64)
    several: dict[int, frozenset[int]] = {}
    has_one_text = np.zeros(len(chosen), dtype=np.bool_)
    only_texts: set[str] = set()
    sightings = RepeatedObservations()
    for position, record in enumerate(compress(lines, selected.tolist())):
        episode, texts = record["episode_index"], record.get("tasks")
        taken = next((key for key in record if key.startswith(_TAKEN_PREFIXES)), None)
        if taken is not None:
            raise SourceError(
                f"{lines.path} gives episode {episode} the key {shown(taken)}, which is the "
                "name of a v3.0 column.",
                path=str(lines.path),
                next_step="Rename the key in every line, or take it out.",
            )
        if is_deeper(record, _MOST_LEVELS):
            raise SourceError(
                f"{lines.path} gives episode {episode} a value that is nested too deeply.",
                path=str(lines.path),
                next_step="Take the value out of the line.",
            )
        if episode != chosen[position]:
            raise SourceError(
                f"{lines.path} gives episode {int(chosen[position])} a second episode_index.",
                path=str(lines.path),
                next_step="Correct the line.",
            )
        frames = v2.episode_length(lines.path, record, may_be_empty=True)
        if not frames:
            said = f"{v2.EPISODES_PATH} gives episode {episode} the length 0."
            remarks.append(Observation("empty-episode", said, episode, path=v2.EPISODES_PATH))
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SourceError(
                f"{lines.path} gives episode {episode} tasks that are not a list of texts.",
                path=str(lines.path),
                next_step="Correct the line: tasks is a list of texts from tasks.jsonl.",
            )
        length[position] = frames
        known = [index for text in texts if (index := tasks.of_text.get(text)) is not None]
        if len(known) == len(texts) == 1:
            task[position] = known[0]
        else:
            several[position] = frozenset(known or [NO_TASK] * len(texts))
        has_one_text[position] = len(texts) == 1
        only_texts.update(texts if len(texts) == 1 else ())
        if len(texts) > 1:
            said = f"Episode {episode} has {len(texts)} tasks."
            sightings.add(Observation("several-tasks", said, path=v2.EPISODES_PATH))
        if len(known) < len(texts) and tasks.is_there:
            unknown = next(text for text in texts if text not in tasks.of_text)
            said = f"Episode {episode} lists the task {shown(unknown)}, which is not in "
            said += f"{v2.TASKS_PATH}."
            helps = tasks_helps("task-mismatch", len(texts) == 1)
            sightings.add(Observation("task-mismatch", said, path=v2.EPISODES_PATH, helps=helps))
    remarks.extend(sightings.remarks())
    every = lines.episode_index
    table = EpisodeTable(chosen, length, task, several, has_one_text, len(only_texts), every)
    # The gaps of a selection are intended.
    if table.has_gaps and not selection:
        expected = np.arange(len(lines))
        gap = int(expected[lines.episode_index != expected][0])
        said = (
            f"{v2.EPISODES_PATH} has no episode {gap}, but its {count(len(lines), 'episode')} end "
        )
        said += f"with {int(lines.episode_index[-1])}."
        remarks.append(Observation("episode-gap", said, path=v2.EPISODES_PATH))
    return table


def _texts(line: Mapping[str, Any]) -> Sequence[str]:
    """Return the tasks of a line. A wrong value is reported when the line is read."""
    texts = line.get("tasks")
    return texts if isinstance(texts, list) else ()


def _few(numbers: Sequence[int]) -> str:
    shown_numbers = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown_numbers}, ..." if len(numbers) > _SHOWN else shown_numbers


def _info_remarks(info: v2.DatasetInfo) -> Iterator[Observation]:
    """Report what is assumed in place of the version and the frame rate of ``info.json``."""
    stated = info.raw.get("codebase_version")
    if stated != info.codebase_version:
        said = (
            f"{v2.INFO_PATH} {said_version(stated)}, but the files are those of "
            f"{info.codebase_version}."
        )
        helps = (f"--assume-version {info.codebase_version}",)
        yield Observation("codebase-version", said, path=v2.INFO_PATH, helps=helps)
    stated = info.raw.get("fps")
    if frame_rate(stated) != info.fps:
        said = f"{v2.INFO_PATH} has fps {shown(stated)}, but {float(info.fps):g} is assumed."
        yield Observation("frame-rate", said, path=v2.INFO_PATH, severity="repaired")


def _blocks(num_episodes: int) -> list[tuple[int, int]]:
    """Return first and stop of each block; two half blocks come first, to learn the cost sooner."""
    size = max(_EPISODES_PER_BLOCK, min(num_episodes // _BLOCKS, _MOST_EPISODES_PER_BLOCK))
    half = max(1, size // 2)
    edges = {0, min(half, num_episodes), num_episodes}
    edges.update(range(2 * half, num_episodes, size))
    return list(pairwise(sorted(edges)))


def _stats_lines(
    root: Path, dataset: v2.Dataset, episodes: EpisodeTable, remarks: list[Observation]
) -> tuple[Path, IntArray] | None:
    """Return the place of each episode's statistics; None in v2.0, which has none."""
    path = root / v2.STATS_PATH
    if not dataset.has_episode_stats:
        said = "v2.0 has no statistics of episodes. The conversion computes them from the data."
        remarks.append(Observation("computed-stats", said))
        return None
    if not path.exists():
        remarks.append(
            Observation("missing-stats", f"{v2.STATS_PATH} is missing.", path=v2.STATS_PATH)
        )
        return None
    # Each line is parsed when its episode is looked at.
    try:
        lines = v2.EpisodeLines(path, validated=True)
    except SourceError as error:
        if isinstance(error.__cause__, OSError):
            raise  # the table may be sound
        said = f"{shown(error.message[:-1])}: no statistics are read."
        remarks.append(Observation("missing-stats", said, path=v2.STATS_PATH))
        return None
    strange = len(lines) - int(np.isin(lines.episode_index, episodes.listed).sum())
    if strange:
        said = f"{v2.STATS_PATH} has {count(strange, 'episode')} that episodes.jsonl does not list."
        remarks.append(Observation("stray-stats", said, path=v2.STATS_PATH))
    return path, lines.offsets_of(episodes.index)


class _Facts(NamedTuple):
    """The facts of one slice, which is a whole file; all zero if it cannot be read.

    ``in_place`` is the number of its first rows or frames that are certainly at their place.
    ``is_cut_off`` says that the file ends early, which is reported. Then the numbers describe the
    samples that are there.
    """

    file_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    frames: int = 0
    roll_bytes: int = 0
    misfit: int = 0
    kind: str = ""
    in_place: int = 0
    is_cut_off: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """`SLICE_NUMBERS` of the slice."""
        return *self[:-3], 0, max(0, self.file_bytes), 0


_MISSING = _Facts(file_bytes=NO_FILE)


@dataclass(eq=False)
class EpisodeScanner(Scanner):
    """Looks at one block of episodes after another.

    Attributes:
        paths: The paths of the source's files.
        fps: Frames a second.
        features: Declared features, without those that are left out.
        streams: The streams to look at in each episode: data first, then cameras.
        episode_index: Indices of all episodes, shape (E,).
        length: Their numbers of frames, shape (E,).
        stats: The table of statistics and the first byte of each episode's line, -1 for a missing
            line; None for versions without such a table.
        fleeting_inodes: Devices whose files have no lasting inode numbers.
        checks_steps: Whether the distances of timestamps are checked as in LeRobot 0.3.3.
    """

    paths: v2.SourcePaths
    fps: Fraction
    features: Mapping[str, Mapping[str, Any]]
    streams: Sequence[str]
    episode_index: IntArray
    length: IntArray
    stats: tuple[Path, IntArray] | None
    fleeting_inodes: frozenset[int] = frozenset()
    checks_steps: bool = False

    def __post_init__(self) -> None:
        self._check_table = TableCheck(
            self.fps,
            self.features,
            has_cameras=len(self.streams) > 1,
            checks_steps=self.checks_steps,
        )
        self._check_stats = StatsCheck(self.features)
        self._check_clip = clip_checks(self.streams, self.features, self.fps)
        self._kind_of = TableKinds()

    def __call__(self, first: int, stop: int) -> Look:
        """Look at the episodes at positions ``first`` to ``stop``."""
        num_files = (stop - first) * len(self.streams)
        look = Look(num_files=num_files, folder_length=len(f"{self.paths.root}/"))
        indices = self.episode_index[first:stop].tolist()
        lengths = self.length[first:stop].tolist()
        seen: list[list[_Facts]] = []
        for stream in self.streams:
            look.stream = stream
            paths = list(self.paths.absolute(stream, indices))
            forget_old_names(paths)
            if stream == DATA_STREAM:
                facts = self._look_at_tables(paths, indices, lengths, first, look)
            else:
                facts = self._look_at_clips(paths, indices, lengths, look)
            seen.append(facts)
            numbers = np.array([fact.numbers for fact in facts], SLICE_NUMBERS)
            kinds = [fact.kind for fact in facts]
            look.slices.append(SeenSlices(stream, np.arange(first, stop), numbers, kinds))
        self._compare_lengths(seen, indices, lengths, look)
        return look

    def _look_at_tables(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        first: int,
        look: Look,
    ) -> list[_Facts]:
        found: list[_Facts] = []
        seen: list[tuple[int, Extremes]] = []
        for path, index, length in zip(paths, indices, lengths, strict=True):
            look.episode, look.file = index, path
            row_facts = RowFacts()
            extremes: Extremes = {}
            try:
                with self._opened_table(path) as table:
                    file = facts_of_opened(path, table.table.status, self.fleeting_inodes)
                    kind, rows = self._kind_of(table), table.rows
                    facts = _Facts(*file, rows, table.uncompressed_bytes, kind=kind, in_place=rows)
                    # Some rows of a table with a wrong number of rows may be kept.
                    if facts.frames and length:
                        extremes = table.extremes
                        row_facts = self._check_table(table, extremes, look)
                    if facts.frames != length:  # statistics that do not fit are no surprise
                        extremes = {}
            except (OSError, UnreadableSourceError) as error:
                facts = _unread(error, look)
            found.append(facts)
            look.rows.append(row_facts)
            seen.append((length, extremes))
        if self.stats is not None:
            self._look_at_stats(*self.stats, first, indices, seen, look)
        return found

    def _look_at_stats(
        self,
        path: Path,
        offsets: IntArray,
        first: int,
        indices: Sequence[int],
        seen: Sequence[tuple[int, Extremes]],
        look: Look,
    ) -> None:
        """Check the lines of statistics of a block of episodes, given the rows of each."""
        rows, among = [], []
        lines = v2.read_lines(path, offsets[first : first + len(indices)].tolist())
        for place, line in enumerate(lines):
            if not seen[place][0]:
                continue  # nobody expects statistics of an episode without frames
            what = "no statistics" if line is None else "a line without statistics"
            said = f"{v2.STATS_PATH} has {what} of episode {indices[place]}."
            stats = None
            try:
                record = {} if line is None else v2.parse_line(path, line)
                if line is None or record.get("episode_index") == indices[place]:
                    stats = record.get("stats")
                else:
                    said = f"{v2.STATS_PATH} gives episode {indices[place]} a second episode_index."
            except UnreadableSourceError as error:
                said = shown(error.message)
            if isinstance(stats, dict):
                rows.append(stats)
                among.append(place)
                continue
            look.episode = indices[place]
            look.sight("missing-stats", said, path=v2.STATS_PATH)
            for name in self._check_stats.features:
                look.missing_stats.setdefault(name, []).append(indices[place])
        if rows:
            episodes, known = [indices[n] for n in among], [seen[n] for n in among]
            self._check_stats(StatsBlock(rows), episodes, look, known)

    def _opened_table(self, path: str) -> tables.DataFile:
        try:
            return tables.DataFile(path)
        except UnreadableSourceError:
            # Another kind of file, or one that cannot be opened, raises when its status is read.
            facts_of_opened(path, status_now(path), self.fleeting_inodes)
            raise

    def _look_at_clips(
        self,
        paths: Sequence[str],
        indices: Sequence[int],
        lengths: Sequence[int],
        look: Look,
    ) -> list[_Facts]:
        found: list[_Facts] = []
        clips = media.read_clips(paths)
        for path, index, length, (stored, clip) in zip(paths, indices, lengths, clips, strict=True):
            look.episode, look.file = index, path
            try:
                # A file that cannot be read gives the reason when its status is read.
                status = status_now(path) if stored is None else stored.status
                file = facts_of_opened(path, status, self.fleeting_inodes)
                found.append(self._clip_facts(clip, file, length, look))
            except (OSError, UnreadableSourceError) as error:
                found.append(_unread(error, look))
        return found

    def _clip_facts(
        self,
        clip: media.ClipIndex | UnreadableSourceError,
        file: tuple[int, int, int],
        length: int,
        look: Look,
    ) -> _Facts:
        cut_off = clip if isinstance(clip, media.TruncatedClipError) else None
        if cut_off is None:
            clip, seconds = usable_clip(clip, self.fps, look)
        else:
            clip, seconds = cut_off.index, None
        frames = len(clip.sizes)
        in_place = frames
        if length and frames:
            if seconds is None:
                late = clip.frames_off_their_place(self.fps)
            else:  # as it was before the remux
                off = np.abs(seconds * float(self.fps) - np.arange(len(seconds)))
                late = np.flatnonzero(off >= 0.5)
            if len(late):  # frames may be lost before it
                in_place = int(late[0])
            if not clip.keyframes[0]:
                look.say("no-keyframe", f"{shown(look.path)} does not begin with a keyframe.")
            elif len(late) and frames == length:
                look.sight(
                    "frame-times",
                    f"{shown(look.path)}: the times of {len(late)} of {length} frames differ from "
                    "frame / fps by at least half of 1 / fps. The result places the frames by "
                    "their order.",
                )
        if cut_off is not None:
            in_place = min(in_place, cut_off.whole_frames)
            look.say("unreadable-file", shown(cut_off.message), whole_frames=in_place)
        self._check_clip[look.stream](clip, look)
        if clip.config_key not in look.clips:
            look.clips[clip.config_key] = ClipFacts.of(clip)
        misfit = clip.misfit(self.fps) if seconds is None else Misfit.REMUXED
        kind, is_cut_off = clip.config_key, cut_off is not None
        return _Facts(*file, frames, file[0], misfit, kind, in_place, is_cut_off)

    def _compare_lengths(
        self,
        seen: Sequence[Sequence[_Facts]],
        indices: Sequence[int],
        lengths: Sequence[int],
        look: Look,
    ) -> None:
        """Compare the frames of each episode's slices with its length."""
        wrong = {
            place
            for facts in seen
            for place, (fact, length) in enumerate(zip(facts, lengths, strict=True))
            if fact.frames != length and fact.kind
        }
        for place in sorted(wrong):
            index, length = indices[place], lengths[place]
            table, *clips = [facts[place] for facts in seen]
            look.episode = index
            frames = sorted({clip.frames for clip in clips if clip.kind})
            # Nothing is in place in a file that cannot be read.
            whole = min(fact.in_place for fact in (table, *clips))
            if not length or {fact.frames for fact in (table, *clips)} != {whole}:
                # If all files agree, only the length is wrong.
                whole = min(length, whole)
            says = f"{v2.EPISODES_PATH} says {length}"
            for stream, facts in zip(self.streams, (table, *clips), strict=True):
                if not facts.kind or facts.frames == length or facts.is_cut_off:
                    continue
                look.stream, look.file = stream, next(self.paths.absolute(stream, [index]))
                if facts is table:
                    videos = (
                        f", its videos have {' and '.join(map(str, frames))} frames"
                        if frames
                        else ""
                    )
                    has = count(facts.frames, "row")
                    said = f"{shown(look.path)} has {has}, {says}{videos}."
                    look.say("row-count", said, whole_frames=whole)
                else:
                    rows = f", its table has {table.frames} rows" if table.kind else ""
                    has = count(facts.frames, "frame")
                    said = f"{shown(look.path)} has {has}, {says}{rows}."
                    look.say("frame-count", said, whole_frames=whole)


class TableKinds:
    """Knows what equal tables share: names and types of columns, and lengths of their lists.

    Threads may share it: it only remembers schemas, to be faster.
    """

    def __init__(self) -> None:
        self._columns: dict[object, tuple[pa.Schema, str]] = {}

    def __call__(self, table: tables.DataFile) -> str:
        """Return the kind of a table, which is never empty."""
        key = table.schema_key
        known = self._columns.get(key)
        if known is None:
            schema = tables.read_data_schema(table.path)
            twice = [name for name, times in Counter(schema.names).items() if times > 1]
            if twice:
                raise UnreadableSourceError(
                    f"Columns of {table.path} have the same name, {shown(twice[0])}.",
                    path=table.path,
                )
            kind = "\n".join(sorted(f"{field.name!r}: {field.type}" for field in schema)) or "none"
            known = schema, kind
            # pandas stores the number of rows, so every file may have its own schema.
            if len(self._columns) >= _KEPT_SCHEMAS:
                self._columns.clear()
            self._columns[key] = known
        schema, kind = known
        for name, lengths in table.lengths(schema).items():
            kind += f"\n{name!r} of {lengths}"
        return kind


def _unread(error: OSError | UnreadableSourceError, notes: ObservationLog) -> _Facts:
    """Report why a file cannot be read. A missing file is reported once all are known."""
    return _MISSING if say_unread(error, notes) else _Facts()


def say_unread(error: OSError | UnreadableSourceError, notes: ObservationLog) -> bool:
    """Report why a file cannot be read; return whether it is missing, which is reported later."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return True
    _refuse_if_the_file_may_be_sound(error, notes)
    if v2.is_pointer(notes.file):
        v2.refuse_pointers(Path(notes.file[: notes.folder_length]), met_one=True)
    if isinstance(error, UnreadableSourceError):
        said = shown(error.message)
    else:
        said = f"{shown(notes.path)} cannot be read: {shown(error.strerror or str(error))}."
    notes.say("unreadable-file", said)
    return False


# The answers to an unusual kind of file and to a wrong name; Arrow's errors about content have no
# number.
_FAULTS_OF_A_FILE = frozenset([None, errno.EINVAL, errno.EISDIR, errno.ENOENT, errno.ENOTDIR])
_FAULTS_OF_A_FILE |= {errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


def _refuse_if_the_file_may_be_sound(
    error: OSError | UnreadableSourceError, notes: ObservationLog
) -> None:
    """Raise errors that are not the episode's fault: dropping the episode would lose good data."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, pa.ArrowMemoryError):
        cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if not isinstance(cause, OSError) or cause.errno in _FAULTS_OF_A_FILE:
        return
    # A damaged disk says this, but so does a server that no longer answers.
    if cause.errno == errno.EIO and not mount_of(Path(notes.file).parent).is_remote:
        return
    if isinstance(cause, PermissionError):
        message, next_step = denied(notes.file)
        raise UnreadableSourceError(message, path=notes.file, next_step=next_step) from cause
    with suppress(OSError), storage_errors(notes.file):
        raise cause
    if type(cause).__module__ == "builtins":  # FFmpeg has numbers for damaged content, too
        said = f"Cannot use {notes.file}: {cause.strerror}."
        raise StorageError(said, path=notes.file, next_step=CHECK_DISK) from cause


def usable_clip(
    found: media.ClipIndex | UnreadableSourceError, fps: Fraction, notes: ObservationLog
) -> tuple[media.ClipIndex, FloatArray | None]:
    """Return the index by which a clip's packets are moved; raise if there is none.

    Reports what is done about the clip. For a clip that has to be remuxed, also returns the times
    at which it shows its frames now.
    """
    seconds = None
    if isinstance(found, media.UnsupportedClipError):
        notes.sight(
            "remux",
            f"{shown(notes.path)} is first written into a plain MP4, without "
            f"encoding: {found.reason}.",
        )
        found, seconds = index_of_remuxed(notes.file, fps)
    elif isinstance(found, UnreadableSourceError):
        raise found
    elif media.may_be_damaged(found):
        media.check_decodes(found)
    if found.other_tracks:
        tracks = ", ".join(map(shown, found.other_tracks))
        said = f"{shown(notes.path)} also has {tracks} tracks, which are left out."
        notes.sight("other-tracks", said)
    return found, seconds


def index_of_remuxed(path: str, fps: Fraction) -> tuple[media.ClipIndex, FloatArray]:
    """Return the index of a clip after a remux, and the times at which it shows its frames now.

    The times are seconds, ascending.
    """
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        seconds = media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain), seconds
    finally:
        shutil.rmtree(folder)
