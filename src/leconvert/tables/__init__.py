"""Parquet tables of a dataset: footers, schemas, and rows that are joined, cut and copied.

The functions take files and plain values. Rows are copied unless a repair says otherwise, and
images in rows are never decoded. Nothing is synced to disk unless the caller asks for it.
"""

from leconvert.tables.data_file import (
    DataFile,
    OpenedTable,
    chunk_range,
    has_footer,
    open_parquet,
    read_data_schema,
    row_group_rows,
    why_unreadable,
)
from leconvert.tables.join import (
    LastTable,
    RowRepair,
    join_tables,
    read_columns,
    read_rows,
    regrouped,
    repaired_schema,
    replace_columns,
)
from leconvert.tables.parquet_copy import CREATED_BY, StoredGroups, TableCopier
from leconvert.tables.schemas import (
    LANGUAGE_COLUMNS,
    Reading,
    align_table,
    declaration_of,
    deserialize_schema,
    dtype_name,
    fits,
    holds_columns_of,
    list_sizes,
    output_schema,
    read_by_lerobot,
    serialize_schema,
)
from leconvert.tables.unfinished import finish_table

__all__ = [
    "CREATED_BY",
    "LANGUAGE_COLUMNS",
    "DataFile",
    "LastTable",
    "OpenedTable",
    "Reading",
    "RowRepair",
    "StoredGroups",
    "TableCopier",
    "align_table",
    "chunk_range",
    "declaration_of",
    "deserialize_schema",
    "dtype_name",
    "finish_table",
    "fits",
    "has_footer",
    "holds_columns_of",
    "join_tables",
    "list_sizes",
    "open_parquet",
    "output_schema",
    "read_by_lerobot",
    "read_columns",
    "read_data_schema",
    "read_rows",
    "regrouped",
    "repaired_schema",
    "replace_columns",
    "row_group_rows",
    "serialize_schema",
    "why_unreadable",
]
