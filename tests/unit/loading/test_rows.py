"""Rows of episodes out of data files."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leconvert.loading.episodes import RowReader
from leconvert.loading.metadata import load_meta
from leconvert.support.errors import UnreadableSourceError
from leconvert.transfer.files import OpenFile, SparseFile, files_at


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


def test_a_file_stays_open_for_whoever_begins_to_fetch_while_another_lets_go(
    in_memory: str,
) -> None:
    files = files_at(in_memory)
    reader = RowReader(load_meta(files), files)
    reader.need(0)
    reader._lock = InterruptedLock(1, lambda: reader.need(0))  # type: ignore[assignment]
    reader.release(0)
    assert reader.read(0).arrays["frame_index"].tolist() == list(range(9))
    reader.release(0)
    assert not reader._opened


def test_a_file_that_cannot_be_opened_leaves_nothing_open(
    in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_at(in_memory)
    reader = RowReader(load_meta(files), files)
    opened: list[OpenFile] = []
    closed: list[OpenFile] = []
    open_file, close = files.open, SparseFile.close

    def watched(path: str) -> OpenFile:
        opened.append(open_file(path))
        return opened[-1]

    def fails(self: SparseFile, *_: object) -> None:
        raise UnreadableSourceError("the store fails")

    with monkeypatch.context() as patch:
        patch.setattr(files, "open", watched)
        patch.setattr(SparseFile, "need", fails)
        patch.setattr(SparseFile, "close", lambda self: (closed.append(self), close(self)))
        for _ in range(2):
            with pytest.raises(UnreadableSourceError, match="the store fails"):
                reader.need(0)
    assert len(opened) == 2
    assert closed == opened
    reader.need(0)  # the store is back
    assert reader.read(0).arrays["frame_index"].tolist() == list(range(9))
    reader.release(0)
    assert not reader._opened
