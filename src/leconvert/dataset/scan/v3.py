"""The scan of a v3.0 dataset: it looks at each file once, and finds every episode's slice.

No single number decides about the rows and frames of an episode. Rows are in the order of the
file's episodes; if there are others in between, the column ``episode_index`` finds them. Frames are
counted if the lengths of a file's episodes add up to its frames. If not, as in trimmed files, an
episode begins at ``from_timestamp * fps``.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from leconvert import media, tables
from leconvert.dataset.files import special_files
from leconvert.dataset.findings import Observation, ObservationLog, said_of_empty
from leconvert.dataset.formats import v3
from leconvert.dataset.formats.v2 import left_over_tables, read_info, refuse_pointers
from leconvert.dataset.scan.changes import facts_of_opened
from leconvert.dataset.scan.dataset_checks import check_declarations
from leconvert.dataset.scan.file_checks import (
    NO_INDEX,
    NOT_KNOWN,
    ClipFacts,
    RowFacts,
    StatsCheck,
    clip_checks,
    steps_are_even,
)
from leconvert.dataset.scan.gathering import (
    NO_TASK,
    SLICE_NUMBERS,
    EpisodeTable,
    Look,
    ScannedSource,
    Scanner,
    SeenSlices,
    TaskTable,
    gather,
)
from leconvert.dataset.scan.v2 import TableKinds, say_unread, usable_clip
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import (
    DATA_STREAM,
    LEROBOT_TOLERANCE_SECONDS,
    NO_FILE,
    BoolArray,
    Finding,
    FloatArray,
    IntArray,
    Misfit,
    stream_of_camera,
    v3_file_key,
)
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.support.file_calls import devices_with_fleeting_inodes
from leconvert.support.parallel import Spread
from leconvert.support.progress import Progress
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.tables.arrow import floats
from leconvert.workdir.fs import forget_old_names, status_now

_SHARES_FRAMES = "shares frames with another episode"


def read_v3_source(
    root: Path,
    options: RepairOptions,
    selection: EpisodeSelection,
    to: str,
    progress: Progress,
    spread: Spread | None,
) -> ScannedSource:
    """Read the tables of a v3.0 dataset, and look at all files that selected episodes lie in.

    Tables that are missing are derived. If the dataset names wrong files and the right ones exist,
    the right ones are looked at: all further observations are about them.
    """
    if options.tasks_from is not None:
        raise UsageError(
            f"--tasks-from works only for v2.x datasets; {root} is {V3_VERSION}.",
            next_step="Leave this option out.",
        )
    raw = read_info(root)
    reading, remarks = reading_of_v3(root, raw, options)
    refuse_pointers(root)
    _refuse_special_tables(root)
    derived = v3.derive_tables(root, v3.Dataset(root, reading, info=raw).declared)
    for path, message in derived.said:
        said = f"{message} The conversion derives the table."
        remarks.append(Observation("derivable", said, path=path))
    dataset = v3.Dataset(root, replace(reading, derived_tables=derived.paths), info=raw)
    dataset.derived = derived
    source = _look_at_files(dataset, options, selection, to, progress, spread)
    return source._replace(remarks=[*remarks, *source.remarks])


def reading_of_v3(
    root: Path, raw: Mapping[str, Any], options: RepairOptions
) -> tuple[Repairs, list[Observation]]:
    """Return the repairs with which ``info.json`` of a v3.0 dataset is read, and why."""
    reading, remarks = options.reading, []
    if raw.get("codebase_version") != V3_VERSION:
        reading = replace(reading, assumed_version=V3_VERSION)
        helps = (f"--assume-version {V3_VERSION}",)
        said = v3.said_of_version(raw)
        remarks.append(Observation("codebase-version", said, path=v3.INFO_PATH, helps=helps))
    declared, _ = v3.declaration(raw)
    if templates := v3.nameless_templates(root, declared):
        reading = replace(reading, path_templates=templates)
    for key, template in templates.items():
        said = v3.said_of_template(raw, key, template)
        remarks.append(Observation("path-template", said, path=v3.INFO_PATH))
    return reading, remarks


def _look_at_files(
    dataset: v3.Dataset,
    options: RepairOptions,
    selection: EpisodeSelection,
    to: str,
    progress: Progress,
    spread: Spread | None,
    *,
    may_locate: bool = True,
) -> ScannedSource:
    """Look at all files of a v3.0 dataset that selected episodes lie in.

    Args:
        may_locate: Whether to look for the right files in place of wrong ones.
    """
    root = dataset.root
    declared, declarations = dataset.declared, dataset.stored_features
    kept_cameras = [key for key in dataset.camera_keys if key not in options.drop_features]
    streams = [DATA_STREAM, *map(stream_of_camera, kept_cameras)]
    remarks = list(check_declarations(declarations))
    if left_over := left_over_tables(root):
        said = (
            f"{', '.join(left_over)}: these tables of v2.x are left behind, since v3.0 does "
            "not read them."
        )
        remarks.append(Observation("stray-file", said, path=left_over[0]))
    features = {key: ft for key, ft in declarations.items() if key not in options.drop_features}
    tasks, task_rows = _read_tasks(dataset, remarks)
    table = dataset.episodes = dataset.read_episodes(streams, task_rows)
    if tasks.listed and not len(table.task_ends):
        said = f"{v3.EPISODES_DIR} does not list the tasks of episodes, so the result will not "
        said += "list them either; rows keep their tasks."
        remarks.append(
            Observation("missing-tasks", said, path=v3.EPISODES_DIR, severity="warning", helps=())
        )
    kept = selection.keeps(
        np.arange(len(table)),
        lambda: (
            [tasks.listed[number][1] for number in table.tasks_of(row) if number >= 0]
            for row in range(len(table) if len(table.task_ends) else 0)
        ),
    )
    remarks += _range_remarks(root, dataset.contradictions)
    missing_stats = _check_stats(dataset, features, kept & (table.length > 0), remarks)
    routes = [
        routed for stream in table.placed for routed in v3.routed_files(table, declared, stream)
    ]
    wanted = [
        routed for routed in routes if routed.stream in streams and kept[routed.episodes].any()
    ]
    look = FileScanner(
        root,
        wanted,
        table,
        declared,
        features,
        None if task_rows is None else len(tasks.listed),
        devices_with_fleeting_inodes(),
        to == "v2.1",
    )
    gathered = gather(
        look,
        [(number,) for number in range(len(wanted))],
        {
            stream: v3_file_key(table.placed[stream].chunk, table.placed[stream].file)
            for stream in streams
        },
        kept,
        progress,
        spread,
        weights=[len(routed.episodes) for routed in wanted],
        num_files=len(wanted),
    )
    # A file also has episodes that are not selected.
    log = gathered.log
    log.remarks = [each for each in log.remarks if each.episode is None or kept[each.episode]]
    log.missing_stats = missing_stats
    if may_locate:
        located, seen = _locate_files(root, declared, table, wanted, log.remarks)
        if located:  # what else is wrong is told of the right files
            reading = located.reading(dataset.reading, declared, table)
            right = v3.Dataset(root, reading, info=dataset.stored_info)
            right.derived = dataset.derived
            source = _look_at_files(
                right, options, selection, to, progress, spread, may_locate=False
            )
            return source._replace(remarks=[*source.remarks, *seen])
    return ScannedSource(
        dataset,
        _episodes(table, kept, remarks),
        tasks,
        gathered,
        remarks,
        reads_stats=True,
    )


def _locate_files(
    root: Path,
    declared: v3.Declared,
    table: v3.EpisodeTable,
    routes: Sequence[v3.RoutedFile],
    remarks: Iterable[Observation],
) -> tuple[v3.Located, list[Observation]]:
    """Return the places of files that are not where the dataset says, and the observations."""
    wrong = v3.streams_in_doubt(remarks)
    for routed in routes:  # missing files are reported later, for all versions alike
        if not (root / routed.path).exists():
            wrong.setdefault(routed.stream, (None, f"{routed.path} is missing."))
    located = v3.locate_files(root, declared, table, sorted(wrong)) if wrong else None
    if not located:
        return v3.NOTHING_LOCATED, []
    said = [
        Observation("wrong-files", message, stream=stream, path=path)
        for path, stream, _, message in located.told(declared.raw, wrong)
    ]
    return located, said


def _refuse_special_tables(root: Path) -> None:
    """Refuse anything that must not be opened as a table; files of episodes are checked later."""
    for path in special_files(root):
        if path.startswith("meta/"):
            raise SourceError(
                f"{root / path} is a pipe, a socket or a device.",
                path=str(root / path),
                next_step="Put the file itself there, or move this out of the dataset.",
            )


def _read_tasks(
    dataset: v3.Dataset, remarks: list[Observation]
) -> tuple[TaskTable, dict[str, int] | None]:
    """Return the tasks by row, which readers use, and the rows of texts."""
    root = dataset.root
    texts, found = dataset.task_rows()
    told = {"missing-file": "missing-tasks", "unreadable-file": "missing-tasks"}
    told |= {"tasks-layout": "missing-tasks", "tasks-order": "task-gap"}
    for finding in found:
        code = told.get(finding.code)
        if code == "task-gap":
            said = (
                f"{v3.TASKS_PATH}: {finding.message} Readers find a task by its row number, and so "
            )
            said += f"does this conversion; `leconvert repair {shlex.quote(str(root))}` tells "
            said += "whether the rows or the numbers are right."
            remarks.append(Observation(code, said, path=v3.TASKS_PATH, severity="warning"))
        elif code is not None:
            said = f"{v3.TASKS_PATH}: {finding.message}"
            remarks.append(Observation(code, said, path=v3.TASKS_PATH, helps=()))
    listed = list(enumerate(texts or ()))
    of_text: dict[str, int] = {}
    first_index = {index: of_text.setdefault(text, index) for index, text in listed}
    if len(of_text) < len(listed):
        said = f"{v3.TASKS_PATH} lists {count(len(listed) - len(of_text), 'text')} again."
        remarks.append(Observation("task-duplicate", said, path=v3.TASKS_PATH, severity="warning"))
    table = TaskTable(listed, first_index, of_text, texts is not None, v3.TASKS_PATH)
    return table, None if texts is None else of_text


def _range_remarks(root: Path, found: Sequence[Finding]) -> Iterator[Observation]:
    for finding in found:
        if finding.code == "episode-order":
            raise SourceError(
                f"{root / v3.EPISODES_DIR} is not sorted by episode: {finding.message} "
                "Readers find an episode by its row number.",
                path=str(root / v3.EPISODES_DIR),
                next_step=f"`leconvert repair {shlex.quote(str(root))}` sorts or numbers the "
                "rows so that they fit dataset_from_index. If neither fits, sort the rows of all "
                "files by episode_index, from 0 without gaps.",
            )
        if finding.code == "episode-range":
            yield Observation("episode-range", finding.message, path=v3.EPISODES_DIR)


def _episodes(table: v3.EpisodeTable, kept: BoolArray, remarks: list[Observation]) -> EpisodeTable:
    """Return the selected episodes for the checks of all sources."""
    index = np.flatnonzero(kept)
    task = np.full(len(index), NO_TASK, dtype=np.int64)
    several: dict[int, frozenset[int]] = {}
    if len(table.task_ends):
        for place, row in enumerate(index.tolist()):
            listed = table.tasks_of(row)
            if len(listed) == 1 and min(listed) >= 0:
                task[place] = min(listed)
            else:
                several[place] = frozenset(listed) or frozenset([NO_TASK])
    for row in np.flatnonzero(kept & (table.length < 1)).tolist():
        said = f"{v3.EPISODES_DIR} gives episode {row} the length 0."
        remarks.append(Observation("empty-episode", said, row, path=v3.EPISODES_DIR))
    lists = sum(len(found) > 1 for found in several.values())
    if lists:
        said = f"{count(lists, 'episode')} have several tasks."
        remarks.append(Observation("several-tasks", said, path=v3.EPISODES_DIR))
    return EpisodeTable(
        index=index,
        listed=np.arange(len(table)),
        length=table.length[index],
        task=task,
        tasks=several,
        # No flag takes the tasks of rows from this table, so none is offered.
        has_one_text=np.zeros(len(index), np.bool_),
        num_texts=0,
        path=v3.EPISODES_DIR,
    )


def _check_stats(
    dataset: v3.Dataset,
    features: Mapping[str, Mapping[str, Any]],
    wanted: BoolArray,
    remarks: list[Observation],
) -> dict[str, list[int]]:
    """Return which features lack statistics, with the wanted episodes concerned."""
    check = StatsCheck(features, v3.EPISODES_DIR)
    log = ObservationLog(stream="episodes", file=v3.EPISODES_DIR)
    row = 0
    for block in dataset.episodes_reader.blocks(lambda name: name.startswith(v3.STATS_PREFIX)):
        stats = v3.stats_of_rows(block)
        chosen = wanted[row : row + len(stats)]
        episodes = (row + np.flatnonzero(chosen)).tolist()
        if episodes:
            check(stats[chosen], episodes, log)
        row += len(stats)
    if not row:  # no column at all
        said = f"{v3.EPISODES_DIR} has no statistics of episodes."
        remarks.append(Observation("missing-stats", said, path=v3.EPISODES_DIR))
        episodes = np.flatnonzero(wanted).tolist()
        return {name: list(episodes) for name in check.features}
    remarks += log.sightings.remarks()
    return log.missing_stats


@dataclass(eq=False)
class FileScanner(Scanner):
    """Looks at one file after another.

    Attributes:
        root: The dataset's folder.
        routes: The files.
        table: The places of all episodes.
        declared: The declarations of ``info.json``.
        features: Declared features, without those that are left out.
        num_tasks: Number of tasks; None if unknown.
        fleeting_inodes: Devices whose files have no lasting inode numbers.
        is_for_v21: Whether the distances of timestamps are checked as in LeRobot 0.3.3.
    """

    root: Path
    routes: Sequence[v3.RoutedFile]
    table: v3.EpisodeTable
    declared: v3.Declared
    features: Mapping[str, Mapping[str, Any]]
    num_tasks: int | None
    fleeting_inodes: frozenset[int] = frozenset()
    is_for_v21: bool = False

    def __post_init__(self) -> None:
        self._kinds = TableKinds()
        streams = dict.fromkeys(routed.stream for routed in self.routes)
        self._check_clip = clip_checks(streams, self.features, self.declared.fps)

    def __call__(self, number: int) -> Look:
        """Look at one of the files."""
        routed = self.routes[number]
        lengths = self.table.length[routed.episodes]
        kind, file = "", f"{self.root}/{routed.path}"
        look = Look(
            num_files=1,
            episode=int(routed.episodes[0]),
            stream=routed.stream,
            file=file,
            folder_length=len(file) - len(routed.path),
        )
        numbers = np.zeros(len(lengths), SLICE_NUMBERS)
        forget_old_names([file])
        try:
            facts = facts_of_opened(file, status_now(file), self.fleeting_inodes)
            numbers["file_bytes"], numbers["mtime_ns"], numbers["inode"] = facts
            if routed.stream == DATA_STREAM:
                kind = self._look_at_table(routed, lengths, numbers, look)
            else:
                kind = self._look_at_video(routed, lengths, numbers, look)
        except (OSError, UnreadableSourceError) as error:
            look.rows = [RowFacts()] * len(lengths)
            look.remarks.clear()
            if say_unread(error, look):
                numbers = np.zeros_like(numbers)
                numbers["file_bytes"] = NO_FILE
            look.remarks[:] = [
                replace(remark, episode=episode)
                for remark in look.remarks
                for episode in routed.episodes.tolist()
            ]
        kinds = [kind] * len(lengths)
        look.slices.append(SeenSlices(routed.stream, routed.episodes, numbers, kinds))
        return look

    def _look_at_table(
        self,
        routed: v3.RoutedFile,
        lengths: IntArray,
        numbers: npt.NDArray[np.void],
        look: Look,
    ) -> str:
        """Fill in the numbers of a table's slices, and return its kind."""
        with tables.DataFile(look.file) as table:
            kind = self._kinds(table)
            rows, group_rows, group_bytes = table.rows, table.footer.rows, table.group_bytes
            values = [name for name in v3.columns_of_values(self.declared) if name in table.columns]
            with_empty = [name for name in values if table.null_count(name) != 0]
        with pq.ParquetFile(look.file) as file:
            placed = v3.place_rows(file, routed, lengths)
            there = np.where(placed.first >= 0, np.minimum(placed.rows, lengths), 0)
            whole = dict(zip(routed.episodes.tolist(), there.tolist(), strict=True))
            for code, episode, said in placed.wrong:
                if episode is None:
                    look.sight(code, f"{said} They are left behind.")
                else:
                    look.episode = episode
                    look.say(code, said, whole_frames=whole[episode])
            look.rows = self._check_rows(file, with_empty, routed, placed.first, there, look)
        if lengths.tolist() != [rows]:
            numbers["misfit"] = Misfit.SHARED
        frames = placed.rows
        numbers["first"], numbers["frames"] = np.maximum(placed.first, 0), frames
        numbers["size_bytes"] = numbers["file_bytes"] * frames // max(1, rows)
        if group_rows == lengths.tolist():
            numbers["roll_bytes"] = group_bytes
        else:
            numbers["roll_bytes"] = sum(group_bytes) * frames // max(1, rows)
        return kind

    def _check_rows(
        self,
        file: pq.ParquetFile,
        with_empty: Sequence[str],
        routed: v3.RoutedFile,
        first: IntArray,
        rows: IntArray,
        look: ObservationLog,
    ) -> list[RowFacts]:
        """Compare the rows that were found for each episode, side by side."""
        is_there = rows > 0
        order = np.argsort(first[is_there], kind="stable")
        among = replace(routed, episodes=routed.episodes[is_there][order])
        first, rows = first[is_there][order], rows[is_there][order]
        check = v3.RowCheck(among, self.table, self.declared, self.num_tasks, first, rows)
        if len(among.episodes):
            check.read(file, with_empty)
        disordered = set(check.disordered)
        for episode in sorted(disordered):
            look.episode = episode
            look.say(
                "row-order",
                f"{shown(look.path)}: the rows of episode {episode} are in another order than "
                "their times or numbers.",
                severity="" if self._check_clip else "warning",
            )
        for column, code in v3.ROW_CODES.items():
            if column in ("index", "task_index"):
                continue  # reported from `RowFacts`
            mild = column == "timestamp" and not self._check_clip
            for episode, said in check.wrong_in(column).items():
                if episode in disordered:
                    continue
                look.episode = episode
                look.say(
                    code,
                    f"{shown(look.path)}: {column} is wrong, first in {said}.",
                    severity="warning" if mild else "",
                )
        for column, wrong in check.with_empty.items():
            said = said_of_empty(column, f"{count(wrong.count, 'row')} of {shown(look.path)}")
            for episode in sorted(wrong.episodes):
                look.episode = episode
                look.say("empty-values", said, feature=column)
        if self.is_for_v21 and "timestamp" in file.schema_arrow.names:
            self._check_steps(file, among, first, first + rows, look)
        unplaced = check.wrong_in("index").keys() - disordered
        untasked = check.wrong_in("task_index")
        has_index = "index" in file.schema_arrow.names
        facts = []
        for episode, compared in zip(routed.episodes.tolist(), is_there.tolist(), strict=True):
            begins = int(self.table.start[episode])
            facts.append(
                RowFacts(
                    begins if has_index and episode not in unplaced else NOT_KNOWN,
                    (NO_INDEX,) if episode in untasked else check.tasks.get(episode, ()),
                    was_looked_at=True,
                )
                if compared
                else RowFacts()
            )
        return facts

    def _check_steps(
        self,
        file: pq.ParquetFile,
        among: v3.RoutedFile,
        first: IntArray,
        stop: IntArray,
        look: ObservationLog,
    ) -> None:
        """Check the distances of timestamps as LeRobot 0.3.3 does when it opens a dataset.

        Memory is that of the rows of one episode, and of those that are read at a time.
        """
        spans = deque(zip(among.episodes.tolist(), first.tolist(), stop.tolist(), strict=True))
        held: FloatArray = np.zeros(0)  # times from row `begin` on
        begin = 0
        for batch in file.iter_batches(v3.ROWS_AT_A_TIME, columns=["timestamp"], use_threads=False):
            times = floats(batch.column(0))
            if times is None:
                return  # another finding reports that there are none
            held = np.concatenate([held, times])
            while spans and spans[0][2] <= begin + len(held):
                look.episode, *rows = spans.popleft()
                steps_are_even(held[rows[0] - begin : rows[1] - begin], self.declared.fps, look)
            if not spans:
                return
            passed = min(max(0, spans[0][1] - begin), len(held))
            held, begin = held[passed:], begin + passed

    def _look_at_video(
        self,
        routed: v3.RoutedFile,
        lengths: IntArray,
        numbers: npt.NDArray[np.void],
        look: Look,
    ) -> str:
        """Fill in the numbers of a video's slices, and return its decoder configuration."""
        fps = self.declared.fps
        try:
            found: media.ClipIndex | UnreadableSourceError = media.read_clip_index(look.file)
        except media.UnsupportedClipError as error:
            found = error
        clip, stored = usable_clip(found, fps, look)
        misfit = Misfit(0) if stored is None else Misfit.REMUXED
        if lengths.tolist() != [clip.num_samples]:
            misfit |= Misfit.SHARED
        else:
            misfit |= clip.misfit(fps)
        numbers["misfit"] = misfit
        look.clips[clip.config_key] = ClipFacts.of(clip)
        self._check_clip[routed.stream](clip, look)
        placed = v3.place_frames(clip.num_samples, routed, self.table, fps)
        seconds = np.sort(clip.presentation_times) / clip.timescale
        _say_places(placed, clip.num_samples, fps, look)
        wrong, whole = _not_there(placed, seconds, fps), _whole_frames(placed, seconds, fps)
        first, own = placed.first, placed.frames
        stop = first + own
        sound = (wrong == "") & (lengths > 0)
        usable = sound | ((own < lengths) & (whole > 0))
        begins, ends = v3.with_leads(clip, np.where(usable, first, 0), np.where(usable, stop, 0))
        for place, episode in enumerate(routed.episodes.tolist()):
            look.episode = episode
            if wrong[place]:
                code = "shared-frames" if wrong[place] == _SHARES_FRAMES else "frame-count"
                kept = int(whole[place]) if usable[place] and begins[place] >= 0 else 0
                said = f"{shown(look.path)}: episode {episode} {wrong[place]}."
                look.say(code, said, whole_frames=kept)
            elif sound[place] and begins[place] < 0:
                look.say(
                    "no-keyframe",
                    f"{shown(look.path)}: episode {episode} cannot be cut out without "
                    "encoding, since it does not begin with a keyframe or needs frames "
                    "of its neighbours.",
                )
        timed = sound & (np.rint(placed.begin_seconds * float(fps)) == first)
        _say_drift(placed, timed, seconds if stored is None else stored, fps, look)
        sound = usable & (begins >= 0)
        begins, ends = np.where(sound, begins, 0), np.where(sound, ends, 0)
        at = np.concatenate(([0], np.cumsum(clip.sizes)))
        numbers["first"], numbers["frames"] = begins, ends - begins
        numbers["lead"] = np.where(sound, first - begins, 0)
        numbers["size_bytes"] = numbers["roll_bytes"] = at[ends] - at[begins]
        return clip.config_key


