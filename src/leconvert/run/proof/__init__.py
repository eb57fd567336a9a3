"""Proof that a result holds the content of its sources, whatever their versions are."""

from leconvert.run.proof.difference import (
    Difference,
    VerificationReport,
    same_bytes,
    same_json,
    same_statistic,
    same_values,
)
from leconvert.run.proof.expected import other_sources
from leconvert.run.proof.files import compare_tables
from leconvert.run.proof.pair import Sampling, check_stop, verify_pair

__all__ = [
    "Difference",
    "Sampling",
    "VerificationReport",
    "check_stop",
    "compare_tables",
    "other_sources",
    "same_bytes",
    "same_json",
    "same_statistic",
    "same_values",
    "verify_pair",
]
