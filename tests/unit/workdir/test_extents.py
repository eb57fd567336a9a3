"""Whether blocks can be cloned is asked of the kernel, which here says what the test wants."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from leconvert.workdir import fs
from leconvert.workdir.fs import can_clone


def test_a_kernel_that_clones_a_block_is_believed_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bytes]] = []

    def ioctl(target: int, request: int, wanted: bytes) -> int:
        source = int.from_bytes(wanted[:8], sys.byteorder)
        assert os.fstat(target).st_size == 0
        assert request == 0x4020940D
        asked.append((target, os.pread(source, 9999, 0)))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert can_clone(tmp_path, tmp_path)
    assert [content for _, content in asked] == [bytes(4096)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.EPERM])
def test_a_kernel_that_refuses_is_believed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Mock(side_effect=OSError(code, os.strerror(code))))
    assert not can_clone(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_file_system_is_not_asked_and_a_folder_that_is_missing_or_full_clones_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not can_clone(tmp_path / "missing", tmp_path)
    assert not can_clone(tmp_path, tmp_path / "missing")

    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(fs.tempfile, "TemporaryFile", full)
    assert not can_clone(tmp_path, tmp_path)
    monkeypatch.setattr(fs.tempfile, "TemporaryFile", None)
    assert os.stat("/proc").st_dev != tmp_path.stat().st_dev  # noqa: PTH116
    assert not can_clone(Path("/proc"), tmp_path)
