"""``leconvert check-fs`` on real file systems, by one process and by two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import run_leconvert, started

FOLDERS = ["disk", "memory"]


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on whatever holds the tests, and one in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    place = tmp_path / "memory"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("folder", "command"), zip(FOLDERS, ["check-fs", "doctor"], strict=True), indirect=["folder"]
)
def test_two_processes_meet_and_both_tell_the_outcome(folder: Path, command: str) -> None:
    with started("-m", "leconvert", command, folder, "--peer", "--json") as peer:
        assert "Waiting for" in peer.stderr.readline()
        led = run_leconvert(command, folder, "--wait", 30, "--json")
        told, _ = peer.communicate(timeout=60)
    assert (led.returncode, peer.returncode) == (0, 0), led.stderr
    outcome = json.loads(led.stdout)
    assert outcome == json.loads(told)
    assert (outcome["same_host"], outcome["tested_between_hosts"]) == (True, False)
    assert {f["promise"] for f in outcome["findings"] if f["need"] == "several hosts"} == {
        "link", "race", "create_race", "listing", "news",
    }  # fmt: skip
    assert list(folder.iterdir()) == []


def test_a_file_system_without_hard_links_is_for_one_host_and_has_a_code(tmp_path: Path) -> None:
    code = (
        "import errno, sys\n"
        "from leconvert.workdir.fs import FileSystem\n"
        "def link(self, source, target):\n"
        "    raise OSError(errno.EPERM, 'Operation not permitted')\n"
        "FileSystem.link = link\n"
        "from leconvert.cli import main\n"
        "sys.exit(main())"
    )
    checked = subprocess.run(
        [sys.executable, "-c", code, "check-fs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 13
    assert "A run accepts only the host that planned it" in checked.stdout
    assert "only one host may work" in checked.stdout
