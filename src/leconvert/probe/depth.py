"""Distances out of what a depth camera stores.

A depth video holds 12-bit codes c of distances d between a least and a largest one, in metres,
either evenly spaced or, by default, evenly in log(d + shift):

    d = exp(log(least + shift) + c / 4095 * log((largest + shift) / (least + shift))) - shift
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DepthScale", "image_depth_factor"]

_LARGEST_CODE = 4095
_MM_PER_METRE = 1000.0
_LARGEST_MM = 65535.0


@dataclass(frozen=True, slots=True)
class DepthScale:
    """How a depth video's codes are spaced.

    Attributes:
        least: Distance of code 0, metres.
        largest: Distance of code 4095, metres.
        shift: Added before the logarithm, metres.
        use_log: Whether codes are spaced evenly in the logarithm.
    """

    least: float
    largest: float
    shift: float
    use_log: bool

    @classmethod
    def of_feature(cls, feature: Mapping[str, Any]) -> DepthScale:
        """Return the scale that a feature's ``info`` states, with LeRobot's defaults."""
        facts = feature.get("info") or {}

        def fact(name: str, default: float) -> float:
            value = facts.get(f"video.{name}")
            return default if value is None else value

        return cls(
            fact("depth_min", 0.01),
            fact("depth_max", 10.0),
            fact("shift", 3.5),
            bool(fact("use_log", True)),
        )

    def millimetres(self, codes: torch.Tensor) -> torch.Tensor:
        """Return distances, whole millimetres as float32, of the shape of ``codes``."""
        if self.use_log:
            begin = math.log(self.least + self.shift)
            step = (math.log(self.largest + self.shift) - begin) / _LARGEST_CODE
        else:
            begin = self.least
            step = (self.largest - self.least) / _LARGEST_CODE
        distances = codes.to(torch.float32).mul_(step).add_(begin)
        if self.use_log:
            distances.exp_().sub_(self.shift)
        distances.clamp_(self.least, self.largest)
        return distances.mul_(_MM_PER_METRE).round_().clamp_(0.0, _LARGEST_MM)


def image_depth_factor(feature: Mapping[str, Any]) -> float:
    """Return what a stored depth image is multiplied by to give millimetres."""
    return _MM_PER_METRE if (feature.get("info") or {}).get("depth_unit") == "m" else 1.0
