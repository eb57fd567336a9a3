"""LeRobot datasets on disk: `v2` and `v3` each read and write their own format.

All parts that scan, check, compare, load or report on a dataset read it through these packages. The
`Dataset` classes of both have the same interface, for callers that need not know the version.
"""

from leconvert.dataset.formats import v2, v3
from leconvert.dataset.formats.conversion import (
    PROVENANCE_PATH,
    TARGETS,
    SourceRecord,
    Sources,
    SourceView,
    Target,
    differences_table,
    differing_features,
    differing_subtasks,
    episode_digests,
    has_provenance,
    open_dataset,
    open_sources,
    read_provenance,
    target_of,
    v3_target,
    write_provenance,
)
from leconvert.dataset.formats.dataset import (
    Dataset,
    Slices,
    Totals,
    frame_rate,
    renamed_stream,
)
from leconvert.dataset.formats.stats import BLOCK_EPISODES, StatsBlock, joined, rows_of

__all__ = [
    "BLOCK_EPISODES",
    "PROVENANCE_PATH",
    "TARGETS",
    "Dataset",
    "Slices",
    "SourceRecord",
    "SourceView",
    "Sources",
    "StatsBlock",
    "Target",
    "Totals",
    "differences_table",
    "differing_features",
    "differing_subtasks",
    "episode_digests",
    "frame_rate",
    "has_provenance",
    "joined",
    "open_dataset",
    "open_sources",
    "read_provenance",
    "renamed_stream",
    "rows_of",
    "target_of",
    "v2",
    "v3",
    "v3_target",
    "write_provenance",
]
