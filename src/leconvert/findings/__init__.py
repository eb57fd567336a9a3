"""What is wrong with a dataset: every kind of finding, and what the user's flags do about it."""

from leconvert.findings.catalogue import (
    DROP,
    SOURCE_CATALOGUE,
    TASKS_FROM_EPISODES,
    V3_CATALOGUE,
    Kind,
    check_accepted,
    found,
    shortened,
)
from leconvert.findings.resolve import (
    Observation,
    ObservationLog,
    RepeatedObservations,
    ResolvedRepairs,
    SourceFacts,
    check_dropped_features,
    check_renamed_features,
    computes_all_stats,
    redeclared,
    resolve_repairs,
    said_of_paths,
    task_map_of,
)

__all__ = [
    "DROP",
    "SOURCE_CATALOGUE",
    "TASKS_FROM_EPISODES",
    "V3_CATALOGUE",
    "Kind",
    "Observation",
    "ObservationLog",
    "RepeatedObservations",
    "ResolvedRepairs",
    "SourceFacts",
    "check_accepted",
    "check_dropped_features",
    "check_renamed_features",
    "computes_all_stats",
    "found",
    "redeclared",
    "resolve_repairs",
    "said_of_paths",
    "shortened",
    "task_map_of",
]
