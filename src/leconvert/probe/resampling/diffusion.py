"""A diffusion policy that is small enough to train anywhere.

The recipe is C. Chi et al., *Diffusion Policy* (RSS 2023), without pictures: from the present state
a chunk of actions is predicted by taking noise out of it; the network learns to tell which noise
was put in. Noise follows the squared-cosine schedule of A. Nichol and P. Dhariwal (ICML 2021). The
network is the probe's `SmallPolicy`, which sees state, noisy chunk and step as one row of numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leconvert.probe.policy import ACTION, STATE, PolicyShape, SmallPolicy

__all__ = ["CHUNK", "SmallDiffusionPolicy", "windows"]

CHUNK = 16
"""Actions that are predicted at once."""

_NOISE_STEPS = 50
_STEP_FEATURES = 16
_OFFSET = 0.008
_MOST_NOISE = 0.999


class SmallDiffusionPolicy(nn.Module):
    """Learns the noise in a chunk of actions, given the state at its beginning.

    Args:
        state_dim: Numbers of a state.
        action_dim: Numbers of an action.
    """

    kept: Tensor

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        chunk = CHUNK * action_dim
        self.denoiser = SmallPolicy(PolicyShape((), state_dim + chunk + _STEP_FEATURES, chunk))
        self.register_buffer("kept", _kept_share())

    def forward(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the loss: the mean squared error of the predicted noise.

        Args:
            state: Of shape (B, state_dim).
            actions: Of shape (B, CHUNK, action_dim).
        """
        clean = actions.flatten(1)
        steps = torch.randint(_NOISE_STEPS, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        kept = self.kept[steps].unsqueeze(1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        seen = torch.cat((state, noisy, _step_features(steps)), dim=1)
        loss: Tensor = self.denoiser({STATE: seen, ACTION: noise})
        return loss


def windows(
    state: Tensor, action: Tensor, lengths: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random state of each trajectory and the chunk of actions that begins with it.

    Where a trajectory ends before the chunk its last action is repeated.

    Args:
        state: Of shape (B, M, state_dim).
        action: Of shape (B, M, action_dim).
        lengths: Of shape (B,).
        generator: Chooses.
    """
    share = torch.rand(len(lengths), generator=generator)
    start = (share * (lengths - CHUNK + 1).clamp(min=1)).long()
    places = torch.minimum(start.unsqueeze(1) + torch.arange(CHUNK), lengths.unsqueeze(1) - 1)
    rows = torch.arange(len(lengths))
    return state[rows, start].float(), action[rows.unsqueeze(1), places].float()


def _kept_share() -> Tensor:
    """Return how much of the clean variance is left after each step."""

    def level(step: int) -> float:
        share = (step / _NOISE_STEPS + _OFFSET) / (1 + _OFFSET)
        return math.cos(share * math.pi / 2) ** 2

    steps = [1 - level(step + 1) / level(step) for step in range(_NOISE_STEPS)]
    return (1 - torch.tensor(steps).clamp(max=_MOST_NOISE)).cumprod(0)


def _step_features(steps: Tensor) -> Tensor:
    """Return sines and cosines of the step at several frequencies."""
    half = _STEP_FEATURES // 2
    frequencies = torch.exp(-math.log(1e4) * torch.arange(half, device=steps.device) / half)
    angles = steps.unsqueeze(1) * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)
