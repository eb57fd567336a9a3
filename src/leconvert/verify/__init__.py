"""Proof that a v3.0 result holds what its v2.x source held."""

from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.pair import verify_pair

__all__ = ["Difference", "VerificationReport", "verify_pair"]
