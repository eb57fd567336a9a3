"""The tables under ``meta/`` of the result: the source's, routed anew and with repairs applied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from leconvert import media, tables
from leconvert.errors import WorkDirError
from leconvert.model import DATA_STREAM, IntArray, camera_of
from leconvert.source import DatasetInfo, EpisodeLines, load_info, load_tasks
from leconvert.source.info import EPISODES_PATH, STATS_PATH
from leconvert.workdir.opened import OpenedRun

__all__ = ["StatsFiles", "write_meta"]

# For each stream the files of computed statistics, with the first position of each.
StatsFiles = Mapping[str, Sequence[tuple[int, Path]]]


def write_meta(run: OpenedRun, tree: Path, stats_files: StatsFiles) -> list[str]:
    """Write tasks, episodes, statistics, info and what was repaired.

    Args:
        run: The run.
        tree: The new dataset's folder.
        stats_files: Statistics that workers computed.

    Returns:
        What was written, relative to the tree.
    """
    manifest = run.manifest
    repairs = manifest.repairs
    source = Path(manifest.source)
    info = load_info(source, repairs)
    tasks = repairs.tasks(load_tasks(source, repairs))
    aggregate = tables.StatsAggregator()
    aggregated = 0

    def records() -> Iterator[tables.EpisodeRecord]:
        nonlocal aggregated
        for position, record in enumerate(_episode_records(run, source, info, stats_files)):
            if position == aggregated:  # once, even if the rows are asked for again
                aggregate.update(record.stats or {}, episode_index=record.episode_index)
                aggregated += 1
            yield record

    placed_fps = Fraction(*media.frame_ticks(manifest.fps))
    written = tables.write_episodes(tree, records, fps=placed_fps)
    tables.write_tasks(tree, tasks)
    tables.write_stats(tree, aggregate.result())
    index, _ = run.scan.lengths()
    tables.write_info(
        tree,
        tables.converted_info(
            {**info.raw, "features": repairs.features(info.features)},
            fps=manifest.fps,
            data_file_size_in_mb=manifest.options["data_file_size_in_mb"],
            video_file_size_in_mb=manifest.options["video_file_size_in_mb"],
            has_videos=len(manifest.streams) > 1,
            total_episodes=manifest.num_episodes,
            total_frames=manifest.num_frames,
            total_tasks=len(tasks),
            splits=tables.kept_splits(info.raw.get("splits"), index) if repairs else None,
        ),
    )
    written += ["meta/tasks.parquet", "meta/stats.json", "meta/info.json"]
    if repairs:
        tables.write_repairs(tree, repairs)
        written.append(tables.REPAIRS_PATH)
    return written


def _episode_records(
    run: OpenedRun, source: Path, info: DatasetInfo, stats_files: StatsFiles
) -> Iterator[tables.EpisodeRecord]:
    """Yield one row of ``meta/episodes`` an episode, in order."""
    manifest = run.manifest
    index, length = run.scan.lengths()
    ends = np.concatenate(([0], np.cumsum(length)))
    positions = np.arange(len(length))
    numbers = {layout.stream: layout.file_numbers(positions) for layout in manifest.streams}
    begins = {
        layout.stream: ends[:-1] - ends[layout.starts[numbers[layout.stream]]]
        for layout in manifest.streams
    }
    cameras = sorted(
        (camera, layout.stream)
        for layout in manifest.streams
        if (camera := camera_of(layout.stream)) is not None
    )
    lines = _lines_of(EpisodeLines(source / EPISODES_PATH, validated=True), index)
    keeps_stats = info.has_episode_stats and not manifest.repairs.replaces_stats(info.features)
    stats_path = source / STATS_PATH if keeps_stats else None
    all_stats = _all_stats(run, stats_path, index, stats_files)
    for position, (line, stats) in enumerate(zip(lines, all_stats, strict=True)):
        frames = int(length[position])
        videos = tuple(
            tables.VideoSpan(
                camera,
                int(numbers[stream][position]),
                int(begins[stream][position]),
                int(begins[stream][position]) + frames,
            )
            for camera, stream in cameras
        )
        yield tables.EpisodeRecord(
            episode_index=position,
            data_file=int(numbers[DATA_STREAM][position]),
            dataset_from_index=int(ends[position]),
            length=frames,
            videos=videos,
            legacy=line,
            stats=stats,
        )


def _lines_of(table: EpisodeLines, index: IntArray) -> Iterator[dict[str, Any]]:
    """Yield a line for each episode that is kept; an empty one where the table has none."""
    lines = iter(table)
    line = next(lines, None)
    for episode in index.tolist():
        while line is not None and line["episode_index"] < episode:
            line = next(lines, None)
        yield line if line is not None and line["episode_index"] == episode else {}


def _all_stats(
    run: OpenedRun, path: Path | None, index: IntArray, stats_files: StatsFiles
) -> Iterator[dict[str, Any] | None]:
    """Yield each episode's statistics: copied, but for what was computed or left out.

    Args:
        run: The run.
        path: The source's table of statistics, which need not be there; None where nothing of it is
            kept.
        index: Indices of the episodes that are kept.
        stats_files: Statistics that workers computed.
    """
    repairs = run.manifest.repairs
    # In the plan's order: that of `stats_files` is who came first.
    computed = [
        _computed_lines(run, stats_files[layout.stream])
        for layout in run.manifest.streams
        if layout.stream in stats_files
    ]
    copied: Iterator[dict[str, Any]]
    if path is not None and path.exists():
        copied = _lines_of(EpisodeLines(path, validated=True), index)
    else:
        copied = iter([{}] * len(index))
    # Strict: a stream of computed statistics has a line for each episode, neither more nor fewer.
    for position, (line, *found) in enumerate(zip(copied, *computed, strict=True)):
        stats = line.get("stats")
        if not repairs:
            yield stats
            continue
        fresh: dict[str, Any] = {}
        for entry in found:
            assert entry["episode_index"] == position, "shards are read in order"
            fresh |= entry["stats"]
        merged = {
            name: fresh.pop(name, values)
            for name, values in (stats or {}).items()
            if name in fresh
            or not (
                name in repairs.dropped_features
                or repairs.computes_stats(name, int(index[position]))
            )
        }
        yield merged | fresh


def _computed_lines(run: OpenedRun, files: Sequence[tuple[int, Path]]) -> Iterator[dict[str, Any]]:
    for _, path in sorted(files):
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise WorkDirError(
                        f"{path} is damaged: {error}.",
                        path=str(path),
                        next_step=f"Start {run.work_dir.root} anew with --restart.",
                    ) from error
