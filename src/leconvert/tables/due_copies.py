"""Which row groups of a data file had to be copies of their sources, byte for byte."""

from __future__ import annotations

import pyarrow as pa

from leconvert.tables.opened import OpenedTable
from leconvert.tables.verbatim import CREATED_BY, TableCopier

__all__ = ["DueCopies"]


class DueCopies:
    """Says again what :func:`~leconvert.tables.join.join_tables` decided of a source.

    Args:
        schema: The schema of the joined file.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._copier = TableCopier(schema)

    @staticmethod
    def can_say(created_by: str) -> bool:
        """Tell whether a file is of this version; another may have decided otherwise.

        Args:
            created_by: What its footer says of its writer.
        """
        return created_by.encode() == CREATED_BY

    def is_due(self, source: str, rows: int) -> bool:
        """Tell whether an episode that needs no repair is copied from its file as it stands.

        Args:
            source: The episode's file.
            rows: Rows that it is to have.

        Raises:
            UnreadableSourceError: The file cannot be read.
        """
        with OpenedTable(source) as table:
            footer = self._copier.footer_of(table)
            if isinstance(footer, str):
                return False
            return not isinstance(self._copier.plan(table, footer, None, rows), str)
