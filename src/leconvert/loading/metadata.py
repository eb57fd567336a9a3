"""The metadata of a v3.0 dataset, as plain arrays; every worker gets a copy."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from leconvert.dataset.check import errors_of_meta
from leconvert.dataset.findings import named
from leconvert.dataset.formats import Slices, v3
from leconvert.model.values import DATA_STREAM, BoolArray, IntArray, camera_of, is_depth_map
from leconvert.model.versions import V3_VERSION, unreadable
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.support.extras import missing_package
from leconvert.support.values import dataclass
from leconvert.transfer.files import Files
from leconvert.transfer.names import repository_of

if TYPE_CHECKING:
    import pandas as pd

_LANGUAGE_COLUMNS = frozenset({"language_persistent", "language_events"})


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """The columns of ``meta/episodes`` that loading needs; arrays of shape (E,)."""

    index: IntArray  # ``episode_index``
    length: IntArray  # number of frames
    from_index: IntArray  # number of its first frame in the whole dataset
    data: Slices  # the data files and first rows
    # For each camera, in the order of the features: its video files and first frames.
    cameras: Mapping[str, Slices]

    def __len__(self) -> int:
        return len(self.index)

    def streams(self) -> list[Slices]:
        """Return the slices of the data and of each camera."""
        return [self.data, *self.cameras.values()]

    def files(self) -> list[IntArray]:
        """Return the file of each episode, for the data and for each camera."""
        return [stream.file for stream in self.streams()]

    def paths(self, places: IntArray) -> list[str]:
        """Return the paths of all files that contain some episodes, relative to the dataset."""
        return [
            stream.paths[number]
            for stream in self.streams()
            for number in np.unique(stream.file[places]).tolist()
        ]


class EpisodeRecords(Sequence[dict[str, Any]]):
    """The columns of ``meta/episodes`` without statistics, indexed as in LeRobot's code.

    ``records[3]["length"]`` and ``records["length"][3]`` are the length of the fourth episode.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._rows.column_names)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame."""
        return self._rows.to_pandas()

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Any: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            return self._rows.column(key).to_pylist()
        if isinstance(key, slice):  # the columns, as in a Dataset of Hugging Face
            return self._rows.take(list(range(*key.indices(len(self))))).to_pydict()
        place = key + len(self) if key < 0 else key
        if not 0 <= place < len(self):
            raise IndexError(f"there is no episode {key} among {len(self)}")
        row: dict[str, Any] = self._rows.slice(place, 1).to_pylist()[0]
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._rows.to_batches():
            yield from batch.to_pylist()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FeatureMeta:
    """The features of samples, under the names that LeRobot's code uses."""

    root: str  # the dataset's folder or URL
    fps: float  # frames a second, as in ``info.json``
    features: Mapping[str, Mapping[str, Any]]  # declared features by key
    # ``meta/stats.json``: arrays by feature and statistic; empty if the file is missing.
    stats: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def names(self) -> dict[str, Any]:
        """Names of the dimensions of each feature."""
        return {key: feature.get("names") for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each feature."""
        return {key: tuple(feature["shape"]) for key, feature in self.features.items()}

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Cameras whose frames are in parquet tables."""
        return tuple(key for key, ft in self.features.items() if ft["dtype"] == "image")

    @property
    def depth_keys(self) -> tuple[str, ...]:
        """Depth cameras."""
        return tuple(key for key in self.camera_keys if self.is_depth(key))

    @property
    def has_language_columns(self) -> bool:
        """Whether samples have lists of language instructions."""
        return not _LANGUAGE_COLUMNS.isdisjoint(self.features)

    @property
    def video_keys(self) -> tuple[str, ...]:
        """Cameras whose frames are in video files."""
        return tuple(key for key, ft in self.features.items() if ft["dtype"] == "video")

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """All cameras, in the order of the features."""
        return tuple(key for key, ft in self.features.items() if ft["dtype"] in {"video", "image"})

    def is_depth(self, key: str) -> bool:
        """Return whether a camera is a depth camera."""
        return is_depth_map(self.features[key])


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetMeta(FeatureMeta):
    """A v3.0 dataset's metadata, under the names that LeRobot's code uses."""

    info: Mapping[str, Any]  # ``meta/info.json``
    task_texts: tuple[str, ...]  # by ``task_index``
    table: EpisodeTable  # all episodes, with the columns that loading needs
    # The rows of ``meta/episodes`` if they were fetched; None if they are on this disk.
    fetched_rows: pa.Table | None = field(default=None, repr=False)

    @cached_property
    def episodes(self) -> EpisodeRecords:
        """The records of all episodes; for a local dataset, they are read at the first use."""
        rows = self.fetched_rows
        return EpisodeRecords(_episode_rows(self.root) if rows is None else rows)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """``task_index`` by task text, as a DataFrame; needs pandas, which LeRobot installs."""
        try:
            import pandas as pd
        except ImportError as error:
            raise missing_package("meta.tasks needs pandas", "deep") from error
        texts = pd.Index(self.task_texts, name="task", dtype=object)
        return pd.DataFrame({"task_index": np.arange(len(texts))}, index=texts)

    @property
    def repo_id(self) -> str:
        """``OWNER/NAME`` on the Hub, else the folder's name."""
        on_hub = self.root.removeprefix("hf://datasets/").removeprefix("hf://buckets/")
        if on_hub == self.root:
            return self.root.rpartition("/")[2]
        return repository_of(on_hub).partition("@")[0]

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""
        return len(self.table)

    @property
    def total_frames(self) -> int:
        """Number of frames of all episodes."""
        return int(self.table.length.sum())

    @property
    def total_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_texts)

    @property
    def robot_type(self) -> str | None:
        """The robot's type, if the dataset has one."""
        return self.info.get("robot_type")

    def fingerprint(self) -> str:
        """Return a digest of everything that decides the order and content of samples."""
        digest = hashlib.blake2b(digest_size=16)
        said = [self.fps, self.features, self.task_texts]
        digest.update(json.dumps(said, sort_keys=True).encode())
        for feature, values in sorted(self.stats.items()):
            for statistic, numbers in sorted(values.items()):
                digest.update(f"{feature}\0{statistic}\0".encode())
                digest.update(np.ascontiguousarray(numbers, np.float64))
        table = self.table
        arrays = [table.index, table.length, table.from_index, table.data.first, *table.files()]
        arrays += [camera.first for camera in table.cameras.values()]
        for numbers in arrays:
            digest.update(np.ascontiguousarray(numbers, np.int64))
        return digest.hexdigest()


