"""Which quantiles an episode's statistics have, and which value each of them is.

LeRobot counts values in a histogram of 5,000 bins from the least value to the greatest, looks for
the first bin up to which at least level × n values lie, and interpolates inside it. The value that
this estimates is the one at rank ⌈level × n⌉ in ascending order, the least x with F(x) ≥ level: it
lies in the bin that LeRobot finds. That value is what is given here, so that LeRobot's differs from
it by at most one bin, (max − min) / 5,000, and the rounding of the bin's edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["QUANTILES", "rank_of"]

QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""Names and levels of LeRobot's quantiles."""


def rank_of(level: float, count: int) -> int:
    """Return the place of a quantile among ``count`` > 0 values in ascending order, from 0.

    Args:
        level: Between 0 and 1. The product with ``count`` is rounded as LeRobot rounds it, so that
            both choose the same value where level × count is nearly whole.
        count: Number of values.
    """
    return min(max(math.ceil(level * count), 1), count) - 1
