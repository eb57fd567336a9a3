"""Runs the program as a user does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["Leconvert", "expecting", "run_forked", "run_leconvert", "start_leconvert", "started"]

Leconvert = Callable[..., "subprocess.CompletedProcess[str]"]

_TIMEOUT_SECONDS = 120
_FORKS = multiprocessing.get_context("forkserver")
# What commands import by themselves, but for what reads the environment when it is imported. pytest
# is what each process would otherwise import, because it is the main program of its parent.
_PRELOADED = (
    "pytest",
    "tests.program",
    "httpx",
    "leconvert.api",
    "leconvert.fleet",
    "leconvert.report.status",
    "leconvert.run.upkeep",
    "leconvert.run.proof",
    "pyarrow.compute",
    "pyarrow.parquet",
)


def run_leconvert(
    *arguments: object,
    code: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``leconvert ARGUMENTS`` in a process of its own and return what it said.

    The process is forked from one that imported the program and did nothing else: starting Python
    and importing Arrow takes longer than most commands. `start_leconvert` does without.

    Args:
        *arguments: Words of the command line.
        code: What it has to end with, or the test fails with all that was said; None for any.
        env: All environment variables; None for this process's.
        cwd: Where it runs; None for where this process does.
    """
    words = ["leconvert", *map(str, arguments)]
    done = run_forked(_leconvert, words, env=env, cwd=cwd)
    done.args = words[1:]
    return expecting(code, done)


def _leconvert() -> None:
    from leconvert.cli import program

    program()


def run_forked(
    program: Callable[[], object],
    words: list[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = _TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run a function, which can be pickled, as the program of a process with this command line.

    The process has no threads, and may fork others.
    """
    _FORKS.set_forkserver_preload(list(_PRELOADED))
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "out"), Path(folder, "err")
        given = dict(os.environ if env is None else env), str(cwd or Path.cwd())
        process = _FORKS.Process(target=_become, args=(program, words, *given, *said))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, seconds)
        out, err = (path.read_text() if path.exists() else "" for path in said)
        return subprocess.CompletedProcess(words, process.exitcode, out, err)


def expecting(
    code: int | None, done: subprocess.CompletedProcess[str]
) -> subprocess.CompletedProcess[str]:
    """Return a command that ended, which fails the test if it ended with another code."""
    assert code in (None, done.returncode), f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done


def _become(
    program: Callable[[], object],
    words: list[str],
    env: Mapping[str, str],
    folder: str,
    out: Path,
    err: Path,
) -> None:
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # the process that this was forked from may have been elsewhere
    os.chdir(folder)
    for descriptor, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = words
    program()


def start_leconvert(
    *arguments: object, code: int | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m leconvert ARGUMENTS``; other options go to `subprocess.run`."""
    done = subprocess.run(
        [sys.executable, "-m", "leconvert", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return expecting(code, done)


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``python ARGUMENTS`` beside the block; killed if the block fails, else waited for."""
    with (
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        ExitStack() as if_it_fails,
    ):
        if_it_fails.callback(process.kill)
        yield process
        if_it_fails.pop_all()
