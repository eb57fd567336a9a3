"""A lock whose holder is silent is waited for; one whose holder lives is refused at once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from leconvert.support.errors import BusyError, InterruptedRunError
from leconvert.workdir import locks
from leconvert.workdir.locks import BEAT_SECONDS, LockWait, PeriodicTask, packer_lock, read_packer
from leconvert.workdir.records import RunPaths


@pytest.fixture
def holder(run: RunPaths) -> Iterator[ExitStack]:
    """A packer that holds the lock and is silent; closing it is its end."""
    with ExitStack() as held:
        held.enter_context(packer_lock(run))
        yield held


class Waiting:
    """A clock that goes on by what is waited, and something that happens at one of the pauses."""

    def __init__(self, at: int = 0, action: Callable[[], None] = lambda: None) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.pauses: list[float] = []
        self._at, self._action = at, action
        self.gives_up = False

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) == self._at:
            self._action()
        return self.gives_up

    def wait(self, seconds: float) -> LockWait:
        return LockWait(seconds, self.said.append, self.pause, lambda: self.now)


def test_a_silent_holder_is_waited_for_and_then_refused(run: RunPaths, holder: ExitStack) -> None:
    waiting = Waiting()
    with pytest.raises(BusyError) as caught, packer_lock(run, wait=waiting.wait(20)):
        pass
    assert waiting.now == 1020.0
    assert (caught.value.exit_code, caught.value.path) == (12, str(run.packer_lock))
    who = f"process {os.getpid()} on {os.uname().nodename}"
    (said,) = waiting.said
    for words, seconds in ((caught.value.message, "20 s"), (said, f"{2 * BEAT_SECONDS:.0f} s")):
        assert who in words
        assert words.endswith(f"sign of life for {seconds}.")


def test_a_holder_that_lives_is_refused_at_its_next_beat(run: RunPaths, holder: ExitStack) -> None:
    record = run.packer_lock.with_name("packer.lock.holder")

    def beat() -> None:
        record.write_text(json.dumps(json.loads(record.read_bytes()) | {"beat": "ff" * 8}))

    waiting = Waiting(4, beat)
    busy = pytest.raises(BusyError, match="the packer of this work dir")
    with busy as caught, packer_lock(run, wait=waiting.wait(120)):
        pass
    assert len(waiting.pauses) == 4
    assert waiting.said == []
    assert "sign of life" not in caught.value.message


def test_waiting_can_be_interrupted_and_the_lock_is_taken_once_the_server_gives_it_away(
    run: RunPaths, holder: ExitStack
) -> None:
    waiting = Waiting()
    waiting.gives_up = True
    interrupted = pytest.raises(InterruptedRunError, match="was interrupted")
    with interrupted, packer_lock(run, wait=waiting.wait(120)):
        pass
    assert len(waiting.pauses) == 1
    waiting = Waiting(30, holder.close)
    with packer_lock(run, wait=waiting.wait(120)):
        assert len(waiting.pauses) == 30
        with pytest.raises(BusyError), packer_lock(run):
            pass


def test_a_packer_gives_signs_of_life(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = []
    done = threading.Event()

    def waiter(stop: threading.Event, seconds: float) -> bool:
        assert seconds == BEAT_SECONDS
        beats.append(read_packer(run)["beat"])
        if len(beats) < 4:
            return False
        done.set()
        return stop.wait()

    monkeypatch.setattr(locks, "PeriodicTask", partial(PeriodicTask, waiter=waiter))
    with packer_lock(run, beats=True):
        assert done.wait(20)
        names = [thread.name for thread in threading.enumerate()]
        assert "packer-lock" in names
    assert len(set(beats)) == 4
    assert "packer-lock" not in [thread.name for thread in threading.enumerate()]


def test_a_beat_that_fails_does_not_end_the_packer(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = 0
    entered, done = threading.Event(), threading.Event()

    def waiter(stop: threading.Event, seconds: float) -> bool:
        nonlocal beats
        assert entered.wait(20)
        beats += 1
        if beats == 1:
            run.packer_lock.parent.rename(run.root.with_name("away"))
        elif beats == 3:
            run.root.with_name("away").rename(run.root)
            done.set()
            return stop.wait()
        return False

    monkeypatch.setattr(locks, "PeriodicTask", partial(PeriodicTask, waiter=waiter))
    with packer_lock(run, beats=True):
        entered.set()
        assert done.wait(20)
    assert beats == 3