def _say_places(
    placed: v3.PlacedFrames, num_frames: int, fps: Fraction, notes: ObservationLog
) -> None:
    """Report how the frames of episodes are found, if their times do not say the same."""
    if not placed.is_counted:
        frames = int(placed.length.sum())
        said = f"{shown(notes.path)} has {count(num_frames, 'frame')}, but its episodes have "
        said += f"{frames}." if frames != num_frames else "these in no certain order."
        said += " The frames of each episode are found by from_timestamp."
        notes.sight("frames-by-time", said)
        return
    off = np.flatnonzero(np.rint(placed.begin_seconds * float(fps)) != placed.first)
    if len(off):
        place = int(off[0])
        said = f"{shown(notes.path)}: from_timestamp of {count(len(off), 'episode')} is wrong, "
        said += f"the first is {placed.begin_seconds[place]:.6f}, but counting frames gives "
        said += f"{placed.first[place] / float(fps):.6f}. The result uses the number of frames."
        notes.sight("from-timestamp", said)


def _whole_frames(placed: v3.PlacedFrames, seconds: FloatArray, fps: Fraction) -> IntArray:
    """Return how many frames of each episode come before one that is not shown at its time.

    Frames may be lost before that one.
    """
    first, own, _, _, begin_seconds = placed
    whole = own.copy()
    for place in np.flatnonzero(own > 0).tolist():
        shown_at = seconds[first[place] : first[place] + own[place]] - begin_seconds[place]
        off = np.abs(shown_at * float(fps) - np.arange(own[place])) >= 0.5
        whole[place] = int(np.argmax(off)) if off.any() else own[place]
    return whole


