"""A v3.0 dataset looked at alone: what LeRobot would refuse, or load wrongly."""

from leconvert.check.dataset import check_dataset

__all__ = ["check_dataset"]
