"""Writing one shard: the episodes of one stream in one file, and what was learned of them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.errors import InterruptedRunError, UnreadableSourceError
from leconvert.model import DATA_STREAM, IntArray, Shard, StreamScan, camera_of
from leconvert.source import (
    SourcePaths,
    changed_files,
    load_info,
    load_tasks,
    source_changed,
    tasks_of_episodes,
)
from leconvert.workdir.durable import sync_file
from leconvert.workdir.opened import OpenedRun

__all__ = ["Inputs", "ShardWriter"]

_STATS_SUFFIX = ".stats.jsonl"

Files = Callable[[int], str]
"""Returns the path of the source file at a place of a shard, valid until the next call."""


class Inputs(Protocol):
    """Provides source files that are not on this machine; see `leconvert.hub.inputs`."""

    def files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> AbstractContextManager[Files]:
        """Provide the files that stand for some paths in the plan's source, for a block."""


class ShardWriter:
    """Writes shards of one run into folders that the caller owns.

    It guarantees that what it wrote is on disk when it returns, and that the source files were the
    planned ones before and after they were read.

    Args:
        run: The run.
        inputs: Provides the files of a source that is not on this machine; None for one that is.
    """

    def __init__(self, run: OpenedRun, inputs: Inputs | None = None) -> None:
        self._run = run
        self._inputs = inputs
        self._root = Path(run.manifest.source)
        self._info = load_info(self._root, run.manifest.repairs)
        self._paths = SourcePaths(self._root, self._info)
        self._schema = tables.deserialize_schema(run.manifest.data_schema)
        self._repairs = run.manifest.repairs
        cameras = {camera_of(layout.stream) for layout in run.manifest.streams}
        self._column_stats = tuple(
            name for name in self._repairs.computed_stats if name not in cameras
        )

    def write(
        self,
        shard: Shard,
        folder: Path,
        *,
        on_bytes: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> dict[str, Any]:
        """Write one shard between two looks at its source files; return its record for ``done``.

        Args:
            shard: What to write.
            folder: Where, under the shard's own name.
            on_bytes: Called with source bytes as they are dealt with.
            should_stop: Asked now and then; True ends the work.

        Raises:
            InterruptedRunError: ``should_stop`` said so.
            SourceChangedError: A source file is not the planned one.
            UnreadableSourceError: A source file cannot be read or used.
            OSError: The file system failed.
        """
        scan, episode_index = self._run.scan.stream(shard.stream, shard.first, shard.stop)
        sources = list(self._paths.absolute(shard.stream, episode_index.tolist()))

        def check_unchanged() -> None:
            changes = changed_files(self._paths, scan, episode_index)
            if changes:
                raise source_changed(self._root, changes)

        check_unchanged()
        told = 0

        def tell(size_bytes: int) -> None:
            nonlocal told
            told += size_bytes
            on_bytes(size_bytes)

        path = folder / shard.name
        write = self._write_table if shard.stream == DATA_STREAM else self._write_video
        try:
            with self._files(sources, should_stop) as files:
                written = write(
                    shard, path, sources, files, scan, episode_index.tolist(), tell, should_stop
                )
            record = {"path": shard.name, **written}
        except UnreadableSourceError:
            check_unchanged()  # a file replaced under us is not a broken file
            raise
        check_unchanged()
        # Source bytes that are not samples: indices, tables.
        tell(int(scan.size_bytes.sum()) - told)
        sync_file(path)
        return record

    def _files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> AbstractContextManager[Files]:
        if self._inputs is None:
            return nullcontext(sources.__getitem__)
        return self._inputs.files(sources, should_stop)

    def _write_table(
        self,
        shard: Shard,
        path: Path,
        sources: Sequence[str],
        files: Files,
        scan: StreamScan,
        episodes: Sequence[int],
        tell: Callable[[int], None],  # noqa: ARG002 - tables are quick: one word at the end
        should_stop: Callable[[], bool],
    ) -> dict[str, Any]:
        repairs: Iterator[tables.RowRepair | None] = itertools.repeat(None)
        if self._repairs.change_rows:
            repairs = map(
                lambda position, first: tables.RowRepair(
                    self._repairs, self._run.manifest.fps, position, first, self._task(position)
                ),
                range(shard.first, shard.stop),
                self._first_indices[shard.first : shard.stop].tolist(),
            )
        # One at a time: a file that had to be fetched may be gone when the next one is there.
        ranges = (
            tables.RowRange(files(place), rows, repair=repair)
            for place, (rows, repair) in enumerate(zip(scan.frames.tolist(), repairs, strict=False))
        )
        with self._stats_file(path, bool(self._column_stats)) as stats:
            table = tables.join_tables(
                ranges,
                path,
                schema=self._schema,
                on_table=self._table_observer(shard, sources, episodes, stats)
                if self._column_stats
                else None,
                should_stop=should_stop,
            )
        return {
            "size_bytes": table.size_bytes,
            "header_sha256": table.footer_sha256,
            **stats.record(),
        }

    def _table_observer(
        self, shard: Shard, sources: Sequence[str], episodes: Sequence[int], stats: _StatsFile
    ) -> Callable[[pa.Table], None]:
        # Only runs that compute statistics pay for these imports.
        from leconvert.statistics import table_stats

        features = self._repairs.features(self._info.features)
        positions = iter(range(shard.first, shard.stop))

        def observe(table: pa.Table) -> None:
            position = next(positions)
            episode = episodes[position - shard.first]
            found = table_stats(
                table,
                features,
                names=[
                    name
                    for name in self._column_stats
                    if self._repairs.computes_stats(name, episode)
                ],
                quantiles=self._repairs.quantiles,
                path=sources[position - shard.first],
            )
            stats.add(position, found)

        return observe

    def _write_video(
        self,
        shard: Shard,
        path: Path,
        sources: Sequence[str],
        files: Files,
        scan: StreamScan,
        episodes: Sequence[int],
        tell: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> dict[str, Any]:
        camera = str(camera_of(shard.stream))
        decodes = camera in self._repairs.computed_stats
        joined = media.join_clips(
            [media.ClipRange(source) for source in sources],
            path,
            fps=self._run.manifest.fps,
            block_align=self._run.manifest.block_align,
            scratch_dir=path.parent,
            coded=files,
            # To decode takes a hundred times as long as to copy: a clip's bytes count when it is.
            on_bytes=_nothing if decodes else tell,
            should_stop=should_stop,
        )
        expected = int(scan.frames.sum())
        if joined.samples != expected:
            raise UnreadableSourceError(
                f"{path.name} got {joined.samples} frames, the scan counted {expected}.",
                path=str(path),
            )
        with self._stats_file(path, decodes) as stats:
            if decodes:
                self._observe_clips(camera, shard, files, scan, episodes, stats, tell, should_stop)
        return {
            "size_bytes": joined.size_bytes,
            "header_sha256": joined.header_sha256,
            "copied_bytes": joined.copied_bytes,
            "cloned_bytes": joined.cloned_bytes,
            "remuxed": [list(entry) for entry in joined.remuxed],
            "clip_digests": list(joined.clip_digests),
            **stats.record(),
        }

    def _observe_clips(
        self,
        camera: str,
        shard: Shard,
        files: Files,
        scan: StreamScan,
        episodes: Sequence[int],
        stats: _StatsFile,
        tell: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        from leconvert.statistics import clip_stats, is_depth_map

        is_depth = is_depth_map(self._info.features[camera])
        quantiles = self._repairs.quantiles
        clips = zip(episodes, scan.frames.tolist(), scan.size_bytes.tolist(), strict=True)
        for place, (episode, length, size_bytes) in enumerate(clips):
            found = {}
            if self._repairs.computes_stats(camera, episode):
                source = files(place)
                if should_stop():
                    raise InterruptedRunError(f"Stopped while reading {source}.", path=source)
                found[camera] = clip_stats(source, length, is_depth=is_depth, quantiles=quantiles)
            stats.add(shard.first + place, found)
            tell(size_bytes)

    @contextmanager
    def _stats_file(self, shard_path: Path, is_wanted: bool) -> Iterator[_StatsFile]:
        stats = _StatsFile(shard_path.with_name(shard_path.name + _STATS_SUFFIX), is_wanted)
        with stats.open():
            yield stats

    def _task(self, position: int) -> int | None:
        """Return the result's task of all rows of an episode; None where they have their own."""
        if self._repairs.tasks_from is None:
            return None
        return self._tasks.get(int(self._run.scan.lengths()[0][position]))

    @cached_property
    def _tasks(self) -> dict[int, int]:
        """The result's task of each episode that lists one, by its index in the source."""
        listed = self._repairs.tasks(load_tasks(self._root, self._repairs))
        of_text = {text: index for index, text in reversed(listed)}
        return {index: of_text[text] for index, text in tasks_of_episodes(self._root).items()}

    @cached_property
    def _first_indices(self) -> IntArray:
        """Place of each episode's first frame in the result, shape (E,); 8 bytes an episode."""
        _, length = self._run.scan.lengths()
        return np.concatenate(([0], np.cumsum(length)[:-1]))


def _nothing(_: int) -> None:
    """Report no bytes."""


class _StatsFile:
    """Statistics of a shard's episodes, a JSON line each, in the order of the shard."""

    def __init__(self, path: Path, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self._path = path
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._write: Callable[[bytes], object] = lambda _: None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the file open; on disk afterwards."""
        if not self.is_wanted:
            yield
            return
        with self._path.open("xb") as file:
            self._write = file.write
            yield
        sync_file(self._path)

    def add(self, position: int, stats: dict[str, Any]) -> None:
        """Append one episode's line."""
        line = json.dumps(
            {"episode_index": position, "stats": stats}, separators=(",", ":")
        ).encode()
        self._digest.update(line + b"\n")
        self._size_bytes += len(line) + 1
        self._write(line + b"\n")

    def record(self) -> dict[str, Any]:
        """Return what the shard's record says of the file; nothing where there is none."""
        if not self.is_wanted:
            return {}
        return {
            "stats": {
                "path": self._path.name,
                "size_bytes": self._size_bytes,
                "sha256": self._digest.hexdigest(),
            }
        }