def load_meta(files: Files) -> DatasetMeta:
    """Read the metadata of a v3.0 dataset.

    The ``meta/`` of a remote dataset is fetched into a temporary folder first.

    Raises:
        SourceError: The dataset is not v3.0, or cannot be loaded.
        UnreadableSourceError: Metadata are missing or damaged.
    """
    info = _load_info(files)
    if files.is_local:
        return _read(v3.Dataset(files.root, info=info), lists_files=True)
    with tempfile.TemporaryDirectory(prefix="leconvert-meta-") as folder:
        files.copy_folder("meta", Path(folder))
        try:
            read = _read(v3.Dataset(folder, info=info, name=files.root))
            return replace(read, fetched_rows=_episode_rows(folder))
        except UnreadableSourceError as error:
            if error.path is None or not error.path.startswith(folder):
                raise
            raise UnreadableSourceError(
                error.message.replace(folder, files.root),
                path=error.path.replace(folder, files.root),
                next_step=error.next_step,
                details=error.details,
            ) from error


def _load_info(files: Files) -> dict[str, Any]:
    name = files.name(v3.INFO_PATH)
    if files.is_local and not os.path.isdir(files.root):  # noqa: PTH112 (a name, not a Path)
        raise UnreadableSourceError(
            f"{files.root} is not a folder.",
            path=files.root,
            next_step="Give the folder of a dataset, which contains meta/, data/ and videos/. "
            "For a dataset on the Hub give hf://datasets/OWNER/NAME.",
        )
    try:
        info = json.loads(files.read(v3.INFO_PATH))
        version = info["codebase_version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableSourceError(
            f"{name} does not describe a dataset: {error!r}.", path=name
        ) from error
    if wrong := unreadable(info, files.root):
        raise wrong
    if version != V3_VERSION:
        raise SourceError(
            f"{files.root} is {version}, but only v3.0 datasets can be loaded.",
            path=files.root,
            next_step="Convert the dataset first: leconvert convert --root "
            f"{shlex.quote(files.root)} --output NEW.",
        )
    return dict(info)


