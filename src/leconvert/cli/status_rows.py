"""What the tables of a run's status have in common: how much they show."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HOST_WIDTH", "ROWS_SHOWN", "more_lines"]

HOST_WIDTH = 20
ROWS_SHOWN = 10


def more_lines(rows: Sequence[object]) -> list[str]:
    """Return a line that says how many rows a table leaves out, if it does."""
    left = len(rows) - ROWS_SHOWN
    return [f"... and {left} more; --json lists them all"] if left > 0 else []
