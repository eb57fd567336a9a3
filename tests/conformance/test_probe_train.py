"""`probe train`: resuming is the same as never stopping, alone and with several ranks."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ranks import free_port, run_as_ranks

from leconvert.api import convert
from leconvert.bench.loaders import open_stream_loader
from leconvert.bench.options import RunOptions, TrainOptions
from leconvert.bench.training import (
    Ranks,
    StepFacts,
    TrainingLog,
    checkpoint_dir,
    newest_checkpoint,
    read_checkpoint,
    train,
)
from leconvert.cli.main import main
from leconvert.support.errors import InterruptedRunError, PlanMismatchError, ProbeError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

LENGTHS = [15, 9, 21, 1, 12]
BATCH_SIZE = 8
# Into the second epoch, so that its beginning is resumed at and over as well.
STEPS = 12


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing by threads, which wait for each other where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """v3.0 datasets with two cameras, with images in tables, and with numbers alone."""
    folder = tmp_path_factory.mktemp("train")
    cameras = (
        CameraSpec(key="observation.images.top", width=64, height=48),
        CameraSpec(key="observation.images.wrist", width=32, height=32),
    )
    specs = {
        "videos": DatasetSpec(episodes=5, frames=LENGTHS, cameras=cameras),
        "images": DatasetSpec(
            episodes=2, frames=8, cameras=(), image_keys=("observation.images.top",)
        ),
        "numbers": DatasetSpec(episodes=5, frames=LENGTHS, cameras=()),
    }
    for name, spec in specs.items():
        make_dataset(folder / f"{name}-v21", spec)
        convert(folder / f"{name}-v21", output=folder / name)
    return {name: folder / name for name in specs}


@dataclass
class Trained:
    """Everything that must not depend on where a run was interrupted."""

    losses: list[float | None] = field(default_factory=list)
    order: list[list[int]] = field(default_factory=list)
    batches_of_first_epoch: int = 0

    @property
    def first_epoch(self) -> list[int]:
        """The frames of the first epoch."""
        return [index for batch in self.order[: self.batches_of_first_epoch] for index in batch]

    def watch(self, facts: StepFacts) -> None:
        self.losses.append(facts.loss)
        self.order.append([int(index) for index in facts.batch["index"]])


def run(root: Path, out_dir: Path, *, num_workers: int = 0, **options: Any) -> Trained:
    """Train and return what was seen."""
    of_loader = {
        key: options.pop(key)
        for key in ("mode", "seed", "batch_size", "rank", "world_size")
        if key in options
    }
    trained = Trained()
    loader, windows = open_stream_loader(
        RunOptions(
            root=str(root), num_workers=num_workers, **{"batch_size": BATCH_SIZE, **of_loader}
        )
    )
    trained.batches_of_first_epoch = len(loader)
    stop = options.pop("stop", lambda: False)
    options = {"steps": STEPS, "save_every": 1, **options}
    train(loader, TrainOptions(out_dir, windows=windows, **options), watch=trained.watch, stop=stop)
    return trained


def test_an_older_checkpoint_is_resumed_in_another_folder_alone(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    whole = run(datasets["numbers"], tmp_path / "whole", steps=4)
    first = str(checkpoint_dir(tmp_path / "whole", 1))
    with pytest.raises(UsageError, match="the newest is step-00000004") as refused:
        run(datasets["numbers"], tmp_path / "whole", steps=4, resume_from=first)
    assert "another --out-dir" in str(refused.value.next_step)
    branch = run(datasets["numbers"], tmp_path / "branch", steps=3, resume_from=first)
    assert branch.losses == whole.losses[1:3]
    again = run(datasets["numbers"], tmp_path / "branch", steps=4, resume_from="last")
    assert again.losses == whole.losses[3:]


def test_a_resumed_run_has_losses_and_order_of_one_that_never_stopped_each_frame_once_an_epoch(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    whole = run(datasets["videos"], tmp_path / "whole", num_workers=2)
    assert len(set(map(tuple, whole.order))) == STEPS
    assert sum(LENGTHS) < sum(map(len, whole.order)) < 2 * sum(LENGTHS)
    epoch = whole.first_epoch
    assert epoch != sorted(epoch)
    assert sorted(epoch) == list(range(sum(LENGTHS)))
    # In the middle of the first epoch, and at its end.
    for step, num_workers in ((5, 2), (8, 0)):
        state = str(checkpoint_dir(tmp_path / "whole", step))
        resumed = run(
            datasets["videos"], tmp_path / f"from-{step}", resume_from=state,
            num_workers=num_workers,
        )  # fmt: skip
        assert resumed.order == whole.order[step:], step
        assert resumed.losses == whole.losses[step:], step  # equal to the last bit


def test_a_signal_saves_at_once_and_the_same_command_goes_on(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    whole = run(datasets["videos"], tmp_path / "whole", save_every=100)
    answers = iter([False, False, True])
    stopped = tmp_path / "stopped"
    with pytest.raises(InterruptedRunError, match="Stopped after step 3"):
        run(datasets["videos"], stopped, save_every=100, resume_from="last",
            stop=lambda: next(answers))  # fmt: skip
    assert newest_checkpoint(stopped) == checkpoint_dir(stopped, 3)
    resumed = run(datasets["videos"], stopped, save_every=100, resume_from="last")
    assert (resumed.losses, resumed.order) == (whole.losses[3:], whole.order[3:])


def test_a_signal_to_the_command_ends_in_a_checkpoint(
    datasets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, ended = TrainingLog(tmp_path), threading.Event()

    def interrupt() -> None:
        while len(log.rows()) < 5:
            assert not ended.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    words = ["--steps", "1000000", "--save-every", "1000000", "--log-every", "1"]
    words += ["--root", str(datasets["videos"]), "--out-dir", str(tmp_path), "--num-workers", "1"]
    sender = threading.Thread(target=interrupt)
    sender.start()
    code = main(["probe", "train", *words])
    ended.set()
    sender.join()
    assert code == 130
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert f"the newest checkpoint is {newest}" in capsys.readouterr().err
    resumed = run(
        datasets["videos"], tmp_path / "again", batch_size=16,
        resume_from=str(newest), steps=read_checkpoint(newest).step + 5,
    )  # fmt: skip
    assert len(resumed.losses) == 5


def test_the_log_has_each_step_once_wherever_the_run_was_killed(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    run(datasets["videos"], tmp_path, log_every=2, save_every=5, steps=8)
    shutil.rmtree(checkpoint_dir(tmp_path, 8))  # killed before its last checkpoint
    log = TrainingLog(tmp_path)
    with log.path.open("a") as file:
        file.write('{"step": 9, "lo')  # killed while it wrote
    run(datasets["videos"], tmp_path, log_every=2, resume_from="last")
    assert [row["step"] for row in log.rows()] == [2, 4, 6, 8, 10, 12]


def test_another_order_or_a_second_run_in_the_same_folder_is_refused(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    run(datasets["videos"], tmp_path, steps=2)
    with pytest.raises(UsageError, match="contains checkpoints of an earlier run"):
        run(datasets["videos"], tmp_path)
    with pytest.raises(PlanMismatchError, match="seed was 0 and is 1"):
        run(datasets["videos"], tmp_path, resume_from="last", seed=1)
    with pytest.raises(PlanMismatchError, match="the dataset"):
        run(datasets["numbers"], tmp_path, resume_from="last")


def test_it_learns_from_images_in_tables(datasets: dict[str, Path], tmp_path: Path) -> None:
    options = {"mode": "single", "steps": 20, "learning_rate": 0.003}
    trained = run(datasets["images"], tmp_path, **options)
    first, last = trained.losses[:5], trained.losses[-5:]
    assert sum(filter(None, last)) < sum(filter(None, first))


def test_dummy_loads_the_same_batches_and_leaves_no_checkpoint(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    trained = run(datasets["videos"], tmp_path / "whole")
    loaded = run(datasets["videos"], tmp_path / "dummy", dummy=True)
    assert loaded.order == trained.order
    assert loaded.losses == [None] * STEPS
    assert newest_checkpoint(tmp_path / "dummy") is None
    assert [row["step"] for row in TrainingLog(tmp_path / "dummy").rows()] == [10, 12]


# --- several ranks ----------------------------------------------------------------------------


def gathered_of_all() -> list[Any]:
    """Be one of two ranks: learn from one sample, and return what all ranks gathered."""
    rank = int(os.environ["RANK"])
    processes = Ranks(rank, 2, "cpu")
    torch.manual_seed(rank)  # unequal weights, which rank 0's must replace
    model: torch.nn.Module = torch.nn.Linear(2, 1)
    model, _ = processes.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    processes.backward(model(torch.tensor([[1.0, float(rank)]])).sum())
    bare: Any = getattr(model, "module", model)
    facts = {"rank": rank, "weight": bare.weight.tolist(), "gradient": bare.weight.grad.tolist()}
    gathered = processes.gather(facts)
    processes.close()
    return gathered


def trained_twice(root: str, out_dir: str) -> list[Any]:
    """Be one of two ranks: gather, train without a stop, and once more from step 5."""
    gathered = gathered_of_all()
    folder, data = Path(out_dir), Path(root)
    settings: dict[str, Any] = {"num_workers": 0, "batch_size": 4}
    whole = run(data, folder / "whole", save_every=5, **settings)
    checkpoint = str(checkpoint_dir(folder / "whole", 5))
    again = run(data, folder / "again", resume_from=checkpoint, save_every=100, **settings)
    return [gathered, asdict(whole), asdict(again)]


def test_two_ranks_average_their_gradients_share_an_epoch_and_resume_together(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    found = run_as_ranks(
        *(trained_twice, datasets["videos"], tmp_path),
        folder=tmp_path,
        environment={
            "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        },
    )  # fmt: skip
    first, second = (gathered for gathered, *_ in found)
    assert first == second
    assert [facts["rank"] for facts in first] == [0, 1]
    assert first[0]["weight"] == first[1]["weight"]
    # The inputs were (1, 0) and (1, 1), so the averaged gradient is (1, 1/2).
    assert first[0]["gradient"] == first[1]["gradient"] == [[1.0, 0.5]]
    ranks = [(Trained(**whole), Trained(**again)) for _, whole, again in found]
    first, second = (whole.first_epoch for whole, _ in ranks)
    assert sorted(first + second) == list(range(sum(LENGTHS)))
    assert abs(len(first) - len(second)) <= 1
    assert ranks[0][0].losses != ranks[1][0].losses
    for whole, again in ranks:
        assert (again.order, again.losses) == (whole.order[5:], whole.losses[5:])


def test_a_checkpoint_goes_on_with_other_workers_and_batches_and_an_old_one_does_not(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    whole = run(datasets["numbers"], tmp_path / "whole", steps=6, batch_size=8)
    run(datasets["numbers"], tmp_path / "first", steps=2, batch_size=8)
    state = checkpoint_dir(tmp_path / "first", 2)
    rest = run(
        datasets["numbers"], tmp_path / "rest", resume_from=str(state), steps=10,
        num_workers=1, batch_size=4,
    )  # fmt: skip
    assert [one for batch in rest.order for one in batch] == [
        one for batch in whole.order[2:] for one in batch
    ]
    content = torch.load(state / "dataset_state.pt", weights_only=True)
    torch.save({**content, "version": 1}, state / "dataset_state.pt")
    with pytest.raises(ProbeError, match="is of version 1, not 2"):
        run(datasets["numbers"], tmp_path / "old", resume_from=str(state))
