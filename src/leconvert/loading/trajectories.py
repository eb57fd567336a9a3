"""Trajectories: recordings of one robot, sets of them, and the method of each column.

===========  ===================================================================================
``linear``   on the straight line between the samples around a target; for continuous values
``previous`` the last sample at or before the target; for switched values
``nearest``  the closer sample; the earlier one if both are equally close
``slerp``    four columns that are a quaternion, along the shorter arc; only if chosen by name
===========  ===================================================================================

By default a float is linear, and an integer or boolean is *previous*. A float whose name contains
"gripper" is *previous* too, since nobody commanded a gripper to be half open.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.loading.episodes import RowReader
from leconvert.loading.metadata import DatasetMeta, load_meta
from leconvert.model.values import FloatArray, IntArray
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.support.extras import missing_package
from leconvert.support.machine import Machine
from leconvert.support.text import amount
from leconvert.support.values import dataclass
from leconvert.transfer.files import files_at

Array = npt.NDArray[Any]

# The last target is kept if it is after the last sample by at most this share of a step.
_GRID_TOLERANCE = 1e-6
_LOOK_AT_MEMORY_BYTES = 2**30

# uint8 is the only unsigned type that torch computes with; these types hold the same numbers.
_WIDER = {"u2": "i4", "u4": "i8"}
_UNKNOWN_TO_TORCH = frozenset({"u8", "f12", "f16"})


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One recording, checked when it is made, so resampling need not check it.

    Times ascend. If several samples have the same time, the last one counts from that time on, as
    in `numpy.interp`. Values must be finite: one NaN would otherwise spread to the targets on both
    sides, and from there into a training.

    Attributes:
        name: Its name in errors.
        times: Seconds, float64, shape (T,); any origin, such as the Unix epoch.
        columns: Numbers by feature, shape (T,) or (T, ...). uint16 and uint32 become int32 and
            int64, and the byte order becomes this machine's.

    Raises:
        SourceError: There are no samples; times are NaN, infinite or not ascending; a column has
            another length, no numeric type, or values that are not finite.
    """

    name: str
    times: FloatArray
    columns: Mapping[str, Array]

    def __post_init__(self) -> None:
        times = np.asarray(self.times)
        if times.ndim != 1 or times.dtype.kind not in "fiu" or not len(times):
            raise self._error(
                "has no samples: its times must be one row of seconds", "Leave this trajectory out."
            )
        times = times.astype(np.float64, copy=False)
        object.__setattr__(self, "times", times)
        self._refuse(~np.isfinite(times), "has a time that is not finite")
        self._refuse(np.diff(times, prepend=times[0]) < 0, "is not in the order of time")
        columns = {key: self._checked(key, values) for key, values in self.columns.items()}
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def duration_s(self) -> float:
        """Seconds from the first sample to the last."""
        return float(self.times[-1] - self.times[0])

    def targets(self, hz: float) -> FloatArray:
        """Return targets every 1/hz from the first sample on, in seconds after it, to the last."""
        return np.arange(int(even_counts(np.array(self.duration_s), hz))) / hz

    def widths(self) -> dict[str, int]:
        """Return the number of values in a sample of each feature."""
        return {key: prod(values.shape[1:]) for key, values in self.columns.items()}

    def _checked(self, key: str, values: Array) -> Array:
        if values.dtype.kind not in "fiub" or values.dtype.str[1:] in _UNKNOWN_TO_TORCH:
            raise self._error(
                f"has {key} of type {values.dtype}, which cannot be resampled",
                "Leave the column out. Floats, booleans and all integers except uint64 can "
                "be resampled.",
            )
        if values.shape[:1] != self.times.shape:
            raise self._error(
                f"has {len(self)} times, but {key} is of shape {list(values.shape)}",
                "Give one sample of every column for each time.",
            )
        if values.dtype.kind == "f":
            finite = np.isfinite(values.reshape(len(self), -1))
            self._refuse((~finite).any(axis=1), f"has a value in {key} that is not finite")
        plain = values.dtype.newbyteorder("=")
        return values.astype(_WIDER.get(plain.str[1:], plain), copy=False)

    def _refuse(self, wrong: Any, what: str) -> None:
        if wrong.any():
            raise self._error(
                f"{what} (sample {wrong.argmax()})", "Correct the recording, or leave it out."
            )

    def _error(self, what: str, next_step: str) -> SourceError:
        return SourceError(f"{self.name} {what}.", path=self.name, next_step=next_step)


