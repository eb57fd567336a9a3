"""The timed stretch holds whole batches after the warm-up, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

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


def run(
    seconds_of_batches: list[float],
    warmup: int,
    duration_s: float,
    *,
    num_batches: int | None = None,
    epochs: int = 50,
) -> tuple[Measured, list[int]]:
    time, opened = Time(), []

    def open_epoch(epoch: int) -> Iterator[BatchFacts]:
        opened.append(epoch)
        for number, seconds in enumerate(seconds_of_batches if epoch < epochs else []):
            time.now += seconds
            yield BatchFacts(samples=4, episodes=2, worker=number % 2)

    measured = measure(
        open_epoch, lambda batch: batch, warmup_batches=warmup, duration_s=duration_s,
        num_batches=num_batches, clock=time,
    )  # fmt: skip
    return measured, opened


def test_the_clock_starts_with_the_last_warm_up_batch() -> None:
    measured, _ = run([5.0, 1.0, 2.0, 2.0, 2.0, 9.0], 2, 6.0)

    assert measured.first_batch_latency_s == 5.0
    assert measured.waits_s == (2.0, 2.0, 2.0)
    assert measured.steady_window_s == 6.0
    assert measured.samples == 12
    assert measured.samples_per_s == 2.0
    assert measured.wallclock_s == 12.0


def test_the_last_batch_is_counted_whole_with_its_time() -> None:
    measured, _ = run([1.0, 4.0, 4.0], 1, 5.0)

    assert measured.steady_window_s == 8.0
    assert measured.samples == 8


def test_a_cap_on_batches_ends_the_stretch_early() -> None:
    measured, _ = run([1.0] * 10, 2, 100.0, num_batches=3)

    assert len(measured.facts) == 3
    assert measured.steady_window_s == 3.0


def test_a_short_dataset_is_read_again_and_that_counts() -> None:
    measured, opened = run([1.0, 1.0], 1, 5.0)

    assert opened == [0, 1, 2]
    assert measured.epochs == 3
    assert len(measured.facts) == 5


def test_without_warm_up_the_first_batch_counts_with_its_latency() -> None:
    measured, _ = run([3.0, 1.0], 0, 4.0)

    assert measured.waits_s == (3.0, 1.0)
    assert measured.steady_window_s == 4.0


def test_an_empty_loader_gives_nothing_and_ends() -> None:
    measured, opened = run([], 3, 60.0)

    assert (measured.samples, measured.samples_per_s) == (0, 0.0)
    assert opened == [0]


def test_a_loader_that_runs_dry_in_the_warm_up_gives_nothing() -> None:
    measured, opened = run([1.0], 3, 60.0, epochs=2)

    assert measured.samples == 0
    assert opened == [0, 1, 2]


def test_progress_hears_of_every_batch_that_counts() -> None:
    time, heard = Time(), []

    def open_epoch(epoch: int) -> Iterator[BatchFacts]:
        for _ in range(4):
            time.now += 1.0
            yield BatchFacts(3, 1, 0)

    measure(
        open_epoch, lambda batch: batch, warmup_batches=1, duration_s=3.0, clock=time,
        on_batch=heard.append,
    )  # fmt: skip

    assert heard == [1.0, 2.0, 3.0]


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


def test_the_single_pass_tells_decoding_from_the_rest() -> None:
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


def test_a_single_pass_without_samples_has_no_shares() -> None:
    done = time_single_pass([], None, num_warmup=1, num_samples=5)

    assert set(done.values()) == {None}
