"""Windows of frames around a frame: which frames, and which of them are padding. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError
from leconvert.model import IntArray

__all__ = ["PAD_SUFFIX", "Window", "make_windows"]

PAD_SUFFIX = "_is_pad"


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The steps of one feature, relative to the frame of the sample.

    Attributes:
        offsets: Frames, shape (T,).
    """

    offsets: IntArray

    @property
    def steps(self) -> int:
        """Number of steps, T."""
        return len(self.offsets)

    def frames(self, frames: IntArray, lengths: IntArray) -> IntArray:
        """Return the frames of each sample's window, shape (N, T).

        A step before the episode's first frame or after its last becomes that frame.

        Args:
            frames: Frame of each sample within its episode, shape (N,).
            lengths: Frames of its episode, shape (N,).
        """
        wanted = frames[:, None] + self.offsets
        return np.clip(wanted, 0, lengths[:, None] - 1)

    def distinct_frames(self, frames: IntArray, lengths: IntArray) -> int:
        """Return how many frames the samples take, summed up: what repeats in a window counts once.

        Args:
            frames: As in `frames`.
            lengths: Likewise.
        """
        chosen = np.sort(self.frames(frames, lengths), axis=1)
        return len(chosen) + int(np.count_nonzero(np.diff(chosen, axis=1)))

    def is_pad(self, frames: IntArray, lengths: IntArray) -> npt.NDArray[np.bool_]:
        """Return which steps lie outside the episode, shape (N, T)."""
        wanted = frames[:, None] + self.offsets
        outside: npt.NDArray[np.bool_] = (wanted < 0) | (wanted >= lengths[:, None])
        return outside


def make_windows(
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    *,
    fps: float,
    tolerance_s: float,
    features: Mapping[str, object],
) -> dict[str, Window]:
    """Turn times relative to a sample into frames, as LeRobot does.

    Args:
        delta_timestamps: Seconds by feature; None for no windows.
        fps: Frames a second, as ``info.json`` writes them.
        tolerance_s: How far a time may lie from a multiple of 1 / fps, in seconds.
        features: The dataset's features by key.

    Returns:
        A window by feature, in the order given.

    Raises:
        UsageError: A feature is unknown or has no step, or a time is no multiple of 1 / fps.
    """
    windows: dict[str, Window] = {}
    for key, seconds in (delta_timestamps or {}).items():
        if key not in features:
            raise UsageError(
                f"delta_timestamps names {key!r}, which the dataset does not have.",
                next_step=f"Its features are {', '.join(sorted(features))}.",
            )
        if not len(seconds):
            raise UsageError(f"delta_timestamps gives no time for {key!r}.")
        offsets = [round(second * fps) for second in seconds]
        for second, offset in zip(seconds, offsets, strict=True):
            if abs(second * fps - offset) / fps > tolerance_s:
                raise UsageError(
                    f"delta_timestamps asks for {key!r} at {second} s, which is no multiple of "
                    f"1/{fps:g} s within {tolerance_s:g} s.",
                    next_step=f"The nearest time is {offset / fps:.6f} s.",
                )
        windows[key] = Window(np.array(offsets, np.int64))
    return windows
