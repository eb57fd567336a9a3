"""Source rows in the types in which a result holds them."""

from __future__ import annotations

import pyarrow as pa

from leconvert import tables
from leconvert.errors import UnreadableSourceError

__all__ = ["as_stored"]


def as_stored(rows: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    """Return rows in the types of a schema where that loses nothing, and else as they are.

    An episode that was recorded with narrower types than the others is written with theirs. Which
    types a result may have is for `leconvert.verify.data_footer` to say.

    Args:
        rows: Rows of one episode, as the source has them.
        schema: The schema of the result's file; it has the same columns.
        path: Where the rows come from.
    """
    try:
        return tables.align_table(rows, schema, path=path)
    except UnreadableSourceError:
        return rows
