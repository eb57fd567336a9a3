"""What the tiny dataset that tests damage is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leconvert.model.values import Finding, SourceScan
from leconvert.testing import CameraSpec, DatasetSpec

LENGTHS = [6, 5, 4, 7]
TOP = "observation.images.top"
WRIST = "observation.images.wrist"
SOUND = DatasetSpec(
    episodes=len(LENGTHS),
    frames=LENGTHS,
    cameras=(
        CameraSpec(key=TOP, width=64, height=48),
        CameraSpec(key=WRIST, width=32, height=32),
    ),
    tasks=("Pick up the cube.",),
    has_done=True,
    matrix_shape=(2, 3),
)

Only = Callable[[SourceScan, str], Finding]
Severities = Callable[[SourceScan], Mapping[str, set[str]]]
