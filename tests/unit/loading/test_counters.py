"""What workers count, seen by all threads and processes."""

from __future__ import annotations

import threading
from typing import Any

from leconvert.loading import StreamFacts
from leconvert.loading.tensors import Counters, UnreadablePlace, WorkerCounters

HERE, THERE = UnreadablePlace(0, 1, 2), UnreadablePlace(0, 1, 3)
SECONDS = 10.0


class SpiedLock:
    """A lock that says when somebody wants it."""

    def __init__(self, wanted: threading.Event) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class InterruptedRow:
    """A worker's numbers; the first who reads one is interrupted by another thread."""

    def __init__(self, numbers: Any, interruption: threading.Thread, done: threading.Event) -> None:
        self._numbers = numbers
        self._interruption = interruption
        self._done = done

    def __getitem__(self, place: int) -> int:
        number = int(self._numbers[place])
        if self._interruption.ident is None:
            self._interruption.start()
            assert self._done.wait(SECONDS)
        return number

    def __setitem__(self, place: int, number: int) -> None:
        self._numbers[place] = number


def test_frames_that_two_threads_cannot_decode_at_once_both_count() -> None:
    counters = Counters(1)
    met = threading.Event()  # the other thread has counted, or waits for this one

    def count_there() -> None:
        worker.name_unreadable(THERE)
        met.set()

    other = threading.Thread(target=count_there)
    row = InterruptedRow(counters._rows[0].numpy(), other, met)
    worker = WorkerCounters(
        row,  # type: ignore[arg-type]
        counters._unreadable[0].numpy(),
        counters._by_camera[0].numpy(),
    )
    worker._lock = SpiedLock(met)  # type: ignore[assignment]
    worker.name_unreadable(HERE)
    other.join(SECONDS)
    assert counters.total().unreadable == 2
    assert counters.unreadable() == [HERE, THERE]
    assert counters.unreadable_by_camera() == [2]


def test_workers_write_rows_of_their_own_and_are_summed() -> None:
    counters = Counters(2)
    for number in (0, 2):
        worker = counters.of_worker(number)
        worker.add("samples", 3 + number)
        worker.put("cache_size", 1)
        worker.name_unreadable(UnreadablePlace(1, 0, number))
    assert [facts.samples for facts in counters.workers()] == [3, 0, 5]
    assert (counters.total().samples, counters.total().cache_size) == (8, 2)
    assert (counters.total().unreadable, counters.unreadable_by_camera()) == (2, [0, 2])
    counters.reset()
    assert counters.workers() == []
    assert (counters.total(), counters.unreadable_by_camera()) == (StreamFacts(), [0, 0])
