"""Whatever way the kernel refuses, the same bytes arrive; whatever fails says which side failed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leconvert.support import file_calls
from leconvert.support.errors import InterruptedRunError, StorageError, UnreadableSourceError
from leconvert.support.file_calls import RangeMover

CONTENT = bytes(range(256)) * 400
START, LENGTH, TARGET_START = 5000, 90_000, 12_345


@contextmanager
def moving(
    tmp_path: Path, content: bytes = CONTENT, **options: object
) -> Iterator[tuple[RangeMover, int, Path]]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    descriptors = [os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT)]
    try:
        yield RangeMover(descriptors[1], str(target), **options), descriptors[0], target
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def refusing(code: int, calls: list[int]) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        calls.append(code)
        if not code:  # some file systems move nothing without an error
            return 0
        raise OSError(code, os.strerror(code))

    return refuse


def assert_arrived(target: Path) -> None:
    found = target.read_bytes()
    assert found[:TARGET_START] == bytes(TARGET_START)
    assert found[TARGET_START:] == CONTENT[START : START + LENGTH]


@pytest.mark.parametrize("step_bytes", [1000, 64 * 1024**2])
@pytest.mark.parametrize(
    "refused",
    [(), ("copy_file_range",), ("sendfile",), ("copy_file_range", "sendfile")],
)
@pytest.mark.parametrize(
    "code", [0, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM]
)
def test_the_bytes_arrive_whatever_the_kernel_refuses(
    step_bytes: int,
    refused: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_calls, "_STEP_BYTES", step_bytes)
    monkeypatch.setattr(file_calls, "_BUFFER_BYTES", 777)
    calls: list[int] = []
    for name in refused:
        monkeypatch.setattr(os, name, refusing(code, calls))
    arrived: list[int] = []
    with moving(tmp_path, on_bytes=arrived.append) as (mover, source, target):
        mover.move(source, "source", START, LENGTH, TARGET_START)
        mover.move(source, "source", START, LENGTH, TARGET_START)
        assert (mover.copied_bytes, mover.cloned_bytes) == (2 * LENGTH, 0)
    assert_arrived(target)
    assert sum(arrived) == 2 * LENGTH
    used = set(refused) if "copy_file_range" in refused else set()
    assert len(calls) == len(used), "each refused way should be tried once and never again"


@pytest.mark.parametrize("align", [512, 4096])
def test_a_refused_clone_is_tried_once_and_the_bytes_arrive(
    align: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", refusing(errno.EOPNOTSUPP, calls))
    aligned = START + 3 * align
    with moving(tmp_path, block_align=align) as (mover, source, target):
        mover.move(source, "source", START, LENGTH, aligned)
        mover.move(source, "source", START, LENGTH, aligned)
        assert mover.cloned_bytes == 0
    assert target.read_bytes()[aligned:] == CONTENT[START : START + LENGTH]
    assert len(calls) == 1


def test_only_whole_blocks_that_agree_on_both_sides_are_cloned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[int, ...]] = []

    def clone(descriptor: int, request: int, argument: bytes) -> int:
        assert request == 0x4020940D
        source, start, count, target_start = file_calls._CLONE_RANGE.unpack(argument)
        requests.append((start, count, target_start))
        os.pwrite(descriptor, os.pread(source, count, start), target_start)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    arrived: list[int] = []
    with moving(tmp_path, block_align=4096, on_bytes=arrived.append) as (mover, source, target):
        mover.move(source, "source", 5000, 90_000, 5000 + 8192)
        assert target.read_bytes()[5000 + 8192 :] == CONTENT[5000:95_000]
        # From the first whole block (8192) to the end of the last (23 * 4096).
        assert requests == [(8192, 94208 - 8192, 16384)]
        assert mover.cloned_bytes == 94208 - 8192
        assert mover.copied_bytes == 90_000 - mover.cloned_bytes
        assert sum(arrived) == 90_000
        mover.move(source, "source", 5000, 90_000, 5001)
        mover.move(source, "source", 5000, 3000, 5000)
        assert len(requests) == 1, "unaligned or short ranges should not be cloned"
    with moving(tmp_path) as (mover, source, _):
        mover.move(source, "source", 4096, 40_960, 4096)
    assert len(requests) == 1, "nothing should be cloned without alignment"


WAYS = ("ioctl", "copy_file_range", "sendfile", "pwritev")


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_an_error_of_the_destination_and_not_tried_another_way(
    way: str, full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    for name in WAYS[: WAYS.index(way) + 1]:
        code = full if name == way else errno.EXDEV
        monkeypatch.setattr(fcntl if name == "ioctl" else os, name, refusing(code, calls))
    with moving(tmp_path, block_align=4096) as (mover, source, target):
        with pytest.raises(StorageError, match=os.strerror(full)) as caught:
            mover.move(source, "source", 0, LENGTH, 4096)
        assert caught.value.path == str(target)
        assert isinstance(caught.value.__cause__, OSError)
    assert calls[-1] == full


@pytest.mark.parametrize(
    ("content", "refused", "said"),
    [
        (CONTENT, ("copy_file_range", "sendfile", "preadv"), "cannot be read"),
        (CONTENT[: START + 10], (), "is shorter than its index says"),
    ],
    ids=["failing", "cut off"],
)
def test_a_source_that_fails_or_ends_early_is_named(
    content: bytes,
    refused: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in refused:
        monkeypatch.setattr(os, name, refusing(errno.EIO, []))
    named = pytest.raises(UnreadableSourceError, match=rf"clip\.mp4 {said}")
    with moving(tmp_path, content=content) as (mover, source, _), named:
        mover.move(source, "clip.mp4", START, LENGTH, TARGET_START)


def test_a_request_to_stop_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_calls, "_STEP_BYTES", 1000)
    arrived: list[int] = []
    stops = {"on_bytes": arrived.append, "should_stop": lambda: sum(arrived) >= 5000}
    with moving(tmp_path, **stops) as (mover, source, _), pytest.raises(InterruptedRunError):
        mover.move(source, "source", START, LENGTH, TARGET_START)
    assert sum(arrived) == 5000
