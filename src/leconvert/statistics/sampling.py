"""Which frames and which pixels of an episode go into the statistics of its images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["downsampled", "sample_indices"]

# LeRobot's numbers: length ** 0.75 frames, within these limits, evenly spread.
_FEWEST_FRAMES = 100
_MOST_FRAMES = 10_000
_POWER = 0.75
# A longer side of 300 pixels or more is thinned out to about 150.
_UNTOUCHED_SIDE = 300
_TARGET_SIDE = 150


def sample_indices(length: int) -> list[int]:
    """Return the frames of an episode that its image statistics are computed from.

    All frames up to 100, 177 of 1,000, 1,000 of 10,000; the first and the last are among them.

    Args:
        length: Frames of the episode.

    Returns:
        Distinct frames, ascending, as LeRobot's ``sample_indices`` has them.
    """
    count = max(min(length, _FEWEST_FRAMES), min(int(length**_POWER), _MOST_FRAMES))
    # Halves go to the even neighbour, in NumPy as in LeRobot.
    indices: list[int] = np.round(np.linspace(0, length - 1, count)).astype(int).tolist()
    return indices


def downsampled(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return every n-th row and column of a picture of shape (height, width, channels).

    n is the longer side over 150, rounded down, where that side has 300 pixels or more.
    """
    side = max(picture.shape[:2])
    if side < _UNTOUCHED_SIDE:
        return picture
    step = side // _TARGET_SIDE
    return picture[::step, ::step]
