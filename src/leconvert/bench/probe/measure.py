"""Times a loader: latency of the first batch, then a fixed stretch of wall clock.

The time that counts begins when the last warm-up batch has arrived and ends with the first batch
that arrives when ``duration_s`` have passed, so that it holds whole batches and nothing else. A
loader that comes to its end within it starts its next epoch; what that costs counts, since training
pays for it too.

Two latencies are told apart. A *batch wait* is how long the consumer stood still for a batch; with
workers ahead of it most waits are short and some are long. A *sample latency* is the wait of its
batch divided by the samples in it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

__all__ = [
    "BatchFacts",
    "Measured",
    "SinglePass",
    "Stopwatch",
    "TimingPlan",
    "TreeMemory",
    "Watch",
    "measure",
    "percentiles_ms",
    "time_single_pass",
    "timed_calls",
    "tree_memory",
]


_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """What is measured."""

    warmup_batches: int = 10  # batches that do not count
    duration_s: float = 60.0  # seconds that count, at least
    num_batches: int | None = None  # batches that count, at most; None for no limit.


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is kept of a batch."""

    samples: int  # its samples
    episodes: int  # distinct episodes among them
    worker: int  # the worker that made it; 0 without workers
    frames: int = 0  # camera frames that were decoded for it


@dataclass(frozen=True, slots=True)
class Measured:
    """One timed pass."""

    first_batch_latency_s: float  # from before the iterator was asked for to the first batch
    wallclock_s: float  # from there to the last batch, warm-up included
    steady_window_s: float  # the stretch that counts
    epochs: int  # passes over the data that were begun
    facts: tuple[BatchFacts, ...]  # of every batch that counts, in order of arrival
    waits_s: tuple[float, ...]  # the wait for each of them, in seconds

    @property
    def samples(self) -> int:
        """Samples that count."""
        return sum(fact.samples for fact in self.facts)

    @property
    def frames(self) -> int:
        """Decoded camera frames that count."""
        return sum(fact.frames for fact in self.facts)

    @property
    def frames_per_s(self) -> float:
        """Decoded camera frames a second over the stretch that counts; 0 if it is empty."""
        return self.frames / self.steady_window_s if self.steady_window_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples a second over the stretch that counts; 0 if it is empty."""
        return self.samples / self.steady_window_s if self.steady_window_s > 0 else 0.0

    @property
    def shuffle_randomness(self) -> float:
        """Distinct episodes in a batch over its size, as the mean over all batches."""
        shares = [fact.episodes / fact.samples for fact in self.facts if fact.samples]
        return sum(shares) / len(shares) if shares else 0.0

    def of_workers(self, num_workers: int) -> tuple[list[int], list[int]]:
        """Return samples and frames that each worker made; one entry where there are none."""
        samples: Counter[int] = Counter()
        frames: Counter[int] = Counter()
        for fact in self.facts:
            samples[fact.worker] += fact.samples
            frames[fact.worker] += fact.frames
        workers = range(max(1, num_workers))
        return [samples[worker] for worker in workers], [frames[worker] for worker in workers]

    def sample_latencies_s(self) -> list[float]:
        """Return each sample's share of the wait for its batch."""
        return [
            wait / fact.samples
            for fact, wait in zip(self.facts, self.waits_s, strict=True)
            for _ in range(fact.samples)
        ]


def measure[Batch](
    open_epoch: Callable[[int], Iterable[Batch]],
    facts_of: Callable[[Batch], BatchFacts],
    plan: TimingPlan,
    *,
    clock: Callable[[], float] = time.perf_counter,
    on_batch: Callable[[int, float], None] | None = None,
) -> Measured:
    """Draw batches and time them.

    Returns:
        What was measured; with no facts at all if the loader gave fewer batches than the warm-up
        took, which only happens when an epoch is empty.
    """
    started = clock()
    batches = iter(open_epoch(0))
    epochs = 1
    drawn_in_epoch = drawn = 0
    facts: list[BatchFacts] = []
    waits: list[float] = []
    first_latency = 0.0
    window_began = arrived = asked = started
    while True:
        batch = next(batches, None)
        if batch is None:
            if not drawn_in_epoch:
                break
            batches = iter(open_epoch(epochs))
            epochs += 1
            drawn_in_epoch = 0
            continue
        arrived = clock()
        fact = facts_of(batch)
        del batch
        drawn += 1
        drawn_in_epoch += 1
        if drawn == 1:
            first_latency = arrived - started
        if drawn <= plan.warmup_batches:
            window_began = arrived
        else:
            facts.append(fact)
            waits.append(arrived - asked)
            if on_batch is not None:
                on_batch(fact.samples, arrived - window_began)
            if arrived - window_began >= plan.duration_s:
                break
        if plan.num_batches is not None and len(facts) >= plan.num_batches:
            break
        asked = clock()
    return Measured(
        first_batch_latency_s=first_latency,
        wallclock_s=arrived - started,
        steady_window_s=arrived - window_began if facts else 0.0,
        epochs=epochs,
        facts=tuple(facts),
        waits_s=tuple(waits),
    )


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return p50, p95 and p99 in milliseconds; None each where there is nothing to rank."""
    values = np.fromiter(seconds, np.float64)
    if not len(values):
        return {f"p{rank}": None for rank in _PERCENTILES}
    found = np.percentile(values, _PERCENTILES) * 1000
    return {f"p{rank}": float(value) for rank, value in zip(_PERCENTILES, found, strict=True)}


# ------------------------------------------------------------------------------------------------
# How much of a pass goes into decoding, told by wrapping the one method that decodes.


class Watch(Protocol):
    """Something that knows how many seconds went into decoding so far."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        ...


