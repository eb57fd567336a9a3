"""On a disk that takes `A` and `a` for one name, with what macOS leaves there everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leconvert import convert
from leconvert.support.errors import UsageError
from tests.disks import mounted_disk
from tests.plain_platform.conftest import Run, run_commands
from tests.trees import digest_of

APPLE_DOUBLE = bytes.fromhex("00051607 00020000") + b"Mac OS X        " + bytes(4096)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path) as mounted:
        (mounted.folder / "A").touch()
        if not (mounted.folder / "a").exists():
            pytest.skip("the disk does not fold case")
        (mounted.folder / "A").unlink()
        yield mounted.folder


def litter(root: Path) -> None:
    """Leave in every folder what Finder leaves."""
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.startswith("."):
                Path(folder, f"._{name}").write_bytes(APPLE_DOUBLE)
        Path(folder, ".DS_Store").write_bytes(b"\0\0\0\1Bud1")


def test_a_conversion_gives_the_bytes_that_it_gives_without(
    disk: Path, small_source: Path, small_result: Path, plain: Run
) -> None:
    source, out, work = (disk / name for name in ("Set", "Out", "Work"))
    shutil.copytree(small_source, source)
    litter(source)
    places = ("--root", disk / "SET", "--output", out, "--work-dir", work)
    plain("-m", "leconvert", "plan", *places, "--episodes-per-batch", 1)
    for command in (("work", work, "--max-batches", 2), ("work", disk / "work")):
        litter(work)
        plain("-m", "leconvert", *command)
    litter(work)
    plain("-m", "leconvert", "pack", work, "--no-wait")
    assert digest_of(out) == digest_of(small_result)
    litter(out)
    for path in out.rglob("._*.parquet"):  # LeRobot takes them for tables, and `check` tells it
        path.unlink()
    checks = ("check", out, "--json")
    compares = ("verify", out, "--source", source, "--bytes")
    _, checked, _ = run_commands(plain, ("clean", work), checks, compares)
    assert {row["severity"] for row in json.loads(checked)["findings"]} == {"info"}


def test_in_place_nothing_of_a_users_is_lost_and_the_source_can_be_deleted(
    disk: Path, small_source: Path, small_result: Path, plain: Run
) -> None:
    source = Path(shutil.copytree(small_source, disk / "Set"))
    litter(source)
    litter(disk)
    plain("-m", "leconvert", "convert", "--root", source, "--delete-source", "--no-push")
    assert digest_of(source) == digest_of(small_result)
    assert [path.name for path in disk.iterdir() if not path.name.startswith(".")] == ["Set"]


@pytest.mark.parametrize(
    ("output", "work_dir", "said"),
    [
        ("SET/out", "work", "The target .* lies inside the source"),
        ("out", "SET/work", "The work dir .* lies inside the source"),
        (None, "SET/work", "The work dir .* lies inside the source"),
        ("SET", "work", "--output is the source itself"),
    ],
)
def test_places_of_another_case_are_not_mixed(
    disk: Path, small_source: Path, output: str | None, work_dir: str, said: str
) -> None:
    source = Path(shutil.copytree(small_source, disk / "Set"))
    before = digest_of(source)
    with pytest.raises(UsageError, match=said):
        convert(source, output=output and disk / output, work_dir=disk / work_dir)
    assert digest_of(source) == before
    assert [path.name for path in disk.iterdir()] == ["Set"]


@pytest.mark.slow
def test_a_storm_ends_in_the_quiet_runs_bytes(disk: Path) -> None:
    storm = Path(__file__).parents[2] / "scripts" / "storm.py"
    done = subprocess.run(
        [sys.executable, storm, "--plain", "--kills", "20", "--kills-per-round", "10",
         "--episodes", "20", "--seed", "5", "--pace", "1", "--folder", disk],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    _, *rounds, total = map(json.loads, done.stdout.splitlines())
    assert [row["troubles"] for row in rounds if not row["ok"]] == []
    assert total["kills"] >= 20
