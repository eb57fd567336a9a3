"""The check of a v3.0 dataset by itself: what LeRobot would refuse or load wrongly."""

from leconvert.dataset.check.dataset import (
    AS_STORED,
    DatasetCheck,
    NewOrder,
    check_dataset,
    checked,
)
from leconvert.dataset.check.files import (
    EpisodeSpans,
    VideoFrames,
    frames_of,
    spans_findings,
    spans_of,
)
from leconvert.dataset.check.meta import check_feature_stats, errors_of_meta

__all__ = [
    "AS_STORED",
    "DatasetCheck",
    "EpisodeSpans",
    "NewOrder",
    "VideoFrames",
    "check_dataset",
    "check_feature_stats",
    "checked",
    "errors_of_meta",
    "frames_of",
    "spans_findings",
    "spans_of",
]
