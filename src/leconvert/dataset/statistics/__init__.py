"""Statistics of an episode, computed from its rows and clips as LeRobot computes them."""

from leconvert.dataset.statistics.columns import QUANTILES, ImageStats, column_stats, sample_indices
from leconvert.dataset.statistics.episode import (
    clip_stats,
    columns_with_quantiles,
    dataset_quantiles,
    is_depth_map,
    table_stats,
    wrong_quantiles,
)

__all__ = [
    "QUANTILES",
    "ImageStats",
    "clip_stats",
    "column_stats",
    "columns_with_quantiles",
    "dataset_quantiles",
    "is_depth_map",
    "sample_indices",
    "table_stats",
    "wrong_quantiles",
]
