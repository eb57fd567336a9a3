"""Statistics of an episode, computed from its rows and clips as LeRobot computes them."""

from leconvert.statistics.columns import ImageStats, column_stats, sample_indices
from leconvert.statistics.episode import clip_stats, is_depth_map, table_stats

__all__ = [
    "ImageStats",
    "clip_stats",
    "column_stats",
    "is_depth_map",
    "sample_indices",
    "table_stats",
]