def _not_there(
    placed: v3.PlacedFrames, seconds: FloatArray, fps: Fraction
) -> npt.NDArray[np.object_]:
    """Return why each episode's frames are not in the file; "" if they are."""
    first, own, _, lengths, begin_seconds = placed
    num_frames, wrong = len(seconds), np.full(len(first), "", dtype=object)
    stop = first + own
    beyond = own < lengths
    for place in np.flatnonzero(beyond).tolist():
        wrong[place] = f"ends beyond the last of its {count(num_frames, 'frame')}"
        if first[place] >= 0 and first[place] + own[place] < num_frames:
            wrong[place] = f"has {own[place]} of its {lengths[place]} frames before the next begins"
    order = np.lexsort((stop, first))
    order = order[own[order] > 0]
    shared = np.flatnonzero(first[order[1:]] < np.maximum.accumulate(stop[order])[:-1])
    for place in {*order[shared].tolist(), *order[shared + 1].tolist()}:
        wrong[place] = _SHARES_FRAMES
    if int(lengths.sum()) != num_frames:
        for place in np.flatnonzero((own > 0) & (wrong == "")).tolist():
            if abs(seconds[first[place]] - begin_seconds[place]) >= 0.5 / float(fps):
                wrong[place] = f"begins at {begin_seconds[place]:.6f} s, where no frame is shown"
    return wrong


def _say_drift(
    placed: v3.PlacedFrames,
    among: BoolArray,
    seconds: FloatArray,
    fps: Fraction,
    notes: ObservationLog,
) -> None:
    """Report how many frames LeRobot refuses for their times. A join makes the times exact."""
    off, worst = 0, 0.0
    for place in np.flatnonzero(among).tolist():
        begin, length = int(placed.first[place]), int(placed.length[place])
        wanted = placed.begin_seconds[place] + np.arange(length) / float(fps)
        distance = np.abs(seconds[begin : begin + length] - wanted)
        far = distance >= LEROBOT_TOLERANCE_SECONDS
        off += int(np.count_nonzero(far))
        worst = max(worst, float(distance.max(initial=0.0)))
    if off:
        frames = int(placed.length[among].sum())
        said = f"{shown(notes.path)}: {off:,} of {frames:,} frames lie 0.1 ms or more from their "
        said += f"time, by up to {worst:.6f} s. In the result all times are exact."
        notes.sight("drifted-times", said)
