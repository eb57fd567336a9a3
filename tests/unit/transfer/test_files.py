"""Files of a dataset, local or not, as local paths."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.support.errors import UnreadableSourceError, UsageError
from leconvert.transfer.files import OpenFile, Spans, SparseFile, files_at
from leconvert.transfer.store import RemoteFile
from leconvert.transfer.urls import UrlStore

SIZE = 100_000


class _Answer(BaseHTTPRequestHandler):
    """Answers every request with the status that its path begins with."""

    def do_GET(self) -> None:
        self.send_error(int(self.path.split("/")[1]))

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "said"), [(404, "is missing"), (403, "is missing"), (503, "503"), (None, "Connect")]
)
def test_a_web_server_that_fails_or_is_gone_is_no_missing_file(
    status: int | None, said: str
) -> None:
    pytest.importorskip("aiohttp")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        place = f"http://127.0.0.1:{server.server_port}/{status}"
        if status is None:
            server.server_close()
        else:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(UnreadableSourceError, match=said) as caught:
                files_at(place).read("meta/info.json")
        finally:
            if status is not None:
                server.shutdown()
    assert ("is missing" in str(caught.value)) == (said == "is missing")


class CountingSystem:
    """A file of random bytes that says which ranges were asked for."""

    async_impl = True  # for any thread

    def __init__(self) -> None:
        self.content = np.random.default_rng(0).bytes(SIZE)
        self.asked: list[tuple[int, int]] = []

    def cat_file(self, _: str, *, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        return self.content[start:end]


@pytest.fixture
def system() -> CountingSystem:
    return CountingSystem()


def opened(system: CountingSystem) -> SparseFile:
    return SparseFile(UrlStore("memory:/", system, ""), RemoteFile("there", SIZE), "memory://there")


@pytest.fixture
def remote(system: CountingSystem) -> Iterator[SparseFile]:
    file = opened(system)
    yield file
    file.close()


def read(file: OpenFile, start: int, stop: int) -> bytes:
    with Path(file.path).open("rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


def test_ranges_are_fetched_once_and_lie_where_they_belong(
    system: CountingSystem, remote: SparseFile
) -> None:
    assert Path(remote.path).stat().st_size == SIZE
    remote.need([(100, 200), (150, 300)])
    assert remote.take_fetched_bytes() == 200
    remote.need([(0, 250)])
    assert remote.take_fetched_bytes() == 100
    assert remote.take_fetched_bytes() == 0
    assert system.asked == [(100, 300), (0, 100)]
    assert read(remote, 0, 300) == system.content[:300]
    assert read(remote, 300, 400) == bytes(100)
    remote.need([(SIZE - 10, SIZE + 50)])
    assert system.asked[-1] == (SIZE - 10, SIZE)


def test_released_ranges_give_their_memory_back(system: CountingSystem, remote: SparseFile) -> None:
    span = (10_000, 90_000)
    remote.need([span])
    before = Path(remote.path).stat().st_blocks
    remote.release([span])
    assert Path(remote.path).stat().st_blocks < before / 4
    remote.need([span])
    assert read(remote, *span) == system.content[slice(*span)]


def test_a_range_that_somebody_else_needs_stays(system: CountingSystem, remote: SparseFile) -> None:
    remote.need([(0, 50_000)])
    remote.need([(40_000, 90_000)])
    remote.need([(0, 50_000)])
    remote.release([(0, 50_000)])
    assert read(remote, 0, 50_000) == system.content[:50_000]
    remote.release([(0, 50_000)])
    assert read(remote, 40_000, 90_000) == system.content[40_000:90_000]
    assert read(remote, 4096, 36_000) == bytes(36_000 - 4096)
    remote.release([(40_000, 90_000)])
    remote.need([(0, SIZE)])
    assert read(remote, 0, SIZE) == system.content


def test_a_file_that_gives_too_little_is_an_error(system: CountingSystem) -> None:
    class Short(CountingSystem):
        def cat_file(self, path: str, *, start: int, end: int) -> bytes:
            return super().cat_file(path, start=start, end=end)[1:]

    file = opened(Short())
    with pytest.raises(UnreadableSourceError, match="99 of 100 bytes"):
        file.need([(0, 100)])
    file.close()


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 60)), max_size=20),
    asked=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_spans_are_a_set_of_bytes(
    steps: list[tuple[bool, int, int]], asked: tuple[int, int]
) -> None:
    spans = Spans()
    held: set[int] = set()
    for is_added, one, other in steps:
        start, stop = sorted((one, other))
        if is_added:
            spans.add(start, stop)
            held.update(range(start, stop))
        else:
            spans.remove(start, stop)
            held.difference_update(range(start, stop))
    start, stop = sorted(asked)
    missing = [place for gap in spans.missing(start, stop) for place in range(*gap)]
    assert missing == [place for place in range(start, stop) if place not in held]


def test_names_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert files_at("here/").name("a/b") == f"{tmp_path}/here/a/b"
    assert files_at(f"file://{tmp_path}").is_local
    assert files_at(tmp_path).name("a") == f"{tmp_path}/a"
    hub = files_at("hf://datasets/me/mine", revision="refs/pr/1")
    assert hub.name("meta/info.json") == "hf://datasets/me/mine@refs%2Fpr%2F1/meta/info.json"
    assert not hub.is_local


@pytest.mark.parametrize("root", ["here", "hf://buckets/me/mine", "memory://x", "hf://datasets/me"])
def test_only_datasets_of_the_hub_have_revisions(root: str) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        files_at(root, revision="main")


def test_missing_files_are_named(tmp_path: Path, in_memory: str) -> None:
    for files in (files_at(tmp_path), files_at(in_memory)):
        for ask in (files.open, files.read):
            with pytest.raises(UnreadableSourceError, match=r"nothing\.mp4 is missing"):
                ask("nothing.mp4")
    with pytest.raises(UnreadableSourceError, match="nothing is missing"):
        files_at(in_memory).copy_folder("nothing", tmp_path)


def test_an_unreachable_place_is_an_error_of_ours(
    in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("the network is down")

    for name, ask in (
        ("cat_file", lambda: files_at(in_memory).read("meta/info.json")),
        ("find", lambda: files_at(in_memory).note(["meta/info.json"])),
    ):
        with monkeypatch.context() as patches:
            patches.setattr(fsspec.filesystem("memory").__class__, name, refuse)
            with pytest.raises(UnreadableSourceError, match="the network is down"):
                ask()
