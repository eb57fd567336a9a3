"""A job gives the same results whoever does its pieces, and whoever dies."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from leconvert.dataset.scan import scan_source, v2
from leconvert.model.values import FILE_COLUMNS, SLICE_COLUMNS, SourceScan
from leconvert.support import parallel as spread
from leconvert.support.forkserver import PythonProcess
from leconvert.support.parallel import Spread, parallel_map, run_threads, spread_for
from leconvert.support.progress import SilentProgress, Stage


@pytest.fixture(autouse=True)
def _one_episode_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "_EPISODES_PER_BLOCK", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that a scan starts."""
    processes: list[subprocess.Popen[bytes]] = []
    real = spread.start_python

    def start(*words: Any) -> subprocess.Popen[bytes]:
        process = real(*words)
        assert isinstance(process, subprocess.Popen)
        processes.append(process)
        return process

    monkeypatch.setattr(spread, "start_python", start)
    return processes


def numbers_of(scan: SourceScan) -> list[list[int]]:
    return [
        np.concatenate(
            [
                *(getattr(s.files, name) for name in FILE_COLUMNS),
                *(getattr(s, name) for name in SLICE_COLUMNS),
            ]
        ).tolist()
        for s in scan.streams
    ]


def test_processes_see_what_one_thread_sees_and_their_findings_arrive(
    source_copy: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    (source_copy / "README.md").touch()
    alone = scan_source(source_copy, spread=Spread())
    shared = scan_source(source_copy, spread=Spread(processes=2))
    assert numbers_of(shared) == numbers_of(alone)
    assert shared.findings == alone.findings
    assert len(started) == 2
    assert [process.returncode for process in started] == [0, 0]
    for episode in range(5):
        (source_copy / f"data/chunk-000/episode_{episode:06d}.parquet").write_bytes(b"PAR1")
    alone = scan_source(source_copy, spread=Spread())
    shared = scan_source(source_copy, spread=Spread(processes=1))
    assert [finding.episode for finding in shared.findings] == [0, 1, 2, 3, 4]
    assert shared.findings == alone.findings


def test_what_a_killed_process_had_is_looked_at_here_and_so_is_all_where_none_can_be_started(
    small_source: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spread.start_python

    def start(*words: Any) -> PythonProcess:
        process = real(*words)
        process.send_signal(signal.SIGSTOP)  # before it can answer
        threading.Timer(0.1, process.kill).start()
        return process

    monkeypatch.setattr(spread, "start_python", start)
    shared = scan_source(small_source, spread=Spread(processes=1))
    assert started[0].returncode == -signal.SIGKILL
    alone = numbers_of(scan_source(small_source, spread=Spread()))
    assert numbers_of(shared) == alone
    fails = Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable"))
    monkeypatch.setattr(spread, "start_python", fails)
    assert numbers_of(scan_source(small_source, spread=Spread(processes=3))) == alone


def test_processes_end_when_the_scan_is_given_up(
    small_source: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    class Interrupted(SilentProgress):
        def stage(self, name: str, total: int, unit: str) -> Stage:
            stage = super().stage(name, total, unit)
            stage.advance = self._interrupt  # type: ignore[method-assign]
            return stage

        def _interrupt(self, _amount: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan_source(small_source, progress=Interrupted(), spread=Spread(processes=2))
    assert [process.returncode for process in started] == [0, 0]


@pytest.mark.parametrize("spread", [None, Spread(), Spread(threads=3), Spread(processes=2)])
def test_results_come_in_the_order_of_the_pieces(spread: Spread | None) -> None:
    pieces = [(number, 7) for number in range(40)]
    assert list(parallel_map(divmod, pieces, spread)) == [divmod(*piece) for piece in pieces]
    assert list(parallel_map(divmod, pieces[:1], spread)) == [(0, 0)]
    assert list(parallel_map(divmod, [], spread)) == []


class Remembering:
    """Work that remembers something of its pieces, which must not change while it is pickled."""

    def __init__(self) -> None:
        self.pickled_in: list[threading.Thread] = []

    def __call__(self, number: int) -> int:
        assert self.pickled_in, "work began before it was pickled"
        return number

    def __getstate__(self) -> dict[str, Any]:
        self.pickled_in.append(threading.current_thread())
        return {"pickled_in": [None]}


def test_what_fails_elsewhere_fails_here_and_work_is_pickled_once(
    started: list[subprocess.Popen[bytes]],
) -> None:
    results = []
    with pytest.raises(ZeroDivisionError):
        results.extend(parallel_map(divmod, [(6, 3), (1, 0), (8, 2), (9, 3)], Spread(processes=1)))
    assert results == [(2, 0)]
    assert len(started) == 1
    assert started[0].returncode is not None
    work = Remembering()
    pieces = [(number,) for number in range(9)]
    assert list(parallel_map(work, pieces, Spread(processes=2))) == list(range(9))
    assert work.pickled_in == [threading.current_thread()]


@pytest.mark.parametrize(
    ("wall_seconds", "times_left", "workers", "forks", "expected"),
    [
        (0.012, 10, 8, False, Spread()),
        (0.200, 10, None, False, Spread(threads=16)),
        (0.200, 10, 3, False, Spread(threads=3)),
        (0.010, 30, 8, False, Spread()),
        (0.010, 150, 8, False, Spread(processes=2)),
        (0.010, 30_000, 8, False, Spread(processes=7)),
        (0.010, 30_000, 1, False, Spread()),
        (0.010, 9, 8, True, Spread()),
        (0.010, 35, 8, True, Spread(processes=3)),
    ],
)
def test_who_waits_gets_threads_and_who_computes_long_gets_processes(
    monkeypatch: pytest.MonkeyPatch,
    wall_seconds: float,
    times_left: float,
    workers: int | None,
    forks: bool,
    expected: Spread,
) -> None:
    monkeypatch.setattr(spread, "serves_forks", lambda: forks)
    assert spread_for(0.010, wall_seconds, times_left=times_left, workers=workers) == expected


def test_a_job_that_cannot_leave_this_process_gets_threads_alone() -> None:
    here = {"times_left": 30_000, "threads_here": 2}
    assert spread_for(0.010, 0.010, **here) == Spread(threads=2)  # type: ignore[arg-type]
    assert spread_for(0.010, 0.200, **here).threads > 8  # type: ignore[arg-type]
    squares = parallel_map(lambda number: number**2, [(n,) for n in range(9)], threads_here=2)
    assert list(squares) == [n**2 for n in range(9)]


def test_a_processor_kept_busy_is_no_slow_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    queued, walls = iter([3.0, 12.0]), iter([100.0, 110.0])
    monkeypatch.setattr(spread, "queued_seconds", lambda: next(queued))
    monkeypatch.setattr(spread.time, "perf_counter", lambda: next(walls))
    monkeypatch.setattr(spread.time, "process_time", iter([1.0, 1.75]).__next__)
    with spread.Latency() as latency:
        pass
    assert (latency.cpu_seconds, latency.wall_seconds) == (0.75, 1.0)
    assert not latency.dominates


@pytest.mark.parametrize("which", [1, 2])
def test_a_thread_interrupted_at_its_start_is_idle(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Ctrl-C does it that comes while the one who starts a thread waits for it to run: the
    # thread runs, and the pool does not know of it.
    stop, worked, starts = threading.Event(), threading.Event(), 0
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        nonlocal starts
        start(thread)
        if thread.name.startswith("crew"):
            starts += 1
            if starts == which:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_threads(worked.set, 2, stop, name="crew")
    assert stop.is_set()
    for thread in threading.enumerate():
        if thread.name.startswith("crew"):  # the one that the pool does not know of
            thread.join(10)
            assert not thread.is_alive()
    assert not worked.is_set()


def test_the_first_error_of_threads_stops_the_others_and_is_raised() -> None:
    stop, both = threading.Event(), threading.Barrier(2)

    def work() -> None:
        if both.wait(10) == 0:
            raise ValueError("the first")
        assert stop.wait(10)
        raise InterruptedError("only asked to stop")

    with pytest.raises(ValueError, match="the first"):
        run_threads(work, 2, stop, name="crew")
