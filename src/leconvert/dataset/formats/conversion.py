"""Both ends of a conversion: its sources, one dataset or several in a row, and its output.

Each source is read with the changes of the conversion. So the parts that write a result and the
parts that compare one see the same sources. A table of the result records them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import compress, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.formats import v2, v3
from leconvert.dataset.formats.dataset import Dataset, Slices, Totals
from leconvert.dataset.formats.stats import StatsBlock, blocks_of_nothing, rows_of
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    OVERLAY,
    FileTable,
    IntArray,
    Source,
    camera_of,
)
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import UnreadableSourceError, UsageError
from leconvert.support.text import aligned, shown
from leconvert.support.values import dataclass
from leconvert.tables.arrow import array_of, int64_array, int64_values
from leconvert.workdir.fs import is_there
from leconvert.workdir.swap import is_converted


def open_dataset(
    root: Path, repairs: Repairs = NO_REPAIRS, *, version: str | None = None
) -> Dataset:
    """Return the dataset in a folder, for reading by its version.

    Args:
        root: The folder.
        repairs: The changes that matter for reading.
        version: The version; None to find out.
    """
    known = version or repairs.assumed_version
    is_v3 = is_converted(root) if known is None else known == V3_VERSION
    dataset = v3.Dataset(root, repairs) if is_v3 else v2.Dataset(root, repairs)
    if version is None:
        # Raises for an unknown version before one of its tables is found missing.
        _ = dataset.stored_info
    return dataset


@dataclass(frozen=True, eq=False)
class SourceView:
    """One source, seen with the changes of the conversion; arrays have shape (E,).

    Attributes:
        dataset: The unchanged source.
        repairs: The changes.
    """

    dataset: Dataset
    repairs: Repairs = NO_REPAIRS

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.dataset.root

    @cached_property
    def kept(self) -> IntArray:
        """Position in the source of each episode that the result has."""
        return np.flatnonzero(self.repairs.keeps(self.dataset.episodes.episode_index))

    @cached_property
    def index(self) -> IntArray:
        """Index in the source of each episode that the result has."""
        return self.dataset.episodes.episode_index[self.kept]

    @cached_property
    def length(self) -> IntArray:
        """Number of frames of each episode that the result has."""
        return self.dataset.episodes.length[self.kept]

    def __len__(self) -> int:
        return len(self.kept)

    @cached_property
    def features(self) -> dict[str, Any]:
        """Features of the result, as the source declares them."""
        return self.repairs.features(self.dataset.features)

    @property
    def streams(self) -> list[str]:
        """The streams of the result."""
        dropped = self.repairs.dropped_features
        return [stream for stream in self.dataset.streams if camera_of(stream) not in dropped]

    @cached_property
    def tasks(self) -> list[tuple[int, str]]:
        """Index in the result and text of each task of the source."""
        return self.repairs.tasks(list(self.dataset.task_table))

    @cached_property
    def listed_tasks(self) -> dict[int, int]:
        """Task in the result of each episode that lists exactly one, by its index in the source."""
        of_text = {text: index for index, text in reversed(self.tasks)}
        return {index: of_text[text] for index, text in v2.tasks_of_episodes(self.root).items()}

    @property
    def has_quantiles(self) -> bool:
        """Whether statistics of its episodes have quantiles in the result."""
        return self.repairs.quantiles or self.dataset.has_quantiles

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the source's record of each episode, see `Dataset.lines`.

        A trimmed episode names only the tasks of its remaining rows.
        """
        lines = compress(self.dataset.lines(), self._is_kept.tolist())
        intervals = self.repairs.trimmed_episodes
        if not intervals:
            return lines
        return (
            self._trimmed(line, place, *intervals[episode]) if episode in intervals else line
            for episode, place, line in zip(
                self.index.tolist(), self.kept.tolist(), lines, strict=True
            )
        )

    def _trimmed(self, line: dict[str, Any], place: int, begin: int, stop: int) -> dict[str, Any]:
        slices = self._rows
        first = int(slices.first[place])
        with pq.ParquetFile(self.root / slices.path(place)) as file:
            if "task_index" not in file.schema_arrow.names:
                return line
            column = file.read(["task_index"])["task_index"].slice(first + begin, stop - begin)
        texts = dict(self.dataset.task_table)
        there = {texts.get(index) for index in column.unique().to_pylist()}
        # Tasks that are missing in the source's own list are not added here.
        return {**line, "tasks": [text for text in line["tasks"] if text in there] or line["tasks"]}

    @cached_property
    def _rows(self) -> Slices:
        # The table of a v3.0 dataset may have other rows than its episodes.
        if isinstance(self.dataset, v3.Dataset):
            return self.dataset.counted_slices(DATA_STREAM)
        return self.dataset.slices(DATA_STREAM)

    def stats_blocks(self) -> Iterator[StatsBlock]:
        """Yield the source's statistics of the kept episodes, see `Dataset.stats_blocks`.

        If none of them are kept, nothing is read.
        """
        if self.repairs.replaces_stats(self.dataset.features):
            yield from blocks_of_nothing(len(self))
            return
        is_kept, first = self._is_kept, 0
        for block in self.dataset.stats_blocks():
            chosen = is_kept[first : first + len(block)]
            first += len(block)
            if chosen.any():
                yield block if chosen.all() else block[chosen]

    @property
    def _is_kept(self) -> npt.NDArray[np.bool_]:
        """Whether the result has each episode of the source."""
        is_kept = np.zeros(len(self.dataset.episodes), np.bool_)
        is_kept[self.kept] = True
        return is_kept


