"""Files that belong to a repo on the Hub rather than to the dataset in it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CARD_BEGIN", "GIT_FILES", "README_PATH", "is_pushed_card"]

GIT_FILES = frozenset({".gitattributes"})
"""Every repo has them, and who downloads it has them too; no conversion reads them."""

README_PATH = "README.md"

CARD_BEGIN = "<!-- leconvert: this part is written anew with every push -->"
"""Where the part of a dataset card begins that a push writes."""


def is_pushed_card(result: Path) -> bool:
    """Say whether a dataset's ``README.md`` is the card that a push wrote from the source's.

    Its text is the user's and ours, and changes with every push: nothing of the dataset hangs on
    it, so it is not held against the source's.
    """
    card = result / README_PATH
    try:
        return card.is_file() and CARD_BEGIN in card.read_text("utf-8")
    except (OSError, ValueError):
        return False
