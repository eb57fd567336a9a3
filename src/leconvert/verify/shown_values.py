"""Values of rows as a message shows them."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["shown_value"]

_MOST_CHARACTERS = 200


def shown_value(values: pa.Array, row: int) -> str:
    """Return a value as text: the beginning of a long one, and something for what is no text.

    Args:
        values: A column.
        row: Where the value is; a place behind the last is none.
    """
    if row >= len(values):
        return "no such row"
    try:
        text = str(values[row].as_py())
    except (UnicodeDecodeError, ValueError, OverflowError) as error:
        # Damaged bytes need not be of the column's type.
        return f"no {values.type}: {error}"
    if len(text) > _MOST_CHARACTERS:
        return f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"
    return text
