"""What one reads where leconvert does not run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ELSEWHERE = """
import os, shutil, sys  # shutil looks for what only a real Windows has
sys.platform = {platform!r}
sys.modules["fcntl"] = None
del os.copy_file_range
sys.argv = ["leconvert", *{arguments!r}]
"""
SENTENCE = "leconvert needs Linux, but this is {name}."
SYSTEMS = [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")]


def run(platform: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = ELSEWHERE.format(platform=platform, arguments=arguments) + program
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("platform", "name"), SYSTEMS)
@pytest.mark.parametrize("arguments", [["convert", "--root", "x"], ["--help"], ["doctor"]])
def test_a_command_says_so_before_anything_else(
    platform: str, name: str, arguments: list[str]
) -> None:
    done = run(platform, "from leconvert.cli import program; program()", *arguments)
    assert (done.returncode, done.stdout) == (19, "")
    assert done.stderr.splitlines() == [
        f"leconvert: {SENTENCE.format(name=name)}",
        ("  → Run leconvert on a Linux machine or in a Linux container; on Windows use WSL 2."),
    ]


def test_a_program_reads_it_as_json() -> None:
    done = run("darwin", "from leconvert.cli import program; program()", "convert", "--json")
    assert done.returncode == 19
    assert json.loads(done.stdout)["message"] == SENTENCE.format(name="macOS")


@pytest.mark.parametrize(
    "use", ["leconvert.convert", "leconvert.push", "leconvert.loading.EpisodeStream"]
)
def test_python_code_says_so_when_it_uses_it(use: str) -> None:
    program = f"""
import leconvert, leconvert.loading
try:
    {use}
except leconvert.LeconvertError as error:
    print(error)
"""
    done = run("darwin", program)
    assert (done.stdout, done.stderr) == (SENTENCE.format(name="macOS") + "\n", "")
