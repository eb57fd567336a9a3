"""Where trajectories come from: one at a time, by number."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import numpy as np

from leconvert.errors import (
    InstallationError,
    SourceError,
    TargetError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.loading import DatasetMeta, RowReader, files_at, load_meta
from leconvert.resampling.methods import (
    Array,
    FloatArray,
    Method,
    Methods,
    Trajectory,
    check_alike,
    check_quaternions,
    choose_methods,
)
from leconvert.workdir.storage_errors import storage_errors

__all__ = [
    "DatasetSet",
    "Hdf5Set",
    "SyntheticSet",
    "TrajectorySource",
    "exact_times",
    "methods_for",
    "preload",
    "set_record",
    "write_hdf5",
]


class TrajectorySource(Protocol):
    """A set of trajectories that are alike; can be sent to another process."""

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of a feature's columns, where it has any."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def load(self, place: int) -> Trajectory:
        """Return one of them."""
        ...

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        ...


class Preloaded:
    """A set in memory.

    Args:
        trajectories: The set.
        source: Where it was read from.

    Raises:
        SourceError: There are none, or they are not alike.
    """

    def __init__(self, trajectories: Sequence[Trajectory], source: TrajectorySource) -> None:
        check_alike(trajectories)
        self._trajectories = list(trajectories)
        self._source = source

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of a feature's columns, where it has any."""
        return self._source.names

    def __len__(self) -> int:
        return len(self._trajectories)

    def load(self, place: int) -> Trajectory:
        """Return one of them."""
        return self._trajectories[place]

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return self._source.as_record()


def preload(source: TrajectorySource) -> Preloaded:
    """Read a whole set into memory."""
    if not len(source):
        raise SourceError(
            "The set has no trajectories.", next_step="Give another, or raise --max-trajectories."
        )
    return Preloaded([source.load(place) for place in range(len(source))], source)


def methods_for(source: TrajectorySource, given: Mapping[str, Method]) -> Methods:
    """Return the method of every column of a set, and check its quaternions."""
    first = source.load(0)
    widths = first.widths()
    columns = {key: (values.dtype, widths[key]) for key, values in first.columns.items()}
    methods = choose_methods(columns, given, source.names)
    if any(segment.method == "slerp" for segments in methods.values() for segment in segments):
        for place in range(len(source)):
            check_quaternions(source.load(place), methods)
    return methods


def set_record(source: TrajectorySource, methods: Methods) -> dict[str, Any]:
    """Return what a set is like: lengths, rates, columns and their methods."""
    lengths, durations, rates = [], [], []
    for place in range(len(source)):
        one = source.load(place)
        lengths.append(len(one))
        durations.append(one.duration_s)
        if one.duration_s > 0:
            rates.append((len(one) - 1) / one.duration_s)
    first = source.load(0)
    return {
        **source.as_record(),
        "trajectories": len(source),
        "samples": sum(lengths),
        "length": _spread(lengths),
        "duration_s": _spread(durations),
        "rate_hz": _spread(rates),
        "columns": {
            key: {
                "dtype": str(values.dtype),
                "shape": list(values.shape[1:]),
                "methods": [list(segment) for segment in methods[key]],
            }
            for key, values in first.columns.items()
        },
    }


def _spread(numbers: Sequence[float]) -> dict[str, float] | None:
    if not numbers:
        return None
    return {
        "min": float(np.min(numbers)),
        "median": float(np.median(numbers)),
        "max": float(np.max(numbers)),
    }


# ------------------------------------------------------------------------------------------------
# Trajectories in one HDF5 file, written and read.
#
#     /                        attributes: format "leconvert/trajectories", version 1, count
#     /trajectories/000000     attribute: name
#         times                float64, of shape (T,): seconds
#         columns/<feature>    numbers, of shape (T, ...); "/" and "%" in names are percent-coded
#
# h5py is imported when a file is touched: it comes with the extra ``resample``.


FORMAT = "leconvert/trajectories"
VERSION = 1


def require_h5py() -> None:
    """Fail with what to install if h5py is missing."""
    if importlib.util.find_spec("h5py") is None:
        raise InstallationError(
            "HDF5 needs h5py, which is not installed.",
            next_step="Run `pip install 'leconvert[resample]'`.",
        )


