"""Processes on a platform that offers nothing beyond POSIX; see ``python/sitecustomize.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
_COMMANDS = """
import contextlib, io, json, sys
from leconvert.cli import main
said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words, forks=True) == 0, words
    said.append(out.getvalue())
json.dump(said, sys.stdout)
"""


def run_commands(run: Run, *commands: Sequence[object], **options: Any) -> list[str]:
    """Run commands of the program in one process there, where each ends with 0.

    To start Python and to import Arrow takes longer than a command. Returns what each printed.
    """
    words = [[str(word) for word in command] for command in commands]
    said: list[str] = json.loads(run("-c", _COMMANDS, json.dumps(words), **options).stdout)
    return said


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run Python there, and have it end with 0; temporary files lie behind a link, on a disk."""
    yield from _running("python", tmp_path_factory)


@pytest.fixture(scope="module")
def decomposing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """As ``plain``, on a file system that lists names in their parts (NFD)."""
    yield from _running("decomposed", tmp_path_factory)


def _running(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    if sys.platform != "linux":
        pytest.skip("takes away what Linux has")
    behind = Path(tempfile.mkdtemp(prefix="leconvert-tests-", dir="/var/tmp"))
    link = tmp_path_factory.mktemp("link") / "tmp"
    link.symlink_to(behind)
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name(site)), *sys.path]),
        "TMPDIR": str(link),
    }

    def run(
        *arguments: object, cwd: Path | None = None, environment: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=common | environment, cwd=cwd, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    run.folder = link  # type: ignore[attr-defined]
    yield run
    left = [path.name for path in behind.glob("leconvert-*") if path.suffix != ".alive"]
    shutil.rmtree(behind)
    assert left == []
