"""Disks that are full, read-only or too small: a sentence, a code, and nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.program import Leconvert
from tests.trees import digest_of, snapshot

Mount = Callable[[str], Path]


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Mount]:
    """Mount small file systems of one's own; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount-{len(mounted)}"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_loses_nothing_and_the_run_goes_on_when_there_is_room(
    leconvert_here: Leconvert, small_source: Path, mount_tmpfs: Mount, quiet_digest: str
) -> None:
    disk = mount_tmpfs("size=1m")
    before = snapshot(small_source)
    places = ("--root", small_source, "--output", disk / "out", "--work-dir", disk / "work")
    leconvert_here("plan", *places, code=0)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk).free - 40 * 1024))
    full = leconvert_here("convert", *places, "--max-workers", 1, code=11)
    assert "space left" in full.stderr
    assert "Traceback" not in full.stderr
    assert not (disk / "out").exists()
    ballast.unlink()
    leconvert_here("convert", *places, "--max-workers", 1, code=0)
    assert snapshot(small_source) == before
    assert digest_of(disk / "out") == quiet_digest


def test_a_source_on_a_read_only_file_system_converts_and_a_target_there_is_refused(
    leconvert_here: Leconvert, small_source: Path, mount_tmpfs: Mount, tmp_path: Path
) -> None:
    disk = mount_tmpfs("size=4m")
    source = shutil.copytree(small_source, disk / "source")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    leconvert_here("convert", "--root", source, "--output", tmp_path / "out", code=0)
    for target in ((), ("--output", disk / "out")):
        refused = leconvert_here("convert", "--root", source, *target)
        assert refused.returncode in {5, 11}, refused.stderr
        assert str(disk) in refused.stderr
        assert "Traceback" not in refused.stderr
