"""`lerobot-train` itself, of the installed LeRobot, on an `EpisodeStream`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import pytest
import torch

from leconvert.api import convert
from leconvert.cli.main import main
from leconvert.loading import EpisodeStream, MixedStream, StreamLoader
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

pytest.importorskip("accelerate")

SCRIPT = Path(__file__).with_name("lerobot_trained.py")
SEED = 5
POLICY = [
    *("--policy.type=act", "--policy.push_to_hub=false", "--policy.device=cpu"),
    *("--policy.pretrained_backbone_weights=null", "--policy.dim_model=16"),
    *("--policy.n_heads=2", "--policy.dim_feedforward=16", "--policy.chunk_size=4"),
    *("--policy.n_action_steps=4", "--dataset.repo_id=me/mine", f"--seed={SEED}"),
    *("--num_workers=0", "--env_eval_freq=0"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    camera = CameraSpec(key="observation.images.top", width=64, height=64)
    source = make_dataset(folder / "v21", DatasetSpec(episodes=4, frames=9, cameras=(camera,)))
    convert(source, output=folder / "v30")
    return folder / "v30"


def order(dataset: Path, batch_size: int, batches: int) -> list[list[int]]:
    stream = EpisodeStream(dataset, seed=SEED, repeat=True, rank=0, world_size=1)
    loader = iter(StreamLoader(stream, batch_size=batch_size))
    return [next(loader)["index"].tolist() for _ in range(batches)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Put back what LeRobot's program changes in this process: it takes long to start another."""
    from accelerate.state import AcceleratorState, GradientState

    handlers, level = list(logging.root.handlers), logging.root.level
    with mock.patch.dict(os.environ):
        yield monkeypatch
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def test_lerobot_trains_on_the_samples_of_the_stream(
    dataset: Path, tmp_path: Path, here: pytest.MonkeyPatch
) -> None:
    from lerobot.scripts import lerobot_train

    steps = []

    def note(tracker: Any, policy: Any, batch: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        steps.append(batch)
        tracker.loss = 0.0
        return tracker, {}

    here.setattr(lerobot_train, "update_policy", note)
    here.setattr(sys, "argv", ["pytest"])
    words = [*POLICY, f"--dataset.root={dataset}", f"--output_dir={tmp_path}/run"]
    words += ["--steps=10", "--batch_size=4", "--save_checkpoint=false"]
    assert main(["probe", "train-lerobot", "--", *words]) == 0
    # Ten steps are more than an epoch of 36 frames.
    assert [step["index"].tolist() for step in steps] == order(dataset, 4, 10)
    for step in steps:
        assert step["observation.images.top"].dtype == torch.float32
        assert step["action"].shape == (4, 4, 6)
        # Normalised by mean and deviation; not of whole numbers up to 255.
        assert abs(step["observation.images.top"].mean()) < 5


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    camera = CameraSpec(key="observation.images.top", width=64, height=64)
    spec = DatasetSpec(episodes=3, frames=7, cameras=(camera,), seed=1)
    convert(make_dataset(folder / "v21", spec), output=folder / "v30")
    return folder / "v30"


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    "accelerate": [
        "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "is_mixed"), [("torchrun", True), ("accelerate", False)])
def test_act_learns_on_two_ranks_from_a_stream_and_from_a_mixture(
    dataset: Path, other: Path, tmp_path: Path, launcher: str, is_mixed: bool
) -> None:
    words = [*POLICY, f"--dataset.root={dataset}", f"--output_dir={tmp_path}/run", "--steps=20"]
    words += ["--batch_size=2", "--save_checkpoint=false", "--policy.optimizer_lr=0.003"]
    options = ["--also", f"{other}=0.25"] if is_mixed else []
    done = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], SCRIPT, tmp_path, *options, "--", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    samples: Any = EpisodeStream(dataset, seed=SEED, repeat=True, rank=0, world_size=1)
    if is_mixed:
        samples = MixedStream([(samples, 0.75), (other, 0.25)], seed=SEED, repeat=True)
    loader = iter(StreamLoader(samples, batch_size=4))
    for number in range(20):
        mine = [steps[number]["index"] for steps in found]
        taken = [part[row] for row in range(2) for part in mine]
        assert taken == next(loader)["index"].tolist()
    for steps in found:
        losses = [step["loss"] for step in steps]
        assert mean(losses[-5:]) < mean(losses[:5])


def test_shares_that_leave_nothing_are_refused(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, said in (
        ([f"--also={dataset}=0.6", f"--also={dataset}=0.4"], "and all together must be below 1"),
        ([f"--also={dataset}"], "takes DATASET=SHARE"),
        (["--also=0.3"], "takes DATASET=SHARE"),
    ):
        assert main(["probe", "train-lerobot", *given, "--"]) == 2
        assert said in capsys.readouterr().err


def test_a_root_without_a_dataset_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policy.type=act", "--policy.push_to_hub=false", "--dataset.repo_id=me/mine"]
    arguments += [f"--dataset.root={tmp_path / 'gone'}", f"--output_dir={tmp_path / 'run'}"]
    assert main(["probe", "train-lerobot", "--", *arguments]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'gone'} (--dataset.root) is not a dataset" in said
    assert not (tmp_path / "gone").exists()
