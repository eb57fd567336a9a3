"""Proof that a v3.0 result holds what its v2.x source held."""

from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.pair import verify_pair
from leconvert.verify.sampling import Sampling
from leconvert.verify.whole_source import reason_to_keep

__all__ = [
    "Difference",
    "Sampling",
    "VerificationReport",
    "reason_to_keep",
    "verify_pair",
]
