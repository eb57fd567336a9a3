"""Waiting for what has no way to wake us: other kernels, schedulers, the jobs of both."""

from __future__ import annotations

import time
from collections.abc import Callable

from every_lab.errors import LabError

__all__ = ["wait_until"]


def wait_until(
    ready: Callable[[], bool],
    seconds: float,
    what: str,
    *,
    alive: Callable[[], bool] | None = None,
    look_seconds: float = 0.1,
) -> None:
    """Look again and again until something is so.

    Args:
        ready: Tells whether it is.
        seconds: How long to wait.
        what: What is waited for, to begin a sentence with.
        alive: Tells whether the host that should bring it about is on; None for none.
        look_seconds: How long to pause between looks; shorter where the time is measured.

    Raises:
        LabError: It does not come about in time, or its host is off.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if alive is not None and not alive():
            if ready():
                return
            raise LabError(f"{what} did not happen: the host is off.")
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not happen within {seconds:.0f} s.")
        time.sleep(look_seconds)
