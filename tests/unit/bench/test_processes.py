"""The needs of ranks that train together; tests/conformance/test_probe_train.py trains with two."""

from __future__ import annotations

import sys

import pytest

from leconvert.bench.training import Ranks
from leconvert.support.errors import InstallationError, ProbeError
from leconvert.support.extras import command_for_extra


def test_a_missing_gpu_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ProbeError, match="no CUDA device"):
        Ranks(0, 1, "cuda")


def test_a_training_without_accelerate_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InstallationError, match="needs accelerate") as refused:
        Ranks(0, 1, "cpu")
    assert command_for_extra("train") in str(refused.value.next_step)
