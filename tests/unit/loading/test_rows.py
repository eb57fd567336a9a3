"""Rows of episodes out of data files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.dataset.check import check_dataset
from leconvert.loading import EpisodeStream
from leconvert.loading.episodes import RowReader
from leconvert.loading.metadata import load_meta
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.testing import edit_info
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


@pytest.mark.parametrize("name", ["action", "observation.state", "grip"])
def test_a_column_that_is_not_declared_is_refused_as_lerobot_does(
    v30_copy: Path, name: str
) -> None:
    """Samples without it would train a policy without these values, and nobody would notice."""
    if name == "grip":
        (path, *_) = sorted((v30_copy / "data").rglob("*.parquet"))
        table = pq.read_table(path)
        pq.write_table(table.append_column(name, pa.array(range(table.num_rows))), path)
    else:
        edit_info(v30_copy, lambda info: info["features"].pop(name))
    found = {(each.code, each.severity) for each in check_dataset(v30_copy).findings}
    assert ("undeclared-column", "error") in found
    with pytest.raises(SourceError, match=f"column '{name}', which meta/info.json does not"):
        next(iter(EpisodeStream(v30_copy, shuffle=False)))
