"""Bytes from memory and from other files, when the file system gives less than was asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.data_file import OpenedTable
from leconvert.tables.parquet_copy import SequentialOutput


@pytest.fixture
def output(tmp_path: Path) -> Iterator[SequentialOutput]:
    descriptor = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    try:
        yield SequentialOutput(descriptor, str(tmp_path / "target"))
    finally:
        os.close(descriptor)


def test_writes_that_are_cut_short_are_gone_on_with(
    output: SequentialOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def a_few(descriptor: int, pieces: Sequence[bytes], at: int) -> int:
        nonlocal calls
        calls += 1
        return os.pwrite(descriptor, b"".join(pieces)[:5], at)

    monkeypatch.setattr(os, "pwritev", a_few)
    for piece in (b"abc", b"", b"defgh", memoryview(b"ijklm")):
        output.append(piece)
    assert calls == 0
    output.flush()
    assert (tmp_path / "target").read_bytes() == b"abcdefghijklm"
    assert (calls, output.position) == (3, 13)


def test_a_file_below_a_file_is_unreadable_and_not_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableSourceError, match="Not a directory") as caught:
        OpenedTable(str(tmp_path / "file/table"))
    assert caught.value.path == str(tmp_path / "file/table")