class Stopwatch:
    """Adds up seconds.

    Attributes:
        seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class SinglePass:
    """One pass over samples in one process, without batches."""

    samples: int  # how many were timed
    seconds: float  # what they took
    decode_seconds: float | None  # of which inside the decoder; None where nothing decodes.

    def as_metrics(self) -> dict[str, float | None]:
        """Return rate and shares as results name them.

        ``decode_pct`` is the share of time inside the frame decoder, opening it included;
        ``fetch_pct`` is the rest: reading rows and bytes, windows, putting the sample together.
        """
        if not self.samples or self.seconds <= 0:
            return dict.fromkeys(("single_proc_samples_per_s", "fetch_pct", "decode_pct"))
        decoding = 100 * (self.decode_seconds or 0.0) / self.seconds
        return {
            "single_proc_samples_per_s": self.samples / self.seconds,
            "fetch_pct": 100 - decoding,
            "decode_pct": decoding,
        }


@contextmanager
def timed_calls(
    owner: Any, method: str, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Stopwatch]:
    """Time every call of a method while the block runs, and put it back."""
    watch = Stopwatch()
    original = getattr(owner, method)

    def timed(*arguments: Any, **options: Any) -> Any:
        began = clock()
        try:
            return original(*arguments, **options)
        finally:
            watch.seconds += clock() - began

    was_its_own = method in vars(owner)
    setattr(owner, method, timed)
    try:
        yield watch
    finally:
        if was_its_own:
            setattr(owner, method, original)
        else:
            delattr(owner, method)


def time_single_pass(
    samples: Iterable[Mapping[str, Any]],
    watch: Watch | None,
    *,
    num_warmup: int,
    num_samples: int,
    clock: Callable[[], float] = time.perf_counter,
) -> SinglePass:
    """Draw samples one by one; the first ``num_warmup`` are not timed."""
    drawn = iter(samples)
    for _ in islice(drawn, num_warmup):
        pass
    before = watch.seconds if watch else 0.0
    began = clock()
    count = sum(1 for _ in islice(drawn, num_samples))
    seconds = clock() - began
    return SinglePass(count, seconds, watch.seconds - before if watch else None)


# ------------------------------------------------------------------------------------------------
# The memory of a process and all its children, sampled while something else runs.
#
# RSS counts a page in every process that maps it, so that forked workers count what they share
# again and again; PSS divides such a page among them, and is what the machine really spends. PSS
# is only known on Linux.


_EVERY_SECONDS = 0.5


def tree_memory(pid: int) -> tuple[int, int | None]:
    """Return RSS and PSS of a process and its descendants, in bytes.

    A process that ends meanwhile is left out. PSS is None where the system does not tell it.
    """
    import psutil

    if not psutil.pid_exists(pid):
        return 0, None
    rss = 0
    pss: int | None = 0
    for each in (pid, *_descendants(pid)):
        try:
            # One look gives both; it walks the page tables, some milliseconds a gigabyte.
            memory = psutil.Process(each).memory_full_info()
        except psutil.Error:
            continue
        rss += memory.rss
        share = getattr(memory, "pss", None)
        pss = None if share is None or pss is None else pss + share
    return rss, pss


def _descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on, parents first.

    Linux lists the children of each thread, so that looking twice a second costs what the tree
    costs, not what the machine runs. psutil reads the state of every process that there is, which
    is left for systems without such lists.
    """
    import psutil

    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            # A thread or process that ended meanwhile has no list any more.
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in children.read_text("ascii").split())
    return found[1:]


class TreeMemory:
    """Samples a process tree from a thread, from `start` to the end of ``with``; keeps the peaks.

    Not guaranteed: a peak between two samples goes unseen. Shared memory that workers hand tensors
    over in counts as soon as a process has touched it.

    Attributes:
        peak_rss_bytes: The largest sum of resident sets.
        peak_pss_bytes: The largest sum of proportional sets; None where unknown.
    """

    def __init__(self, pid: int | None = None, *, every_seconds: float = _EVERY_SECONDS) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tree-memory", daemon=True)
        self.peak_rss_bytes = 0
        self.peak_pss_bytes: int | None = None

    def sample(self) -> None:
        """Look once; call it where a peak is expected, such as before workers end."""
        rss, pss = tree_memory(self._pid)
        with self._lock:
            self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
            if pss is not None:
                self.peak_pss_bytes = max(self.peak_pss_bytes or 0, pss)

    def start(self) -> None:
        """Begin, if it has not begun: once all processes that are forked from here are there."""
        if self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            self.sample()
