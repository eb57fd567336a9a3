"""What an operator does to a run from outside: give batches back, remove what nobody needs."""

from leconvert.upkeep.clean import CleanReport, Leftover, clean_work_dir
from leconvert.upkeep.kept_source import clean_kept_source
from leconvert.upkeep.release import Released, ReleaseReport, Verdict, release_batches

__all__ = [
    "CleanReport",
    "Leftover",
    "ReleaseReport",
    "Released",
    "Verdict",
    "clean_kept_source",
    "clean_work_dir",
    "release_batches",
]
