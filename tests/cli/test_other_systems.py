"""The message on Windows itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ON_WINDOWS = """
import os, shutil, sys  # shutil looks for what only a real Windows has
sys.platform = "win32"
sys.modules["fcntl"] = None
sys.argv = ["leconvert", *{arguments!r}]
"""
SENTENCE = "leconvert does not run on Windows itself."


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = ON_WINDOWS.format(arguments=arguments) + program
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [["convert", "--root", "x"], ["--help"], ["doctor"]])
def test_a_command_says_so_before_anything_else(arguments: list[str]) -> None:
    done = run("from leconvert.cli import program; program()", *arguments)
    assert (done.returncode, done.stdout) == (19, "")
    assert done.stderr.splitlines() == [
        f"leconvert: {SENTENCE}",
        "  → Run it in WSL 2, the Linux that Windows brings, or in a Linux container.",
    ]


def test_a_program_reads_it_as_json() -> None:
    done = run("from leconvert.cli import program; program()", "convert", "--json")
    assert done.returncode == 19
    assert json.loads(done.stdout)["message"] == SENTENCE


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
    done = run(program)
    assert (done.stdout, done.stderr) == (SENTENCE + "\n", "")
