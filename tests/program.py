"""Runs the program as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["Leconvert", "run_leconvert", "started"]

Leconvert = Callable[..., "subprocess.CompletedProcess[str]"]


def run_leconvert(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run ``leconvert ARGUMENTS`` and return what it said; options go to `subprocess.run`."""
    return subprocess.run(
        [sys.executable, "-m", "leconvert", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,  # type: ignore[call-overload]
    )


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
