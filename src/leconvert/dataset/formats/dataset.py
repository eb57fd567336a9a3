"""A LeRobot dataset on disk, of any version.

`v2.Dataset` and `v3.Dataset` are both a `Dataset`, so their readers need not know the version. Each
part is read at its first use, and kept; the whole object can be pickled.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert.dataset.files import names_to_keep
from leconvert.dataset.formats.stats import STATS_PATH, StatsBlock
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import DATA_STREAM, IntArray, camera_of, stream_of_camera
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.support.values import dataclass
from leconvert.tables.data_file import read_data_schema


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """The part of one file that belongs to one episode and stream; arrays of shape (E,).

    Attributes:
        paths: Every file, relative to the dataset.
        file: Index in ``paths`` of each episode's file.
        first: The episode's first row in it, or its first frame in presentation order; the number
            of rows or frames is the length of the episode.
        whole: Whether each episode's file contains nothing else.
        lead: Number of frames before each episode that only its decoding needs; None if none has
            any.
        tail: Number of frames after each episode that only its decoding needs; None if none has
            any.
    """

    paths: Sequence[str]
    file: IntArray
    first: IntArray
    whole: bool = False
    lead: IntArray | None = None
    tail: IntArray | None = None

    def select(self, positions: IntArray) -> Slices:
        """Return the slices of some episodes, in the order given."""
        return replace(
            self,
            file=self.file[positions],
            first=self.first[positions],
            lead=None if self.lead is None else self.lead[positions],
            tail=None if self.tail is None else self.tail[positions],
        )

    def path(self, position: int) -> str:
        """Return the path of one episode's file, relative to the dataset."""
        return self.paths[int(self.file[position])]


@dataclass(frozen=True, slots=True, eq=False)
class Episodes:
    """The episodes of a dataset in the order of its table; arrays have shape (E,).

    Attributes:
        episode_index: The number of each episode as stored; readers of v3.0 use the row number.
        length: Number of frames.
    """

    episode_index: IntArray
    length: IntArray

    def __len__(self) -> int:
        return len(self.episode_index)


class Dataset(ABC):
    """A dataset of any version; paths of its files and columns of its tables are as stored.

    Features and streams have the names that the repairs give them, except in `stored_info`,
    `stored_features` and `stored_streams`.

    Args:
        root: Its folder.
        repairs: The changes that matter for reading.
        name: Its name in errors; its folder by default.

    Attributes:
        root: Its folder.
        reading: The changes that matter for reading.
        name: Its name in errors.
    """

    statistics_help = ""
    """Another remedy for a ``meta/stats.json`` that cannot be read."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        repairs: Repairs = NO_REPAIRS,
        name: str | None = None,
    ) -> None:
        self.root = Path(root)
        self.reading = repairs
        self.name = os.fspath(root) if name is None else name
        self._new_names = repairs.renamed_features
        self._old_names = {new: old for old, new in self._new_names.items()}

    @property
    @abstractmethod
    def version(self) -> str:
        """``v2.0``, ``v2.1`` or ``v3.0``: the version by which its files are read."""

    @property
    @abstractmethod
    def stored_info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as stored."""

    @property
    @abstractmethod
    def stored_features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by their names in the tables."""

    @property
    @abstractmethod
    def stored_streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera, by their names in paths."""

    @property
    @abstractmethod
    def fps(self) -> Fraction:
        """Frames a second, as the exact fraction of the decimal."""

    @property
    @abstractmethod
    def task_table(self) -> Sequence[tuple[int, str]]:
        """Index and text of each task, in the order of the table."""

    @property
    @abstractmethod
    def episodes(self) -> Episodes:
        """The numbers and lengths of episodes."""

    @property
    @abstractmethod
    def has_quantiles(self) -> bool:
        """Whether statistics of episodes have quantiles."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """Return the format's own files below ``meta/``, existing or not."""

    def other_files(self) -> list[str]:
        """Return every name in its folder but its tables and files of episodes, sorted."""
        known = {path for stream in self.streams for path in self.slices(stream).paths}
        known |= self.tables()
        return sorted(name for name in names_to_keep(self.root) if name not in known)

    @abstractmethod
    def slice_of(self, path: str) -> tuple[str, int] | None:
        """Return the stream and number for the path of an episode's file; None for other paths."""

    @abstractmethod
    def relative(self, stream: str, key: int) -> str:
        """Return the path of the file that a scan's `FileTable` calls ``key``."""

    def absolute(self, stream: str, keys: Iterable[int]) -> Iterator[str]:
        """Yield the path of each of some files, including the dataset's folder."""
        return (f"{self.root}/{self.relative(stream, key)}" for key in keys)

    @abstractmethod
    def slices(self, stream: str) -> Slices:
        """Return the file and the part of it that each episode has in a stream.

        Raises:
            UnreadableSourceError: The tables with the positions are unusable.
        """

    def data_schemas(self) -> Iterator[pa.Schema]:
        """Yield the schema of each data file; the scan reports those that cannot be read."""
        for path in self.slices(DATA_STREAM).paths:
            with suppress(UnreadableSourceError):
                yield read_data_schema(f"{self.root}/{path}")

    def columns_among(self, names: Set[str]) -> set[str]:
        """Return the names that are columns of a data file; mostly the first one has them."""
        found: set[str] = set()
        schemas = self.data_schemas() if names else ()
        for schema in schemas:
            found |= names & {*schema.names}
            if found == names:
                break
        return found

    @abstractmethod
    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield each episode's record without file positions: tasks, length, and further keys.

        Each record has its ``episode_index``.
        """

    @abstractmethod
    def stats_blocks(self) -> Iterator[StatsBlock]:
        """Yield the statistics of all episodes, in order; empty for an episode without any.

        None stands for a value that is not a table of statistics.
        """

    @property
    def info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as stored, except the names of features."""
        info = self.stored_info
        return {**info, "features": self.features} if self._new_names else info

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by key."""
        return self._renamed(self.stored_features)

    @property
    def camera_keys(self) -> list[str]:
        """Features of cameras by their names in paths, sorted."""
        return sorted(str(camera_of(stream)) for stream in self.stored_streams[1:])

    @property
    def has_episode_stats(self) -> bool:
        """Whether the version keeps statistics of episodes.

        LeRobot's own step from v2.0 to v2.1 writes the table first and the version last. So after
        an interruption, v2.0 has a part of a table.
        """
        return self.version != "v2.0"

    @property
    def streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera."""
        streams, names = self.stored_streams, self._new_names
        return tuple(renamed_stream(each, names) for each in streams) if names else streams

    @cached_property
    def stats(self) -> Mapping[str, Mapping[str, Any]]:
        """``meta/stats.json``: arrays by feature and statistic; empty if there is no file."""
        try:
            stats = json.loads((self.root / STATS_PATH).read_bytes())
            return self._renamed(
                {
                    key: {name: np.array(value) for name, value in found.items()}
                    for key, found in stats.items()
                }
            )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            path = f"{self.name}/{STATS_PATH}"
            helps = self.statistics_help.format(shlex.quote(self.name))
            raise UnreadableSourceError(
                f"{path} contains no usable statistics: {error}.",
                path=path,
                next_step=f"{GET_AGAIN}{helps}.",
            ) from error

    def _stored_stream(self, stream: str) -> str:
        return renamed_stream(stream, self._old_names) if self._old_names else stream

    def _renamed[Item](self, items: Mapping[str, Item]) -> Mapping[str, Item]:
        names = self._new_names
        return {names.get(name, name): item for name, item in items.items()} if names else items


