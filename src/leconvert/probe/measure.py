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
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

__all__ = ["BatchFacts", "Measured", "TimingPlan", "measure", "percentiles_ms"]

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """What is measured.

    Attributes:
        warmup_batches: Batches that do not count.
        duration_s: Seconds that count, at least.
        num_batches: Batches that count, at most; None for no limit.
    """

    warmup_batches: int = 10
    duration_s: float = 60.0
    num_batches: int | None = None


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is kept of a batch.

    Attributes:
        samples: Its samples.
        episodes: Distinct episodes among them.
        worker: The worker that made it; 0 without workers.
        frames: Camera frames that were decoded for it.
    """

    samples: int
    episodes: int
    worker: int
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One timed pass.

    Attributes:
        first_batch_latency_s: From before the iterator was asked for to the first batch.
        wallclock_s: From there to the last batch, warm-up included.
        steady_window_s: The stretch that counts.
        epochs: Passes over the data that were begun.
        facts: Of every batch that counts, in order of arrival.
        waits_s: The wait for each of them, in seconds.
        first_batch: Of the first batch; None if there was none.
    """

    first_batch_latency_s: float
    wallclock_s: float
    steady_window_s: float
    epochs: int
    facts: tuple[BatchFacts, ...]
    waits_s: tuple[float, ...]
    first_batch: BatchFacts | None

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

    Args:
        open_epoch: Returns the batches of an epoch, by its number from 0.
        facts_of: What to keep of a batch; it is dropped before the next one is asked for.
        plan: What to measure.
        clock: Seconds, ascending.
        on_batch: Told the samples of each batch that counts, and the seconds that counted so far.

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
    first: BatchFacts | None = None
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
        if first is None:
            first, first_latency = fact, arrived - started
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
        first_batch=first,
    )


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return p50, p95 and p99 in milliseconds; None each where there is nothing to rank."""
    values = np.fromiter(seconds, np.float64)
    if not len(values):
        return {f"p{rank}": None for rank in _PERCENTILES}
    found = np.percentile(values, _PERCENTILES) * 1000
    return {f"p{rank}": float(value) for rank, value in zip(_PERCENTILES, found, strict=True)}
