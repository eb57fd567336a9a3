"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leconvert.bench import training
from leconvert.bench.training import (
    Checkpoint,
    checkpoint_dir,
    find_checkpoint,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from leconvert.support.errors import BusyError, ProbeError, StorageError
from leconvert.workdir.locks import new_lock


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
