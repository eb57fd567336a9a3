"""The scan: every file of a source looked at once, nothing of it kept but numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np

from leconvert import tables
from leconvert.errors import SourceError
from leconvert.model import DATA_STREAM, IntArray, SourceScan, StreamScan, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.repairs import RepairOptions, Repairs
from leconvert.source.catalogue import check_accepted
from leconvert.source.changes import meta_digest
from leconvert.source.episode_table import (
    EpisodeTable,
    TaskTable,
    read_episode_table,
    read_task_table,
)
from leconvert.source.gathered import Gathered, Gatherer
from leconvert.source.info import INFO_PATH, DatasetInfo, load_info
from leconvert.source.info_checks import (
    check_columns,
    check_declarations,
    check_images,
    check_totals,
    is_of_numbers,
)
from leconvert.source.legacy import STATS_PATH, EpisodeLines
from leconvert.source.looker import Looker
from leconvert.source.paths import PathTemplateError, SourcePaths
from leconvert.source.seen import Remark, counted, shown
from leconvert.source.settle import (
    Settled,
    SourceFacts,
    check_dropped_features,
    computes_all_stats,
    settle,
)
from leconvert.source.survey import Survey, survey_folder
from leconvert.source.whole_checks import (
    DataColumns,
    absent_features,
    check_files,
    check_global_index,
    check_tasks,
    codec_changes,
    common_columns,
    dropped_phantoms,
    expected_totals,
    has_first_clip,
)
from leconvert.spread import Spread, do_all
from leconvert.workdir.mounts import devices_with_fleeting_inodes

__all__ = ["scan_source"]

_EPISODES_PER_BLOCK = 32


def scan_source(
    root: Path,
    options: RepairOptions | None = None,
    *,
    progress: Progress = NO_PROGRESS,
    spread: Spread | None = None,
) -> SourceScan:
    """Look at every file of a v2.x dataset, and settle what is done about what is wrong.

    Errors are collected, so that one run tells the user about all of them; the caller decides by
    the findings' severity. Episodes that are left out are not in the result.

    Args:
        root: The dataset folder.
        options: What the user allows the conversion to change; nothing by default.
        progress: Where to report.
        spread: Threads or processes that read headers; by default as many as the first block's
            cost asks for.

    Raises:
        UsageError: The options name findings or features that do not exist, or cannot be given up.
        UnreadableSourceError: A table under ``meta/`` is missing or malformed.
        SourceError: The dataset as a whole cannot be converted, or no episode would be left.
    """
    options = options or RepairOptions()
    check_accepted(options.accept)
    info = load_info(root)
    remarks = list(check_declarations(info.features))
    tasks = read_task_table(root, remarks)
    episodes = read_episode_table(root, tasks, remarks)
    streams = [
        DATA_STREAM,
        *(stream_of_camera(key) for key in info.camera_keys if key not in options.drop_features),
    ]
    try:
        paths = SourcePaths(root, info)
    except PathTemplateError as error:
        check_dropped_features(options.drop_features, list(info.features))
        survey = survey_folder(root, lambda _: None, lambda _: True, ())
        near = survey.stray_near(DATA_STREAM)
        said = error.message.removesuffix(".")
        said += f"; on disk there is {shown(near)}." if near else "; there is no table on disk."
        remarks.append(Remark("path-template", said, path=INFO_PATH))
        nothing = [_nothing(stream, len(episodes.index)) for stream in streams]
        settled = settle(remarks, options, _facts(info, episodes, tasks, remarks))
        return _scan(root, info, episodes, nothing, survey, b"", settled)
    computes_stats = computes_all_stats(options, has_episode_stats=info.has_episode_stats)
    look = Looker(
        paths,
        info.fps,
        {key: value for key, value in info.features.items() if key not in options.drop_features},
        streams,
        episodes.index,
        episodes.length,
        _stats_lines(root, info, episodes, remarks),
        devices_with_fleeting_inodes(),
        computes_stats,
    )
    gathered = _look(look, streams, len(episodes.index), progress, spread)
    is_usual = paths.are_usual and len(streams) == 1 + len(info.camera_keys)
    survey = survey_folder(
        root,
        paths.slice_of,
        _Membership(episodes.index),
        info.camera_keys,
        num_known=gathered.num_files if is_usual else None,
    )
    survey.cameras.update(
        camera
        for camera in info.camera_keys
        if camera in options.drop_features and has_first_clip(paths, episodes, camera)
    )
    columns = common_columns(paths, episodes, gathered.slices[0], options.drop_features, remarks)
    stored = [] if columns.schema is None else columns.schema.names
    check_dropped_features(options.drop_features, [*info.features, *stored])
    remarks += _whole_remarks(
        info, paths, episodes, tasks, survey, gathered, columns, options.drop_features
    )
    remarks += dropped_phantoms(info, options.drop_features, survey)
    if computes_stats and columns.schema is not None:
        remarks += check_images(info.features, columns.schema)
    settled = settle(remarks, options, _facts(info, episodes, tasks, remarks))
    scans = [
        slices.scan(settled.kept, grouped=slices.stream != DATA_STREAM)
        for slices in gathered.slices
    ]
    schema = _result_schema(info, columns, settled.repairs)
    return _scan(root, info, episodes, scans, survey, schema, settled)


def _look(
    look: Looker,
    streams: list[str],
    num_episodes: int,
    progress: Progress,
    spread: Spread | None,
) -> Gathered:
    gatherer = Gatherer(streams, num_episodes)
    blocks = _blocks(num_episodes)
    weights = [stop - first for first, stop in blocks]
    with (
        progress.stage("scan", num_episodes * len(streams), "files") as stage,
        closing(do_all(look, blocks, spread, weights=weights)) as looked_at,
    ):
        for block in looked_at:
            stage.advance(gatherer.add(block))
    return gatherer.gathered()


def _blocks(num_episodes: int) -> list[tuple[int, int]]:
    """Return first and stop of each block; two halves begin, to know sooner what they cost."""
    half = max(1, _EPISODES_PER_BLOCK // 2)
    edges = {0, min(half, num_episodes), num_episodes}
    edges.update(range(2 * half, num_episodes, _EPISODES_PER_BLOCK))
    return list(pairwise(sorted(edges)))


def _stats_lines(
    root: Path, info: DatasetInfo, episodes: EpisodeTable, remarks: list[Remark]
) -> tuple[Path, IntArray] | None:
    """Return where each episode's statistics are; None in v2.0, which has none of them."""
    path = root / STATS_PATH
    if not info.has_episode_stats:
        said = "v2.0 has no statistics of episodes; they are computed from the data."
        remarks.append(Remark("computed-stats", said))
        return None
    if not path.exists():
        remarks.append(Remark("missing-stats", f"{STATS_PATH} is not there.", path=STATS_PATH))
        return None
    # Each line is parsed when its episode is looked at.
    try:
        lines = EpisodeLines(path, validated=True)
    except SourceError as error:
        if isinstance(error.__cause__, OSError):
            raise  # the table may be sound
        said = f"{shown(error.message[:-1])}: no statistics are read."
        remarks.append(Remark("missing-stats", said, path=STATS_PATH))
        return None
    strange = len(lines) - int(np.isin(lines.episode_index, episodes.index).sum())
    if strange:
        said = f"{STATS_PATH} has {counted(strange, 'episode')} that episodes.jsonl does not list."
        remarks.append(Remark("stray-stats", said, path=STATS_PATH))
    return path, lines.offsets_of(episodes.index)


