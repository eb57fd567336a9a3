"""The check of one dataset by itself, without a source and without decoding a frame."""

from __future__ import annotations

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from leconvert.dataset.check.files import DataFileReport, check_data_file, check_video_file
from leconvert.dataset.check.meta import (
    EpisodeStats,
    check_order,
    check_stats,
    has_stats,
    left_over,
    provenance_findings,
    streaming_findings,
)
from leconvert.dataset.files import files_below, special_files
from leconvert.dataset.findings import all_named, found, grouped
from leconvert.dataset.formats import frame_rate, v3
from leconvert.dataset.formats.v2 import INFO_PATH, read_info, refuse_pointers
from leconvert.dataset.scan import reads_as_v3, scan_source
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.selection import EpisodeRanges
from leconvert.model.values import (
    DATA_STREAM,
    CountedFinding,
    Finding,
    FloatArray,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import V3_VERSION, unreadable
from leconvert.support.errors import SourceError, UnreadableSourceError, VerificationError
from leconvert.support.parallel import parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.tables import has_footer, row_group_rows

_SHOWN = 20
_SEVERITIES = ("error", "repaired", "warning", "info")
# Threads help: reading and arithmetic do not need Python's lock. Parsing does.
_THREADS = 2
# With one of these findings, the number of right rows is unknown.
_ROWS_IN_DOUBT = {"row-count", "stray-rows", "stray-data"}
# With one of these findings, the row of a task's text is unknown.
_TASKS_IN_DOUBT = {"tasks-order", "task-duplicate"}
_END_OR_RESTORE = (
    "If the program that records the dataset still runs, let it end by itself. If not, restore the "
    "file from another copy."
)
# With one of these findings, a table below ``meta/`` may have to be derived.
_DERIVED_FOR = frozenset({"tasks-layout", "missing-file", "stale-total"})


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """The outcome of a check.

    Attributes:
        root: The dataset.
        version: Its ``codebase_version``.
        findings: Errors first; of similar findings, only the first.
        episodes: Number of episodes.
        frames: Number of rows.
        files: Number of data and video files that were checked.
        seconds: The time that the check took.
    """

    root: str
    version: str
    findings: tuple[CountedFinding, ...]
    episodes: int
    frames: int
    files: int
    seconds: float

    def count(self, severity: str) -> int:
        """Return the number of findings of one severity, including similar ones."""
        return sum(each.count for each in self.findings if each.severity == severity)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        counts = {f"{severity}s": self.count(severity) for severity in ("error", "warning", "info")}
        return {"ok": not counts["errors"], **counts, **asdict(self)}


def check_dataset(root: Path, *, progress: Progress = NO_PROGRESS) -> DatasetReport:
    """Check a dataset of version v2.x or v3.0.

    A v2.x dataset is scanned as for a conversion without repairs. In a v3.0 dataset, every table,
    the index columns of every row, and the index of every video are read. Nothing is written, and
    no frame is decoded.
    """
    started = time.monotonic()
    raw = read_info(root)
    refuse_pointers(root)
    version = V3_VERSION
    if not reads_as_v3(root):
        try:
            scan = scan_source(root, progress=progress)
        except SourceError as error:
            if frame_rate(raw.get("fps")) is None:  # a check has no option for it
                convert = shlex.join(["leconvert", "convert", str(root)])
                error.next_step = (
                    f"`{convert} --output DIR --assume-fps FPS` converts the dataset. FPS are the "
                    "frames per second of the recording."
                )
            raise
        version = scan.only.codebase_version
        findings, episodes, frames = scan.findings, scan.num_episodes, scan.num_frames
        files = scan.num_episodes * len(scan.streams)
    else:
        with checked(root, raw, progress) as check:
            pass
        findings, episodes, frames = check.findings, check.episodes, check.frames
        files = sum(map(len, check.files.values()))
    named = all_named(grouped(findings), root)
    kept = sorted(named, key=lambda finding: _SEVERITIES.index(finding.severity))
    seconds = time.monotonic() - started
    return DatasetReport(str(root), version, tuple(kept), episodes, frames, files, seconds)


def checked_result(
    result: Path, versions: Sequence[str] = ("v3.0",), *, progress: Progress = NO_PROGRESS
) -> dict[str, Any]:
    """Return the info.json of a complete dataset of some versions, before an upload."""
    info = read_info(result)
    version = info.get("codebase_version")
    if wrong := unreadable(info, str(result)):
        raise wrong
    if version not in versions:
        raise SourceError(
            f"{result} is {version}, but only {' and '.join(versions)} datasets can be uploaded.",
            path=str(result),
            next_step="Convert the dataset first with `leconvert convert`.",
        )
    report = check_dataset(result, progress=progress)
    if number := report.count("error"):
        errors = [finding for finding in report.findings if finding.severity == "error"]
        raise VerificationError(
            f"{result} is not a complete {version} dataset: it has {count(number, 'error')}.",
            path=str(result),
            next_step="`leconvert check` lists the errors. Nothing was uploaded.",
            details=[f"{finding.code}: {finding.message}" for finding in errors[:_SHOWN]],
        )
    return info


@dataclass(frozen=True, slots=True, eq=False)
class NewOrder:
    """Tables below ``meta/`` with other rows, another order of rows, or other files than stored.

    Attributes:
        episodes: The stored row of each episode, shape (E,); None if unchanged.
        tasks: The stored row of each task, shape (T,); None if unchanged.
        task_numbers: The number of each of these tasks in data rows, ascending; None for its row.
        places: The places of the episodes in the files of some streams, in this order.
    """

    episodes: IntArray | None = None
    tasks: IntArray | None = None
    task_numbers: IntArray | None = None
    places: Mapping[str, v3.StreamPlaces] = field(default_factory=dict)


AS_STORED = NewOrder()


class DatasetCheck:
    """A check of a v3.0 dataset, step by step. A step that is impossible leaves findings.

    Args:
        root: The dataset.
        raw: Its ``info.json``.
        progress: Receives the progress.
        order: Other rows of the tables to check the dataset with, numbered in their order.

    Attributes:
        root: The dataset.
        findings: All findings, including similar ones.
        declared: The content of ``info.json``; None if nothing can be checked by it.
        table: The content of ``meta/episodes``, with the lengths that count; None if nothing can be
            read by it.
        files: The files of each stream, if known, in the order of their episodes.
        tasks: The text of each row of ``meta/tasks.parquet``; None if the table is unusable.
        other_tasks: For each data file, the episodes for which ``meta/episodes`` lists other tasks
            than the rows have.
        stats: The sum of the episodes' statistics, by feature.
        episodes: Number of episodes.
        frames: Number of rows.
        untimed: Whether an episode's timestamps are wrong, shape (E,).
        located: The real places of files that are elsewhere than stated; later checks use them.
        misplaced: The findings about such files and about derived tables.
        derived: The derived tables; None if there are none.
    """

    def __init__(
        self,
        root: Path,
        raw: Mapping[str, Any],
        progress: Progress = NO_PROGRESS,
        order: NewOrder = AS_STORED,
    ) -> None:
        self._order = order
        self.root = root
        self._raw = raw
        self._progress = progress
        self.findings: list[Finding] = []
        self.declared: v3.Declared | None = None
        self.table: v3.EpisodeTable | None = None
        self.files: Mapping[str, list[v3.RoutedFile]] = {}
        self.tasks: Sequence[str] | None = None
        self.other_tasks: dict[str, Mapping[int, v3.OtherTasks]] = {}
        self.stats: Mapping[str, Mapping[str, FloatArray]] = {}
        self.episodes = 0
        self.frames = 0
        self.untimed = np.zeros(0, np.bool_)
        self.located = v3.NOTHING_LOCATED
        self.misplaced: list[Finding] = []
        self.derived: v3.DerivedView | None = None
        self._run()

    def _run(self) -> None:
        self.findings = list(self._unreadable())
        if self.findings:
            return
        declared, self.findings = v3.declaration(self._raw)
        texts, findings = v3.read_task_rows(self.root, self._raw)
        if self._order.tasks is not None and texts is not None:
            texts = [texts[row] for row in self._order.tasks]
            findings = [finding for finding in findings if finding.code != "tasks-order"]
        self.findings += findings
        if declared is None:
            return
        self.declared = declared
        streams = [DATA_STREAM, *map(stream_of_camera, declared.cameras)]
        in_doubt = any(finding.code in _TASKS_IN_DOUBT for finding in findings)
        task_rows = None
        if texts is not None and not in_doubt:
            task_rows = {text: row for row, text in enumerate(texts)}
        self.tasks = texts
        # Policies do not normalise columns that count, but tools also aggregate their statistics.
        with_stats = [
            key for key, ft in declared.features.items() if has_stats(ft) or key in DEFAULT_COLUMNS
        ]
        stats = EpisodeStats(with_stats)
        reader = v3.EpisodesReader(self.root)
        table, findings = v3.read_episode_table(
            reader, streams, task_rows=task_rows, add_stats=stats.add
        )
        self.findings += findings
        if table is not None:
            self.findings += stats.findings()
            self.findings += _with_other_columns(reader)
        self.stats = stats.aggregate()
        longest = 1 if table is None else int(table.length.max())
        self.findings += check_stats(self.root, declared.features, self.stats, longest)
        if table is None:
            if not findings:
                self.findings.append(found("no-episodes", "meta/episodes has no rows."))
            self.findings += self._unreadable_tables(declared)
            return
        if self._order.episodes is not None:
            table = table.in_order(self._order.episodes)
        table = replace(table, placed={**table.placed, **self._order.places})
        self.table, findings = v3.check_ranges(table, declared)
        self.findings += findings
        self.findings += v3.split_findings(self._raw, len(table))
        self.episodes, self.frames = len(table), int(self.table.length.sum())
        self._check_files(declared, self.table, streams)

    def _unreadable(self) -> Iterator[Finding]:
        """Yield files that must not be opened, and the reason why LeRobot could not even begin."""
        for path in sorted(special_files(self.root)):
            yield found("unreadable-file", f"{path} is a pipe, a socket or a device.", path=path)
        try:
            v3.read_json_object(self.root / INFO_PATH)
        except (OSError, ValueError) as error:
            yield found("unreadable-file", f"{INFO_PATH} cannot be read: {error}", path=INFO_PATH)

    def _unreadable_tables(self, declared: v3.Declared) -> Iterator[Finding]:
        """Yield data files from which the episodes do not follow, since they cannot be read."""
        if DATA_STREAM not in declared.templates:
            return
        for _, _, path in v3.files_there(self.root, declared, DATA_STREAM):
            try:
                row_group_rows(self.root / path)
            except UnreadableSourceError as error:
                said = error.message.replace(f"{self.root}/", "")
                finding = found("unreadable-file", said, stream=DATA_STREAM, path=path)
                yield replace(finding, remedy=_END_OR_RESTORE)

    def _check_files(
        self, declared: v3.Declared, table: v3.EpisodeTable, streams: list[str]
    ) -> None:
        files = {
            stream: v3.routed_files(table, declared, stream)
            for stream in streams
            if stream in declared.templates and stream in table.placed
        }
        self.findings += check_order(files.get(DATA_STREAM, []))
        self.findings += streaming_findings(files)

        every = [routed for routes in files.values() for routed in routes]
        tables = [routed for routed in every if routed.stream == DATA_STREAM]
        videos = every[len(tables) :]
        self.untimed = untimed = np.zeros(len(table), np.bool_)

        def table_report(routed: v3.RoutedFile) -> DataFileReport:
            num_tasks = None if self.tasks is None else len(self.tasks)
            numbers = self._order.task_numbers
            return check_data_file(self.root, routed, table, declared, num_tasks, numbers)

        def video_findings(routed: v3.RoutedFile) -> list[Finding]:
            return check_video_file(self.root, routed, table, declared, untimed)

        with self._progress.stage("check", len(every), "files") as stage:
            reports = list(_each(table_report, tables, stage))
            self._add_table_reports(tables, reports)
            for report in reports:
                if report.untimed is not None:
                    untimed[report.untimed] = True
            for found_here in _each(video_findings, videos, stage):
                self.findings += found_here
        self.findings = list(_without_circles(self.findings, videos))
        self.files = files
        paths = {routed.path: None for routed in every}
        self.findings += left_over(self.root, paths, len(files) == len(streams), declared)
        self.findings += provenance_findings(self.root, self.episodes)
        self._locate_files(declared, table, set(streams) - files.keys())
        self._tell_of_cameras_elsewhere()
        if any(each.code in _ROWS_IN_DOUBT for each in self.findings):
            # A repair cannot tell how many rows are right.
            self.findings = [
                replace(each, remedy=None) if each.code == "stale-total" else each
                for each in self.findings
            ]

    def _locate_files(
        self, declared: v3.Declared, table: v3.EpisodeTable, nameless: Collection[str]
    ) -> None:
        """Find files that fit in place of the stated ones; use them, and report it."""
        wrong = v3.streams_in_doubt(self.findings)
        for stream in nameless:
            wrong[stream] = (None, f"The path template of {stream} matches no file.")
        if not wrong:
            return
        located = v3.locate_files(self.root, declared, table, sorted(wrong))
        if not located:
            return
        order = replace(self._order, places={**self._order.places, **located.places})
        raw, missing = self._raw, self._missing
        right = DatasetCheck(self.root, {**raw, **located.info}, self._progress, order)
        finds_more = right._missing < missing or (nameless and right._missing <= missing)
        if (located.info and not finds_more) or right._missing & located.places.keys():
            return
        vars(self).update(vars(right))
        self.located = v3.Located({**right.located.info, **located.info}, order.places)
        told = []
        for path, of_stream, episode, message in located.told(raw, wrong):
            code = "path-template" if of_stream is None and nameless else "wrong-files"
            told.append(found(code, message, episode=episode, stream=of_stream, path=path))
        self.misplaced += told
        self.findings += told

    def _tell_of_cameras_elsewhere(self) -> None:
        """Report where a camera's videos are, if only those of other cameras fit the template."""
        missing = self._missing
        gone = {
            stream: files[0].path
            for stream, files in self.files.items()
            if stream in missing and not any((self.root / each.path).exists() for each in files)
        }
        if not any(camera_of(stream) and stream not in gone for stream in self.files):
            return
        for stream, example in gone.items():
            camera = camera_of(stream)
            videos = (path for path, _ in files_below(self.root) if path.endswith(".mp4"))
            near = min((path for path in videos if camera and camera in path), default=None)
            if camera is None or near is None:
                continue
            self.findings = [
                each
                for each in self.findings
                if not (each.code == "missing-file" and each.stream == stream)
                and not (each.code == "stray-file" and camera in (each.path or ""))
            ]
            said = f"{camera} has no video at {example}; the disk has {near}."
            self.findings.append(found("misplaced-file", said, stream=stream, path=near))

    @property
    def _missing(self) -> set[str | None]:
        """Return the streams with missing files."""
        return {each.stream for each in self.findings if each.code == "missing-file"}

    def _add_table_reports(
        self, tables: Sequence[v3.RoutedFile], reports: Sequence[DataFileReport]
    ) -> None:
        columns: tuple[tuple[str, str], ...] | None = None
        for routed, report in zip(tables, reports, strict=True):
            self.findings += report.findings
            if report.other_tasks:
                self.other_tasks[routed.path] = report.other_tasks
            columns = columns or report.columns
            if report.columns is not None and report.columns != columns:
                message = f"{routed.path} has other columns or types than the first data file."
                self.findings.append(routed.wrong("schema-mismatch", message))


@contextmanager
def checked(
    root: Path, raw: Mapping[str, Any], progress: Progress = NO_PROGRESS
) -> Iterator[DatasetCheck]:
    """Yield a check of a v3.0 dataset, with derived tables as far as necessary and possible.

    In the block, `DatasetCheck.root` is then a view with these tables.
    """
    check = None if v3.says_another_version(root, raw) else DatasetCheck(root, raw, progress)
    may_derive = check is None or any(
        each.code in _DERIVED_FOR or _ends_without_a_footer(root, each) for each in check.findings
    )
    with v3.derived_meta(root, raw) if may_derive else nullcontext() as derived:
        if derived is not None:
            check = DatasetCheck(derived.root, derived.raw, progress)
            check.derived = derived
            told = [found(code, message, path=path) for code, path, message in derived.said]
            check.misplaced += told
            check.findings += told
        # Without derived tables, the check itself says what is wrong.
        yield check or DatasetCheck(root, raw, progress)


def _with_other_columns(reader: v3.EpisodesReader) -> Iterator[Finding]:
    """Yield the files of meta/episodes that LeRobot cannot read together with the first one."""
    for path, names in reader.misfits():
        said = f"{path} has {count(len(names), 'column')} that the first file of meta/episodes "
        said += f"lacks or has in another type, such as {names[0]!r}."
        yield found("schema-mismatch", said, stream="episodes", path=path, severity="error")


def _ends_without_a_footer(root: Path, finding: Finding) -> bool:
    """Return whether a finding is about a table of episodes without a footer."""
    path = finding.path or ""
    return path.startswith(f"{v3.EPISODES_DIR}/") and not has_footer(root / path)


def _without_circles(findings: list[Finding], videos: Sequence[v3.RoutedFile]) -> Iterator[Finding]:
    """Yield findings; advise no conversion that would declare of a camera what is declared."""
    episodes = {routed.path: routed.episodes for routed in videos}
    all_of: Counter[str | None] = Counter()
    differing: defaultdict[tuple[str, str | None], list[IntArray]] = defaultdict(list)
    for routed in videos:
        all_of[routed.stream] += len(routed.episodes)
    for finding in findings:
        if finding.path in episodes:
            differing[finding.code, finding.stream].append(episodes[finding.path])
    for finding in findings:
        others = differing[finding.code, finding.stream]
        is_rare = 2 * sum(map(len, others)) < all_of[finding.stream]
        if finding.code == "codec-mismatch" and is_rare:
            yield replace(finding, severity="info", remedy=None)
        elif finding.code == "shape-mismatch" and is_rare:
            numbers = EpisodeRanges.of_episodes(np.unique(np.concatenate(others)))
            convert = (
                f"leconvert convert DATASET NEW --exclude-episodes {shlex.quote(str(numbers))}"
            )
            helps = (
                f"`{convert}` leaves the episodes of another size out. LeRobot cannot put frames "
                "of two sizes into one batch."
            )
            yield replace(finding, remedy=helps)
        else:
            yield finding


def _each[Seen](
    look: Callable[[v3.RoutedFile], Seen], files: Sequence[v3.RoutedFile], stage: Stage
) -> Iterator[Seen]:
    for seen in parallel_map(look, [(routed,) for routed in files], threads_here=_THREADS):
        stage.advance(1)
        yield seen
