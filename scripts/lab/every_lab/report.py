"""What scenarios found, as rows of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

__all__ = ["Row", "Transcript", "as_table"]

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


class Transcript:
    """Prints what a lab says, and writes it to a file as well.

    Args:
        path: The file, begun anew; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Transcript:
        if self._path is not None:
            self._file = self._path.open("w")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, line: str) -> None:
        """Say a line; it is on the screen and in the file before the next one."""
        print(line, flush=True)
        if self._file is not None:
            print(line, file=self._file, flush=True)
