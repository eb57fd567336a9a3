"""A name that was looked up in vain is found once it is there, on a client that remembers."""

from __future__ import annotations

from pathlib import Path

from leconvert.workdir.fs import FileSystem
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
    work_dir = WorkDir(tmp_path / "work")
    work_dir.root.mkdir()
    assert work_dir.current_run_id(fs=late) is None
    work_dir.set_current("20260101T000000-abcdef", fs=planner)
    assert work_dir.current_run_id(fs=late) == "20260101T000000-abcdef"


def test_there_is_no_run_where_there_is_no_folder(tmp_path: Path) -> None:
    assert WorkDir(tmp_path / "a" / "work").current_run_id(fs=Remembering()) is None
