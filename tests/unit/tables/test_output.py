"""Bytes from memory and from other files, when the file system gives less than was asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.data_file import OpenedTable
from leconvert.tables.parquet_copy import SequentialOutput

CONTENT = bytes(range(256)) * 2000  # more than is read at once


@pytest.fixture
def source(tmp_path: Path) -> Iterator[OpenedTable]:
    (tmp_path / "source").write_bytes(CONTENT)
    with OpenedTable(str(tmp_path / "source")) as opened:
        assert opened.whole is None
        yield opened


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


def test_small_pieces_are_gathered_up_to_what_one_write_takes(
    output: SequentialOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = os.pwritev

    def counted(descriptor: int, pieces: Sequence[bytes], at: int) -> int:
        sizes.append(len(pieces))
        return real(descriptor, pieces, at)

    monkeypatch.setattr(os, "pwritev", counted)
    for _ in range(1200):
        output.append(b"x")
    output.flush()
    assert (tmp_path / "target").stat().st_size == 1200
    assert len(sizes) == 3
    assert max(sizes) <= os.sysconf("SC_IOV_MAX")


def test_ways_that_move_nothing_without_an_error_are_left(
    output: SequentialOutput, source: OpenedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    for name in ("copy_file_range", "sendfile"):
        monkeypatch.setattr(os, name, lambda *_arguments, name=name: tried.append(name) or 0)
    output.copy(source, 7, 300_000)
    output.copy(source, 0, 5)
    assert (tmp_path / "target").read_bytes() == CONTENT[7:300_007] + CONTENT[:5]
    assert tried == ["copy_file_range", "sendfile"]


def test_a_source_that_cannot_be_read_is_named_and_not_the_target(
    output: SequentialOutput, source: OpenedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("copy_file_range", "sendfile", "preadv"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(UnreadableSourceError, match="Input/output error") as caught:
        output.copy(source, 0, 10)
    assert caught.value.path == source.path


def test_a_file_below_a_file_is_unreadable_and_not_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableSourceError, match="Not a directory") as caught:
        OpenedTable(str(tmp_path / "file/table"))
    assert caught.value.path == str(tmp_path / "file/table")
