"""The calls of macOS, as far as they can be told without a Mac: names and arguments."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leconvert.support import file_calls, machine


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the system's library have the functions that are given, and no others."""
    return lambda **functions: monkeypatch.setattr(
        ctypes, "CDLL", lambda *_, **__: SimpleNamespace(**functions)
    )


def test_names_are_exchanged_by_renamex_np(library: Callable[..., None]) -> None:
    calls: list[tuple[Any, ...]] = []

    def renamex_np(one: Any, other: Any, flags: Any) -> int:
        calls.append((one.value, other.value, flags.value))
        if flags.value == 4:
            ctypes.set_errno(errno.EEXIST)
            return -1
        return 0

    library(renamex_np=renamex_np)
    file_calls.exchange_names(Path("a"), Path("b"))
    with pytest.raises(FileExistsError):
        file_calls.rename_no_replace(Path("a"), Path("b"))
    assert calls == [(b"a", b"b", 2), (b"a", b"b", 4)]


@pytest.mark.parametrize("is_cloned", [True, False])
def test_a_file_is_cloned_or_copied(
    tmp_path: Path, library: Callable[..., None], is_cloned: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    source.chmod(0o400)

    def clonefile(one: Any, other: Any, flags: Any) -> int:
        assert (one.value, other.value, flags.value) == (bytes(source), bytes(target), 0)
        if not is_cloned:
            return -1
        target.write_bytes(b"cloned")
        target.chmod(0o400)
        return 0

    library(clonefile=clonefile)
    file_calls.copy_file(source, target)
    assert target.read_bytes() == (b"cloned" if is_cloned else b"content")
    assert target.stat().st_mode & 0o200
    file_calls.copy_file(source, target)  # which is there, and cannot be cloned to
    assert target.read_bytes() == b"content"


@pytest.mark.parametrize("code", [0, errno.ENOTSUP, errno.EIO])
def test_the_disk_itself_is_asked_to_keep_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked: list[str] = []

    def full(_descriptor: int, command: int) -> int:
        assert command == 51
        asked.append("full")
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("fsync"))
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            file_calls.full_sync(7)
    else:
        file_calls.full_sync(7)
    assert asked == ["full", *["fsync"] * (code == errno.ENOTSUP)]


def test_the_system_tells_machine_and_boot(tmp_path: Path, library: Callable[..., None]) -> None:
    def gethostuuid(found: Any, patience: Any) -> int:
        found[:] = range(16)
        return int(patience[0] != 5)

    def sysctlbyname(name: bytes, found: Any, size: Any, _new: None, _size: Any) -> int:
        assert name == b"kern.bootsessionuuid"
        assert size._obj.value == 64
        found.value = b"A-BOOT"
        return 0

    library(gethostuuid=gethostuuid, sysctlbyname=sysctlbyname)
    assert machine.machine_id(tmp_path) == bytes(range(16)).hex()
    assert machine.boot_id(tmp_path) == "A-BOOT"
    library()
    assert (machine.machine_id(tmp_path), machine.boot_id(tmp_path)) == ("", "")
