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

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

_PERCENTILES = (50, 95, 99)


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
    *,
    warmup_batches: int,
    duration_s: float,
    num_batches: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_batch: Callable[[float], None] | None = None,
) -> Measured:
    """Draw batches and time them.

    Args:
        open_epoch: Returns the batches of an epoch.
        facts_of: Returns what is kept of a batch.
        warmup_batches: Batches that do not count.
        duration_s: Seconds that count, at least.
        num_batches: Batches that count, at most; None for no limit.
        clock: Tells the time in seconds.
        on_batch: Hears of every batch that counts, with the seconds since the stretch began.

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
        if drawn <= warmup_batches:
            window_began = arrived
        else:
            facts.append(fact)
            waits.append(arrived - asked)
            if on_batch is not None:
                on_batch(arrived - window_began)
            if arrived - window_began >= duration_s:
                break
        if num_batches is not None and len(facts) >= num_batches:
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


NO_SINGLE_PASS: dict[str, float | None] = dict.fromkeys(
    ("single_proc_samples_per_s", "fetch_pct", "decode_pct")
)


@contextmanager
def timed_calls(
    owner: Any, method: str, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Callable[[], float]]:
    """Time every call of a method while the block runs, and put it back.

    Yields:
        What returns the seconds of all calls so far.
    """
    spent = 0.0
    original = getattr(owner, method)

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal spent
        began = clock()
        try:
            return original(*arguments, **options)
        finally:
            spent += clock() - began

    was_its_own = method in vars(owner)
    setattr(owner, method, timed)
    try:
        yield lambda: spent
    finally:
        if was_its_own:
            setattr(owner, method, original)
        else:
            delattr(owner, method)


def time_single_pass(
    samples: Iterable[Mapping[str, Any]],
    decoding_s: Callable[[], float] | None,
    *,
    num_warmup: int,
    num_samples: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float | None]:
    """Draw samples one by one, in one process and without batches, and return rate and shares.

    ``decode_pct`` is the share of time inside the frame decoder, opening it included; ``fetch_pct``
    is the rest: reading rows and bytes, windows, putting the sample together.

    Args:
        samples: The samples.
        decoding_s: Returns the seconds spent on decoding so far; None where nothing decodes.
        num_warmup: How many are not timed.
        num_samples: How many are timed after these.
        clock: Tells the time in seconds.
    """
    drawn = iter(samples)
    for _ in islice(drawn, num_warmup):
        pass
    before = decoding_s() if decoding_s else 0.0
    began = clock()
    count = sum(1 for _ in islice(drawn, num_samples))
    seconds = clock() - began
    if not count or seconds <= 0:
        return NO_SINGLE_PASS
    decoding = 100 * (decoding_s() - before) / seconds if decoding_s else 0.0
    return {
        "single_proc_samples_per_s": count / seconds,
        "fetch_pct": 100 - decoding,
        "decode_pct": decoding,
    }
