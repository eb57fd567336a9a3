"""What a page shows of a command's output, beside what it printed now."""

from __future__ import annotations

import re

__all__ = ["DATA", "as_told", "without_figures"]

DATA = "/data"  # what pages call the folder that commands run in
_FIGURE = re.compile(r"\b\d[\d,]*\.\d+\b|\b\d+(?= %)")
_RATE = re.compile(r"\b\d[\d,.]*(?= ?[A-Za-z]*/s\b)")


def as_told(said: str, folder: str) -> str:
    """Return output as a page shows it."""
    lines = [line.rstrip() for line in said.replace(folder, DATA).splitlines()]
    return "\n".join(lines) + "\n"


def without_figures(text: str) -> str:
    """Return output without what differs from run to run: times, rates and sizes."""
    bare = _RATE.sub("N", _FIGURE.sub("N", text))
    return re.sub(r"[ \t]+", " ", re.sub(r"N [KMG]i?B\b|N B\b", "N bytes", bare))
