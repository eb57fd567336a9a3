"""Trajectories in one HDF5 file, written and read.

    /                        attributes: format "leconvert/trajectories", version 1, count
    /trajectories/000000     attribute: name
        times                float64, of shape (T,): seconds
        columns/<feature>    numbers, of shape (T, ...); "/" and "%" in names are percent-coded

h5py is imported when a file is touched: it comes with the extra ``resample``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from leconvert.errors import InstallationError, TargetError, UnreadableSourceError, UsageError
from leconvert.probe.resampling.sources import TrajectorySource
from leconvert.probe.resampling.values import Trajectory
from leconvert.workdir.trouble import storage_errors

__all__ = ["FORMAT", "VERSION", "Hdf5Set", "require_h5py", "write_hdf5"]

FORMAT = "leconvert/trajectories"
VERSION = 1


def require_h5py() -> None:
    """Fail with what to install if h5py is missing.

    Raises:
        InstallationError: It is.
    """
    if importlib.util.find_spec("h5py") is None:
        raise InstallationError(
            "HDF5 needs h5py, which is not installed.",
            next_step="Run `pip install 'leconvert[resample]'`.",
        )


def write_hdf5(source: TrajectorySource, path: Path) -> None:
    """Write a set; it appears under its name when it is whole.

    Raises:
        TargetError: There is such a file already.
        StorageError: It cannot be written.
        InstallationError: h5py is not installed.
    """
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
        """Read a trajectory.

        Raises:
            SourceError: It is damaged, or cannot be resampled.
        """
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
