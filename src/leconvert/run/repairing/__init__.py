"""Repairs of v3.0 datasets: of findings for which the dataset's own files are enough."""

from leconvert.run.repairing.apply import (
    REPAIR_RUNS,
    RepairReport,
    choose_repairs,
    follows_from_files,
    plan_anew,
    repair_dataset,
)
from leconvert.run.repairing.changes import Changes, compare_trees, read_changes, repairs_of
from leconvert.run.repairing.plan import RepairPlan

__all__ = [
    "REPAIR_RUNS",
    "Changes",
    "RepairPlan",
    "RepairReport",
    "choose_repairs",
    "compare_trees",
    "follows_from_files",
    "plan_anew",
    "read_changes",
    "repair_dataset",
    "repairs_of",
]
