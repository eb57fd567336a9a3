"""The example of a training: its policy, its processes, its checkpoints, and signals to it.

`tests/conformance/test_probe_train.py` trains, also with two ranks.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch

from leconvert.bench import training
from leconvert.bench.training import (
    _STOPPING,
    Checkpoint,
    Ranks,
    SmallPolicy,
    _signals_held,
    checkpoint_dir,
    find_checkpoint,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from leconvert.loading.metadata import DatasetMeta
from leconvert.support.errors import BusyError, InstallationError, ProbeError, StorageError
from leconvert.support.extras import command_for_extra
from leconvert.workdir.locks import new_lock

# The small policy takes whatever a sample can hold.


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights are drawn; by chance a unit of them learns nothing from so few samples."""
    torch.manual_seed(0)


class Meta(NamedTuple):
    """The policy's requests to a dataset."""

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


def batch(size: int, action_steps: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "observation.images.wrist": torch.randint(
            0, 256, (size, 3, 32, 40), dtype=torch.uint8, generator=generator
        ),
        "observation.images.depth": 9000 * torch.rand(size, 1, 16, 16, generator=generator),
        "observation.state": torch.randn(size, 6, generator=generator),
        "action": torch.randn((size, action_steps, 4), generator=generator),
        "action_is_pad": torch.zeros(size, action_steps, dtype=torch.bool),
    }


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


# The needs of ranks that train together.


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


# Checkpoints are whole or not there.


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        model={"weight": torch.arange(3.0) * step},
        optimizer={
            "state": {0: {"step": torch.tensor(float(step))}},
            "param_groups": [{"lr": 0.1}],
        },
        generator=torch.get_rng_state(),
        stream={"batches": step},
    )


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "unfinished.lock")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = checkpoint_dir(tmp_path, 12)
    written = checkpoint(12)
    write_checkpoint(path, written)
    read = read_checkpoint(path)
    assert (read.step, read.stream) == (12, written.stream)
    assert torch.equal(read.model["weight"], written.model["weight"])
    assert torch.equal(read.generator, written.generator)
    assert read.optimizer == written.optimizer
    assert everything_in(path) == [
        "dataset_state.pt",
        "model.pt",
        "optimizer.pt",
        "training_state.pt",
    ]


def test_the_newest_is_the_complete_one_with_the_most_steps(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert find_checkpoint("last", tmp_path) is None
    for step in (90, 100_000_000, 200):
        write_checkpoint(checkpoint_dir(tmp_path, step), checkpoint(step))
    (tmp_path / "checkpoints/unfinished").mkdir()
    assert newest_checkpoint(tmp_path) == checkpoint_dir(tmp_path, 100_000_000)
    assert find_checkpoint("last", tmp_path) == checkpoint_dir(tmp_path, 100_000_000)


def test_a_crash_at_any_write_leaves_the_earlier_checkpoint_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(checkpoint_dir(tmp_path, 1), checkpoint(1))
    save, calls = torch.save, 0
    for dies_at in range(4):
        calls = 0

        def fails(content: object, target: object, dies_at: int = dies_at) -> None:
            nonlocal calls
            calls += 1
            if calls > dies_at:
                raise KeyboardInterrupt
            save(content, target)

        monkeypatch.setattr(training.torch, "save", fails)
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(checkpoint_dir(tmp_path, 2), checkpoint(2))
        assert everything_in(tmp_path / "checkpoints") == ["step-00000001"]


def test_a_checkpoint_is_written_over_what_a_kill_left(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints/unfinished"
    left.mkdir(parents=True)
    (left / "model.pt").write_bytes(bytes(100_000))
    path = checkpoint_dir(tmp_path, 2)
    write_checkpoint(path, checkpoint(2))
    assert everything_in(path.parent) == ["step-00000002"]
    assert torch.equal(read_checkpoint(path).model["weight"], torch.arange(3.0) * 2)


def test_two_trainings_do_not_write_one_checkpoint(tmp_path: Path) -> None:
    path = checkpoint_dir(tmp_path, 2)
    path.parent.mkdir()
    with new_lock(path.parent / "unfinished.lock"), pytest.raises(BusyError, match="Another"):
        write_checkpoint(path, checkpoint(2))
    assert everything_in(path.parent) == []
    write_checkpoint(path, checkpoint(2))


def test_a_disk_that_fails_at_the_last_moment_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_checkpoint(checkpoint_dir(tmp_path, 2), checkpoint(2))
    assert newest_checkpoint(tmp_path) is None


def test_a_folder_that_is_no_checkpoint_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(
        ProbeError, match=r"Missing files: optimizer\.pt, training_state\.pt, dataset_state\.pt"
    ):
        find_checkpoint(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["model.pt", "dataset_state.pt"])
def test_a_torn_file_is_a_sentence(tmp_path: Path, name: str) -> None:
    path = checkpoint_dir(tmp_path, 5)
    write_checkpoint(path, checkpoint(5))
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ProbeError, match="cannot be read") as refused:
        read_checkpoint(path)
    assert refused.value.path == str(path)


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    path = checkpoint_dir(tmp_path, 5)
    write_checkpoint(path, checkpoint(5))
    state = torch.load(path / "dataset_state.pt", weights_only=True)
    torch.save({**state, "version": 3}, path / "dataset_state.pt")
    with pytest.raises(ProbeError, match="version 3, not 2"):
        read_checkpoint(path)


# Signals to a whole job pass the processes by that a training starts for its batches.


def held() -> set[signal.Signals | int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_signals_stay_held_when_the_first_spawned_worker_starts_pythons_helper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One that does not run yet, as in a process that has spawned nothing so far. Python unblocks
    # SIGINT and SIGTERM when it starts it, and every worker after it would then end by a signal.
    helper = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", helper.ensure_running)
    before = held()
    try:
        with _signals_held():
            helper.ensure_running()  # what a spawned worker's first lock does
            assert held() >= set(_STOPPING)
        assert held() == before
    finally:
        helper._stop()  # type: ignore[attr-defined]