class Sources(tuple[SourceView, ...]):
    """The sources of a conversion in the order of their numbers, at least one.

    Their features are the same, except properties of cameras' files.
    """

    @property
    def fps(self) -> Fraction:
        """Frames a second."""
        return self[0].dataset.fps

    @cached_property
    def features(self) -> dict[str, Any]:
        """Features of the result: the first source's; a camera is declared as for most episodes."""
        features = dict(self[0].features)
        for name, feature in features.items():
            if len(self) > 1 and feature.get("dtype") == "video":
                episodes: Counter[str] = Counter()
                for view in self:
                    episodes[repr(view.features[name])] += len(view)
                usual = max(episodes, key=episodes.__getitem__)
                features[name] = next(
                    view.features[name] for view in self if repr(view.features[name]) == usual
                )
        return features

    @cached_property
    def tasks(self) -> list[tuple[int, str]]:
        """Index and text of each task of the result, each text once."""
        if len(self) == 1:
            return self[0].tasks
        return sorted({index: text for view in self for index, text in view.tasks}.items())

    @property
    def info(self) -> dict[str, Any]:
        """``info.json`` of the first source, with the features of the result."""
        return {**self[0].dataset.info, "features": self.features}

    @property
    def splits(self) -> dict[str, str] | None:
        """Splits in the result's numbering; None if they are the only source's own."""
        if len(self) > 1:
            return {"train": f"0:{sum(map(len, self))}"}
        if not self[0].repairs:
            return None
        return v3.kept_splits(self[0].dataset.info.get("splits"), self[0].index)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the sources' records of each episode, see `Dataset.lines`."""
        for view in self:
            yield from view.lines()

    def absolute(self, stream: str, files: FileTable) -> Iterator[str]:
        """Yield the paths of some files."""
        for number, own in files.by_source():
            yield from self[number].dataset.absolute(stream, own.key.tolist())


def open_sources(sources: Sequence[Source], root: Path | None = None) -> Sources:
    """Return the sources of a plan."""
    return Sources(
        SourceView(
            open_dataset(
                root or Path(source.root), source.repairs, version=source.codebase_version
            ),
            source.repairs,
        )
        for source in sources
    )


# The output: the names of its files, and the writers of its tables.


Records = Callable[[], Iterable[v3.EpisodeRecords]]


