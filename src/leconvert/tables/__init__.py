"""Tables and records of a dataset: data files, ``meta/episodes``, tasks, statistics, info.

Everything here takes the dataset's folder or a file and plain values. Rows are copied
unless a repair says otherwise, and images in rows are never decoded. Nothing is synced to disk:
the caller does it.
"""

from leconvert.tables.episodes import (
    EpisodeRecord,
    EpisodesReader,
    VideoSpan,
    read_episodes,
    write_episodes,
)
from leconvert.tables.footers import (
    DataFooter,
    OpenedTable,
    read_data_footer,
    read_data_schema,
    row_group_rows,
)
from leconvert.tables.join import (
    JoinedTable,
    RowRange,
    RowRepair,
    join_tables,
    repaired_schema,
)
from leconvert.tables.lerobot_reader import (
    Reading,
    declaration_of,
    dtype_name,
    list_sizes,
    read_by_lerobot,
)
from leconvert.tables.meta import (
    REPAIRS_PATH,
    StatsAggregator,
    converted_info,
    fps_number,
    kept_splits,
    read_repairs,
    read_tasks,
    write_info,
    write_repairs,
    write_stats,
    write_tasks,
)
from leconvert.tables.parquet_copy import (
    DataFile,
    ExpectedCopies,
    StoredGroups,
    StoredRanges,
    row_group_extremes,
)
from leconvert.tables.schemas import (
    align_table,
    deserialize_schema,
    output_schema,
    serialize_schema,
)

__all__ = [
    "REPAIRS_PATH",
    "DataFile",
    "DataFooter",
    "EpisodeRecord",
    "EpisodesReader",
    "ExpectedCopies",
    "JoinedTable",
    "OpenedTable",
    "Reading",
    "RowRange",
    "RowRepair",
    "StatsAggregator",
    "StoredGroups",
    "StoredRanges",
    "VideoSpan",
    "align_table",
    "converted_info",
    "declaration_of",
    "deserialize_schema",
    "dtype_name",
    "fps_number",
    "join_tables",
    "kept_splits",
    "list_sizes",
    "output_schema",
    "read_by_lerobot",
    "read_data_footer",
    "read_data_schema",
    "read_episodes",
    "read_repairs",
    "read_tasks",
    "repaired_schema",
    "row_group_extremes",
    "row_group_rows",
    "serialize_schema",
    "write_episodes",
    "write_info",
    "write_repairs",
    "write_stats",
    "write_tasks",
]
