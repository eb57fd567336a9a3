"""The timed stretch holds whole batches after the warm-up, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest

from leconvert.bench.loaders import (
    BatchFacts,
    Measured,
    measure,
    percentiles_ms,
    time_single_pass,
    timed_calls,
)


class Time:
    """A clock that moves when a batch is drawn."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds_of_batches", "options", "waits", "window_s", "wallclock_s", "opened"),
    [
        # The clock starts with the last warm-up batch.
        ([5, 1, 2, 2, 2, 9], {"warmup_batches": 2, "duration_s": 6}, (2, 2, 2), 6, 12, [0]),
        # The last batch is counted whole, with its time.
        ([1, 4, 4], {"warmup_batches": 1, "duration_s": 5}, (4, 4), 8, 9, [0]),
        # A cap on batches ends the stretch early.
        (
            [1] * 10, {"warmup_batches": 2, "duration_s": 100, "num_batches": 3},
            (1, 1, 1), 3, 5, [0],
        ),
        # A short dataset is read again, and that counts.
        ([1, 1], {"warmup_batches": 1, "duration_s": 5}, (1,) * 5, 5, 6, [0, 1, 2]),
        # Without warm-up the first batch counts, with its latency.
        ([3, 1], {"warmup_batches": 0, "duration_s": 4}, (3, 1), 4, 4, [0]),
        # An empty loader gives nothing, and ends; so does one that runs dry in the warm-up.
        ([], {"warmup_batches": 3, "duration_s": 60}, (), 0, 0, [0]),
        ([1], {"warmup_batches": 3, "duration_s": 60}, (), 0, 2, [0, 1, 2]),
    ],
)  # fmt: skip
def test_whole_batches_after_the_warm_up_count(
    seconds_of_batches: list[float], options: dict[str, Any], waits: tuple[float, ...],
    window_s: float, wallclock_s: float, opened: list[int],
) -> None:  # fmt: skip
    time, asked = Time(), []
    heard: list[float] = []

    def open_epoch(epoch: int) -> Iterator[BatchFacts]:
        asked.append(epoch)
        # Two epochs where the warm-up takes more than one, else without end.
        for number, seconds in enumerate(seconds_of_batches if waits or epoch < 2 else []):
            time.now += seconds
            yield BatchFacts(samples=4, episodes=2, worker=number % 2)

    measured = measure(
        open_epoch, lambda batch: batch, clock=time, on_batch=heard.append, **options
    )

    assert measured.first_batch_latency_s == (seconds_of_batches or [0])[0]
    assert measured.waits_s == waits
    assert measured.steady_window_s == window_s
    assert measured.wallclock_s == wallclock_s
    assert asked == opened
    assert measured.epochs == len(opened)
    assert measured.samples == 4 * len(waits) == 4 * len(measured.facts)
    assert measured.samples_per_s == (measured.samples / window_s if waits else 0)
    assert heard == list(accumulate(waits))  # of every batch that counts


def test_shares_of_workers_and_randomness_come_from_the_batches() -> None:
    facts = (BatchFacts(4, 4, 0, 8), BatchFacts(4, 2, 2, 7), BatchFacts(2, 1, 0, 4))
    measured = Measured(0.1, 1.0, 1.0, 1, facts, (0.4, 0.8, 0.2))

    assert measured.of_workers(3) == ([6, 0, 4], [12, 0, 7])
    assert measured.frames_per_s == 19.0
    assert measured.shuffle_randomness == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert measured.sample_latencies_s() == pytest.approx([0.1] * 4 + [0.2] * 4 + [0.1] * 2)


def test_percentiles_interpolate_and_are_null_without_values() -> None:
    assert percentiles_ms([0.001, 0.002, 0.003]) == pytest.approx(
        {"p50": 2.0, "p95": 2.9, "p99": 2.98}
    )
    assert percentiles_ms([]) == {"p50": None, "p95": None, "p99": None}


def test_the_single_pass_tells_decoding_from_the_rest_and_has_no_shares_without_samples() -> None:
    time = Time()

    class Reader:
        def decode(self, seconds: float) -> float:
            time.now += seconds
            return seconds

    reader = Reader()

    def samples() -> Iterator[dict[str, float]]:
        while True:
            time.now += 1.0
            yield {"frame": reader.decode(3.0)}

    with timed_calls(reader, "decode", clock=time) as decoding_s:
        done = time_single_pass(samples(), decoding_s, num_warmup=2, num_samples=5, clock=time)

    assert done == {
        "single_proc_samples_per_s": 0.25, "fetch_pct": 25.0, "decode_pct": 75.0
    }  # fmt: skip
    assert reader.decode(1.0) == 1.0
    assert decoding_s() == 3.0 * 7
    done = time_single_pass([], None, num_warmup=1, num_samples=5)

    assert set(done.values()) == {None}
