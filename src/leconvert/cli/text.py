"""Small pieces of text output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leconvert.model import Finding

__all__ = ["amount", "print_findings", "table"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FINDINGS_SHOWN = 20


def amount(size_bytes: float) -> str:
    """Return a number of bytes as people read it, such as ``2.1 GiB``."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{value:.0f} B"


def print_findings(findings: Sequence[Finding]) -> None:
    """Print warnings and errors on stderr, the first of many."""
    shown = [finding for finding in findings if finding.severity != "info"]
    for finding in shown[:_FINDINGS_SHOWN]:
        print(f"{finding.severity}: {finding.message}", file=sys.stderr)
    if len(shown) > _FINDINGS_SHOWN:
        print(f"... and {len(shown) - _FINDINGS_SHOWN} more findings", file=sys.stderr)


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
