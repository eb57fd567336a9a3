"""What a worker said last, for whoever asks why it ended."""

from __future__ import annotations

from pathlib import Path

__all__ = ["last_words"]

_LAST_LINES = 3
_LAST_BYTES = 4096


def last_words(log: Path) -> str:
    """Return the last lines of a log in one line; ``no output`` where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            said = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return " / ".join(said[-_LAST_LINES:]) or "no output"
