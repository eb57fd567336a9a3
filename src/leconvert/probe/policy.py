"""A policy that is small enough to train anywhere and real enough to need every part of a sample.

A few convolutions a camera and the state go through an MLP that predicts the action. It is there to
consume data as training does, not to steer a robot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from leconvert.errors import ProbeError
from leconvert.probe.metadata import DatasetMeta

__all__ = ["ACTION", "STATE", "Camera", "PolicyShape", "SmallPolicy", "policy_shape"]

ACTION = "action"
STATE = "observation.state"

_CHANNELS = (16, 32)
_HIDDEN = 128
_COLOURS = 3
_MM_PER_METRE = 1000.0


class Camera(NamedTuple):
    """One image feature."""

    key: str
    channels: int
    is_depth: bool


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """The sizes that follow from a dataset's features and windows.

    Attributes:
        cameras: Every image feature, in the order of the features.
        state_size: Numbers of ``observation.state`` in a sample, its steps included; 0 without one.
        action_size: Numbers of ``action`` in a sample, its steps included.
    """

    cameras: tuple[Camera, ...]
    state_size: int
    action_size: int


def policy_shape(
    meta: DatasetMeta, windows: Mapping[str, Sequence[float]] | None = None
) -> PolicyShape:
    """Return the policy's sizes.

    Args:
        meta: The dataset.
        windows: The window of each feature that has one, as ``delta_timestamps``.

    Raises:
        ProbeError: There is nothing to learn, or nothing to learn it from.
    """

    def size(key: str) -> int:
        if key not in meta.features:
            return 0
        steps = len((windows or {}).get(key, (0.0,)))
        return steps * prod(int(length) for length in meta.features[key]["shape"])

    shape = PolicyShape(
        tuple(
            Camera(key, 1, True) if meta.is_depth(key) else Camera(key, _COLOURS, False)
            for key in meta.camera_keys
        ),
        size(STATE),
        size(ACTION),
    )
    for is_missing, what in (
        (not shape.action_size, f"no feature {ACTION} to learn"),
        (not shape.cameras and not shape.state_size, f"neither cameras nor {STATE} to learn from"),
    ):
        if is_missing:
            raise ProbeError(
                f"{meta.root} has {what}.", path=meta.root, next_step="Use --dummy: it only loads."
            )
    return shape


class SmallPolicy(nn.Module):
    """Predicts the action of a sample.

    Args:
        shape: The sizes.
    """

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.shape = shape
        self.eyes = nn.ModuleList(_eye(camera.channels) for camera in shape.cameras)
        inputs = _CHANNELS[-1] * len(shape.cameras) + shape.state_size
        self.head = nn.Sequential(
            nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, shape.action_size)
        )

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch: the mean squared error of the actions that are no padding.

        Args:
            batch: Images ``[batch, (steps,) channels, height, width]`` as uint8 or in 0 to 1,
                distances in millimetres; ``observation.state`` and ``action``, ``[batch, …]``;
                ``action_is_pad``, ``[batch, steps]``, where the action has a window.
        """
        seen = [
            _look(eye, batch[camera.key], is_depth=camera.is_depth)
            for eye, camera in zip(self.eyes, self.shape.cameras, strict=True)
        ]
        if self.shape.state_size:
            seen.append(batch[STATE].flatten(1).float())
        action = batch[ACTION].flatten(1).float()
        error = functional.mse_loss(self.head(torch.cat(seen, dim=1)), action, reduction="none")
        padded = batch.get(f"{ACTION}_is_pad")
        if padded is None:
            return error.mean()
        kept = ~padded.unsqueeze(-1).expand(*padded.shape, error.shape[1] // padded.shape[1])
        kept = kept.flatten(1)
        return (error * kept).sum() / kept.sum().clamp(min=1)


def _eye(channels: int) -> nn.Module:
    first, second = _CHANNELS
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
    )


def _look(eye: nn.Module, images: Tensor, *, is_depth: bool) -> Tensor:
    """Return a row of features a sample; the steps of a window are averaged."""
    pictures = images.flatten(0, -4) if images.dim() > 4 else images
    if is_depth:
        pictures = pictures / _MM_PER_METRE
    elif pictures.dtype == torch.uint8:
        pictures = pictures.float() / 255
    features: Tensor = eye(pictures).mean(dim=(-2, -1))
    return features.reshape(images.shape[0], -1, features.shape[-1]).mean(dim=1)