def _episode_rows(root: str) -> pa.Table:
    """Return ``meta/episodes`` without the statistics, as LeRobot keeps it."""
    blocks = v3.EpisodesReader(root).blocks(lambda name: not name.startswith(v3.STATS_PREFIX))
    return pa.concat_tables(blocks, promote_options="permissive")


def _read(dataset: v3.Dataset, *, lists_files: bool = False) -> DatasetMeta:
    fps = dataset.declared.raw["fps"]
    table, tasks = dataset.episodes, dataset.tasks
    for error in errors_of_meta(dataset, lists_files=lists_files):
        path = f"{dataset.name}/{error.path}"
        said = f"{path} cannot be used for loading: {error.message}"
        raise SourceError(
            said, path=path, next_step=named(error.remedy or "", dataset.name) or None
        )
    cameras = {str(camera_of(stream)): dataset.slices(stream) for stream in dataset.streams[1:]}
    return DatasetMeta(
        root=dataset.name,
        info=dataset.info,
        fps=fps if isinstance(fps, int) else float(fps),
        features={
            key: {**feature, "shape": tuple(feature["shape"])}
            for key, feature in dataset.info["features"].items()
        },
        task_texts=tasks,
        table=EpisodeTable(
            index=table.episode_index,
            length=table.to_index - table.from_index,
            from_index=table.from_index,
            data=dataset.slices(DATA_STREAM),
            cameras=cameras,
        ),
        stats=dataset.stats,
    )


# Windows of frames around a sample's frame: their frames, and which of them are padding. Pure.


PAD_SUFFIX = "_is_pad"


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The steps of one feature, relative to the frame of the sample."""

    offsets: IntArray  # frames, shape (T,)

    @property
    def steps(self) -> int:
        """Number of steps, T."""
        return len(self.offsets)

    def frames(self, frames: IntArray, lengths: IntArray) -> IntArray:
        """Return the frames of each sample's window, shape (N, T).

        A step before the episode's first frame or after its last becomes that frame.
        """
        wanted = frames[:, None] + self.offsets
        return np.clip(wanted, 0, lengths[:, None] - 1)

    def distinct_frames(self, frames: IntArray, lengths: IntArray) -> int:
        """Return how many distinct frames each sample's window has, summed over all samples."""
        chosen = np.sort(self.frames(frames, lengths), axis=1)
        return len(chosen) + int(np.count_nonzero(np.diff(chosen, axis=1)))

    def is_pad(self, frames: IntArray, lengths: IntArray) -> BoolArray:
        """Return which steps lie outside the episode, shape (N, T)."""
        wanted = frames[:, None] + self.offsets
        outside: BoolArray = (wanted < 0) | (wanted >= lengths[:, None])
        return outside


def make_windows(
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    *,
    fps: float,
    tolerance_s: float,
    features: Mapping[str, object],
) -> dict[str, Window]:
    """Convert times relative to a sample into frames, as LeRobot does.

    Returns:
        A window for each feature, in the order given.

    Raises:
        UsageError: A feature is unknown, or its times are invalid.
    """
    windows: dict[str, Window] = {}
    for key, seconds in (delta_timestamps or {}).items():
        if key not in features:
            raise UsageError(
                f"delta_timestamps names {key!r}, which the dataset does not have.",
                next_step=f"Its features are {', '.join(sorted(features))}.",
            )
        try:
            offsets = np.array([round(second * fps) for second in seconds], np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"delta_timestamps gives {seconds!r} for {key!r}, which is not a list of seconds.",
                next_step=f"Give a list, such as [-1.0, 0.0] or [step / {fps:g} for step in "
                "range(16)].",
            ) from error
        if not len(offsets):
            raise UsageError(f"delta_timestamps gives an empty list for {key!r}.")
        for second, offset in zip(seconds, offsets.tolist(), strict=True):
            if abs(second * fps - offset) / fps > tolerance_s:
                raise UsageError(
                    f"delta_timestamps asks for {key!r} at {second} s, which is not a "
                    f"multiple of 1/{fps:g} s within {tolerance_s:g} s.",
                    next_step=f"The nearest time is {offset / fps:.6f} s.",
                )
        windows[key] = Window(offsets)
    return windows