def renamed_stream(stream: str, renames: Mapping[str, str]) -> str:
    """Return the name of a stream after features were renamed."""
    camera = camera_of(stream)
    new = None if camera is None else renames.get(camera)
    return stream if new is None else stream_of_camera(new)


# Parts of ``info.json`` that all versions share.


def frame_rate(value: object) -> Fraction | None:
    """Return ``fps`` of ``info.json`` as a rate; None if it is not one."""
    # bool is an int in Python: true would pass as one frame a second.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Fraction(repr(value)) if 0 < value < 1_000_000 else None  # also refuses NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals of ``info.json``.

    Attributes:
        fps: Frames a second.
        episodes: Number of episodes.
        frames: Number of frames.
        tasks: Number of rows in the table of tasks.
        splits: Ranges of episodes by name; None for the source's own.
    """

    fps: Fraction
    episodes: int
    frames: int
    tasks: int
    splits: Mapping[str, str] | None = None


def written_splits(info: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """Return the splits to write; none for a value that is not a table, which no reader uses."""
    splits = info.get("splits") if totals.splits is None else totals.splits
    return dict(splits) if isinstance(splits, Mapping) else {}


def with_other_keys(
    known: Mapping[str, Any], info: Mapping[str, Any], dropped: Collection[str]
) -> dict[str, Any]:
    """Return the known keys of a new ``info.json``, then the others of an old one, unchanged."""
    others = {key: info[key] for key in info if key not in known and key not in dropped}
    return {**known, **copy.deepcopy(others)}


def fps_number(fps: Fraction) -> int | float:
    """Return a frame rate as written in ``info.json``: whole rates as integers."""
    return fps.numerator if fps.denominator == 1 else float(fps)


def written_features(features: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return features as every version declares them.

    A video feature's ``video_info``, from v2.0, becomes ``info``; a value that is not a table is
    left out.
    """
    written: dict[str, dict[str, Any]] = {}
    for key, declared in features.items():
        feature = copy.deepcopy(dict(declared))
        for name in ("info", "video_info"):
            if not isinstance(feature.get(name) or {}, Mapping):
                del feature[name]  # LeRobot looks for keys in it
        is_video = feature.get("dtype") == "video"
        if is_video and "video_info" in feature and "info" not in feature:
            # v2.0's name for these facts; later readers look for the other name.
            renamed = {"video_info": "info"}
            feature = {renamed.get(name, name): value for name, value in feature.items()}
        written[key] = feature
    return written


MOST_LEVELS = 100
"""Python can show and compare values of fewer levels, wherever it is called from."""


def is_deeper(value: object, levels: int) -> bool:
    """Return whether a value of a JSON file has more levels than so many."""
    level: list[Any] = [value]
    for _ in range(levels):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
