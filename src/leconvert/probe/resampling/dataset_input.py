"""Trajectories out of a v3.0 dataset: its numeric columns, at their real timestamps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leconvert.errors import UsageError
from leconvert.probe.files import dataset_files
from leconvert.probe.metadata import DatasetMeta, load_meta
from leconvert.probe.resampling.values import Array, FloatArray, Trajectory
from leconvert.probe.rows import RowReader

__all__ = ["DatasetSet", "exact_times"]

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
        self._files = dataset_files(root, revision=revision)
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
        """Read an episode's rows.

        Raises:
            SourceError: They cannot be read or resampled.
        """
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
