"""Proof that a result holds what its source held, whatever the versions of the two are."""

from leconvert.compare.difference import Difference, VerificationReport
from leconvert.compare.files import reason_to_keep, same_bytes
from leconvert.compare.metadata import same_json, same_statistic
from leconvert.compare.pair import Sampling, compare_tables, other_sources, verify_pair
from leconvert.compare.rows import same_values

__all__ = [
    "Difference",
    "Sampling",
    "VerificationReport",
    "compare_tables",
    "other_sources",
    "reason_to_keep",
    "same_bytes",
    "same_json",
    "same_statistic",
    "same_values",
    "verify_pair",
]
