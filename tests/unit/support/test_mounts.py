"""What the kernel says of mounts, and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from leconvert.support import file_calls
from leconvert.support.file_calls import devices_with_fleeting_inodes, mount_of, parse_mounts


def test_a_mount_is_told_as_the_kernel_tells_it_and_a_device_that_is_no_number_is_unknown() -> None:
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"
        "30 22 0:50 / /mnt/my\\040work rw master:2 propagate_from:1 - nfs4 srv:/x rw,vers=4.2\n"
        "broken line\n"
    )
    root, work = parse_mounts(text)
    options = "rw,relatime,rw,errors=remount-ro"
    assert (root.point, root.kind, root.options) == ("/", "ext4", options)
    assert (work.point, work.kind, work.source) == ("/mnt/my work", "nfs4", "srv:/x")
    assert (root.device, work.device) == (os.makedev(8, 1), os.makedev(0, 50))
    for device in (":", "8", "8:", "x:1", "8:-1"):
        assert [mount.device for mount in parse_mounts(line("/mnt", "ext4", device=device))] == [0]


@pytest.mark.parametrize(
    ("kind", "fleeting"),
    [
        *((kind, True) for kind in ("vfat", "exfat", "fuse.sshfs", "fuseblk")),
        *((kind, False) for kind in ("ext4", "nfs4", "fusectl")),
    ],
)
def test_inode_numbers_are_fleeting_where_none_are_stored(
    monkeypatch: pytest.MonkeyPatch, kind: str, fleeting: bool
) -> None:
    line = f"30 22 0:50 / /mnt rw - {kind} x rw\n"
    monkeypatch.setattr(file_calls, "_mount_table", lambda: line)
    assert devices_with_fleeting_inodes() == ({os.makedev(0, 50)} if fleeting else frozenset())


def line(point: Path | str, kind: str, source: str = "x", device: str = "0:50") -> str:
    return f"30 22 {device} / {point} rw - {kind} {source} rw\n"


def test_a_folder_is_on_the_innermost_mount_above_it_and_of_two_there_on_the_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "disk" / "deep"
    folder.mkdir(parents=True)
    table = (
        line("/", "ext4")
        + line(tmp_path / "disk", "autofs", "map")
        + line(tmp_path / "disk-2", "vfat")
        + line(tmp_path / "disk", "nfs4", "srv:/x")
        + line(tmp_path, "tmpfs")
    )
    monkeypatch.setattr(file_calls, "_mount_table", lambda: table)
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        mount = mount_of(path)
        assert (mount.point, mount.kind, mount.source) == (
            str(tmp_path / "disk"), "nfs4", "srv:/x",
        )  # fmt: skip
    assert mount_of(tmp_path).kind == "tmpfs"
    with pytest.raises(FileNotFoundError):
        mount_of(tmp_path / "missing")


def test_without_proc_psutil_tells_the_mounts_and_without_it_only_the_room_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = mount_of(tmp_path)
    assert told.total_bytes >= told.free_bytes > 0
    assert tmp_path.is_relative_to(told.point)
    assert told.kind != "unknown"
    monkeypatch.setattr(file_calls, "_MOUNTS", tmp_path / "no mountinfo")
    mount = mount_of(tmp_path)
    assert (mount.point, mount.kind, mount.source) == (told.point, told.kind, told.source)
    part = SimpleNamespace(device="x", mountpoint=str(tmp_path), fstype="exfat", opts="rw")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [part])
    assert devices_with_fleeting_inodes() == {tmp_path.stat().st_dev}
    monkeypatch.setattr(psutil, "disk_partitions", Mock(side_effect=FileNotFoundError))
    mount = mount_of(tmp_path)
    assert (mount.point, mount.kind, mount.device) == (os.path.realpath(tmp_path), "unknown", 0)
    assert mount.total_bytes >= mount.free_bytes > 0
    assert devices_with_fleeting_inodes() == frozenset()