@dataclass(frozen=True)
class Target:
    """A version to write.

    Attributes:
        version: Its ``codebase_version``.
        list_entry: The name of lists in the metadata of data files for `datasets`.
        names: The names of its files.
    """

    version: str
    list_entry: str
    names: v3.FileNames

    def info(
        self, info: Mapping[str, Any], totals: Totals, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return ``info.json``, from the source's and the options of a manifest."""
        if self.version != V3_VERSION:
            return v2.converted_info(info, totals)
        return v3.converted_info(
            info,
            totals,
            data_file_size_in_mb=options["data_file_size_in_mb"],
            video_file_size_in_mb=options["video_file_size_in_mb"],
            has_videos=any(ft.get("dtype") == "video" for ft in info["features"].values()),
            names=self.names,
        )

    def write_episodes(self, root: Path, episodes: Records, *, fps: Fraction) -> list[str]:
        """Write the record and statistics of each episode; return the files, in order."""
        if self.version == V3_VERSION:
            return v3.write_episodes(root, episodes, fps=fps, names=self.names)
        blocks = ((each.episode_index, each.length, each.legacy, each.stats) for each in episodes())
        return v2.write_episodes(root, blocks)

    def write_tasks(self, root: Path, tasks: Sequence[tuple[int, str]]) -> list[str]:
        """Write the tasks; return the paths of the files."""
        if self.version == V3_VERSION:
            v3.write_tasks(root, tasks)
            return [v3.TASKS_PATH]
        v2.write_tasks(root, tasks)
        return [v2.TASKS_PATH]


_V3 = Target(V3_VERSION, "List", v3.USUAL_NAMES)
# The library of LeRobot 0.3.3 knows no other name of lists.
_V21 = Target(
    v2.WRITTEN_VERSION,
    "Sequence",
    v3.FileNames(
        v2.in_v3_words(v2.DATA_PATH_TEMPLATE),
        v2.in_v3_words(v2.VIDEO_PATH_TEMPLATE),
        counts_on=True,
    ),
)
TARGETS: Mapping[str, Target] = {target.version: target for target in (_V3, _V21)}
"""Every version that can be written, by its ``codebase_version``."""


# v3.0 with the file names of a v2.x dataset.


def v3_target(info: Mapping[str, Any]) -> Target:
    """Return the target of an existing v3.0 result, from its ``info.json``."""
    return replace(_V3, names=v3.names_of(info))


def _overlay_target(dataset: v2.Dataset, num_episodes: int) -> Target:
    """Return the target for v3.0 around the unchanged files of a v2.x dataset.

    Raises:
        UsageError: LeRobot could not read these files by v3.0's names.
    """
    data, video = dataset.paths.v3_templates
    info = {"data_path": data, "video_path": video, "chunks_size": dataset.declared.chunks_size}
    names = v3.names_of(info)
    if names.data_path != data or (video is not None and names.video_path != video):
        raise _untranslatable(dataset, "LeRobot's reader of v3.0 does not accept")
    first, last = (names.path(DATA_STREAM, number) for number in (0, num_episodes - 1))
    if len(first) != len(last):
        # LeRobot reads tables in the order of their names as text.
        raise _untranslatable(dataset, "do not sort in the order of the episodes")
    return replace(_V3, names=names)


def _untranslatable(dataset: v2.Dataset, what: str) -> UsageError:
    paths = [dataset.declared.data_path, dataset.declared.video_path]
    templates = " or ".join(path for path in paths if path is not None)
    return UsageError(
        f"The files of {dataset.root} are named by {templates}, which {what}.",
        path=str(dataset.root),
        next_step="Use --layout episode-files, which gives the files the usual names.",
    )


def target_of(to: str, layout: str, dataset: Dataset, num_episodes: int) -> Target:
    """Return the target of a conversion of one or more datasets."""
    if layout == OVERLAY and isinstance(dataset, v2.Dataset):
        return _overlay_target(dataset, num_episodes)
    return TARGETS[to]


# ``meta/provenance.parquet``: the source of each episode of a result. It exists if the episodes are
# not simply those of one source: if sources were merged, or episodes selected. The table's metadata
# name the sources, and each row has the rest about an episode.


PROVENANCE_PATH = "meta/provenance.parquet"
_FORMAT = "leconvert/provenance"
_VERSION = 1
_KEY = b"leconvert"
_SCHEMA = pa.schema(
    [
        pa.field("episode_index", pa.int64(), nullable=False),
        pa.field("source", pa.int64(), nullable=False),
        pa.field("source_episode_index", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
    ]
)
_ROWS_AT_A_TIME = 1024


class SourceRecord(NamedTuple):
    """One source in a result's record.

    Attributes:
        name: The name of its folder, or the URL of a source on the Hub.
        codebase_version: The format of its files.
        meta_digest: SHA-256 over its tables, see `Source`.
        repairs: The changes to the source.
    """

    name: str
    codebase_version: str
    meta_digest: str
    repairs: Repairs


class Provenance(NamedTuple):
    """The sources of a result's episodes; arrays have shape (E,).

    Attributes:
        sources: The sources by their numbers.
        episode_index: Index of the episode in the result.
        source: Number of its source.
        source_episode_index: Its index in the source.
        sha256: See `episode_digests`.
    """

    sources: Sequence[SourceRecord]
    episode_index: IntArray
    source: IntArray
    source_episode_index: IntArray
    sha256: Sequence[str]


def has_provenance(sources: Sources) -> bool:
    """Return whether a result of some sources has this table."""
    return len(sources) > 1 or sources[0].repairs.selected_episodes is not None


def episode_digests(source: SourceView) -> Iterator[str]:
    """Yield a SHA-256 of the source's table entries for each episode that the result has.

    It covers the JSON, with sorted keys, of the episode's line in the table of episodes and of its
    statistics there. If the conversion computes all statistics, these are not read and count as
    none.
    """
    for line, stats in zip(source.lines(), rows_of(source.stats_blocks()), strict=True):
        text = json.dumps([line, stats or {}], sort_keys=True, default=_plain)
        yield hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_provenance(
    root: str | os.PathLike[str],
    sources: Sources,
    planned: Sequence[Source],
    *,
    name: str | None = None,
) -> None:
    """Write the table below ``root``, whose ``meta`` folder exists, block by block.

    The table holds names of folders without their paths. So equal sources give equal results in any
    folder, and a published dataset reveals nothing about the machine. ``name`` is that of the only
    source if its folder was not named by the user.
    """
    told = [
        {
            "source": name or Path(source.root).name,
            "codebase_version": source.codebase_version,
            "meta_digest": source.meta_digest,
            "repairs": source.repairs.as_record() if source.repairs else None,
        }
        for source in planned
    ]
    head = {"format": _FORMAT, "version": _VERSION, "sources": told}
    schema = _SCHEMA.with_metadata({_KEY: json.dumps(head).encode()})
    position = 0
    with pq.ParquetWriter(Path(root) / PROVENANCE_PATH, schema, compression="snappy") as writer:
        for number, source in enumerate(sources):
            digests, first = episode_digests(source), 0
            while block := list(islice(digests, _ROWS_AT_A_TIME)):
                rows = len(block)
                columns = [
                    int64_array(np.arange(position, position + rows)),
                    int64_array(np.full(rows, number)),
                    int64_array(np.ascontiguousarray(source.index[first : first + rows])),
                    array_of(block, pa.string()),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                position, first = position + rows, first + rows


def read_provenance(root: str | os.PathLike[str]) -> Provenance | None:
    """Return the table of the dataset below ``root``; None if it has none.

    Raises:
        UnreadableSourceError: The table is damaged or of an unknown version.
    """
    path = Path(root) / PROVENANCE_PATH
    if not is_there(path):
        return None
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        head: Mapping[str, Any] = json.loads((table.schema.metadata or {})[_KEY])
        if (head["format"], head["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it is {head['format']} version {head['version']}")
        sources = [
            SourceRecord(
                str(entry["source"]),
                str(entry["codebase_version"]),
                str(entry["meta_digest"]),
                Repairs.from_record(entry["repairs"]),
            )
            for entry in head["sources"]
        ]
        if not sources:
            raise ValueError("it has no source")
        columns = [table.column(field.name).cast(field.type) for field in _SCHEMA]
        if any(column.null_count for column in columns):
            raise ValueError("values are missing")
        index, source, source_index = map(int64_values, columns[:3])
        return Provenance(sources, index, source, source_index, columns[3].to_pylist())
    except (
        OSError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error}.",
            path=str(path),
            next_step="Convert again, or use the version of leconvert that wrote it.",
        ) from error


# Tables of the differences between several datasets.


Features = Mapping[str, Mapping[str, Any]]


def differing_features(
    datasets: Sequence[Features], *, with_names: bool = True, with_missing: bool = True
) -> list[list[str]]:
    """Return a row for each feature that differs: its name, and a description for each dataset.

    Args:
        datasets: The declared features of each dataset.
        with_names: Whether the names of a feature's values count, if several datasets state them.
        with_missing: Whether a feature that a dataset lacks counts.
    """
    rows = []
    for name in {name: None for features in datasets for name in features}:
        found = [features.get(name) for features in datasets]
        there = [feature for feature in found if feature is not None]
        by_facts = len({_facts(feature) for feature in there}) > 1
        by_names = with_names and len({_names(feature) for feature in there} - {None}) > 1
        is_missing = with_missing and len(there) < len(found)
        if by_facts or by_names or is_missing:
            tell = _told_names if by_names and not by_facts and not is_missing else _told_facts
            rows.append([shown(name), *("-" if one is None else tell(one) for one in found)])
    return rows


def differing_subtasks(features: Sequence[Features], roots: Sequence[Path]) -> list[str]:
    """Return the first row that differs between the tables of subtasks: its name, and its texts.

    A result has one such table, and ``subtask_index`` of all rows stays unchanged. The list is
    empty if the tables are the same, or if a dataset has no such column.
    """
    if not all("subtask_index" in each for each in features):
        return []
    listed = [v3.read_subtasks(root) for root in roots]
    for row, texts in enumerate(zip_longest(*listed, fillvalue="-")):
        if len(set(texts)) > 1:
            return [f"{v3.SUBTASKS_PATH}, row {row}", *map(shown, texts)]
    return []


def differences_table(roots: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of differences between numbered datasets."""
    numbers = range(1, len(roots) + 1)
    named = [f"{number}: {root}" for number, root in zip(numbers, roots, strict=True)]
    return [*named, *aligned([["", *map(str, numbers)], *rows])]


def _facts(feature: Mapping[str, Any]) -> tuple[object, ...]:
    return feature.get("dtype"), tuple(feature.get("shape") or ())


def _told_facts(feature: Mapping[str, Any]) -> str:
    return f"{feature.get('dtype')} {'x'.join(map(str, feature.get('shape') or ()))}"


def _names(feature: Mapping[str, Any]) -> str | None:
    """Return the names of a feature's values, None if it has none."""
    names = feature.get("names")
    return None if names is None else json.dumps(names, sort_keys=True)


def _told_names(feature: Mapping[str, Any]) -> str:
    return _names(feature) or "-"