def write_hdf5(source: TrajectorySource, path: Path) -> None:
    """Write a set; it appears under its name when it is whole."""
    require_h5py()
    import h5py

    if path.exists():
        raise TargetError(
            f"{path} exists already.", path=str(path), next_step="Choose another name."
        )
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with h5py.File(partial, "w") as file:
                file.attrs.update({"format": FORMAT, "version": VERSION, "count": len(source)})
                for place in range(len(source)):
                    one = source.load(place)
                    group = file.create_group(_group(place))
                    group.attrs["name"] = one.name
                    group["times"] = one.times
                    for key, values in one.columns.items():
                        group[f"columns/{quote(key, safe='')}"] = values
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)  # where the set could not be read, or written


class Hdf5Set:
    """The trajectories of a file.

    Args:
        path: The file.
        columns: Features to take; None for all.
        most: Use the first so many.

    Raises:
        UnreadableSourceError: It is missing, damaged, or something else.
        InstallationError: h5py is not installed.
        UsageError: There are no such features.
    """

    def __init__(
        self, path: Path, *, columns: Sequence[str] | None = None, most: int | None = None
    ) -> None:
        require_h5py()
        self._path = path
        self._columns = columns
        self._file: Any = None
        self._opened_by = 0
        with self._read() as file:
            if file.attrs.get("format") != FORMAT or file.attrs.get("version") != VERSION:
                raise UnreadableSourceError(
                    f"{path} is no file of trajectories that this version knows.",
                    path=str(path),
                    next_step="Write one with `leconvert probe resample --write-hdf5 FILE`; "
                    "docs/resampling.md describes the format.",
                )
            count = int(file.attrs["count"])
            held = list(file[_group(0)]["columns"]) if count else []
        known = [unquote(key) for key in held]
        for key in columns or ():
            if key not in known:
                raise UsageError(
                    f"{path} has no feature {key}.",
                    path=str(path),
                    next_step=f"Choose among {', '.join(known)}.",
                )
        self._count = count if most is None else min(count, most)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """The file has none."""
        return {}

    def __len__(self) -> int:
        return self._count

    def load(self, place: int) -> Trajectory:
        """Read a trajectory."""
        with self._read() as file:
            group = file[_group(place)]
            held = group["columns"]
            keys = self._columns or [unquote(key) for key in held]
            columns = {key: np.asarray(held[quote(key, safe="")][()]) for key in keys}
            times = np.asarray(group["times"][()])
            name = str(group.attrs["name"])
        return Trajectory(f"{name} in {self._path}", times, columns)

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return {"source": "hdf5", "place": str(self._path), "synthetic": None}

    @contextmanager
    def _read(self) -> Iterator[Any]:
        """Yield the file; it stays open for the next read, but not across a fork."""
        import h5py

        try:
            if self._file is None or self._opened_by != os.getpid():
                self._file, self._opened_by = h5py.File(self._path, "r"), os.getpid()
            yield self._file
        except (OSError, KeyError, ValueError) as error:
            missing = not self._path.exists()
            reason = "it is missing" if missing else str(error).partition("\n")[0].strip("'\"")
            raise UnreadableSourceError(
                f"{self._path} cannot be read: {reason}.",
                path=str(self._path),
                next_step="Check the path." if missing else "Write the file again.",
            ) from error


def _group(place: int) -> str:
    return f"trajectories/{place:06d}"


# ------------------------------------------------------------------------------------------------
# Trajectories out of a v3.0 dataset: its numeric columns, at their real timestamps.


# What counts frames and names tasks is no recording.
_BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_NUMBERS = ("float", "int", "uint", "bool")


class DatasetSet:
    """The episodes of a dataset.

    Args:
        root: The dataset's folder or URL.
        revision: Of a dataset on the Hub.
        columns: Features to take; None for all numeric ones but what counts frames.
        most: Use the first so many episodes.

    Raises:
        SourceError: It cannot be read.
        UsageError: It has no such features.
    """

    def __init__(
        self,
        root: str,
        *,
        revision: str | None = None,
        columns: Sequence[str] | None = None,
        most: int | None = None,
    ) -> None:
        self._files = files_at(root, revision=revision)
        self._meta = load_meta(self._files)
        self._keys = _chosen(self._meta, columns)
        count = len(self._meta.episodes)
        self._count = count if most is None else min(count, most)
        self._reader: RowReader | None = None
        self._opened_by = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of a feature's columns, where it has any."""
        found = {}
        for key in self._keys:
            names = self._meta.features[key].get("names")
            if isinstance(names, dict):  # some robots write {"motors": [...]}
                names = next(iter(names.values()), None)
            while isinstance(names, list) and len(names) == 1 and isinstance(names[0], list):
                names = names[0]
            if isinstance(names, list):
                found[key] = [str(name) for name in names]
        return found

    def __len__(self) -> int:
        return self._count

    def load(self, place: int) -> Trajectory:
        """Read an episode's rows."""
        # Not across a fork: two processes would move one file's position.
        if self._reader is None or self._opened_by != os.getpid():
            self._reader, self._opened_by = RowReader(self._meta, self._files), os.getpid()
        self._reader.need(place)
        try:
            rows = self._reader.read(place)
        finally:
            self._reader.release(place)
        episode = int(self._meta.episodes.index[place])
        times = exact_times(rows.arrays["timestamp"], float(self._meta.fps))
        columns: dict[str, Array] = {key: rows.arrays[key] for key in self._keys}
        return Trajectory(f"episode {episode} of {self._meta.root}", times, columns)

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return {"source": "dataset", "place": self._meta.root, "synthetic": None}


