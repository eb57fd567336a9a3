"""Blocks that processes of a host share, at every point where one of them may end or come between.

Interleavings are forced: a step of one side is made to run within a step of the other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.hub import StandIn
from tests.s3 import S3Store, s3_store
from tests.unit.loading.conftest import LENGTHS

from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.support.file_calls import Mount
from leconvert.support.machine import Machine
from leconvert.transfer import byte_cache
from leconvert.transfer.byte_cache import BLOCK_BYTES, ByteCache
from leconvert.transfer.files import SparseFile
from leconvert.transfer.store import RemoteFile
from leconvert.transfer.urls import UrlStore

BLOCK = bytes(range(256)) * (BLOCK_BYTES // 256)
KEY = "ab" * 16


@pytest.fixture
def cache(tmp_path: Path) -> ByteCache:
    return ByteCache(tmp_path / "cache", limit_bytes=100 * BLOCK_BYTES)


class Store:
    """A file of ten blocks and a bit that says which ranges were asked for."""

    async_impl = True  # for any thread

    def __init__(self) -> None:
        self.content = np.random.default_rng(0).bytes(10 * BLOCK_BYTES + 99)
        self.asked: list[tuple[int, int]] = []
        self.meanwhile: list[Any] = []

    def cat_file(self, _: str, *, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        for step in self.meanwhile:
            step()
        return self.content[start:end]

    def open(self, cache: ByteCache | None) -> SparseFile:
        file = RemoteFile("there", len(self.content), mark="ETag=x")
        return SparseFile(UrlStore("memory:/", self, ""), file, "memory://there", cache)


def content(file: SparseFile, start: int, stop: int) -> bytes:
    with Path(file.path).open("rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.parent != folder)


def test_a_block_is_fetched_by_the_first_and_read_by_the_others(cache: ByteCache) -> None:
    store = Store()
    first, second = store.open(cache), store.open(pickle.loads(pickle.dumps(cache)))
    first.need([(BLOCK_BYTES + 5, BLOCK_BYTES + 6), (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1)])
    assert store.asked == [(BLOCK_BYTES, 3 * BLOCK_BYTES)]
    second.need([(0, len(store.content))])
    assert store.asked[1:] == [(0, BLOCK_BYTES), (3 * BLOCK_BYTES, len(store.content))]
    assert content(second, 0, len(store.content)) == store.content
    assert second.take_fetched_bytes() == len(store.content) - 2 * BLOCK_BYTES
    third = store.open(cache)
    third.need([(0, len(store.content))])
    third.release([(0, len(store.content))])
    third.need([(0, len(store.content))])
    assert content(third, 0, len(store.content)) == store.content
    assert third.take_fetched_bytes() == 0


def test_another_version_of_a_file_has_other_blocks(tmp_path: Path) -> None:
    one, other = ByteCache(tmp_path), ByteCache(tmp_path)
    known = one.key("s3://a/b", 10, "ETag=1")
    assert other.key("s3://a/b", 10, "ETag=1") == known
    assert len({known, one.key("s3://a/b", 10, "ETag=2"), one.key("s3://a/b", 11, "ETag=1")}) == 3
    # A store that says nothing of versions: one job's workers share, two jobs do not.
    assert one.key("s3://a/b", 10, "") == pickle.loads(pickle.dumps(one)).key("s3://a/b", 10, "")
    assert one.key("s3://a/b", 10, "") != other.key("s3://a/b", 10, "")


def test_nothing_of_before_a_reboot_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ByteCache(tmp_path).key("s3://a/b", 10, "ETag=1")
    monkeypatch.setattr(byte_cache, "boot_id", lambda: "the next one")
    assert ByteCache(tmp_path).key("s3://a/b", 10, "ETag=1") != before


@pytest.mark.parametrize("size", [0, BLOCK_BYTES - 1, BLOCK_BYTES + 1])
def test_a_block_of_another_length_is_none(cache: ByteCache, size: int) -> None:
    cache.write(KEY, 0, bytes(size))
    assert cache.read(KEY, 0, BLOCK_BYTES) is None
    cache.write(KEY, 0, BLOCK)
    assert cache.read(KEY, 0, BLOCK_BYTES) == BLOCK


@pytest.mark.parametrize("place", [0, 12_345, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 3, None])
def test_a_block_that_was_damaged_here_is_fetched_again(
    cache: ByteCache, place: int | None, tmp_path: Path
) -> None:
    store = Store()
    with contextlib.closing(store.open(cache)) as file:
        file.need([(0, BLOCK_BYTES)])
    (path,) = tmp_path.rglob("0")
    stored = bytearray(path.read_bytes())
    if place is None:
        stored[:] = bytes(len(stored))  # as a disk that forgets
    else:
        stored[place] ^= 4
    path.write_bytes(stored)
    for fetched in (BLOCK_BYTES, 0):  # it is left whole for the next
        with contextlib.closing(store.open(cache)) as file:
            file.need([(0, BLOCK_BYTES)])
            assert content(file, 0, BLOCK_BYTES) == store.content[:BLOCK_BYTES]
            assert file.take_fetched_bytes() == fetched


def in_a_process(act: Any) -> int:
    """Run something in a forked process that tells when it got there, then waits to be killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act(lambda: (os.write(writer, b"!"), time.sleep(60)))
        finally:
            os._exit(1)
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    os.close(writer)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("step", ["open", "write", "rename"])
def test_a_writer_that_is_killed_leaves_nothing_that_is_read(
    cache: ByteCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def write(stop_here: Any) -> None:
        def stop(*_: Any, **__: Any) -> None:
            stop_here()

        if step == "rename":
            monkeypatch.setattr(Path, "rename", stop)
        elif step == "write":
            real = os.write
            monkeypatch.setattr(os, "write", lambda fd, data: (real(fd, data[:9]), stop())[0])
        else:
            monkeypatch.setattr(byte_cache, "_write_file", stop)
        cache.write(KEY, 0, BLOCK)

    kill(in_a_process(write))
    assert cache.read(KEY, 0, BLOCK_BYTES) is None
    left = list((tmp_path / "cache" / KEY).iterdir())
    assert len(left) == (step != "open")
    for path in left:  # removed once nobody can be at it any more
        cache._evict()
        assert path.exists()
        os.utime(path, (time.time() - 3600,) * 2)
        cache._evict()
        assert not path.exists()
    cache.write(KEY, 0, BLOCK)
    assert cache.read(KEY, 0, BLOCK_BYTES) == BLOCK


def found_locked(patch: pytest.MonkeyPatch, thread: threading.Thread) -> threading.Event:
    """Return what is set once a thread has found a block locked, for which it waits."""
    is_waiting, real = threading.Event(), byte_cache.try_lock_range

    def try_lock_range(descriptor: int, start: int, length: int) -> None:
        try:
            real(descriptor, start, length)
        except BlockingIOError:
            if threading.current_thread() is thread:
                is_waiting.set()
            raise

    patch.setattr(byte_cache, "try_lock_range", try_lock_range)
    return is_waiting


def test_a_fetcher_that_is_killed_lets_others_fetch(
    cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()

    def fetch(stop_here: Any) -> None:
        store.meanwhile = [stop_here]
        store.open(cache).need([(0, 1)])

    child = in_a_process(fetch)
    file = store.open(cache)
    waiting = threading.Thread(target=file.need, args=([(0, 1)],))
    is_waiting = found_locked(monkeypatch, waiting)
    waiting.start()
    assert is_waiting.wait(60)
    kill(child)
    waiting.join(60)
    assert not waiting.is_alive()
    assert content(file, 0, 99) == store.content[:99]


def test_who_waits_for_a_fetcher_does_not_fetch(
    cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    one, other = store.open(cache), store.open(cache)
    waiting = threading.Thread(target=other.need, args=([(0, 2 * BLOCK_BYTES)],))
    is_waiting = found_locked(monkeypatch, waiting)

    def begin() -> None:
        if waiting.ident is None:
            waiting.start()
            assert is_waiting.wait(60)

    store.meanwhile = [begin]
    one.need([(0, 1)])
    waiting.join(60)
    assert store.asked == [(0, BLOCK_BYTES), (BLOCK_BYTES, 2 * BLOCK_BYTES)]
    assert content(other, 0, 2 * BLOCK_BYTES) == store.content[: 2 * BLOCK_BYTES]


def test_who_has_waited_long_fetches_too(cache: ByteCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_cache, "_PATIENCE_S", 0.0)
    store = Store()
    with cache.fetching(store.open(cache)._key, 0, 1):
        store.open(cache).need([(0, 1)])
    assert store.asked == [(0, BLOCK_BYTES)]


def test_a_reader_has_the_whole_block_although_it_is_evicted_meanwhile(
    cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(KEY, 0, BLOCK)
    real = os.pread

    def evict_first(descriptor: int, size: int, offset: int) -> bytes:
        monkeypatch.setattr(os, "pread", real)
        cache._limit_bytes = 0
        cache._evict()
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", evict_first)
    assert cache.read(KEY, 0, BLOCK_BYTES) == BLOCK
    assert cache.read(KEY, 0, BLOCK_BYTES) is None


@pytest.mark.filterwarnings("error")
def test_a_writer_whose_folder_is_evicted_goes_on(
    cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = byte_cache._write_file

    def lose_the_folder(path: Path, data: bytes) -> None:
        path.parent.rmdir()
        real(path, data)

    monkeypatch.setattr(byte_cache, "_write_file", lose_the_folder)
    cache.write(KEY, 0, BLOCK)
    assert cache.read(KEY, 0, BLOCK_BYTES) is None
    monkeypatch.setattr(byte_cache, "_write_file", real)
    cache.write(KEY, 0, BLOCK)
    assert cache.read(KEY, 0, BLOCK_BYTES) == BLOCK


def test_what_was_not_used_for_longest_goes_and_the_limit_holds(tmp_path: Path) -> None:
    cache = ByteCache(tmp_path, limit_bytes=10 * BLOCK_BYTES)
    for block in range(40):
        cache.write(KEY, block, BLOCK)
        assert size_of(tmp_path) <= 10 * BLOCK_BYTES
        path = tmp_path / KEY / str(block)
        os.utime(path, (1000 + block,) * 2)
        assert cache.read(KEY, 0, BLOCK_BYTES) == BLOCK  # which makes it the newest
    assert size_of(tmp_path) >= 8 * BLOCK_BYTES
    # What a killed process did not count is found at the next look.
    os.truncate(tmp_path / "lock", 0)
    for block in range(40, 60):
        cache.write(KEY, block, BLOCK)
    assert size_of(tmp_path) <= 10 * BLOCK_BYTES


GB = 10**9


@pytest.mark.parametrize(
    ("kind", "free_on_it", "free_memory", "limit"),
    [
        ("ext4", 40 * GB, 8 * GB, 10 * GB),
        ("ext4", 4000 * GB, 8 * GB, 32 * GB),
        ("tmpfs", 40 * GB, 80 * GB, 4 * GB),
        ("tmpfs", 40 * GB, 2 * GB, GB // 10),
        ("tmpfs", GB, 80 * GB, GB // 4),
        ("tmpfs", 4000 * GB, 4000 * GB, 32 * GB),
    ],
)
def test_what_is_kept_by_default_is_told_once_a_host_and_little_where_it_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, free_on_it: int,
    free_memory: int, limit: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(byte_cache, "mount_of", lambda folder: Mount(str(folder), kind=kind))
    monkeypatch.setattr(Machine, "free_memory", lambda _: free_memory)
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_on_it // 4096, f_frsize=4096)
    )
    with pytest.warns(UserWarning, match="cache_dir") as said:
        assert ByteCache(tmp_path / "cache").is_usable()
    assert len(said) == 1
    shown = f"kept in {tmp_path / 'cache'} ({kind}) for all processes"
    assert shown in str(said[0].message)
    assert f"at most {limit / GB:.1f} GB" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later = ByteCache(tmp_path / "cache")
        assert later.is_usable()
        assert later._limit_now() == pytest.approx(limit, abs=4096)
        # Who gave a limit knows it.
        own = ByteCache(tmp_path / "own", limit_bytes=60 * GB)
        assert own.is_usable()
        assert own._limit_now() == 60 * GB


def test_a_cache_in_memory_holds_what_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_cache, "mount_of", lambda folder: Mount(str(folder), kind="tmpfs"))
    monkeypatch.setattr(Machine, "free_memory", lambda _: 20 * 10 * BLOCK_BYTES)
    cache = ByteCache(tmp_path)
    with pytest.warns(UserWarning, match=r"at most 0\.0 GB"):
        assert cache.is_usable()
    for block in range(40):
        cache.write(KEY, block, BLOCK)
    assert 8 * BLOCK_BYTES <= size_of(tmp_path) <= 10 * BLOCK_BYTES


def refuse(number: int) -> Any:
    def raise_it(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return raise_it


@pytest.mark.parametrize("place", ["write", "lock"])
def test_trouble_with_the_cache_is_said_once_and_costs_no_byte(
    cache: ByteCache, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "write":
        monkeypatch.setattr(os, "write", refuse(errno.ENOSPC))
    else:
        monkeypatch.setattr(byte_cache, "_lock", refuse(errno.ENOLCK))
    store = Store()
    file = store.open(cache)
    with pytest.warns(RuntimeWarning, match="cannot be kept in") as said:
        file.need([(0, BLOCK_BYTES), (2 * BLOCK_BYTES, len(store.content))])
    file.need([(0, len(store.content))])
    assert len(said) == 1
    assert "cache_dir" in str(said[0].message)
    assert content(file, 0, len(store.content)) == store.content


def test_a_stream_works_without_a_folder_to_write_to(in_memory: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot be kept in"):
        stream = EpisodeStream(in_memory, cache_dir=tmp_path / "file")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        seen = [
            int(index) for batch in StreamLoader(stream, batch_size=4) for index in batch["index"]
        ]
    assert sorted(seen) == list(range(sum(LENGTHS)))


def test_a_folder_that_somebody_else_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_cache, "_own_folder", lambda: tmp_path / "own")
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="another user may write there"):
        assert not ByteCache().is_usable()
    (tmp_path / "own").rmdir()
    assert ByteCache().is_usable()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


# --- over S3 --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store() -> Iterator[S3Store]:
    with s3_store(seconds_per_request=0.01, mb_per_second=100) as found:
        yield found


@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:This process")
def test_workers_and_jobs_fetch_each_byte_of_a_bucket_once(
    v30: Path, store: S3Store, tmp_path: Path
) -> None:
    url = store.upload(v30, "set")
    size = sum(path.stat().st_size for path in v30.rglob("*") if path.is_file())

    def epoch(workers: int) -> float:
        store.forget()
        stream = EpisodeStream(url, cache_dir=tmp_path)
        loader = StreamLoader(stream, batch_size=2, num_workers=workers)
        seen = [int(index) for batch in loader for index in batch["index"]]
        assert sorted(seen) == list(range(sum(LENGTHS)))
        return sum(store.sent_bytes.values()) / size

    assert 0.9 < epoch(2) <= 1.1
    # The next job fetches the metadata alone.
    epoch(0)
    assert not [key for key in store.sent_bytes if "/meta/" not in key]


def test_datasets_of_the_hub_are_read_by_ranges(v30: Path, hub: StandIn, tmp_path: Path) -> None:
    from huggingface_hub import HfFileSystem

    HfFileSystem.clear_instance_cache()
    hub.add_repo("me/mine", v30)
    stream = EpisodeStream("hf://datasets/me/mine", cache_dir=tmp_path / "one")
    seen = [int(sample["index"]) for sample in stream]
    assert sorted(seen) == list(range(sum(LENGTHS)))
    assert stream.facts().fetched_bytes
    again = EpisodeStream("hf://datasets/me/mine", cache_dir=tmp_path / "one")
    assert [int(sample["index"]) for sample in again] == seen
    assert again.facts().fetched_bytes == 0
