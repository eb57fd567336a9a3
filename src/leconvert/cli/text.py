"""Small pieces of text output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leconvert.text import amount, duration, shorten

__all__ = ["amount", "duration", "shorten", "table"]


def table(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as aligned columns; numbers stand right."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)
