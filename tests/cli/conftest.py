"""Runs the program as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Leconvert = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def leconvert() -> Leconvert:
    """Run ``leconvert ARGUMENTS`` and return what it said."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "leconvert", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return run