def _whole_remarks(
    info: DatasetInfo,
    paths: SourcePaths,
    episodes: EpisodeTable,
    tasks: TaskTable,
    survey: Survey,
    gathered: Gathered,
    columns: DataColumns,
    left_out: Sequence[str],
) -> list[Remark]:
    """Return what was said of single files, and what is to be said now that all are known."""
    absent = absent_features(info.features, columns.schema, gathered.slices)
    remarks = [
        remark
        for remark in gathered.sightings.remarks()
        if not (remark.code == "missing-stats" and remark.feature in absent)
    ]
    remarks += [
        remark
        for remark in gathered.remarks
        # Where the column is of no numbers there are no statistics to compute.
        if remark.code != "uncomputable-stats" or is_of_numbers(columns.schema, remark.feature)
    ]
    about_files = list(check_files(paths, episodes, gathered.slices, survey))
    remarks += about_files
    # Where a template misses every file, all of them are strays.
    missed = {
        "data" if remark.stream == DATA_STREAM else "videos"
        for remark in about_files
        if remark.code == "path-template"
    }
    remarks += survey.remarks(missed)
    if columns.schema is not None:
        num_tasks = len(tasks.of_text) if tasks.is_there else 0
        remarks += check_columns(
            info.features, columns.schema, num_tasks=num_tasks, left_out=left_out
        )
    remarks += check_global_index(episodes, gathered, columns)
    remarks += check_tasks(paths, episodes, tasks, gathered)
    remarks += codec_changes(gathered.slices)
    totals = expected_totals(info, episodes, tasks, gathered.slices, survey)
    remarks += check_totals(info, totals)
    return remarks


def _facts(
    info: DatasetInfo, episodes: EpisodeTable, tasks: TaskTable, remarks: list[Remark]
) -> SourceFacts:
    return SourceFacts(
        episode_index=episodes.index,
        features=info.features,
        tasks=tasks.listed,
        missing_columns=[
            remark.feature
            for remark in remarks
            if remark.code == "missing-column" and remark.severity != "error" and remark.feature
        ],
        has_episode_stats=info.has_episode_stats,
    )


def _result_schema(info: DatasetInfo, columns: DataColumns, repairs: Repairs) -> bytes:
    """Return the schema of the result's data files; nothing where no table could be read."""
    if columns.schema is None:
        return b""
    repaired = tables.repaired_schema(columns.schema, repairs)
    return tables.serialize_schema(tables.output_schema(repaired, repairs.features(info.features)))


def _scan(
    root: Path,
    info: DatasetInfo,
    episodes: EpisodeTable,
    streams: list[StreamScan],
    survey: Survey,
    data_schema: bytes,
    settled: Settled,
) -> SourceScan:
    return SourceScan(
        root=str(root),
        info=info.raw,
        fps=info.fps,
        episode_index=episodes.index[settled.kept],
        length=episodes.length[settled.kept],
        streams=streams,
        extra_files=survey.extra_files,
        meta_digest=meta_digest(root),
        data_schema=data_schema,
        findings=settled.findings,
        repairs=settled.repairs,
    )


def _nothing(stream: str, num_episodes: int) -> StreamScan:
    """Return the scan of a stream whose files nobody can name."""
    none = np.zeros(num_episodes, dtype=np.int64)
    return StreamScan(stream, none, none, none, none, none, none)


class _Membership:
    """Whether there is an episode of an index."""

    def __init__(self, index: IntArray) -> None:
        self._index = index
        self._last = int(index[-1])
        self._has_gaps = self._last != len(index) - 1

    def __call__(self, index: int) -> bool:
        if index > self._last:
            return False
        return not self._has_gaps or bool(self._index[np.searchsorted(self._index, index)] == index)
