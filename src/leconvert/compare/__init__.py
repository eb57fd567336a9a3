"""Proof that a v3.0 result holds what its v2.x source held."""

from leconvert.compare.difference import Difference, VerificationReport
from leconvert.compare.files import reason_to_keep
from leconvert.compare.pair import Sampling, verify_pair

__all__ = ["Difference", "Sampling", "VerificationReport", "reason_to_keep", "verify_pair"]