def exact_times(stored: Array, fps: float) -> FloatArray:
    """Return timestamps in float64, undoing a rounding that can be told.

    The format stores seconds in float32. Where the stored number is just a multiple of 1/fps in
    float32, the exact one is meant: otherwise a frame that is on a target would be before or after
    it by chance, and *previous* would be off by a frame. Any other time is what it is. Equal times
    stay equal, and none passes another.
    """
    ideal = np.rint(stored.astype(np.float64) * fps) / fps
    is_rounded = ideal.astype(np.float32) == stored.astype(np.float32)
    return np.where(is_rounded, ideal, stored.astype(np.float64))


def _chosen(meta: DatasetMeta, columns: Sequence[str] | None) -> list[str]:
    numeric = [
        key
        for key, feature in meta.features.items()
        if str(feature["dtype"]).startswith(_NUMBERS) and key not in _BOOKKEEPING
    ]
    if "timestamp" not in meta.features:
        raise UsageError(f"{meta.root} has no timestamps.", path=meta.root)
    if columns is None:
        if not numeric:
            raise UsageError(f"{meta.root} has no numeric columns.", path=meta.root)
        return numeric
    for key in columns:
        if key not in numeric:
            raise UsageError(
                f"{meta.root} has no numeric feature {key}.",
                path=meta.root,
                next_step=f"Choose among {', '.join(numeric)}.",
            )
    return list(columns)


# ------------------------------------------------------------------------------------------------
# A set of trajectories as many robots would record it, each at its own rate.


_WAVES = 3
_FREQUENCIES_HZ = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class SyntheticSet:
    """Smooth motions, sampled at rates and over times that are drawn for each trajectory.

    A rate is kept as it was drawn: samples are exactly 1/rate apart (plus ``jitter``), whatever
    fraction of a sample the duration then cuts off. Equal numbers and seeds give equal
    trajectories, in whatever order and process they are made.

    Attributes:
        count: Trajectories.
        seed: Of everything.
        rates_hz: Lowest and highest rate, drawn uniformly.
        durations_s: Likewise.
        action_dim: Columns of ``action``, float32.
        state_dim: Columns of ``observation.state``, float32.
        jitter: How far a sample's time is off, at most, as a share of the step; below a half.
    """

    count: int = 512
    seed: int = 0
    rates_hz: tuple[float, float] = (30.0, 333.0)
    durations_s: tuple[float, float] = (1.0, 4.0)
    action_dim: int = 7
    state_dim: int = 14
    jitter: float = 0.0

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """There are none."""
        return {}

    def __len__(self) -> int:
        return self.count

    def load(self, place: int) -> Trajectory:
        """Make a trajectory."""
        random = np.random.default_rng([self.seed, place])
        rate = random.uniform(*self.rates_hz)
        duration = random.uniform(*self.durations_s)
        steps = np.arange(int(duration * rate) + 1)
        shifts = random.uniform(-self.jitter, self.jitter, len(steps))
        shifts[0] = 0
        times = (steps + shifts) / rate
        width = self.action_dim + self.state_dim
        motion = np.zeros((len(times), width))
        for _ in range(_WAVES):
            frequency = random.uniform(*_FREQUENCIES_HZ, width)
            phase = random.uniform(0, 2 * np.pi, width)
            motion += np.sin(2 * np.pi * frequency * times[:, None] + phase)
        numbers = motion.astype(np.float32)
        return Trajectory(
            f"synthetic trajectory {place}",
            times,
            {
                "action": np.ascontiguousarray(numbers[:, : self.action_dim]),
                "observation.state": np.ascontiguousarray(numbers[:, self.action_dim :]),
            },
        )

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return {"source": "synthetic", "place": None, "synthetic": asdict(self)}
