"""Spherical interpolation of quaternions, for a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["slerp"]

# Below this sine of the angle the arc is a straight line within float32.
_NEARLY_PARALLEL = 1e-6


def slerp(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return unit quaternions on the shorter arc between two.

    The order of the four parts does not matter. A quaternion and its negative are one rotation:
    where the two lie on different sides the second is negated, so the result has the sign of the
    first. Formula: K. Shoemake, *Animating rotation with quaternion curves*, SIGGRAPH 1985. The
    angle is ``2 atan2(|a - b|, |a + b|)`` (W. Kahan), as ``acos`` loses half of the digits where
    the two are close.

    Args:
        first: Of shape (n, 4), not zero, of any length.
        second: Likewise.
        weight: Of shape (n,), from 0 at the first to 1 at the second.
    """
    one, other = _unit(first), _unit(second)
    other = torch.where((one * other).sum(1, keepdim=True) < 0, -other, other)
    angle = 2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1))
    sine = angle.sin()
    is_small = sine < _NEARLY_PARALLEL
    sine = torch.where(is_small, torch.ones_like(sine), sine)
    before = torch.where(is_small, 1 - weight, ((1 - weight) * angle).sin() / sine)
    after = torch.where(is_small, weight, (weight * angle).sin() / sine)
    mixed: Tensor = before.unsqueeze(1) * one + after.unsqueeze(1) * other
    return mixed.div_(mixed.norm(dim=1, keepdim=True))


def _unit(quaternions: Tensor) -> Tensor:
    """Return quaternions of length 1; by their largest part first, whose square may not fit."""
    scaled = quaternions / quaternions.abs().amax(1, keepdim=True)
    unit: Tensor = scaled / scaled.norm(dim=1, keepdim=True)
    return unit
