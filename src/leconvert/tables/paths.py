"""Where the tables and records of a v3.0 dataset lie, relative to its root."""

from __future__ import annotations

from leconvert.model import FILES_PER_CHUNK

__all__ = [
    "DATA_PATH_TEMPLATE",
    "EPISODES_DIR",
    "INFO_PATH",
    "REPAIRS_PATH",
    "STATS_PATH",
    "TASKS_PATH",
    "VIDEO_PATH_TEMPLATE",
    "episodes_path",
]

INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
REPAIRS_PATH = "meta/repairs.json"
EPISODES_DIR = "meta/episodes"

# The templates that info.json carries; readers fill them with str.format.
DATA_PATH_TEMPLATE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def episodes_path(number: int) -> str:
    """Return the path of the episodes table's file ``number``, counted from 0."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return f"{EPISODES_DIR}/chunk-{chunk:03d}/file-{file:03d}.parquet"
