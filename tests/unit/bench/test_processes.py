"""The needs of ranks that train together; tests/conformance/test_probe_train.py trains with two."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from leconvert.bench.training import Ranks
from leconvert.support.errors import InstallationError, ProbeError
from leconvert.support.extras import command_for_extra


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 0), ("cuda:1", 1)])
def test_a_missing_gpu_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with pytest.raises(ProbeError, match=f"no CUDA device for {device},"):
        Ranks(0, 1, device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_training_by_itself_is_on_the_gpu_that_was_named(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    class Accelerator:
        """Chooses a device as accelerate does for a process that is alone."""

        def __init__(self, *, cpu: bool) -> None:
            assert not cpu
            self.device = torch.device(os.environ.get("ACCELERATE_TORCH_DEVICE", "cuda"))

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("accelerate.Accelerator", Accelerator)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda")  # and what is set is undone
    assert str(Ranks(0, 1, device).device) == device


def test_a_training_without_accelerate_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InstallationError, match="needs accelerate") as refused:
        Ranks(0, 1, "cpu")
    assert command_for_extra("train") in str(refused.value.next_step)
