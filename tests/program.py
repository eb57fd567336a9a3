"""Runs the program as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

__all__ = ["Leconvert", "run_leconvert"]

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
