"""Rows of episodes out of data files."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leconvert.loading.files import files_at
from leconvert.loading.metadata import load_meta
from leconvert.loading.rows import RowReader


class InterruptedLock:
    """A lock before whose n-th use something else happens, as another thread might do it."""

    def __init__(self, number: int, interruption: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._left = number
        self._interruption = interruption

    def __enter__(self) -> None:
        self._left -= 1
        if not self._left:
            self._interruption()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("before", [1, 2])
def test_a_file_stays_open_for_whoever_begins_to_fetch_while_another_lets_go(
    in_memory: str, before: int
) -> None:
    files = files_at(in_memory)
    reader = RowReader(load_meta(files), files)
    reader.need(0)
    reader._lock = InterruptedLock(before, lambda: reader.need(0))  # type: ignore[assignment]
    reader.release(0)
    assert reader.read(0).arrays["frame_index"].tolist() == list(range(9))
    reader.release(0)
    assert not reader._open
