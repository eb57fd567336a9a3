"""What a sample is made of: the named modes, and windows from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from leconvert.errors import UsageError

__all__ = [
    "MODES",
    "Deltas",
    "Mode",
    "frames_per_sample",
    "mode_deltas",
    "read_deltas",
]

Mode = Literal["single", "sarm", "sarm-action"]
Deltas = Mapping[str, tuple[float, ...]]

MODES: tuple[Mode, ...] = ("single", "sarm", "sarm-action")
"""The named modes; ``deltas`` is what a result says where a file gave the windows."""

# SARM, a reward model for long tasks, looks at eight frames a second apart.
_SARM_STEPS = 8
_ACTION = "action"


def mode_deltas(mode: Mode, cameras: Sequence[str], features: Sequence[str], fps: float) -> Deltas:
    """Return the window of each feature in seconds from the sample's own frame.

    Args:
        mode: ``single`` has no windows; ``sarm`` has eight steps a second apart for cameras and
            action, beginning with the present; ``sarm-action`` for the action alone.
        cameras: The features that are pictures.
        features: All features of the dataset.
        fps: Frames a second. Where a second is no whole number of frames, as with 29.97, a step
            is the nearest one: loaders refuse times between two frames.

    Raises:
        UsageError: The dataset has nothing that the mode's windows apply to.
    """
    if mode == "single":
        return {}
    actions = [key for key in features if key == _ACTION or key.startswith(f"{_ACTION}.")]
    keys = [*(cameras if mode == "sarm" else ()), *actions]
    if not keys:
        raise UsageError(
            f"--mode {mode} needs a feature `action`, which this dataset does not have.",
            next_step="Choose --mode single, or give windows with --deltas FILE.",
        )
    return dict.fromkeys(keys, tuple(round(step * fps) / fps for step in range(_SARM_STEPS)))


def read_deltas(path: Path, features: Sequence[str]) -> Deltas:
    """Read windows from a JSON file: features to lists of seconds, as ``delta_timestamps``.

    Raises:
        UsageError: The file is missing or says something else, or names an unknown feature.
    """

    def bad(what: str) -> UsageError:
        return UsageError(
            f"{path}: {what}.",
            path=str(path),
            next_step='Write {"FEATURE": [SECONDS, …], …}, for example {"action": [0, 0.1]}.',
        )

    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise bad(error.strerror or str(error)) from error
    except ValueError as error:
        raise bad(f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or not content:
        raise bad("it holds no features")
    deltas: dict[str, tuple[float, ...]] = {}
    for key, seconds in content.items():
        if key not in features:
            raise bad(f"the dataset has no feature {key}; it has {', '.join(features)}")
        if not isinstance(seconds, list) or not seconds or not all(map(_is_time, seconds)):
            raise bad(f"the window of {key} is not a list of seconds")
        deltas[key] = tuple(float(second) for second in seconds)
    return deltas


def frames_per_sample(deltas: Deltas, cameras: Sequence[str]) -> int:
    """Return how many camera frames a sample carries, repeated ones at an episode's ends too."""
    return sum(len(deltas.get(camera, (0.0,))) for camera in cameras)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