def even_counts(durations_s: FloatArray, hz: float, bytes_each: int = 8) -> IntArray:
    """Return the number of targets, one every 1/hz, for each duration in seconds.

    Args:
        durations_s: The durations, of any shape; their targets are padded to one length.
        hz: Targets a second.
        bytes_each: Bytes that each target takes.

    Raises:
        UsageError: The targets do not fit into the free memory.
    """
    counts = durations_s * hz + _GRID_TOLERANCE
    most = float(counts.max(initial=0.0))
    size_bytes = (most + 1) * counts.size * bytes_each
    if size_bytes > _LOOK_AT_MEMORY_BYTES and size_bytes > (free := Machine().free_memory()):
        raise UsageError(
            f"{hz:g} targets a second are {most:,.0f} for one trajectory. They need "
            f"{amount(size_bytes)}; only {amount(free)} of memory are free.",
            next_step="Resample to a lower rate, or fewer trajectories at a time.",
        )
    return counts.astype(np.int64) + 1


def check_alike(trajectories: Sequence[Trajectory]) -> None:
    """Check that trajectories can share a batch.

    Raises:
        SourceError: There are no trajectories, or their columns differ.
    """
    if not trajectories:
        raise SourceError(
            "There are no trajectories.", next_step="Give another set, or raise --max-trajectories."
        )

    def looks(trajectory: Trajectory) -> str:
        found = trajectory.columns.items()
        return ", ".join(f"{key} {values.dtype}{list(values.shape[1:])}" for key, values in found)

    first = trajectories[0]
    for other in trajectories[1:]:
        if looks(other) != looks(first):
            raise SourceError(
                f"{other.name} and {first.name} differ in their columns: {looks(other)} against "
                f"{looks(first)}.",
                path=other.name,
                next_step="Choose columns that all trajectories have, with one type and shape.",
            )


Method = Literal["linear", "previous", "nearest", "slerp"]

METHODS: tuple[Method, ...] = ("linear", "previous", "nearest", "slerp")

_GRIPPER = "gripper"
_COLUMNS = re.compile(r"(?P<key>.+?)\[(?P<start>\d+)(?P<range>:(?P<stop>\d+))?\]")
_QUATERNION = 4


class Segment(NamedTuple):
    """Columns of a feature, from ``start`` to before ``stop``, and their method."""

    start: int
    stop: int
    method: Method


Methods = Mapping[str, tuple[Segment, ...]]
"""By feature: segments that cover its columns from the first to the last."""


