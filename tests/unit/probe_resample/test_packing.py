"""A batch is copied whole, by however many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from leconvert.probe.resampling import packing
from leconvert.probe.resampling.packing import Packed, PackMemory, pack
from leconvert.probe.resampling.synthetic import SyntheticSet
from leconvert.probe.resampling.values import Trajectory

WAIT_S = 20


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(packing, "_SHARED_BYTES", 0)
    yield
    torch.set_num_threads(before)


def trajectories() -> list[Trajectory]:
    source = SyntheticSet(count=5, seed=3)
    return [source.load(place) for place in range(len(source))]


def holds(packed: Packed, given: Sequence[Trajectory]) -> None:
    """Assert that a batch is its trajectories, their times rebased."""
    for row, one in enumerate(given):
        begin = int(packed.first_row[row])
        span = slice(begin, begin + len(one))
        seconds = one.times - one.times[0]
        assert packed.lengths[row] == len(one)
        assert packed.durations_s[row] == seconds[-1]
        assert np.array_equal(packed.times.numpy()[span], seconds)
        for key, values in one.columns.items():
            flat = values.reshape(len(one), -1)
            assert np.array_equal(packed.rows[key].numpy()[span], flat), key
    assert len(packed.times) == sum(map(len, given))


def test_a_batch_overwrites_the_one_before_in_the_same_memory() -> None:
    memory, given = PackMemory(), trajectories()

    first = pack(given[:2], memory)
    second = pack(given[2:], memory)

    holds(second, given[2:])
    assert first.times.data_ptr() == second.times.data_ptr()


def test_a_second_thread_copies_the_latter_half_and_is_waited_for(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, caller_is_done = packing._copy, threading.Event()
    by: dict[str, tuple[int, int]] = {}

    def in_turn(given: Sequence[Trajectory], packed: Packed, start: int, stop: int) -> None:
        is_caller = threading.current_thread() is threading.main_thread()
        if not is_caller:
            assert caller_is_done.wait(WAIT_S)
        copy(given, packed, start, stop)
        by["caller" if is_caller else "other"] = (start, stop)
        if is_caller:
            caller_is_done.set()

    monkeypatch.setattr(packing, "_copy", in_turn)
    given = trajectories()

    packed = pack(given)

    holds(packed, given)
    assert by["caller"][0] == 0
    assert by["caller"][1] == by["other"][0]
    assert by["other"][1] == len(given)


def test_an_error_of_the_second_thread_reaches_the_caller(two_threads: None) -> None:
    given = trajectories()
    narrow = {key: values[:, :1] for key, values in given[-1].columns.items()}
    given[-1] = Trajectory("another robot", given[-1].times, narrow)

    with pytest.raises(ValueError, match="wrong shape"):
        pack(given)


def test_a_forked_process_packs_with_a_thread_of_its_own(two_threads: None) -> None:
    given = trajectories()
    pack(given)  # the thread is there
    child = os.fork()
    if child == 0:
        is_whole = False
        try:
            holds(pack(given), given)
            is_whole = True
        finally:
            os._exit(0 if is_whole else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_trajectory_is_copied_by_the_caller(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_helper", lambda _process: pytest.fail("a thread was asked for"))
    given = trajectories()[:1]

    holds(pack(given), given)
