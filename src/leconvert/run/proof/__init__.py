"""Proof that a result holds the content of its sources, whatever their versions are."""

from leconvert.run.proof.difference import (
    Difference,
    VerificationReport,
    same_bytes,
    same_json,
    same_statistic,
    same_values,
)
from leconvert.run.proof.pair import compare_tables, other_sources, verify_pair
from leconvert.run.proof.samples import Sampling

__all__ = [
    "Difference",
    "Sampling",
    "VerificationReport",
    "compare_tables",
    "other_sources",
    "same_bytes",
    "same_json",
    "same_statistic",
    "same_values",
    "verify_pair",
]
