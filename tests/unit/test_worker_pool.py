"""The workers of one conversion, as threads of this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from leconvert.api import convert
from leconvert.errors import UsageError
from leconvert.progress import NO_PROGRESS, Stage
from leconvert.testing import DatasetSpec, make_dataset
from leconvert.worker_pool import LeaseOptions, WorkerOptions

SECONDS = 10.0


class InterruptedWork:
    """Progress whose first byte interrupts the main thread, as Ctrl-C does in a notebook.

    The worker then waits to be told: whoever leaves it alone leaves a thread behind.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.was_told = False

    def stage(self, name: str, total: int, unit: str) -> Stage:
        return self if name == "work" else NO_PROGRESS.stage(name, total, unit)

    def say(self, line: str) -> None:
        assert line.startswith("Working in ")

    def advance(self, amount: int) -> None:
        if amount and not self._stop.is_set():
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            self.was_told = self._stop.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


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


@pytest.mark.parametrize(
    "options",
    [
        {"lease_seconds": 0},
        {"lease_seconds": float("nan")},
        {"max_attempts": 0},
        {"trouble_seconds": -1},
        {"trouble_seconds": float("nan")},
    ],
)
def test_leases_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        LeaseOptions(**options)  # type: ignore[arg-type]
