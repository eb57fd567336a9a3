"""Checkpoints of training: model, optimizer, step, and the place in the stream of every rank.

    OUT_DIR/checkpoints/
      step-00000120/          complete: it got this name last
        model.pt              weights
        optimizer.pt          the optimizer's state
        training_state.pt     step, generator states
        dataset_state.pt      the stream's state, one a rank
        given-up              only where a run went on from further back; empty
      .step-00000240.1f….tmp/ being written, or left by a crash; never read

A folder is written under another name, forced to the disk, and renamed; so what `newest_checkpoint`
finds is whole, and its four files belong together.

Who resumes from further back gives up what came after: those checkpoints stay, and are marked, so
that ``last`` means one that led to where the training is. A new one of the same name has no mark.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leconvert.errors import ProbeError, StorageError
from leconvert.workdir.durable import sync_dir, sync_tree
from leconvert.workdir.trouble import storage_errors

__all__ = [
    "Checkpoint",
    "checkpoint_dir",
    "find_checkpoint",
    "give_up_later",
    "newest_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

_FORMAT = "leconvert-probe-dataset-state"
_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})")
_FILES = ("model.pt", "optimizer.pt", "training_state.pt", "dataset_state.pt")
_NEWEST = "last"
_GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that training needs to go on as if it had never stopped.

    Attributes:
        step: Optimizer steps done.
        model: The model's ``state_dict``.
        optimizer: The optimizer's ``state_dict``.
        generator: State of torch's CPU generator.
        streams: The loader's ``state_dict`` of every rank, in order of rank.
    """

    step: int
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    generator: torch.Tensor
    streams: Sequence[Mapping[str, Any]]


def checkpoint_dir(out_dir: Path, step: int) -> Path:
    """Return where the checkpoint after ``step`` steps belongs."""
    return out_dir / "checkpoints" / f"step-{step:08d}"


def newest_checkpoint(out_dir: Path, *, even_given_up: bool = False) -> Path | None:
    """Return the complete checkpoint with the most steps, or None.

    Args:
        out_dir: The run's folder.
        even_given_up: Whether one counts that `give_up_later` has marked.
    """
    for _, path in reversed(_checkpoints(out_dir)):
        if even_given_up or not (path / _GIVEN_UP).exists():
            return path
    return None


def give_up_later(out_dir: Path, resumed: Path, step: int) -> None:
    """Mark the checkpoints of a run that lie after the one that it goes on from.

    A crash in the middle leaves the newest one unmarked, as if nobody had resumed.

    Args:
        out_dir: The run's folder.
        resumed: The checkpoint that it goes on from, here or elsewhere; it loses its mark.
        step: Its step.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    with storage_errors(out_dir):
        for number, path in _checkpoints(out_dir):
            if number > step:
                (path / _GIVEN_UP).touch()
                sync_dir(path)
            elif path.samefile(resumed):
                (path / _GIVEN_UP).unlink(missing_ok=True)
                sync_dir(path)


def _checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Return steps and folders of all complete checkpoints, by steps."""
    folder = out_dir / "checkpoints"
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(
        (int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))
    )


def find_checkpoint(wanted: str, out_dir: Path) -> Path | None:
    """Return the checkpoint that ``--resume-from`` means.

    Args:
        wanted: A checkpoint's folder, or ``last`` for the newest of ``out_dir`` that was not given
            up by a resume from further back.
        out_dir: The run's folder.

    Returns:
        The folder; None where ``last`` finds no checkpoint yet and training begins.

    Raises:
        ProbeError: The folder is no checkpoint.
    """
    if wanted == _NEWEST:
        return newest_checkpoint(out_dir)
    path = Path(wanted)
    missing = [name for name in _FILES if not (path / name).is_file()]
    if missing:
        raise ProbeError(
            f"{path} is no checkpoint: it lacks {', '.join(missing)}.",
            path=str(path),
            next_step=f"Name a folder checkpoints/step-…, or `{_NEWEST}` for the newest one.",
        )
    return path


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a reader finds all of it or nothing.

    Args:
        path: The folder, whose name comes into being last. One that exists is replaced.
        checkpoint: The content.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    contents: tuple[object, ...] = (
        checkpoint.model,
        checkpoint.optimizer,
        {"step": checkpoint.step, "generator": checkpoint.generator},
        {"format": _FORMAT, "version": _VERSION, "ranks": list(checkpoint.streams)},
    )
    token = os.urandom(6).hex()
    unfinished = path.with_name(f".{path.name}.{token}.tmp")
    replaced = path.with_name(f".{path.name}.{token}.old")
    try:
        unfinished.mkdir(parents=True)
        for name, content in zip(_FILES, contents, strict=True):
            buffer = io.BytesIO()
            torch.save(content, buffer)
            (unfinished / name).write_bytes(buffer.getbuffer())
        sync_tree(unfinished)
        if path.exists():  # of a run that was resumed from further back
            path.rename(replaced)
        unfinished.rename(path)
        sync_dir(path.parent)
    except OSError as error:
        if not path.exists():
            with suppress(OSError):  # there is none, most of the time
                replaced.rename(path)
        raise StorageError(
            f"The checkpoint {path} cannot be written: {error.strerror}.",
            path=str(path),
            next_step="Make room, then go on with --resume-from last.",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ProbeError: A file is missing or damaged, or of another version.
    """
    try:
        model, optimizer, training, dataset = (
            torch.load(path / name, map_location="cpu", weights_only=True) for name in _FILES
        )
        if (dataset["format"], dataset["version"]) != (_FORMAT, _VERSION):
            raise ProbeError(
                f"{path / _FILES[-1]} is of version {dataset['version']}, not {_VERSION}.",
                path=str(path),
                next_step="Go on with the leconvert that wrote it.",
            )
        return Checkpoint(
            training["step"], model, optimizer, training["generator"], dataset["ranks"]
        )
    except ProbeError:
        raise
    except Exception as error:  # torch names no common class for what a damaged file raises
        raise ProbeError(
            f"The checkpoint {path} cannot be read: {error}.",
            path=str(path),
            next_step="Resume from an older one, by its folder.",
        ) from error
