"""The benchmark on shared extents counts the right bytes, times and runs, and leaves no mount."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "benches.clone"


def test_new_space_is_the_most_that_each_took(script: ModuleType) -> None:
    rows = [
        {"runner": runner, "new_bytes": new_bytes}
        for runner, new_bytes in (("convert", 10e6), ("convert", 30e6), ("cp -r", 1e9))
    ]
    assert script.new_space(rows) == "new space: convert 30 MB, cp -r 1,000 MB"


def test_an_image_has_room_for_the_source_and_a_whole_copy(script: ModuleType) -> None:
    assert script.image_bytes(6_200_000_000) > 2 * 6_200_000_000 + 500_000_000
    assert script.image_bytes(6_200_000_000) % 2**20 == 0


def test_the_copy_may_not_share(script: ModuleType, tmp_path: Path) -> None:
    bench = script.CloneBench(tmp_path, tmp_path / "big", True)
    commands = {runner.name: bench.command(runner) for runner in script.RUNNERS}
    assert commands["cp -r"][:3] == ["cp", "-r", "--reflink=never"]
    assert commands["convert"][1:4] == ["-m", "leconvert", "convert"]


def test_too_little_room_is_said_before_anything_is_made(
    script: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="the image takes"):
        script.check_room(tmp_path, 10**18)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_an_error_leaves_neither_mount_nor_loop_device(
    script: ModuleType, tmp_path: Path, kind: str
) -> None:
    if os.geteuid() != 0 or shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"needs root and mkfs.{kind}")
    image = tmp_path / "image"

    def fail_while_mounted() -> None:
        with script.loop_mounted(kind, tmp_path, 320 * 2**20) as mounted:
            if not mounted.is_mount():
                pytest.fail("nothing is mounted")
            if str(image) not in script.kit.run_quietly(["losetup", "--associated", str(image)]):
                pytest.fail("no loop device holds the image")
            raise KeyError("of the test")

    with pytest.raises(KeyError, match="of the test"):
        fail_while_mounted()
    assert not (tmp_path / "mounted").is_mount()
    assert script.kit.run_quietly(["losetup", "--associated", str(image)]) == ""


def test_space_is_counted_once_it_has_settled(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([900, 700, 500, 400, 400, 400, 300])

    class State:
        f_blocks = 1_000
        f_frsize = 4_096

        def __init__(self) -> None:
            self.f_bfree = next(free)

    monkeypatch.setattr(script, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(script.os, "statvfs", lambda _: State())

    assert script.used_bytes(tmp_path) == 600 * 4_096
