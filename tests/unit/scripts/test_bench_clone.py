"""The benchmark on shared extents counts the right bytes, times and runs, and leaves no mount."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.scripts import loaded_script


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded_script("benches.clone") as module:
        yield module


def _rows(runner: str, walls: tuple[float, ...], new_bytes: int = 0) -> list[dict[str, Any]]:
    return [{"runner": runner, "wall_seconds": wall, "new_bytes": new_bytes} for wall in walls]


def test_figures_are_of_medians_and_show_the_process_start_apart(script: ModuleType) -> None:
    rows = [
        *_rows("convert", (1.0, 0.9, 8.0)),
        *_rows("cp -r", (4.0, 5.0, 40.0)),
        *_rows("convert low", (0.8, 0.8, 0.1)),
        *_rows("convert wide", (0.9, 0.9, 9.0)),
        *_rows("process start", (0.4, 0.3, 0.4)),
    ]

    found = script.outcome(rows, 1_000)

    assert found.times_the_copy == pytest.approx(5.0 / 1.0)
    assert found.times_the_copy_started == pytest.approx(5.0 / (1.0 - 0.4))
    assert found.bitrate_times == pytest.approx(1.0 / 0.8)
    assert found.bitrate_times_wide == pytest.approx(0.9 / 0.8)
    assert found.bitrate_times_started == pytest.approx((1.0 - 0.4) / (0.8 - 0.4))


def test_new_space_is_the_most_that_a_conversion_took_and_not_what_the_copy_took(
    script: ModuleType,
) -> None:
    rows = [
        *_rows("convert", (1.0,), new_bytes=10),
        *_rows("convert", (1.0,), new_bytes=30),
        *_rows("cp -r", (4.0,), new_bytes=1_000),
        *_rows("convert low", (0.8,), new_bytes=40),
        *_rows("convert wide", (0.9,), new_bytes=45),
        *_rows("process start", (0.4,), new_bytes=50),
    ]

    assert script.outcome(rows, 1_000).new_share == pytest.approx(0.03)


def test_an_image_has_room_for_both_sources_and_a_whole_copy(script: ModuleType) -> None:
    high, low = 6_200_000_000, 620_000_000

    assert script.image_bytes(high, low) > 2 * high + low + 500_000_000
    assert script.image_bytes(high, low) % 2**20 == 0


def test_the_copy_may_not_share_and_every_sync_is_in_the_time(
    script: ModuleType, tmp_path: Path
) -> None:
    bench = script.CloneBench(tmp_path, tmp_path / "big", True)

    commands = {runner.name: bench.command(runner) for runner in script.RUNNERS}

    assert bench.sync
    assert commands["cp -r"][:3] == ["cp", "-r", "--reflink=never"]
    assert commands["convert"][1:4] == ["-m", "leconvert", "convert"]
    assert commands["convert"] == commands["convert low"]
    assert commands["process start"][1] == "-c"


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
