"""A v3.0 dataset on disk: its declarations, its tables, and the places of its episodes.

All code that loads, checks, compares or reports reads a dataset here. A `Dataset` is strict: it
raises if something cannot be read. Its parts `declaration`, `read_task_rows` and
`read_episode_table` return findings instead, for a list of everything that is wrong.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.dataset.findings import named
from leconvert.dataset.formats.dataset import Dataset as AnyDataset
from leconvert.dataset.formats.dataset import Slices
from leconvert.dataset.formats.stats import STATS_PATH, StatsBlock
from leconvert.dataset.formats.v3 import meta
from leconvert.dataset.formats.v3.derived import (
    NOTHING_DERIVED,
    Derived,
    derive_tables,
    placed_as_located,
    unfinished_tables,
)
from leconvert.dataset.formats.v3.episodes import (
    LOCATION_COLUMNS,
    STATS_PREFIX,
    EpisodesReader,
    EpisodeTable,
    placing_columns,
    read_episode_table,
    stats_of_rows,
)
from leconvert.dataset.formats.v3.rows import (
    check_ranges,
    files_of,
    place_frames,
    routed_files,
    rows_by_column,
    with_leads,
)
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    V3_FILES_PER_CHUNK_KEY,
    Finding,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import V3_VERSION, unreadable
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.tables import row_group_rows


def _dtype(feature: object) -> object:
    return feature.get("dtype") if isinstance(feature, Mapping) else None


def _index_and_frames(path: Path) -> tuple[media.ClipIndex | None, int]:
    try:
        clip = media.read_clip_index(path)
    except media.UnsupportedClipError:
        return None, sum(1 for _ in media.packet_times(path))
    return clip, clip.num_samples


class Dataset(AnyDataset):
    """A v3.0 dataset, see `leconvert.dataset.formats.Dataset`.

    Attributes:
        contradictions: Contradictions in `episodes`, or between it and ``info.json``, once it was
            read.
    """

    statistics_help = "; or `leconvert repair {}` combines the statistics of the episodes"

    def __init__(
        self,
        root: str | os.PathLike[str],
        repairs: Repairs = NO_REPAIRS,
        *,
        info: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(root, repairs, name)
        self._info = info
        self.contradictions: list[Finding] = []

    @cached_property
    def stored_info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as it stands, but for the version and templates of the repairs."""
        info, assumed = self._info, dict(self.reading.path_templates)
        if self.reading.assumed_version is not None:
            assumed["codebase_version"] = self.reading.assumed_version
        if info is not None:
            return {**info, **assumed}
        try:
            info = {**meta.read_json_object(self.root / meta.INFO_PATH, in_any_utf=True), **assumed}
        except (OSError, ValueError) as error:
            raise self._unreadable_info(f"cannot be used: {error}") from error
        if wrong := unreadable(info, self.name):
            raise wrong
        return info

    @cached_property
    def declared(self) -> meta.Declared:
        """The content of ``info.json``. Every feature has a dtype, and every stream a path."""
        declared, findings = meta.declaration(self.stored_info, self.reading.assumed_fps)
        if declared is not None:
            features = declared.raw["features"]
            untyped = [key for key, ft in features.items() if not isinstance(_dtype(ft), str)]
            cameras = [key for key, ft in features.items() if _dtype(ft) == "video"]
            streams = {DATA_STREAM, *map(stream_of_camera, cameras)}
            if not untyped and streams <= declared.templates.keys():
                return declared
        errors = [finding for finding in findings if finding.severity == "error"]
        what = f"does not describe a dataset: {errors[0].message.rstrip('.')}"
        raise self._unreadable_info(what, *(finding.remedy or "" for finding in errors))

    @cached_property
    def stored_streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera in the order of the features."""
        features = self.declared.raw["features"].items()
        cameras = [key for key, feature in features if feature["dtype"] == "video"]
        return (DATA_STREAM, *map(stream_of_camera, cameras))

    @property
    def version(self) -> str:
        """``v3.0``."""
        return V3_VERSION

    @property
    def fps(self) -> Fraction:
        """Frames a second, the exact fraction of the decimal."""
        return self.declared.fps

    @property
    def stored_features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by key."""
        features: Mapping[str, Mapping[str, Any]] = self.declared.raw["features"]
        return features

    @cached_property
    def derived(self) -> Derived:
        """The tables that are not read as they stand, since they are missing or have no index."""
        wanted = self.reading.derived_tables
        found = derive_tables(self.root, self.declared) if wanted else NOTHING_DERIVED
        if found.paths != wanted:
            raise SourceError(
                f"{', '.join(wanted)} of {self.name} cannot be derived from its rows and files.",
                path=self.name,
                next_step=f"{GET_AGAIN}.",
            )
        return found

    @cached_property
    def episodes_reader(self) -> EpisodesReader:
        """The rows of ``meta/episodes``, stored or derived."""
        return self.derived.reader() or EpisodesReader(self.root)

    @cached_property
    def stored_tasks(self) -> pa.Table:
        """``meta/tasks.parquet``, as it stands or derived."""
        derived = self.derived.task_table()
        return meta.read_task_table(self.root) if derived is None else derived

    def task_rows(self) -> tuple[list[str] | None, list[Finding]]:
        """Return the texts of the table of tasks by row, and what is wrong: `read_task_rows`."""
        derived = self.derived.task_table()
        if derived is None:
            return meta.read_task_rows(self.root, self.stored_info)
        return meta.check_task_table(derived, self.stored_info)

    @cached_property
    def task_table(self) -> Sequence[tuple[int, str]]:
        """Index and text of each task. The index is the row, which readers use."""
        return list(enumerate(text for _, text in meta.tasks_in(self.stored_tasks, self.root)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Text of each task by ``task_index``."""
        return tuple(text for _, text in self.task_table)

    @cached_property
    def episodes(self) -> EpisodeTable:
        """The places of all episodes in every stream."""
        reader = self.episodes_reader
        for path in reader.paths:
            reader.schema(path)  # the error names a missing or damaged file
        return self.read_episodes()

    def read_episodes(
        self, streams: Sequence[str] | None = None, task_rows: Mapping[str, int] | None = None
    ) -> EpisodeTable:
        """Read the places of all episodes.

        If lengths and ranges of rows differ, `check_ranges` decides about the lengths.

        Args:
            streams: The streams that have to be readable, and nothing else; by default no error is
                passed over.
            task_rows: The row of each text of a task; None to read no tasks.
        """
        table, findings = read_episode_table(
            self.episodes_reader, self.stored_streams, task_rows=task_rows
        )
        errors = [finding.message for finding in findings if finding.severity == "error"]
        is_usable = not errors if streams is None else table is not None
        if table is not None and is_usable and table.placed.keys() >= set(streams or ()):
            table, self.contradictions = check_ranges(table, self.declared)
            return replace(
                table, placed=placed_as_located(self.declared, table, self.reading.located_files)
            )
        next_step = "Restore the table from another copy of the dataset."
        if unfinished_tables(self.root, self.declared):
            check = shlex.join(["leconvert", "check", str(self.root)])
            next_step = (
                f"Its recording was not ended. `{check}` says whether `leconvert repair` can write "
                "what is missing. If not: restore the table from another copy of the dataset."
            )
        raise SourceError(
            f"{self.name}/{meta.EPISODES_DIR} does not say where the episodes are: "
            f"{errors[0] if errors else 'it has no rows.'}",
            path=f"{self.name}/{meta.EPISODES_DIR}",
            details=errors[1:],
            next_step=next_step,
        )

    @property
    def has_quantiles(self) -> bool:
        """Whether statistics of episodes have quantiles; LeRobot needs them to record more.

        Its new recordings have a column for each, and it cannot load tables with different columns.
        """
        if meta.EPISODES_DIR in self.reading.derived_tables:
            return False  # without deriving it: derived episodes have no statistics
        reader = self.episodes_reader
        for path in reader.paths:
            names = set(reader.schema(path).names)
            features = [
                name.removesuffix("/count")
                for name in names
                if name.startswith(STATS_PREFIX) and name.endswith("/count")
            ]
            if not features or not all(f"{feature}/q01" in names for feature in features):
                return False
        return True

    def tables(self) -> frozenset[str]:
        """Return the format's own files below ``meta/``, existing or not."""
        episodes = self.episodes_reader.paths
        return frozenset((meta.INFO_PATH, STATS_PATH, meta.TASKS_PATH, *episodes))

    def slice_of(self, path: str) -> tuple[str, int] | None:
        """Return stream and number of a file by its path; None for other paths."""
        return self._files.get(path)

    @cached_property
    def _files(self) -> dict[str, tuple[str, int]]:
        return {
            path: (stream, number)
            for stream, stored in zip(self.streams, self.stored_streams, strict=True)
            if stored in self.episodes.placed
            for number, path in enumerate(self.slices(stream).paths)
        }

    def slices(self, stream: str) -> Slices:
        """Return the part of a file for each episode's slice of a stream."""
        table, stream = self.episodes, self._stored_stream(stream)
        paths, file = files_of(table, self.declared, stream)
        if camera_of(stream) is not None:
            begins = table.placed[stream].begin_seconds * float(self.declared.fps)
            return Slices(paths, file, np.rint(begins).astype(np.int64))
        first_of_file = np.full(len(paths), np.iinfo(np.int64).max)
        np.minimum.at(first_of_file, file, table.from_index)
        return Slices(paths, file, table.from_index - first_of_file[file])

    def counted_slices(self, stream: str) -> Slices:
        """Return the same, from the files: see `place_frames`, `rows_by_column`.

        Missing and damaged files have no slices.
        """
        table, stream = self.episodes, self._stored_stream(stream)
        paths, file = files_of(table, self.declared, stream)
        first, lead, tail = np.zeros((3, len(table)), dtype=np.int64)
        for routed in routed_files(table, self.declared, stream):
            path, episodes = self.root / routed.path, routed.episodes
            lengths = table.length[episodes]
            with suppress(OSError, UnreadableSourceError):
                if camera_of(stream) is not None:
                    clip, frames = _index_and_frames(path)
                    own, there, *_ = place_frames(frames, routed, table, self.fps)
                    first[episodes] = own
                    if clip is not None:
                        is_there = there > 0
                        cut_from, cut_to = with_leads(
                            clip, np.where(is_there, own, 0), np.where(is_there, own + there, 0)
                        )
                        can_cut = is_there & (cut_from >= 0)
                        lead[episodes] = np.where(can_cut, own - cut_from, 0)
                        tail[episodes] = np.where(can_cut, cut_to - own - lengths, 0)
                elif sum(row_group_rows(path)) == int(lengths.sum()):
                    first[episodes] = np.cumsum(lengths) - lengths
                else:
                    with pq.ParquetFile(path) as rows:
                        first[episodes], _ = rows_by_column(rows, episodes)
        return Slices(paths, file, first, lead=lead, tail=tail)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield each episode's record without its places and without empty keys.

        Each record has its ``episode_index``.
        """
        places = {*placing_columns(self.stored_streams), *LOCATION_COLUMNS}
        places -= {"episode_index", "length"}
        for block in self.episodes_reader.blocks(
            lambda name: name not in places and not name.startswith(STATS_PREFIX)
        ):
            for row in block.to_pylist():
                line = {key: value for key, value in row.items() if value is not None}
                if not isinstance(line.get("tasks"), list):
                    line["tasks"] = []  # the same as if nothing is listed
                yield line

    def stats_blocks(self) -> Iterator[StatsBlock]:
        """Yield the statistics of all episodes, in order."""
        blocks = self.episodes_reader.blocks(lambda name: name.startswith(STATS_PREFIX))
        return (stats_of_rows(block).renamed(self._new_names) for block in blocks)

    def relative(self, stream: str, key: int) -> str:
        """Return the path of the file that a scan's `FileTable` calls ``key``."""
        place = divmod(key, V3_FILES_PER_CHUNK_KEY)
        return self.declared.path(self._stored_stream(stream), *place)

    def _unreadable_info(self, what: str, *helps: str) -> UnreadableSourceError:
        name = f"{self.name}/{meta.INFO_PATH}"
        advice = named(" ".join(dict.fromkeys(helps)), self.root) or f"{GET_AGAIN}."
        return UnreadableSourceError(f"{name} {what}.", path=name, next_step=advice)
