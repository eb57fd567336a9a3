"""An open parquet file: what is read of it at once, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leconvert.tables.data_file import OpenedTable

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a file that is too large to be read whole."""
    (tmp_path / "file").write_bytes(CONTENT)
    return str(tmp_path / "file")


def test_windows_on_what_is_held_need_no_reading_and_others_do(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def counted(descriptor: int, size: int, place: int) -> bytes:
        reads.append((place, size))
        return pread(descriptor, size, place)

    with OpenedTable(path) as table:
        assert table.whole is None
        assert table.held(1000, 1) is None
        table.hold(1000, 500)
        monkeypatch.setattr(os, "pread", counted)
        for place, size in ((1000, 500), (1100, 10), (1499, 1), (1000, 0)):
            window, at = table.window(place, size)
            assert window[at : at + size] == CONTENT[place : place + size]
            assert table.held(place, size) == CONTENT[place : place + size]
        assert reads == []
        for place, size in ((999, 2), (1499, 2), (0, 4), (2000, 5)):
            window, at = table.window(place, size)
            assert window[at : at + size] == CONTENT[place : place + size]
            assert table.held(place, size) is None
        assert reads == [(999, 2), (1499, 2), (0, 4), (2000, 5)]


def test_a_range_that_ends_with_the_file_is_held_as_far_as_it_is_there(path: str) -> None:
    with OpenedTable(path) as table:
        table.hold(len(CONTENT) - 10, 100)
        assert table.held(len(CONTENT) - 10, 10) == CONTENT[-10:]
        assert table.held(len(CONTENT) - 10, 11) is None


def test_a_small_file_is_held_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with OpenedTable(str(tmp_path / "file")) as table:
        table.hold(2, 3)
        assert table.whole == b"0123456789"
        assert table.held(8, 2) == b"89"
        assert table.held(8, 3) is None
        assert table.window(4, 2) == (b"0123456789", 4)
