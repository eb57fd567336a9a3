"""Who looks at which block of a scan: this thread, threads that wait, processes that compute."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from leconvert.latency import THREADS_THAT_WAIT, Latency, is_waiting
from leconvert.source.looker import Block, Looker

__all__ = ["Spread", "look_at_all", "spread_for"]

_EPISODES_PER_BLOCK = 32
# Another process costs the CPU time of its start, about a third of this.
_SECONDS_WORTH_A_PROCESS = 0.7
_BLOCKS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """How a scan is spread.

    Attributes:
        threads: Threads of this process.
        processes: Further processes; they and one thread of this one look at a time. Only where
            ``threads`` is 1.
    """

    threads: int = 1
    processes: int = 0


def spread_for(cpu_seconds: float, wall_seconds: float, *, blocks_left: int, cores: int) -> Spread:
    """Return how a scan goes on, from what a block cost.

    Parsing headers holds Python's lock, so threads gain nothing where files answer at once (and
    lose half to the lock): there a long scan is shared with other processes, one a core. Where
    files do not answer at once, as over a network, many threads wait at a time.

    Args:
        cpu_seconds: CPU time of the thread that did it.
        wall_seconds: How long it took.
        blocks_left: Blocks still to be looked at.
        cores: Cores that this process may use.
    """
    if is_waiting(cpu_seconds, wall_seconds):
        return Spread(threads=THREADS_THAT_WAIT)
    worth = int(cpu_seconds * blocks_left / _SECONDS_WORTH_A_PROCESS)
    return Spread(processes=max(0, min(cores - 1, worth)))


def look_at_all(look: Looker, num_episodes: int, spread: Spread | None = None) -> Generator[Block]:
    """Look at all blocks and yield them in order, few of them waiting at a time.

    Args:
        look: What looks.
        num_episodes: Episodes in all.
        spread: By default what the cost of one of the first asks for.
    """
    half = max(1, _EPISODES_PER_BLOCK // 2)
    edges = {0, min(half, num_episodes), num_episodes}
    edges.update(range(2 * half, num_episodes, _EPISODES_PER_BLOCK))
    blocks = list(pairwise(sorted(edges)))
    if spread is None:
        # The first half of a block costs more than others: what files share is learned there.
        yield look(*blocks.pop(0))
        with Latency() as latency:
            second = [look(*block) for block in blocks[:1]]
        yield from second
        blocks = blocks[1:]
        spread = spread_for(
            2 * latency.cpu_seconds,
            2 * latency.wall_seconds,
            blocks_left=len(blocks),
            cores=len(os.sched_getaffinity(0)),
        )
    if spread.threads > 1:
        yield from _in_threads(look, blocks, spread.threads)
    elif spread.processes:
        yield from _Crew(look, blocks).look(spread.processes)
    else:
        for block in blocks:
            yield look(*block)


def _in_threads(
    look: Looker, blocks: Sequence[tuple[int, int]], num_threads: int
) -> Generator[Block]:
    waiting: deque[Future[Block]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="scan") as pool:
        try:
            for block in blocks:
                waiting.append(pool.submit(look, *block))
                if len(waiting) > num_threads * _BLOCKS_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Crew:
    """This thread and some processes, which take blocks from one list.

    A process that ends early, or cannot be started, costs nothing but time: the block that it had
    is looked at here. Each process has a thread here that hands it blocks; all that they share is
    changed under one lock.
    """

    def __init__(self, look: Looker, blocks: Sequence[tuple[int, int]]) -> None:
        self._look = look
        self._blocks = blocks
        self._changed = threading.Condition()
        self._next_to_look = 0
        self._next_to_yield = 0
        self._given_back: list[int] = []
        self._found: dict[int, Block] = {}
        self._ahead = 0
        self._closed = False

    def look(self, num_processes: int) -> Generator[Block]:
        """Yield all blocks in order."""
        self._ahead = _BLOCKS_AHEAD * (num_processes + 1)
        threads = [
            threading.Thread(target=self._hand_out, name=f"scan-{number}", daemon=True)
            for number in range(num_processes)
        ]
        for thread in threads:
            thread.start()
        try:
            for number in range(len(self._blocks)):
                yield self._result(number)
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()

    def _result(self, wanted: int) -> Block:
        """Return one block's result; until it is there, look at others."""
        while True:
            with self._changed:
                if wanted in self._found:
                    self._next_to_yield = wanted + 1
                    self._changed.notify_all()
                    return self._found.pop(wanted)
                mine = self._take()
                if mine is None:
                    self._changed.wait()
                    continue
            self._put(mine, self._look(*self._blocks[mine]))

    def _take(self) -> int | None:
        """Return a block that nobody looks at, None while there is none within reach."""
        if self._given_back:
            return self._given_back.pop()
        number = self._next_to_look
        if number >= len(self._blocks) or number >= self._next_to_yield + self._ahead:
            return None
        self._next_to_look = number + 1
        return number

    def _put(self, number: int, block: Block) -> None:
        with self._changed:
            self._found[number] = block
            self._changed.notify_all()

    def _hand_out(self) -> None:
        """Give blocks to one process until none is left."""
        number: int | None = None
        try:
            with _looker_process() as process:
                assert process.stdin is not None
                assert process.stdout is not None
                pickle.dump(self._look, process.stdin)
                while (number := self._wait_for_one()) is not None:
                    pickle.dump(self._blocks[number], process.stdin)
                    process.stdin.flush()
                    self._put(number, pickle.load(process.stdout))  # noqa: S301 - our own child
                    number = None
        except (OSError, EOFError, pickle.UnpicklingError):
            pass  # it ended, or never began: what it had is looked at here
        finally:
            if number is not None:
                with self._changed:
                    self._given_back.append(number)
                    self._changed.notify_all()

    def _wait_for_one(self) -> int | None:
        """Return a block as soon as one is within reach; None if no block will be."""
        with self._changed:
            while not self._closed:
                number = self._take()
                if number is not None:
                    return number
                if self._next_to_look >= len(self._blocks):
                    break
                self._changed.wait()
            return None


def _looker_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "leconvert.source.looker_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent, which closes the pipe
    )
