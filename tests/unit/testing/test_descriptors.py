"""Which path a descriptor has, without asking the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leconvert.testing.descriptors import Descriptors


def test_an_open_file_follows_its_folder_through_renames_and_an_exchange(tmp_path: Path) -> None:
    known = Descriptors()
    with (tmp_path / "file").open("wb") as file:
        known.opened(file.fileno(), "/a/b/file")
        known.renamed("/a/b", "/c")
        assert known.path_of(file.fileno()) == "/c/file"
        known.renamed("/c/fil", "/d")
        known.exchanged("/c", "/e")
        assert known.path_of(file.fileno()) == "/e/file"
        known.exchanged("/c", "/e")
        assert known.path_of(file.fileno()) == "/c/file"


def test_a_number_that_was_given_to_another_file_has_no_path(tmp_path: Path) -> None:
    known = Descriptors()
    first = os.open(tmp_path / "first", os.O_CREAT | os.O_RDWR)
    second = os.open(tmp_path / "second", os.O_CREAT | os.O_RDWR)
    known.opened(first, "/first")
    assert known.path_of(second) == ""
    os.dup2(second, first)
    assert known.path_of(first) == ""
    os.close(first)
    os.close(second)
    with pytest.raises(OSError, match="Bad file descriptor"):
        known.path_of(first)
