"""Ranges of two files are one stretch of bytes each, wherever they lie."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leconvert.run.proof import difference, same_bytes
from leconvert.run.proof.difference import OpenFile, first_difference, open_file


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "_BLOCK_BYTES", 4)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[OpenFile, OpenFile]]:
    (tmp_path / "one").write_bytes(b"..abcdefghijklm..")
    (tmp_path / "other").write_bytes(b"hijklm-abc-defgXij")
    with open_file(tmp_path / "one") as one, open_file(tmp_path / "other") as other:
        yield one, other


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ([(2, 7)], [(7, 3), (11, 4)], None),  # two runs are one
        ([(2, 3), (5, 4)], [(7, 3), (11, 4)], None),
        ([(9, 2), (11, 4)], [(0, 6)], None),  # the other one goes on within its run
        ([(2, 13)], [(7, 3), (11, 4), (0, 6)], None),
        ([(2, 9)], [(7, 3), (11, 6)], 7),  # h is X
        ([(2, 3)], [(7, 3), (11, 1)], 3),  # one goes on
        ([(2, 7)], [(7, 3)], 3),
        ([(9, 6)], [(0, 6)], None),
        ([(15, 2)], [(15, 2)], 0),
        ([(9, 6), (17, 3)], [(0, 6), (18, 3)], 6),  # both files end early
        ([], [], None),
    ],
)
def test_the_first_byte_that_differs_is_found(
    files: tuple[OpenFile, OpenFile],
    expected: list[tuple[int, int]],
    found: list[tuple[int, int]],
    place: int | None,
) -> None:
    assert first_difference(*files, expected, found) == place


@pytest.mark.parametrize("side", [0, 1])
def test_an_error_in_the_middle_names_the_file_that_it_is_of(
    files: tuple[OpenFile, OpenFile], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread

    def fail_late(file: int, size: int, place: int) -> bytes:
        if file == files[side].descriptor and place >= 9:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, size, place)

    monkeypatch.setattr(os, "pread", fail_late)
    with pytest.raises(OSError, match="Input/output error") as told:
        first_difference(*files, [(2, 7), (9, 4)], [(7, 3), (11, 8)])
    assert told.value.filename == files[side].path


def test_a_file_that_is_given_a_byte_at_a_time_is_read_whole(
    files: tuple[OpenFile, OpenFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, place: read(file, min(size, 1), place))
    assert first_difference(*files, [(9, 6)], [(0, 6)]) is None
    assert first_difference(*files, [(2, 9)], [(7, 3), (11, 6)]) == 7


def test_no_answer_is_remembered_and_two_names_of_one_file_are_the_same(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_bytes(b"abc")
        os.utime(path, (1, 1))
    assert same_bytes(one, other)
    other.write_bytes(b"xyz")
    os.utime(other, (1, 1))  # as a damaged block leaves sizes and times
    assert not same_bytes(one, other)
    other.unlink()
    other.hardlink_to(one)
    assert same_bytes(one, other)
    assert not same_bytes(tmp_path, tmp_path)
