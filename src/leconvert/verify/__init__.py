"""Proof that a v3.0 result holds what its v2.x source held."""

from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.pair import verify_pair
from leconvert.verify.proven import default_folder
from leconvert.verify.sampling import Sampling

__all__ = ["Difference", "Sampling", "VerificationReport", "default_folder", "verify_pair"]
