"""Tables and records of a dataset: data files, ``meta/episodes``, tasks, statistics, info.

Everything here takes the dataset's folder or a file and plain values. Rows are copied, never
derived again, and images in rows are never decoded. Nothing is synced to disk: the caller does it.
"""

from leconvert.tables.aggregation import StatsAggregator
from leconvert.tables.episodes import EpisodeRecord, VideoSpan, read_episodes, write_episodes
from leconvert.tables.footers import (
    DataFooter,
    read_data_footer,
    read_data_schema,
    row_group_rows,
)
from leconvert.tables.join import JoinedTable, RowRange, footer_digest, join_tables
from leconvert.tables.records import converted_info, fps_number, write_info, write_stats
from leconvert.tables.schemas import deserialize_schema, output_schema, serialize_schema
from leconvert.tables.tasks import read_tasks, write_tasks

__all__ = [
    "DataFooter",
    "EpisodeRecord",
    "JoinedTable",
    "RowRange",
    "StatsAggregator",
    "VideoSpan",
    "converted_info",
    "deserialize_schema",
    "footer_digest",
    "fps_number",
    "join_tables",
    "output_schema",
    "read_data_footer",
    "read_data_schema",
    "read_episodes",
    "read_tasks",
    "row_group_rows",
    "serialize_schema",
    "write_episodes",
    "write_info",
    "write_stats",
    "write_tasks",
]
