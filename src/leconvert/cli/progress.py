"""Progress on a terminal as bars, elsewhere as a plain line now and then. All on stderr."""

from __future__ import annotations

import sys
from typing import TextIO

from leconvert.cli.progress_bars import BarProgress
from leconvert.cli.progress_lines import LineProgress
from leconvert.progress import NO_PROGRESS, Progress

__all__ = ["progress_for"]


def progress_for(stream: TextIO | None = None, *, quiet: bool = False) -> Progress:
    """Return what fits the stream: bars on a terminal, lines elsewhere, nothing if ``quiet``."""
    if quiet:
        return NO_PROGRESS
    stream = stream or sys.stderr
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)
