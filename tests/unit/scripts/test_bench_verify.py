"""The benchmark of verification compares what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts import SCRIPTS

from leconvert.api import convert

SCRIPT = "benches.verify"


def test_commands_show_no_path_of_this_machine(script: ModuleType, tmp_path: Path) -> None:
    for runner in script.RUNNERS:
        shown = script.kit.shown(script.command(runner, tmp_path), tmp_path)
        assert str(tmp_path) not in shown
        assert shown.startswith(("python -m leconvert ", "python scripts/bench.py verify "))


def test_one_row_of_each_way_is_measured(
    script: ModuleType, tmp_path: Path, small_source: Path
) -> None:
    (tmp_path / "source").symlink_to(small_source)
    convert(small_source, output=tmp_path / "result")
    row = script.run("bytes 1", tmp_path)
    assert row["command"] == (
        "python -m leconvert verify $SCRATCH/result --source $SCRATCH/source --json --bytes "
        "--max-workers 1"
    )
    assert row["peak_rss_bytes"] > 2**20
    video = tmp_path / "result/videos/observation.images.top/chunk-000/file-000.mp4"
    video.write_bytes(video.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="ended with 10"):
        script.run("bytes", tmp_path)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_every_file_is_hashed(tmp_path: Path, processes: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_bytes(b"x")
    command = [sys.executable, str(SCRIPTS / "bench.py"), "verify", "--hash", str(tmp_path)]
    command += ["--processes", processes]
    assert subprocess.run(command, check=False).returncode == 0
    (tmp_path / "sub/lost").symlink_to(tmp_path / "nothing")
    lost = subprocess.run(command, check=False, capture_output=True, text=True)
    assert lost.returncode == 1
    assert "sub/lost" in lost.stderr
