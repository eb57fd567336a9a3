"""Files of a remote dataset, looked up in groups of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.transfer import store as fetch
from leconvert.transfer.store import RemoteFile, files_of, find_listed, read_all, write_listing

FILES = [RemoteFile(f"data/{n:03d}.parquet", n, f"{n:040x}") for n in range(10)]


@pytest.mark.parametrize("rows_per_group", [3, 5, 10, 16])
def test_every_file_is_found_wherever_a_group_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_group: int
) -> None:
    monkeypatch.setattr(fetch, "_ROWS_PER_GROUP", rows_per_group)
    table = read_all(reversed(FILES))
    assert list(files_of(table)) == FILES
    path = tmp_path / "listing.parquet"
    write_listing(path, table, whole=[FILES[4].path])
    wanted = [file.path for file in (FILES[9], FILES[0], FILES[4], FILES[9])]
    found = find_listed(path, wanted)
    assert [file.path for file, _ in found] == wanted
    assert [is_whole for _, is_whole in found] == [False, False, True, False]
    assert [file for file, _ in found][:2] == [FILES[9], FILES[0]]


@pytest.mark.parametrize("path", ["data/000", "data/003.parquet.bak", "a", "z"])
def test_a_file_that_is_not_listed_is_an_error_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(fetch, "_ROWS_PER_GROUP", 3)
    write_listing(tmp_path / "it", read_all(FILES), whole=[])
    with pytest.raises(KeyError):
        find_listed(tmp_path / "it", [path])
