"""How the processes of one training run work together: by accelerate where it is installed.

Only model and optimizer are handed over. The loader is not: `EpisodeStream` already gives every
rank its own episodes, and accelerate would deal them out a second time.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import (
    all_gather_object,
    barrier,
    destroy_process_group,
    init_process_group,
    is_initialized,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from leconvert.errors import ProbeError

__all__ = ["AccelerateProcesses", "Processes", "TorchProcesses", "open_processes"]

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")


class Processes(Protocol):
    """The processes of a run, as one of them sees them."""

    rank: int
    world_size: int
    device: torch.device
    engine: str

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer so wrapped that all ranks take the same steps."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, averaged over all ranks."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank; all ranks must ask."""
        ...

    def close(self) -> None:
        """Wait for all ranks to come this far; the last that is asked of them."""
        ...


def open_processes(
    *, rank: int, world_size: int, device: str, use_accelerate: bool | None = None
) -> Processes:
    """Join the other processes of the run.

    Args:
        rank: This process.
        world_size: All of them.
        device: ``cpu``, ``cuda`` for the GPU of this rank on its node, or ``cuda:N``.
        use_accelerate: None for accelerate where it is installed and plain torch elsewhere.

    Raises:
        ProbeError: The device is not there, or nobody said where the processes meet.
    """
    if device != "cpu" and not torch.cuda.is_available():
        raise ProbeError(
            "There is no CUDA device, or this torch was built without CUDA.",
            next_step="Use --device cpu, or install a CUDA build of torch.",
        )
    missing = [name for name in _RENDEZVOUS if not os.environ.get(name)]
    if world_size > 1 and missing:
        raise ProbeError(
            f"{world_size} ranks cannot meet without {' and '.join(missing)} in the environment.",
            next_step="Start them with torchrun, accelerate launch or probe train --submit.",
        )
    if use_accelerate is None:
        use_accelerate = find_spec("accelerate") is not None
    chosen = AccelerateProcesses if use_accelerate else TorchProcesses
    return chosen(rank=rank, world_size=world_size, device=device)


class TorchProcesses:
    """Plain torch: DistributedDataParallel where there are several ranks."""

    engine = "torch"

    def __init__(self, *, rank: int, world_size: int, device: str) -> None:
        self.rank, self.world_size = rank, world_size
        self.device = (
            torch.device("cuda", _local_rank()) if device == "cuda" else torch.device(device)
        )
        if world_size > 1 and not is_initialized():
            backend = "gloo" if device == "cpu" else "nccl"
            init_process_group(backend, rank=rank, world_size=world_size)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return the model as a replica of all ranks'; parameters stay the same objects."""
        if self.world_size == 1:
            return model, optimizer
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices), optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Wait for all ranks to come this far."""
        if self.world_size > 1:
            barrier()
            _leave_group(self.device)


class AccelerateProcesses:
    """Hugging Face accelerate."""

    engine = "accelerate"

    def __init__(self, *, rank: int, world_size: int, device: str) -> None:
        from accelerate import Accelerator

        if world_size > 1:
            # accelerate knows torchrun's names, not those of SLURM nor of --rank.
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(_local_rank()),
            }
        self._accelerator = Accelerator(cpu=device == "cpu")
        self.rank, self.world_size = rank, world_size
        self.device: torch.device = self._accelerator.device

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer as accelerate wraps them."""
        prepared: tuple[nn.Module, Optimizer] = self._accelerator.prepare(model, optimizer)
        return prepared

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        self._accelerator.backward(loss)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        from accelerate.utils import gather_object

        gathered: list[Any] = gather_object([value])
        return gathered

    def close(self) -> None:
        """Wait for all ranks to come this far."""
        self._accelerator.wait_for_everyone()
        if self.world_size > 1:
            _leave_group(self.device)


def _leave_group(device: torch.device) -> None:
    """Take the group of ranks apart, or leave it to the end of the process.

    A group on CPUs (gloo) has a thread that needs Python's lock to drop its last work, and torch
    2.11 waits for that thread with the lock held: taken apart at once, one process in a few hangs.
    """
    if device.type == "cuda":
        destroy_process_group()


def _local_rank() -> int:
    """Return this process's number on its node, as torchrun or SLURM say it."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
