"""Stores whose clients are for one thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.unit.loading.conftest import uploaded

from leconvert.remote.stores import download_tree, upload_tree
from leconvert.transfer.files import files_at


class LoneFileSystem(MemoryFileSystem):
    """Files in memory through a client that only the thread that made it may use, as FTP's."""

    protocol = "lone"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._thread = threading.get_ident()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("lone:", "memory:", 1))
        return stripped

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().cat_file(*arguments, **options)

    def get_file(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().get_file(*arguments, **options)

    def put_file(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().put_file(*arguments, **options)

    def _check(self) -> None:
        assert threading.get_ident() == self._thread, "another thread uses the client"


@pytest.fixture
def url(v30: Path) -> Iterator[str]:
    fsspec.register_implementation("lone", LoneFileSystem, clobber=True)
    with uploaded(v30) as place:
        yield place.replace("memory:", "lone:")


def test_each_thread_fetches_ranges_through_its_own(v30: Path, url: str) -> None:
    path = "data/chunk-000/file-000.parquet"
    files = files_at(url)
    files.note([path])
    opened = files.open(path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(opened.need, [(0, opened.size_bytes)]).result()
    assert Path(opened.path).read_bytes() == (v30 / path).read_bytes()


def test_each_thread_moves_files_through_its_own(url: str, tmp_path: Path) -> None:
    tree = download_tree(url, tmp_path / "here")
    report = upload_tree(tree, f"{url}-again")
    assert report.sent == report.files
