"""The new tree, file by file: linked, joined from parts, or written anew."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from leconvert import media, tables
from leconvert.errors import WorkDirError
from leconvert.model import DATA_STREAM, OutputFile, Shard
from leconvert.packer.metadata import StatsFiles, write_meta
from leconvert.source.modality import extension_files, mended_extension
from leconvert.workdir.durable import (
    storage_errors,
    sync_file,
)
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.trees import link_into_tree, make_folders_below

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
        """Copy one file that comes along, without features that are left out if it names such."""
        target = self._tree / relative
        repairs = self._run.manifest.repairs
        mended = None
        if extension_files([relative], repairs):
            mended = mended_extension(source, relative, repairs)
        if mended is None:
            self._put(target, lambda partial: shutil.copyfile(source / relative, partial))
        else:
            self._put(target, lambda partial: partial.write_bytes(mended))

    def add_meta(self, stats_files: StatsFiles) -> None:
        """Write every table under ``meta/`` anew.

        Args:
            stats_files: For each stream the files of computed statistics, by first position.
        """
        with storage_errors(self._tree):
            make_folders_below(self._tree, self._tree / "meta")
            shutil.rmtree(self._tree / "meta" / "episodes", ignore_errors=True)
            written = write_meta(self._run, self._tree, stats_files)
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
        edges = [file.first, *(shard.stop for shard, _ in shards)]
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
