"""Signals to a whole job pass the processes by that a training starts for its batches."""

from __future__ import annotations

import signal
from multiprocessing import resource_tracker

import pytest

from leconvert.bench.training import _STOPPING, _signals_held


def held() -> set[signal.Signals | int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_signals_stay_held_when_the_first_spawned_worker_starts_pythons_helper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One that does not run yet, as in a process that has spawned nothing so far. Python unblocks
    # SIGINT and SIGTERM when it starts it, and every worker after it would then end by a signal.
    helper = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", helper.ensure_running)
    before = held()
    try:
        with _signals_held():
            helper.ensure_running()  # what a spawned worker's first lock does
            assert held() >= set(_STOPPING)
        assert held() == before
    finally:
        helper._stop()  # type: ignore[attr-defined]