def choose_methods(
    columns: Mapping[str, tuple[np.dtype[Any], int]],
    given: Mapping[str, Method] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Methods:
    """Return the method of every column.

    Args:
        columns: For each feature, its type and number of columns.
        given: The user's methods, by ``feature``, ``feature[column]`` or ``feature[start:stop]``.
        names: For each feature, the names of its columns, if it has any.

    Raises:
        UsageError: A column or method does not exist, or does not fit the type or the number of
            columns.
    """
    # For each column, its method and, of a quaternion, the first column.
    chosen: dict[str, list[tuple[Method, int | None]]] = {}
    for key, (dtype, width) in columns.items():
        of_type: Method = "linear" if dtype.kind == "f" else "previous"
        known = list((names or {}).get(key, ()))
        is_named = len(known) == width
        chosen[key] = [
            ("previous" if is_named and _GRIPPER in known[column].lower() else of_type, None)
            for column in range(width)
        ]
    for text, method in (given or {}).items():
        key, start, stop = _columns(text, columns)
        _check(text, method, columns[key][0], stop - start)
        chosen[key][start:stop] = [(method, start if method == "slerp" else None)] * (stop - start)
    return {key: _segments(key, of_columns) for key, of_columns in chosen.items()}


def quaternions(methods: Methods) -> Iterator[tuple[str, int, int]]:
    """Yield feature, first column and column after the last, for each quaternion."""
    for key, segments in methods.items():
        for start, stop, method in segments:
            if method == "slerp":
                yield key, start, stop


def _columns(text: str, columns: Mapping[str, tuple[Any, int]]) -> tuple[str, int, int]:
    if text in columns:
        return text, 0, columns[text][1]
    found = _COLUMNS.fullmatch(text)
    if found is not None and found["key"] in columns:
        key, start = found["key"], int(found["start"])
        stop = start + 1 if found["range"] is None else int(found["stop"])
        if start < stop <= columns[key][1]:
            return key, start, stop
    raise UsageError(
        f"The column {text} does not exist.",
        next_step=f"Write FEATURE, FEATURE[COLUMN] or FEATURE[START:STOP]; there are "
        f"{', '.join(f'{key}[0:{width}]' for key, (_, width) in columns.items())}.",
    )


def _check(text: str, method: Method, dtype: np.dtype[Any], width: int) -> None:
    if method not in METHODS:
        raise UsageError(
            f"There is no method {method} (for {text}).",
            next_step=f"Choose among {', '.join(METHODS)}.",
        )
    if method in {"linear", "slerp"} and dtype.kind != "f":
        raise UsageError(
            f"{text} is of type {dtype}. The method {method} would produce values of another type.",
            next_step="Use the method previous or nearest for this column.",
        )
    if method == "slerp" and width != _QUATERNION:
        raise UsageError(
            f"{text} has {width} columns; a quaternion has {_QUATERNION}.",
            next_step="Give exactly four columns, such as pose[3:7].",
        )


def _segments(key: str, of_columns: Sequence[tuple[Method, int | None]]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    stop = 0
    for (method, quaternion), alike in groupby(of_columns):
        start, stop = stop, stop + len(list(alike))
        if quaternion is not None and stop - start != _QUATERNION:
            raise UsageError(
                f"Another method is also given for a column of the quaternion at "
                f"{key}[{quaternion}].",
                next_step="Give the columns of a quaternion only once.",
            )
        segments.append(Segment(start, stop, method))
    return tuple(segments)


class TrajectorySource(ABC):
    """A set of trajectories with equal columns; it can be sent to another process."""

    in_memory = False

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of the columns, for features that name them."""
        return {}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of trajectories."""

    @abstractmethod
    def load(self, index: int) -> Trajectory:
        """Return one trajectory."""

    @abstractmethod
    def as_record(self) -> dict[str, Any]:
        """Return the description of the set for results."""


class _Preloaded(TrajectorySource):
    in_memory = True

    def __init__(self, source: TrajectorySource) -> None:
        self._trajectories = [source.load(index) for index in range(len(source))]
        self._source = source
        check_alike(self._trajectories)

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        return self._source.names

    def __len__(self) -> int:
        return len(self._trajectories)

    def load(self, index: int) -> Trajectory:
        return self._trajectories[index]

    def as_record(self) -> dict[str, Any]:
        return self._source.as_record()


def preload(source: TrajectorySource) -> TrajectorySource:
    """Return a set in memory.

    Raises:
        SourceError: Its trajectories have different columns, or there are none.
    """
    return _Preloaded(source)


def methods_for(source: TrajectorySource, given: Mapping[str, Method]) -> Methods:
    """Return the method of every column of a set.

    Raises:
        SourceError: A quaternion is zero.
        UsageError: As for `choose_methods`.
    """
    first = source.load(0)
    widths = first.widths()
    columns = {key: (values.dtype, widths[key]) for key, values in first.columns.items()}
    methods = choose_methods(columns, given, source.names)
    for key, start, stop in quaternions(methods):
        for index in range(len(source)):
            one = source.load(index)
            zero = ~one.columns[key].reshape(len(one), -1)[:, start:stop].any(axis=1)
            if zero.any():
                raise SourceError(
                    f"{one.name} has the quaternion 0 in {key}[{start}:{stop}] at sample "
                    f"{zero.argmax()}.",
                    path=one.name,
                    next_step="Repair it, or choose another method for these columns.",
                )
    return methods


# Endings of robomimic files; reading them needs h5py, from the extra ``resample``.
HDF5_ENDINGS = (".hdf5", ".h5")
_NUMBERS_NDIM = 2  # samples and columns; images have more


class Hdf5Set(TrajectorySource):
    """The trajectories of a robomimic file.

    The layout is described at https://robomimic.github.io/docs/datasets/overview.html. ``actions``
    becomes ``action`` and ``obs/KEY`` becomes ``observation.KEY``; images are left out. The time
    between samples is 1/control_freq.

    Args:
        path: The file.
        columns: The features; None for all.
        most: Read at most this many trajectories; None for all.
        source_hz: Samples a second, instead of the file's ``control_freq``.

    Raises:
        UnreadableSourceError: The file cannot be read, or has no demonstrations.
        SourceError: The rate is unknown.
        UsageError: A feature does not exist.
        InstallationError: h5py is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        columns: Sequence[str] | None = None,
        most: int | None = None,
        source_hz: float | None = None,
    ) -> None:
        if importlib.util.find_spec("h5py") is None:
            raise missing_package("HDF5 needs h5py", "resample")
        self._path = path
        self._file: Any = None
        self._opened_by = 0
        with self._read() as file:
            names = [name for name in file.get("data", ()) if _number(name).isdecimal()]
            names.sort(key=lambda name: int(_number(name)))
            self._groups = [f"data/{name}" for name in names]
            if not self._groups:
                raise UnreadableSourceError(
                    f"{path} has no demonstrations as robomimic stores them (data/demo_0 …).",
                    path=str(path),
                    next_step="Give a file of robomimic.",
                )
            self._hz = self._rate(file) if source_hz is None else source_hz
            first = file[self._groups[0]]
            known = {"action": "actions"} if "actions" in first else {}
            known |= {
                f"observation.{key}": f"obs/{key}"
                for key, values in first.get("obs", {}).items()
                if values.ndim <= _NUMBERS_NDIM
            }
        _check_known(str(path), columns, list(known))
        self._columns = {key: known[key] for key in known if columns is None or key in columns}
        self._groups = self._groups[:most]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __len__(self) -> int:
        return len(self._groups)

    def load(self, index: int) -> Trajectory:
        """Read a trajectory."""
        with self._read() as file:
            group = file[self._groups[index]]
            columns = {key: np.asarray(group[at][()]) for key, at in self._columns.items()}
        name = self._groups[index].removeprefix("data/")
        times = np.arange(len(next(iter(columns.values())))) / self._hz
        return Trajectory(f"{name} in {self._path}", times, columns)

    def _rate(self, file: Any) -> float:
        """Return the file's samples a second."""
        with suppress(KeyError, TypeError, ValueError):
            stated = json.loads(file["data"].attrs["env_args"])["env_kwargs"]["control_freq"]
            if 0 < float(stated) < math.inf:
                return float(stated)
        raise SourceError(
            f"{self._path} contains no sample rate (env_args, control_freq).",
            path=str(self._path),
            next_step="Give the rate with --source-hz.",
        )

    def as_record(self) -> dict[str, Any]:
        """Return the description of the set for results."""
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


def _number(name: str) -> str:
    return name.rpartition("_")[2]


def _check_known(path: str, columns: Sequence[str] | None, known: Sequence[str]) -> None:
    if not known:
        raise UsageError(f"{path} has no numeric columns.", path=path)
    if columns is not None and not columns:
        raise UsageError(
            f"No feature of {path} is chosen.",
            path=path,
            next_step=f"Choose among {', '.join(known)}.",
        )
    for key in columns or ():
        if key not in known:
            raise UsageError(
                f"{path} has no numeric feature {key}.",
                path=path,
                next_step=f"Choose among {', '.join(known)}.",
            )


_BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_NUMBERS = ("float", "int", "uint", "bool")


class DatasetSet(TrajectorySource):
    """The episodes of a v3.0 dataset as trajectories.

    Args:
        root: The dataset, a folder or URL.
        revision: Branch, tag or commit on the Hub.
        columns: The numeric features; None for all.
        most: Use at most this many episodes; None for all.
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
        count = len(self._meta.table)
        self._count = count if most is None else min(count, most)
        self._reader: RowReader | None = None
        self._opened_by = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of the columns, for features that name them."""
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

    def load(self, index: int) -> Trajectory:
        """Read an episode's rows."""
        # A reader is not used across a fork, since two processes would move one file's position.
        if self._reader is None or self._opened_by != os.getpid():
            self._reader, self._opened_by = RowReader(self._meta, self._files), os.getpid()
        try:
            self._reader.need(index)
            rows = self._reader.read(index)
        finally:
            self._reader.release(index)
        episode = int(self._meta.table.index[index])
        times = exact_times(rows.arrays["timestamp"], float(self._meta.fps))
        columns: dict[str, Array] = {key: rows.arrays[key] for key in self._keys}
        return Trajectory(f"episode {episode} of {self._meta.root}", times, columns)

    def as_record(self) -> dict[str, Any]:
        """Return the description of the set for results."""
        return {"source": "dataset", "place": self._meta.root, "synthetic": None}


def exact_times(stored: Array, fps: float) -> FloatArray:
    """Return timestamps in float64, without the rounding to float32 if it is known.

    The format stores seconds in float32. If the stored number is a multiple of 1/fps rounded to
    float32, the exact multiple is returned. Otherwise a frame at a target would lie before or after
    it by chance, and *previous* would be off by a frame. Any other time is unchanged. Equal times
    stay equal, and the order of times does not change.
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
    _check_known(meta.root, columns, numeric)
    return numeric if columns is None else list(columns)
