"""Repairs of v3.0 datasets: what a check finds and what follows from the dataset's own files."""

from leconvert.repairing.apply import REPAIR_RUNS, RepairReport, repair_dataset
from leconvert.repairing.changes import Changes, compare_trees, read_changes, repairs_of
from leconvert.repairing.plan import RepairPlan

__all__ = [
    "REPAIR_RUNS",
    "Changes",
    "RepairPlan",
    "RepairReport",
    "compare_trees",
    "read_changes",
    "repair_dataset",
    "repairs_of",
]
