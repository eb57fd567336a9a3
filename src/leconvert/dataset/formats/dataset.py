"""A LeRobot dataset on disk, of any version.

`v2.Dataset` and `v3.Dataset` are both a `Dataset`: its readers need not know the version. Each part
is read when it is first asked for, and kept; all of it can be pickled.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from leconvert.dataset.formats.stats import STATS_PATH, StatsBlock
from leconvert.model.values import DATA_STREAM, IntArray, camera_of, stream_of_camera
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN

_NO_RENAMES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """The part of one file that belongs to one episode and stream; arrays of shape (E,).

    Attributes:
        paths: Every file, relative to the dataset.
        file: Index in ``paths`` of each episode's file.
        first: The episode's first row in it, or its first frame in the order of presentation; it
            has as many as the episode is long.
        whole: Whether each episode's file is its own, with nothing else in it.
        lead: Frames before each that it needs to be decoded and no other episode has; None for
            none of any.
        tail: Frames after each, likewise.
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
        """Return the file of one episode, relative to the dataset."""
        return self.paths[int(self.file[position])]


class Episodes(Protocol):
    """The episodes of a dataset; arrays of shape (E,)."""

    @property
    def episode_index(self) -> IntArray:
        """The number that the dataset gives each."""

    @property
    def length(self) -> IntArray:
        """Their frames."""

    def __len__(self) -> int:
        """Return how many there are, E."""


class Dataset(ABC):
    """A dataset of any version; paths of its files and columns of its tables are as stored.

    Features and streams have the names that `renames` gives them, everywhere but in `stored_info`,
    `stored_features` and `stored_streams`.

    Args:
        root: Its folder.
        renames: New name of each feature that is renamed.
        name: Its name in errors; its folder by default.

    Attributes:
        root: Its folder.
        name: Its name in errors.
    """

    statistics_help = ""
    """A remedy beside another copy for a ``meta/stats.json`` that cannot be read."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        renames: Mapping[str, str] = _NO_RENAMES,
        name: str | None = None,
    ) -> None:
        self.root = Path(root)
        self.name = os.fspath(root) if name is None else name
        self._new_names = renames
        self._old_names = {new: old for old, new in renames.items()}

    @property
    @abstractmethod
    def version(self) -> str:
        """``v2.0``, ``v2.1`` or ``v3.0``, by which its files are read."""

    @property
    @abstractmethod
    def stored_info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as it stands."""

    @property
    @abstractmethod
    def stored_features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by the names that they have in the tables."""

    @property
    @abstractmethod
    def stored_streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera, by the names that are in paths."""

    @property
    @abstractmethod
    def fps(self) -> Fraction:
        """Frames a second, the exact fraction of the decimal."""

    @property
    @abstractmethod
    def task_table(self) -> Sequence[tuple[int, str]]:
        """Index and text of each task, as the table lists them."""

    @property
    @abstractmethod
    def episodes(self) -> Episodes:
        """Their numbers and lengths."""

    @property
    @abstractmethod
    def has_quantiles(self) -> bool:
        """Whether statistics of episodes have them."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """Return what the format itself keeps below ``meta/``, whether it is there or not."""

    @abstractmethod
    def slice_of(self, path: str) -> tuple[str, int] | None:
        """Return stream and number of the episode, or file, that a path is of; None for others."""

    @abstractmethod
    def relative(self, stream: str, key: int) -> str:
        """Return the path of the file that a scan's `FileTable` calls ``key``."""

    @abstractmethod
    def absolute(self, stream: str, keys: Iterable[int]) -> Iterator[str]:
        """Yield the path of each of some files, the dataset's folder included."""

    @abstractmethod
    def slices(self, stream: str) -> Slices:
        """Return which part of which file each episode's slice of a stream is."""

    @abstractmethod
    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield each episode's record without its places: tasks, length, keys of its own.

        Each has its ``episode_index``.
        """

    @abstractmethod
    def stats_blocks(self) -> Iterator[StatsBlock]:
        """Yield the statistics of all episodes, in order; an episode without any has none in it.

        None stands for a value that is not a table of statistics.
        """

    @property
    def info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as it stands, but for the names of features."""
        info = self.stored_info
        return {**info, "features": self.features} if self._new_names else info

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by key."""
        return self._renamed(self.stored_features)

    @property
    def camera_keys(self) -> list[str]:
        """Features of cameras by the names that they have in paths, sorted."""
        return sorted(str(camera_of(stream)) for stream in self.stored_streams[1:])

    @property
    def has_episode_stats(self) -> bool:
        """Whether the version keeps statistics of episodes.

        LeRobot's own step from v2.0 to v2.1 writes the table first and the version last: where it
        was interrupted, v2.0 has a part of a table.
        """
        return self.version != "v2.0"

    @property
    def streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera."""
        streams, names = self.stored_streams, self._new_names
        return tuple(renamed_stream(each, names) for each in streams) if names else streams

    @cached_property
    def stats(self) -> Mapping[str, Mapping[str, Any]]:
        """``meta/stats.json``: arrays by feature and statistic; empty where there is none."""
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

    def check(self) -> None:
        """Raise if the tables that say where files are cannot be used."""
        self.slices(DATA_STREAM)

    def _stored_stream(self, stream: str) -> str:
        return renamed_stream(stream, self._old_names) if self._old_names else stream

    def _renamed[Item](self, items: Mapping[str, Item]) -> Mapping[str, Item]:
        names = self._new_names
        return {names.get(name, name): item for name, item in items.items()} if names else items


def renamed_stream(stream: str, renames: Mapping[str, str]) -> str:
    """Return what a stream is called once features have new names."""
    camera = camera_of(stream)
    new = None if camera is None else renames.get(camera)
    return stream if new is None else stream_of_camera(new)


# Parts of ``info.json`` that all versions write alike.


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals of ``info.json``.

    Attributes:
        fps: Frames a second.
        episodes: How many there are.
        frames: How many they have together.
        tasks: Rows of the table of tasks.
        splits: Ranges of episodes by name; None where they are those of the source.
    """

    fps: Fraction
    episodes: int
    frames: int
    tasks: int
    splits: Mapping[str, str] | None = None


def fps_number(fps: Fraction) -> int | float:
    """Return a frame rate as ``info.json`` writes it: whole rates as integers."""
    return fps.numerator if fps.denominator == 1 else float(fps)


def written_features(features: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return features as every version declares them.

    A video feature's ``video_info``, as v2.0 wrote it, becomes ``info``; a value
    that is not a table is left out.
    """
    written: dict[str, dict[str, Any]] = {}
    for key, declared in features.items():
        feature = copy.deepcopy(dict(declared))
        for name in ("info", "video_info"):
            if not isinstance(feature.get(name) or {}, Mapping):
                del feature[name]  # LeRobot looks for keys in it
        is_video = feature.get("dtype") == "video"
        if is_video and "video_info" in feature and "info" not in feature:
            # v2.0's name for these facts; later readers look for the other.
            renamed = {"video_info": "info"}
            feature = {renamed.get(name, name): value for name, value in feature.items()}
        written[key] = feature
    return written
