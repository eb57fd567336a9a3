"""Files of a shard in order, fetched ahead of whoever reads them, within a budget of bytes.

**Room.** Under one lock every file is absent, in flight, present, or begun by a fetch that failed.
All but the absent together never exceed the budget, because a fetch begins only after its room was
found there, and room is given back only after a file is removed.

**Progress.** The reader waits for one file at a time. Where that one finds no room, whatever is in
flight ends, and every other file that is present or begun may be removed, those behind the reader
first. So
a budget that holds the largest file is enough, and files are then fetched one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from leconvert.errors import InterruptedRunError
from leconvert.hub.remote_file import RemoteFile
from leconvert.workdir.incoming import part_in

__all__ = ["Window"]

_THREADS = 8
_SECONDS_BETWEEN_LOOKS = 0.2


class Window:
    """Brings files into a folder while they are needed; a context that removes them at its end.

    A file may be asked for again, in another pass: it is fetched again if it had to go.
    Not for several readers.

    Args:
        files: In the order in which they are read.
        folder: Where they go, below ``whole`` under their paths; files that are there already are
            not trusted. Where ``fetch`` puts a part, see `leconvert.workdir.incoming.part_in`.
        fetch: Brings one file to a path, or raises; called by several threads.
        budget_bytes: What may lie there at a time; at least the largest file's charge.
        should_stop: Asked while the reader waits.

    Attributes:
        peak_bytes: The most that was there or on its way at a time.
    """

    def __init__(
        self,
        files: Sequence[RemoteFile],
        folder: Path,
        fetch: Callable[[RemoteFile, Path], None],
        *,
        budget_bytes: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._files = files
        self._folder = folder
        self._fetch = fetch
        self._budget_bytes = budget_bytes
        self._should_stop = should_stop
        self._changed = threading.Condition()
        self._present: set[int] = set()
        self._in_flight: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._begun: set[int] = set()
        self._used_bytes = 0
        self._reader_at = 0
        self._next = 0
        self._closed = False
        self.peak_bytes = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for place in self._present:
            self._path(place).unlink(missing_ok=True)

    def path(self, place: int) -> str:
        """Return where a file is, as soon as it is there; it stays until the next is asked for.

        Raises:
            InterruptedRunError: ``should_stop`` said so.
            Exception: Whatever ``fetch`` raised for it.
        """
        with self._changed:
            self._reader_at = self._next = place
            self._errors.clear()
            self._begin_more()
            while place not in self._present:
                if place in self._errors:
                    raise self._errors[place]
                if self._should_stop():
                    raise InterruptedRunError(
                        f"Stopped while fetching {self._files[place].path}.",
                        path=self._files[place].path,
                        next_step="Run the same command again to go on.",
                    )
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
        return str(self._path(place))

    def _path(self, place: int) -> Path:
        return self._folder / "whole" / self._files[place].path

    def _begin_more(self) -> None:
        """Begin to fetch what comes next, as far as there is room; the lock is held."""
        while not self._closed and self._next < len(self._files):
            place = self._next
            if place not in self._present and place not in self._in_flight:
                if len(self._in_flight) >= _THREADS or place in self._errors:
                    return
                if place not in self._begun:
                    if not self._make_room(place):
                        return
                    self._used_bytes += self._files[place].charge_bytes
                    self.peak_bytes = max(self.peak_bytes, self._used_bytes)
                self._begun.discard(place)
                self._in_flight.add(place)
                self._pool.submit(self._bring, place).add_done_callback(self._ended(place))
            self._next = place + 1

    def _make_room(self, place: int) -> bool:
        needed = self._used_bytes + self._files[place].charge_bytes - self._budget_bytes
        removable = sorted(other for other in self._present if other < self._reader_at)
        if place == self._reader_at:
            removable += sorted((other for other in self._present if other > place), reverse=True)
            removable += sorted(self._begun, reverse=True)
        for other in removable:
            if needed <= 0:
                break
            for path in (self._path(other), part_in(self._folder, self._files[other].path)):
                path.unlink(missing_ok=True)
            self._present.discard(other)
            self._begun.discard(other)
            self._used_bytes -= self._files[other].charge_bytes
            needed -= self._files[other].charge_bytes
        return needed <= 0

    def _bring(self, place: int) -> None:
        path = self._path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fetch(self._files[place], path)

    def _ended(self, place: int) -> Callable[[Future[None]], None]:
        def settle(future: Future[None]) -> None:
            with self._changed:
                self._in_flight.discard(place)
                error = None if future.cancelled() else future.exception()
                if error is None and not future.cancelled():
                    self._present.add(place)
                else:
                    # A part stays, and counts, for whoever tries next; a whole file that was
                    # refused must not.
                    self._path(place).unlink(missing_ok=True)
                    self._begun.add(place)
                    if error is not None:
                        self._errors[place] = error
                self._begin_more()
                self._changed.notify_all()

        return settle
