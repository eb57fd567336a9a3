"""File systems that tests make and mount: without hard links, and with folded case."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# In order of preference. A kernel without exFAT still mounts it through FUSE, which knows no flags
# of `renameat2`.
KINDS = {
    "vfat": (["mkfs.vfat", "-F", "32"], ["mount", "-t", "vfat"]),
    "exfat": (["mkfs.exfat"], ["mount", "-t", "exfat"]),
    "exfat through FUSE": (["mkfs.exfat"], ["mount.exfat-fuse"]),
}


@dataclass(frozen=True)
class Disk:
    """A mounted file system without hard links."""

    folder: Path
    mount: Sequence[str]

    def mount_anew(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)
        subprocess.run(self.mount, check=True)


@contextmanager
def mounted_disk(tmp_path: Path) -> Iterator[Disk]:
    """The first file system without hard links that this machine can make and mount."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(128 * 1024**2)
    folder.mkdir()
    attached = said(["losetup", "--find", "--show", str(image)])
    if attached.returncode:
        pytest.skip(f"needs root and a loop device: {attached.stderr.strip()}")
    device = attached.stdout.strip()
    why = ""
    try:
        for maker, mount in KINDS.values():
            for command in ([*maker, device], [*mount, device, str(folder)]):
                done = said(command)
                if done.returncode:
                    why += f" {command[0]}: {done.stderr.strip()}"
                    break
            else:
                yield Disk(folder, command)
                subprocess.run(["umount", str(folder)], check=True)
                return
        pytest.skip(f"needs dosfstools, or exfatprogs and exfat-fuse:{why}")
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def said(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the system that need not be there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
