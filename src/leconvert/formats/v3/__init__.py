"""LeRobot v3.0: ``info.json``, the tables under ``meta/``, statistics, and where files lie.

Everything here takes the dataset's folder and plain values. Nothing is synced to disk: the caller
does it.
"""

from leconvert.formats.v3.dataset import Dataset, files_of
from leconvert.formats.v3.episodes import (
    LOCATION_COLUMNS,
    EpisodesReader,
    EpisodeTable,
    StreamPlaces,
    placing_columns,
    read_episode_table,
)
from leconvert.formats.v3.episodes_writer import EpisodeRecord, VideoSpan, write_episodes
from leconvert.formats.v3.info import (
    CODEBASE_VERSION,
    DATA_PATH_TEMPLATE,
    EPISODES_DIR,
    INFO_PATH,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    VIDEO_PATH_TEMPLATE,
    Declared,
    Feature,
    converted_info,
    declaration,
    episodes_path,
    fps_number,
    kept_splits,
    output_path,
    read_json_object,
    split_findings,
    stream_of,
    write_info,
)
from leconvert.formats.v3.records import (
    pandas_index,
    read_repairs,
    read_task_rows,
    read_tasks,
    write_repairs,
    write_tasks,
)
from leconvert.formats.v3.rows import (
    ROWS_AT_A_TIME,
    Ranges,
    RoutedFile,
    RowCheck,
    check_ranges,
    routed_files,
)
from leconvert.formats.v3.statistics import StatsAggregator, write_stats

__all__ = [
    "CODEBASE_VERSION",
    "DATA_PATH_TEMPLATE",
    "EPISODES_DIR",
    "INFO_PATH",
    "LOCATION_COLUMNS",
    "REPAIRS_PATH",
    "ROWS_AT_A_TIME",
    "STATS_PATH",
    "TASKS_PATH",
    "VIDEO_PATH_TEMPLATE",
    "Dataset",
    "Declared",
    "EpisodeRecord",
    "EpisodeTable",
    "EpisodesReader",
    "Feature",
    "Ranges",
    "RoutedFile",
    "RowCheck",
    "StatsAggregator",
    "StreamPlaces",
    "VideoSpan",
    "check_ranges",
    "converted_info",
    "declaration",
    "episodes_path",
    "files_of",
    "fps_number",
    "kept_splits",
    "output_path",
    "pandas_index",
    "placing_columns",
    "read_episode_table",
    "read_json_object",
    "read_repairs",
    "read_task_rows",
    "read_tasks",
    "routed_files",
    "split_findings",
    "stream_of",
    "write_episodes",
    "write_info",
    "write_repairs",
    "write_stats",
    "write_tasks",
]
