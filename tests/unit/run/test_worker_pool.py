"""The workers of one conversion, as threads of this process, and as processes that are watched."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from leconvert.api import convert
from leconvert.run.conversion import LeaseOptions, WorkerOptions
from leconvert.run.engines import LocalEngine
from leconvert.run.worker_pool import EngineWatcher, WorkerPool
from leconvert.support.progress import SilentProgress, Stage
from leconvert.testing import DatasetSpec, make_dataset
from leconvert.workdir.activity import WorkerRecord, write_worker
from leconvert.workdir.run import OpenedRun

SECONDS = 10.0


class InterruptedWork(SilentProgress):
    """Progress whose first byte interrupts the main thread, as Ctrl-C does in a notebook.

    The worker then waits to be told: whoever leaves it alone leaves a thread behind.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.was_told = False

    def stage(self, name: str, total: int, unit: str) -> Stage:
        stage = super().stage(name, total, unit)
        if name == "work":
            stage.advance = self._interrupt  # type: ignore[method-assign]
        return stage

    def say(self, line: str) -> None:
        assert line.startswith("The work dir is ")

    def _interrupt(self, amount: int) -> None:
        if amount and not self._stop.is_set():
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            self.was_told = self._stop.wait(SECONDS)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own answer to SIGINT, which shells have their background processes ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_no_worker_behind(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "v21", DatasetSpec(episodes=1, frames=2, cameras=()))
    output, stop = tmp_path / "v30", threading.Event()
    work = InterruptedWork(stop)
    with pytest.raises(KeyboardInterrupt):
        convert(
            source, output=output, workers=WorkerOptions(max_workers=1), stop=stop, progress=work
        )
    assert work.was_told
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker")]
    assert not output.exists()


def idle_engine() -> Any:
    """An engine whose one worker runs, and does what the test says of it."""
    return Mock(LocalEngine, workers=1, **{"running.return_value": 1, "failures.return_value": []})


class Counted(SilentProgress):
    """Progress that counts what its one stage was told."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def stage(self, name: str, total: int, unit: str) -> Stage:
        assert (name, unit) == ("work", "B")
        self.total = total
        stage = super().stage(name, total, unit)
        stage.advance = self._count  # type: ignore[method-assign]
        return stage

    def say(self, line: str) -> None:
        raise AssertionError(line)

    def _count(self, amount: int) -> None:
        assert amount > 0
        self.done += amount


def test_progress_moves_within_a_batch_of_a_worker_in_another_process(planned: OpenedRun) -> None:
    def worker_says(token: str, batch_id: int, processed_bytes: int) -> None:
        record = WorkerRecord(
            *(token, "host", 1), state="working", batch_id=batch_id, processed_bytes=processed_bytes
        )
        write_worker(planned.paths, record)

    now = [0.0]
    progress = Counted()
    pool = WorkerPool(planned, LeaseOptions(), threading.Event())
    sizes = [batch.source_bytes for batch in planned.batches]
    worker_says("a-killed-one", 0, 1_000)
    with EngineWatcher(pool, idle_engine(), 1, [], progress, lambda: now[0]) as watcher:
        assert progress.total == sum(sizes)
        worker_says("one", 0, 0)
        assert watcher.working()
        assert progress.done == 0
        now[0] = 1.0
        worker_says("one", 0, sizes[0] // 2)
        assert watcher.working()
        assert progress.done == sizes[0] // 2
        worker_says("one", 0, sizes[0] - 1)
        assert watcher.working()  # it is asked at most once a second
        assert progress.done == sizes[0] // 2
        watcher.saw_done([0])
        assert progress.done == sizes[0]
        now[0] = 2.0
        worker_says("one", 1, sizes[0])
        assert watcher.working()
        now[0] = 3.0
        worker_says("one", 1, sizes[0] + 5 * sum(sizes))  # more than a batch is not in its hand
        assert watcher.working()
        assert progress.done == sizes[0] + sizes[1]
        watcher.saw_done(range(1, len(sizes)))
        assert progress.done == sum(sizes)
