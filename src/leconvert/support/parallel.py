"""Spreads the pieces of a long job: over this thread, threads that wait, or processes that compute.

The scan, the verification and the check share it. A job is one callable and a list of pieces; each
piece is a tuple of arguments. Results come in the order of the pieces.

Threads take the pieces, and each thread hands its pieces to a process of its own: one of this job's
other processes, or this one. The others run ``python -m leconvert.support.parallel``. It reads a
pickled callable and then tuples of arguments from standard input, answers each with the pickled
result on standard output, and ends when its input ends. A failing call ends the process. The thread
then does that piece itself, and meets the same error in a process that can report it.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, BinaryIO, NamedTuple, Self

from leconvert.support.forkserver import serves_forks, start_python
from leconvert.support.machine import allowed_cores, queued_seconds
from leconvert.support.values import dataclass

THREADS_THAT_WAIT = 16
"""Number of concurrent requests if each is answered late, as over a network."""

_WAITING_FROM = 2.0


def is_waiting(cpu_seconds: float, wall_seconds: float) -> bool:
    """Return whether a thread spent half of its time or more waiting."""
    return wall_seconds > _WAITING_FROM * cpu_seconds


class Latency:
    """A context that measures a piece of work, to decide how to do the rest.

    Attributes:
        cpu_seconds: CPU time of this process. A thread that waits for Python's lock waits for a
            thread that computes, and so would further threads.
        wall_seconds: Wall-clock time, without the time for which this thread waited for a
            processor: if other programs keep the machine busy, further threads would wait for it,
            too.
    """

    cpu_seconds = 0.0
    wall_seconds = 0.0

    def __enter__(self) -> Self:
        self._queued = queued_seconds()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds = time.process_time() - self._cpu
        self.wall_seconds = time.perf_counter() - self._wall
        self.wall_seconds -= queued_seconds() - self._queued

    @property
    def dominates(self) -> bool:
        """Whether the work waited for half of its time or more."""
        return is_waiting(self.cpu_seconds, self.wall_seconds)


type Piece = tuple[Any, ...]
"""The arguments of one call; it can be pickled."""

# Starting another process costs CPU time: about a third of this, from scratch or by a fork.
_SECONDS_WORTH_A_PROCESS = 0.7
_SECONDS_WORTH_A_FORK = 0.1
_PIECES_AHEAD = 4
# One piece may take a fraction of a millisecond, which is too short to measure, or for a message.
_SECONDS_MEASURED = 0.01


class Spread(NamedTuple):
    """How a job is spread.

    Attributes:
        threads: Threads of this process.
        processes: Further processes; they and one thread of this process work at the same time.
            Only if ``threads`` is 1.
    """

    threads: int = 1
    processes: int = 0


def spread_for(
    cpu_seconds: float,
    wall_seconds: float,
    *,
    times_left: float,
    workers: int | None = None,
    threads_here: int | None = None,
) -> Spread:
    """Return how a job continues, from the cost of its first pieces.

    Parsing headers holds Python's lock. So if files are read without delay, threads gain nothing
    (and lose half to the lock), and a long job is shared with other processes. If files are read
    with delay, as over a network, many threads wait at the same time.

    Args:
        cpu_seconds: CPU time of the pieces so far.
        wall_seconds: Wall-clock time of these pieces.
        times_left: Cost of the remaining pieces, relative to these.
        workers: Maximum of threads or processes; None for the default.
        threads_here: Given if the job cannot leave this process: the number of threads if files are
            read without delay.
    """
    if is_waiting(cpu_seconds, wall_seconds):
        return Spread(threads=min(workers or THREADS_THAT_WAIT, THREADS_THAT_WAIT))
    if threads_here is not None:
        return Spread(threads=threads_here)
    worth_one = _SECONDS_WORTH_A_FORK if serves_forks() else _SECONDS_WORTH_A_PROCESS
    worth = int(cpu_seconds * times_left / worth_one)
    others = (workers or allowed_cores()) - 1
    return Spread(processes=max(0, min(others, worth)))


def parallel_map[Done](
    work: Callable[..., Done],
    pieces: Sequence[Piece],
    spread: Spread | None = None,
    *,
    weights: Sequence[float] | None = None,
    workers: int | None = None,
    threads_here: int | None = None,
) -> Generator[Done]:
    """Do all pieces and yield their results in order; few results are held at a time.

    If an exception or the caller closes the generator, it waits for the pieces in progress; no
    further ones are begun.

    Args:
        work: Does a piece. Threads may share it, and it can be pickled.
        pieces: The pieces.
        spread: How to spread the job; by default the first pieces are measured.
        weights: Expected costs of the pieces, in any unit; equal by default.
        workers: Maximum of threads or processes; None for the default.
        threads_here: For work that cannot be pickled, as in `spread_for`.
    """
    expected: Sequence[float] = [_SECONDS_MEASURED] * len(pieces)
    if spread is None:
        # The first piece costs more than others, since it learns what the files share.
        costs = list(weights or [1.0] * len(pieces))[1:]
        for piece in pieces[:1]:
            yield work(*piece)
        pieces, measured = pieces[1:], list[Done]()
        with Latency() as latency:
            begun = time.perf_counter()
            for piece in pieces:
                measured.append(work(*piece))
                if time.perf_counter() - begun > _SECONDS_MEASURED:
                    break
        yield from measured
        pieces, cost = pieces[len(measured) :], max(sum(costs[: len(measured)]), 1e-9)
        expected = [latency.cpu_seconds * each / cost for each in costs[len(measured) :]]
        spread = spread_for(
            latency.cpu_seconds,
            latency.wall_seconds,
            times_left=sum(costs[len(measured) :]) / cost,
            workers=workers,
            threads_here=threads_here,
        )
    if spread.threads > 1:
        yield from _in_threads(work, pieces, spread.threads)
    elif spread.processes:
        groups = list(_groups(pieces, expected))
        for results in _in_processes(_Group(work), groups, spread.processes):
            yield from results
    else:
        for piece in pieces:
            yield work(*piece)


def _groups(pieces: Sequence[Piece], expected: Sequence[float]) -> Iterator[Piece]:
    """Yield groups of pieces that take some milliseconds together, to be handed over at once."""
    group: list[Piece] = []
    seconds = 0.0
    for piece, each in zip(pieces, expected, strict=True):
        group.append(piece)
        seconds += each
        if seconds >= _SECONDS_MEASURED:
            yield (group,)
            group, seconds = [], 0.0
    if group:
        yield (group,)


@dataclass(frozen=True, slots=True)
class _Group[Done]:
    """Does several pieces one after another; it can be pickled if ``work`` can."""

    work: Callable[..., Done]

    def __call__(self, pieces: Sequence[Piece]) -> list[Done]:
        return [self.work(*piece) for piece in pieces]


def _in_processes[Done](
    work: Callable[..., Done], pieces: Sequence[Piece], num_processes: int
) -> Generator[Done]:
    """Do pieces in other processes and in this one at the same time."""
    # Pickle before any piece is done here: what the work remembers of its pieces changes with each.
    pickled = pickle.dumps(work)
    free: SimpleQueue[Callable[..., Done]] = SimpleQueue()
    # Memory that one thread has freed is hardly used by another one, so this process's pieces are
    # all done by one thread.
    own = threading.local()

    def do(*piece: Any) -> Done:
        if not hasattr(own, "work"):
            own.work = free.get()  # there are as many as threads
        found: Done = own.work(*piece)
        return found

    with ExitStack() as started:
        for _ in range(num_processes):
            free.put(started.enter_context(_OtherProcess(work, pickled)))
        del pickled  # each process drops it when it has started, since it may be large
        free.put(work)
        yield from _in_threads(do, pieces, num_processes + 1, waits_for_servers=False)


class _OtherProcess[Done]:
    """Does pieces in a process that is started for the first one.

    Pieces are done in this process if the other cannot be started, and once it has ended. Leaving
    the context ends it.
    """

    def __init__(self, work: Callable[..., Done], pickled: bytes) -> None:
        self._work = work
        self._pickled = pickled
        self._is_over = False
        self._opened = ExitStack()
        self._pipes: tuple[BinaryIO, BinaryIO] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        with suppress(OSError):
            self._opened.close()

    def __call__(self, *piece: Any) -> Done:
        if not self._is_over:
            with suppress(OSError, EOFError, pickle.UnpicklingError):
                return self._answer(piece)
            self._is_over = True
        return self._work(*piece)

    def _answer(self, piece: Piece) -> Done:
        requests, answers = self._pipes = self._pipes or self._started()
        pickle.dump(piece, requests)
        requests.flush()
        return pickle.load(answers)  # type: ignore[no-any-return] # noqa: S301 - our own child

    def _started(self) -> tuple[BinaryIO, BinaryIO]:
        ours, theirs = socket.socketpair()
        with ours, theirs, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            files = (theirs.fileno(), theirs.fileno(), nowhere.fileno())
            process = start_python(__name__, (), files)
            requests, answers = ours.makefile("wb"), ours.makefile("rb")
        self._opened.callback(process.wait)
        # the pipes are closed first: the process ends when its input ends
        for pipe in (answers, requests):
            self._opened.push(pipe)
        requests.write(self._pickled)
        self._pickled = b""
        return requests, answers


def _in_threads[Done](
    work: Callable[..., Done],
    pieces: Sequence[Piece],
    num_threads: int,
    *,
    waits_for_servers: bool = True,
) -> Generator[Done]:
    waiting: deque[Future[Done]] = deque()
    pool, waits = ThreadPoolExecutor(num_threads, thread_name_prefix="piece"), True
    try:
        for piece in pieces:
            waiting.append(pool.submit(work, *piece))
            if len(waiting) > num_threads * _PIECES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KeyboardInterrupt:  # a thread may wait for a server, but an interrupt must not
        waits = not waits_for_servers
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def run_threads(
    work: Callable[[], object],
    count: int,
    stop: threading.Event,
    *,
    name: str,
    watch: Callable[[], None] | None = None,
    watch_seconds: float | None = None,
) -> None:
    """Do the same work in several threads until all have ended.

    The first error sets ``stop``, and is raised once all threads have ended. No thread works on
    when this function returns or raises, even after Ctrl-C. An interrupt while threads are started
    could leave a thread that the pool does not know; therefore no thread begins before all are
    started.

    Args:
        work: The work of a thread.
        count: Number of threads.
        stop: Ends the work early.
        name: Prefix of the threads' names.
        watch: Called every ``watch_seconds`` meanwhile, in this thread.
        watch_seconds: The interval; None to call it never.
    """
    errors: list[BaseException] = []
    started, given_up = threading.Event(), threading.Event()

    def begin() -> None:
        started.wait()
        try:
            if not given_up.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)
            stop.set()

    with ThreadPoolExecutor(count, thread_name_prefix=name) as pool:
        try:
            futures = [pool.submit(begin) for _ in range(count)]
            started.set()
            while wait(futures, timeout=watch_seconds).not_done:
                if watch is not None:
                    watch()
        except BaseException:
            if not started.is_set():
                given_up.set()
            started.set()
            stop.set()
            raise
    if errors:  # the first is the cause; the others were only asked to stop
        raise errors[0]


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the parent process until there are no more requests."""
    work: Callable[..., Any] = pickle.load(requests)  # noqa: S301 - it comes from the parent process
    while True:
        try:
            piece = pickle.load(requests)  # noqa: S301
        except EOFError:
            return
        pickle.dump(work(*piece), answers)
        answers.flush()


if __name__ == "__main__":
    gc.set_threshold(100_000)  # as in the program
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except (BrokenPipeError, EOFError):
        sys.exit(1)  # the parent is gone
