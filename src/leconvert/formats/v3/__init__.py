"""LeRobot v3.0: ``info.json``, the tables under ``meta/``, statistics, and where files lie.

Everything here takes the dataset's folder and plain values. Nothing is synced to disk: the caller
does it.
"""

from leconvert.formats.v3.episodes import EpisodesReader, read_episodes
from leconvert.formats.v3.episodes_writer import EpisodeRecord, VideoSpan, write_episodes
from leconvert.formats.v3.info import (
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
    split_findings,
    write_info,
)
from leconvert.formats.v3.records import (
    pandas_index,
    read_repairs,
    read_tasks,
    write_repairs,
    write_tasks,
)
from leconvert.formats.v3.statistics import StatsAggregator, write_stats

__all__ = [
    "DATA_PATH_TEMPLATE",
    "EPISODES_DIR",
    "INFO_PATH",
    "REPAIRS_PATH",
    "STATS_PATH",
    "TASKS_PATH",
    "VIDEO_PATH_TEMPLATE",
    "Declared",
    "EpisodeRecord",
    "EpisodesReader",
    "Feature",
    "StatsAggregator",
    "VideoSpan",
    "converted_info",
    "declaration",
    "episodes_path",
    "fps_number",
    "kept_splits",
    "output_path",
    "pandas_index",
    "read_episodes",
    "read_repairs",
    "read_tasks",
    "split_findings",
    "write_episodes",
    "write_info",
    "write_repairs",
    "write_stats",
    "write_tasks",
]
