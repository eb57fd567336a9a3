"""The episodes that a worker mixes: their rows, and the bytes of their frames."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from leconvert.probe.counters import WorkerCounters
from leconvert.probe.frames import FrameReader
from leconvert.probe.rows import EpisodeRows, RowReader

__all__ = ["EpisodePool"]


class EpisodePool:
    """Holds an episode from its first frame of an epoch to its last.

    With threads it fetches what comes next while others are decoded. That changes when bytes
    arrive, never which sample is next.

    Args:
        rows: Reads rows.
        frames: Decodes frames; told what will be asked for.
        fetch_workers: Threads that fetch ahead; 0 for none.
        counters: Told of episodes and bytes.
    """

    def __init__(
        self,
        rows: RowReader,
        frames: FrameReader,
        *,
        fetch_workers: int,
        counters: WorkerCounters,
    ) -> None:
        self._row_reader = rows
        self._frame_reader = frames
        self._counters = counters
        self._held: dict[int, EpisodeRows] = {}
        self._coming: dict[int, Future[int]] = {}
        self._fetchers = ThreadPoolExecutor(fetch_workers, "fetch") if fetch_workers else None

    def rows(self, place: int) -> EpisodeRows:
        """Return an episode's rows; it enters the pool if it is not there.

        Raises:
            SourceError: Its files cannot be read, or do not hold it.
        """
        found = self._held.get(place)
        if found is None:
            coming = self._coming.pop(place, None)
            fetched = self._need(place) if coming is None else coming.result()
            found = self._held[place] = self._row_reader.read(place)
            self._counters.add("fetched_bytes", fetched)
            self._counters.add("episodes")
        return found

    def expect(self, places: Iterable[int]) -> None:
        """Begin to fetch episodes that will be wanted soon, the first one first."""
        if self._fetchers is None:
            return
        for place in places:
            if place not in self._held and place not in self._coming:
                self._coming[place] = self._fetchers.submit(self._need, place)

    def leave(self, place: int) -> None:
        """Let an episode go; its last frame was given out."""
        del self._held[place]
        self._row_reader.release(place)
        self._frame_reader.release(place)

    def clear(self) -> None:
        """Let every episode go."""
        for place, coming in self._coming.items():
            if not coming.cancel() and coming.exception() is None:
                self._row_reader.release(place)
                self._frame_reader.release(place)
        self._coming.clear()
        for place in list(self._held):
            self.leave(place)

    def _need(self, place: int) -> int:
        return self._row_reader.need(place) + self._frame_reader.need(place)
