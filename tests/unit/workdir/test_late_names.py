"""A name that was looked up in vain is found once it is there, on a client that remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.workdir.fs import FileSystem, is_folder
from leconvert.workdir.records import WorkDir


class Remembering(FileSystem):
    """Like an NFS client: a name once absent stays absent until the folder is opened or listed."""

    def __init__(self) -> None:
        self._absent: set[Path] = set()

    def read_bytes(self, path: Path) -> bytes:
        if path in self._absent:
            raise FileNotFoundError(path)
        try:
            return super().read_bytes(path)
        except FileNotFoundError:
            self._absent.add(path)
            raise

    def ask_again(self, folder: str | Path) -> None:
        self._absent = {absent for absent in self._absent if absent.parent != Path(folder)}
        super().ask_again(folder)

    def list_names(self, path: Path) -> list[str]:
        self.ask_again(path)
        return super().list_names(path)


def test_a_worker_that_came_before_the_plan_finds_it_the_next_time(tmp_path: Path) -> None:
    late, planner = Remembering(), FileSystem()
    assert WorkDir(tmp_path / "a" / "work").current_run_id(fs=late) is None, "there is no folder"
    work_dir = WorkDir(tmp_path / "work")
    work_dir.root.mkdir()
    assert work_dir.current_run_id(fs=late) is None
    work_dir.set_current("20260101T000000-abcdef", fs=planner)
    assert work_dir.current_run_id(fs=late) == "20260101T000000-abcdef"


def test_a_folder_that_was_looked_for_in_vain_is_found_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent: set[Path] = set()
    looks, asks = Path.is_dir, FileSystem.ask_again

    def remembering(path: Path) -> bool:
        there = looks(path) and path not in absent
        absent.update(() if there else [path])
        return there

    def asked(self: FileSystem, folder: str | Path) -> None:
        asks(self, folder)
        absent.difference_update([path for path in absent if path.parent == Path(folder)])

    monkeypatch.setattr(Path, "is_dir", remembering)
    monkeypatch.setattr(FileSystem, "ask_again", asked)
    result = tmp_path / "result"
    assert not is_folder(result)
    result.mkdir()
    assert not result.is_dir()
    assert is_folder(result)
    assert not is_folder(tmp_path / "a" / "result")
