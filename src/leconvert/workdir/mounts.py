"""Where a folder is mounted, with what options, and how much room there is."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = [
    "Mount",
    "devices_with_fleeting_inodes",
    "is_mount_point",
    "mount_of",
    "parse_mounts",
]

_MOUNTS = Path("/proc/self/mountinfo")
_FLEETING = frozenset({"exfat", "fuse", "fuseblk", "msdos", "vfat"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount, as the kernel tells it.

    Attributes:
        point: Where it is mounted.
        kind: The file system's type, such as ``nfs4``; ``unknown`` if the kernel does not say.
        source: Device or server.
        options: Options of the mount and of the file system.
        free_bytes: Room for this user.
        total_bytes: Its size.
        device: Device number of its files, as `os.stat` gives it; 0 if unknown.
    """

    point: str
    kind: str = "unknown"
    source: str = ""
    options: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    device: int = 0

    @property
    def has_fleeting_inodes(self) -> bool:
        """Whether files may have other inode numbers after a new mount, or after a while.

        FAT and exFAT store none, so Linux makes them up as files are looked at; most programs
        behind FUSE leave that to libfuse, which does the same.
        """
        return self.kind in _FLEETING or self.kind.startswith("fuse.")


def mount_of(folder: Path) -> Mount:
    """Return the mount that holds a folder.

    Raises:
        OSError: The folder cannot be looked at.
    """
    usage = shutil.disk_usage(folder)
    real = Path(os.path.realpath(folder))
    mounts = parse_mounts(_mount_table())
    # Of two mounts on one point the later one hides the earlier.
    found = [mount for mount in mounts if real.is_relative_to(mount.point)]
    best = max(found, key=lambda mount: len(Path(mount.point).parts), default=Mount(str(real)))
    for mount in found:
        if mount.point == best.point:
            best = mount
    return replace(best, free_bytes=usage.free, total_bytes=usage.total)


def is_mount_point(folder: Path) -> bool:
    """Tell whether something is mounted on a folder, which then cannot be renamed.

    A folder that is mounted a second time elsewhere (a bind mount) has its parent's device number,
    so that ``Path.is_mount`` does not see it.
    """
    real = os.path.realpath(folder)
    return any(mount.point == real for mount in parse_mounts(_mount_table()))


def devices_with_fleeting_inodes() -> frozenset[int]:
    """Return the device numbers of what is mounted now and gives files no lasting inode numbers."""
    mounts = parse_mounts(_mount_table())
    return frozenset(mount.device for mount in mounts if mount.has_fleeting_inodes)


def _mount_table() -> str:
    # Never kept: what is mounted changes.
    try:
        return _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a ``mountinfo`` file, in its order, without lines that make no sense.

    Its fields are described in proc_pid_mountinfo(5): any number of optional ones end with ``-``.
    """
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if dash and len(head) >= 6 and len(tail) >= 3:
            point, kind, source = _plain(head[4]), tail[0], _plain(tail[1])
            options = f"{head[5]},{tail[2]}"
            mounts.append(Mount(point, kind, source, options, device=_device(head[2])))
    return mounts


def _device(field: str) -> int:
    major, _, minor = field.partition(":")
    return os.makedev(int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else 0


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
