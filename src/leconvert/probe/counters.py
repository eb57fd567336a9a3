"""What loader workers did, in memory that the training process sees too.

Each worker adds to a row of its own, so nobody waits for anybody; what the training process reads
is a moment old.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.probe.tensors import shared_numbers

__all__ = ["MOST_WORKERS", "Counters", "StreamFacts", "UnreadablePlace", "WorkerCounters"]

MOST_WORKERS = 512
_NAMED_UNREADABLE = 16


@dataclass(slots=True)
class StreamFacts:
    """What one worker, or all of them together, did so far.

    Attributes:
        samples: Samples given out.
        frames: Camera frames given out, those of windows included.
        episodes: Episodes that entered the pool.
        cache_hits: Times that a decoder was wanted and open.
        cache_misses: Times that one had to be opened.
        cache_evictions: Decoders closed to make room.
        cache_size: Decoders open now.
        fetched_bytes: Bytes that came from elsewhere.
        unreadable: Frames that could not be decoded.
        rows_ns: Nanoseconds spent on reading rows and fetching bytes.
        decode_ns: Nanoseconds spent on decoding frames.
        assemble_ns: Nanoseconds spent on putting samples together, decoding not included.
    """

    samples: int = 0
    frames: int = 0
    episodes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_evictions: int = 0
    cache_size: int = 0
    fetched_bytes: int = 0
    unreadable: int = 0
    rows_ns: int = 0
    decode_ns: int = 0
    assemble_ns: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of decoders that were open when they were wanted; None where none was."""
        wanted = self.cache_hits + self.cache_misses
        return self.cache_hits / wanted if wanted else None


_NAMES = [field.name for field in fields(StreamFacts)]
_PLACE_OF = {name: place for place, name in enumerate(_NAMES)}


class UnreadablePlace(NamedTuple):
    """A frame that could not be decoded: place of the camera, place of the episode, frame."""

    camera: int
    episode: int
    frame: int


class WorkerCounters:
    """One worker's row; but for `name_unreadable` it is for one thread."""

    def __init__(
        self,
        row: npt.NDArray[np.int64],
        unreadable: npt.NDArray[np.int64],
        by_camera: npt.NDArray[np.int64],
    ) -> None:
        self._row = row
        self._unreadable = unreadable
        self._by_camera = by_camera
        self._lock = threading.Lock()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a fact of `StreamFacts`."""
        self._row[_PLACE_OF[name]] += amount

    def put(self, name: str, value: int) -> None:
        """Set a fact of `StreamFacts`."""
        self._row[_PLACE_OF[name]] = value

    def name_unreadable(self, place: UnreadablePlace) -> None:
        """Count a frame that could not be decoded; from any thread. The first are remembered."""
        with self._lock:
            number = int(self._row[_PLACE_OF["unreadable"]])
            if number < _NAMED_UNREADABLE:
                self._unreadable[number] = place
            self._row[_PLACE_OF["unreadable"]] = number + 1
            self._by_camera[place.camera] += 1


class Counters:
    """The rows of all workers. It can be sent to them by fork or by torch's pickling.

    Args:
        num_cameras: Cameras of the dataset.
    """

    def __init__(self, num_cameras: int) -> None:
        self._rows = shared_numbers(MOST_WORKERS, len(_NAMES))
        self._unreadable = shared_numbers(MOST_WORKERS, _NAMED_UNREADABLE, 3)
        self._by_camera = shared_numbers(MOST_WORKERS, num_cameras)

    def of_worker(self, worker: int) -> WorkerCounters:
        """Return the row that a worker writes."""
        return WorkerCounters(
            self._rows[worker].numpy(),
            self._unreadable[worker].numpy(),
            self._by_camera[worker].numpy(),
        )

    def workers(self) -> list[StreamFacts]:
        """Return the facts of each worker up to the last that did anything."""
        rows = self._rows.numpy().copy()
        busy = np.flatnonzero(rows.any(axis=1))
        return [StreamFacts(*row) for row in rows[: int(busy[-1]) + 1 if len(busy) else 0].tolist()]

    def total(self) -> StreamFacts:
        """Return the sum over workers."""
        return StreamFacts(*self._rows.sum(dim=0).tolist())

    def unreadable(self) -> list[UnreadablePlace]:
        """Return the first frames of each worker that could not be decoded, each once."""
        found: set[UnreadablePlace] = set()
        for worker, facts in enumerate(self.workers()):
            named = min(facts.unreadable, _NAMED_UNREADABLE)
            found.update(
                UnreadablePlace(*place) for place in self._unreadable[worker, :named].tolist()
            )
        return sorted(found)

    def unreadable_by_camera(self) -> list[int]:
        """Return how many frames of each camera could not be decoded."""
        counts: list[int] = self._by_camera.sum(dim=0).tolist()
        return counts

    def reset(self) -> None:
        """Forget everything; only while no worker is at work."""
        self._rows.zero_()
        self._by_camera.zero_()
