"""What scenarios found, as rows of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Row", "as_table"]

_HEADS = ("scenario", "what happens", "what came of it")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        scenario: Its name.
        case: What was done to the hosts.
        outcome: What was asserted and held, with figures.
    """

    scenario: str
    case: str
    outcome: str


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [_HEADS, ("---",) * len(_HEADS)]
    lines += [(row.scenario, row.case, row.outcome) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
