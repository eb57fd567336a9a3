"""The new tree, file by file: linked, joined from parts, or written anew."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from leconvert import media, tables
from leconvert.errors import (
    WorkDirError,
)
from leconvert.model import DATA_STREAM, OutputFile, Shard, camera_of
from leconvert.source import (
    EpisodeLines,
    load_info,
    load_tasks,
)
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH
from leconvert.workdir.durable import (
    link_into_tree,
    make_folders_below,
    storage_errors,
    sync_file,
)
from leconvert.workdir.opened import OpenedRun

__all__ = ["Assembly"]

_PARTIAL = ".partial"


class Assembly:
    """The new tree, file by file. Whatever has its final name there is complete."""

    def __init__(self, run: OpenedRun, tree: Path) -> None:
        self._run = run
        self._tree = tree
        self.linked = self.copied = self.joined = 0

    def add_file(self, file: OutputFile, shards: list[tuple[Shard, Path]]) -> None:
        """Bring one output file into the tree."""
        target = self._tree / file.path
        if len(shards) == 1 and shards[0][0].whole:
            outcome = link_into_tree(shards[0][1], target, tree=self._tree)
            if outcome == "linked":
                self.linked += 1
            else:
                self.copied += 1
            return
        self.joined += 1
        if target.exists():
            return  # joined by a packer that was killed later
        shards.sort(key=lambda entry: entry[0].first)
        self._check_parts(file, shards)
        self._put(target, lambda partial: self._join(file, shards, partial))

    def add_copy(self, source: Path, relative: str) -> None:
        """Copy one file that comes along unchanged."""
        target = self._tree / relative
        self._put(target, lambda partial: shutil.copyfile(source, partial))

    def add_meta(self) -> None:
        """Write every table under ``meta/`` anew."""
        with storage_errors(self._tree):
            make_folders_below(self._tree, self._tree / "meta")
            shutil.rmtree(self._tree / "meta" / "episodes", ignore_errors=True)
            written = _write_meta(self._run, self._tree)
            for path in written:
                sync_file(self._tree / path)

    def _put(self, target: Path, write: Callable[[Path], object]) -> None:
        partial = target.with_name(target.name + _PARTIAL)
        with storage_errors(target):
            # Never the tree itself: a packer that was superseded must not make it again.
            make_folders_below(self._tree, target.parent)
            partial.unlink(missing_ok=True)
            write(partial)
            sync_file(partial)
            partial.replace(target)

    def _check_parts(self, file: OutputFile, shards: list[tuple[Shard, Path]]) -> None:
        edges = [file.first, *(stop for shard, _ in shards for stop in (shard.stop,))]
        begins = [shard.first for shard, _ in shards]
        if begins != edges[:-1] or edges[-1] != file.stop:
            raise WorkDirError(
                f"{self._run.paths.batches} does not cover {file.path} without gaps.",
                path=str(self._run.paths.batches),
                next_step="Start a new run with --restart.",
            )

    def _join(self, file: OutputFile, shards: list[tuple[Shard, Path]], target: Path) -> None:
        scan, _ = self._run.scan.stream(file.stream, file.first, file.stop)
        frames = scan.frames.tolist()
        if file.stream == DATA_STREAM:
            rows = [
                tables.RowRange(str(path), frames[position - file.first], group)
                for shard, path in shards
                for group, position in enumerate(range(shard.first, shard.stop))
            ]
            schema = tables.deserialize_schema(self._run.manifest.data_schema)
            tables.join_tables(rows, target, schema=schema)
            return
        clips = []
        for shard, path in shards:
            part = frames[shard.first - file.first : shard.stop - file.first]
            ends = list(itertools.accumulate(part))
            clips += [
                media.ClipRange(str(path), end - count, count)
                for end, count in zip(ends, part, strict=True)
            ]
        media.join_clips(
            clips,
            target,
            fps=self._run.manifest.fps,
            block_align=self._run.manifest.block_align,
            scratch_dir=target.parent,
        )


def _write_meta(run: OpenedRun, tree: Path) -> list[str]:
    """Write tasks, episodes, statistics and info; return their paths in the tree."""
    manifest = run.manifest
    source = Path(manifest.source)
    info = load_info(source)
    tasks = load_tasks(source)
    aggregate = tables.StatsAggregator()
    aggregated = 0

    def records() -> Iterator[tables.EpisodeRecord]:
        nonlocal aggregated
        for position, record in enumerate(_episode_records(run, source)):
            if position == aggregated:  # once, even if the rows are asked for again
                if record.stats is not None:
                    aggregate.update(record.stats, episode_index=record.episode_index)
                aggregated += 1
            yield record

    placed_fps = Fraction(*media.frame_ticks(manifest.fps))
    written = tables.write_episodes(tree, records, fps=placed_fps)
    tables.write_tasks(tree, tasks)
    tables.write_stats(tree, aggregate.result())
    tables.write_info(
        tree,
        tables.converted_info(
            info.raw,
            fps=manifest.fps,
            data_file_size_in_mb=manifest.options["data_file_size_in_mb"],
            video_file_size_in_mb=manifest.options["video_file_size_in_mb"],
            has_videos=bool(info.camera_keys),
            total_episodes=manifest.num_episodes,
            total_frames=manifest.num_frames,
            total_tasks=len(tasks),
        ),
    )
    return [*written, "meta/tasks.parquet", "meta/stats.json", "meta/info.json"]


def _episode_records(run: OpenedRun, source: Path) -> Iterator[tables.EpisodeRecord]:
    """Yield one row of ``meta/episodes`` an episode, in order."""
    manifest = run.manifest
    _, length = run.scan.lengths()
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
    legacy = EpisodeLines(source / EPISODES_PATH, validated=True)
    stats = EpisodeLines(source / STATS_PATH, validated=True)
    for position, (line, stats_line) in enumerate(zip(legacy, stats, strict=True)):
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
            episode_index=line["episode_index"],
            data_file=int(numbers[DATA_STREAM][position]),
            dataset_from_index=int(ends[position]),
            length=frames,
            videos=videos,
            legacy=line,
            stats=stats_line.get("stats"),
        )
