"""The small policy takes whatever a sample can hold."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest
import torch

from leconvert.bench.training import SmallPolicy
from leconvert.loading.metadata import DatasetMeta
from leconvert.support.errors import ProbeError


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights are drawn; by chance a unit of them learns nothing from so few samples."""
    torch.manual_seed(0)


class Meta(NamedTuple):
    """What the policy asks of a dataset."""

    features: dict[str, dict[str, Any]]
    root: str = "a dataset"

    @property
    def camera_keys(self) -> tuple[str, ...]:
        return tuple(k for k, feature in self.features.items() if feature["dtype"] != "float32")

    def is_depth(self, key: str) -> bool:
        return key.endswith("depth")


def policy_of(
    features: dict[str, dict[str, Any]], windows: dict[str, list[float]] | None = None
) -> SmallPolicy:
    return SmallPolicy(cast("DatasetMeta", Meta(features)), windows)


FEATURES: dict[str, dict[str, Any]] = {
    "observation.images.wrist": {"dtype": "video", "shape": (32, 40, 3)},
    "observation.images.depth": {"dtype": "image", "shape": (16, 16, 1)},
    "observation.state": {"dtype": "float32", "shape": (6,)},
    "action": {"dtype": "float32", "shape": (4,)},
    "timestamp": {"dtype": "float32", "shape": (1,)},
}


def batch(size: int, steps: int = 0, action_steps: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    lead = (size, steps) if steps else (size,)
    made = {
        "observation.images.wrist": torch.randint(
            0, 256, (*lead, 3, 32, 40), dtype=torch.uint8, generator=generator
        ),
        "observation.images.depth": 9000 * torch.rand(size, 1, 16, 16, generator=generator),
        "observation.state": torch.randn(size, 6, generator=generator),
        "action": torch.randn(
            (size, action_steps, 4) if action_steps else (size, 4), generator=generator
        ),
    }
    if action_steps:
        made["action_is_pad"] = torch.zeros(size, action_steps, dtype=torch.bool)
    return made


def test_sizes_follow_from_features_and_windows() -> None:
    depth, wrist = "observation.images.depth", "observation.images.wrist"
    policy = policy_of({depth: FEATURES[depth], **FEATURES})
    assert list(policy.cameras.items()) == [(wrist, False), (depth, True)]
    assert (policy.state_size, policy.action_size) == (6, 4)
    windows = {"action": [0.0, 0.1, 0.2], "observation.state": [-0.1, 0.0]}
    assert policy_of(FEATURES, windows).action_size == 12
    assert policy_of(FEATURES, windows).state_size == 12


def test_padded_actions_do_not_count() -> None:
    policy = policy_of(FEATURES, {"action": [0.0, 0.1, 0.2]})
    made = batch(4, action_steps=3)
    made["action_is_pad"][1:, 2] = True
    before = policy(made)
    made["action"][1:, 2] = 1e6
    assert torch.equal(policy(made), before)
    made["action"][0, 2] = 1e6
    assert policy(made) > before


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (["action"], "no feature action to learn"),
        (
            ["observation.state", "observation.images.wrist", "observation.images.depth"],
            r"neither cameras nor observation\.state",
        ),
    ],
)
def test_a_dataset_with_nothing_to_learn_is_told_of_dummy(left_out: list[str], said: str) -> None:
    features = {key: value for key, value in FEATURES.items() if key not in left_out}
    with pytest.raises(ProbeError, match=said) as refused:
        policy_of(features)
    assert "--dummy" in str(refused.value.next_step)
