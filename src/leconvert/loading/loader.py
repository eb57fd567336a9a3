"""`StreamLoader`: torch's DataLoader over an `EpisodeStream`, able to resume anywhere.

The state is a few numbers, not a snapshot of workers: the order is a pure function, and so is whose
turn it is, so the number of batches handed out says everything. What workers prepared ahead does
not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from leconvert.errors import LeconvertError, PlanMismatchError, UsageError
from leconvert.loading.order import Share, num_batches, turn_after
from leconvert.loading.stream import EpisodeStream, Sample
from leconvert.loading.tensors import (
    MOST_WORKERS,
    SharedBatch,
    SharedBufferPool,
    SharedBufferWriter,
    keep_freed_memory,
)

__all__ = ["StreamLoader"]


_FORMAT = "leconvert.stream-state"
_VERSION = 1
# Samples that are compared to see whether the order is still computed as it was.
_WITNESSES = 64
_SAID_AS = {
    "seed": "the seed",
    "shuffle": "shuffle",
    "repeat": "repeat",
    "episode_pool_size": "the pool size",
    "world_size": "the number of ranks",
    "num_workers": "the number of loader workers",
    "batch_size": "the batch size",
    "drop_last": "drop_last",
    "dataset": "the dataset or the choice of episodes",
}


class _WorkerError(NamedTuple):
    """What ended a worker. torch would raise another error, with a traceback for its message."""

    error: LeconvertError


class _BatchStream(IterableDataset[Any]):
    """The batches of a stream, made where the samples are; from workers in shared memory."""

    def __init__(self, stream: EpisodeStream, batch_size: int, *, drop_last: bool) -> None:
        super().__init__()
        self._stream = stream
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._buffers: tuple[int, torch.Tensor] | None = None
        self._writer: SharedBufferWriter | None = None

    def renew(self, buffers: SharedBufferPool) -> None:
        """Have workers that start from now on use these buffers."""
        # Not the pool itself: what it maps stays in the training process.
        self._buffers = buffers.number, buffers.states

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or self._buffers is None:
            yield from self._stream.batches(self._batch_size, drop_last=self._drop_last)
            return
        if self._writer is None:
            keep_freed_memory()
            number, states = self._buffers
            self._writer = SharedBufferWriter(number, states[info.id], info.id)
        try:
            for batch in self._stream.batches(
                self._batch_size, drop_last=self._drop_last, memory=self._writer.memory
            ):
                yield self._writer.share(batch)
        except LeconvertError as error:
            yield _WorkerError(error)


class StreamLoader:
    """Batches of a stream, from worker processes.

    It guarantees that, after ``load_state_dict(state_dict())`` in a new process, the batches are
    those that would have come without a break, for any number of workers and wherever it stopped;
    and that a state is refused where it cannot hold. Iterating to the end of an epoch makes the
    next iteration the next epoch. Several iterations may be under way, but not with
    ``persistent_workers``; epoch and state are those of the one that began last.

    It does not guarantee that ranks have equally many batches: see `batches_on_every_rank`. It is
    not to be given to ``accelerate.prepare``, which would share the batches out a second time.

    Args:
        stream: What to load.
        batch_size: Samples of a batch.
        num_workers: Worker processes; 0 loads in this one.
        drop_last: Leave out each worker's last batch where it is smaller.
        prefetch_factor: Batches that each worker prepares ahead.
        pin_memory: Copy batches into pinned memory; without effect for frames decoded on a GPU.
        persistent_workers: Keep workers from epoch to epoch.
        collate_fn: Makes a batch of samples instead of `EpisodeStream.batches`, more slowly.
        multiprocessing_context: How workers start; always ``spawn`` where they decode on a GPU.
        timeout: Seconds to wait for a batch; 0 for no limit.

    Raises:
        UsageError: A number makes no sense.
    """

    def __init__(
        self,
        stream: EpisodeStream,
        *,
        batch_size: int,
        num_workers: int = 0,
        drop_last: bool = False,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        multiprocessing_context: str | None = None,
        timeout: float = 0,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {batch_size}.")
        if not 0 <= num_workers <= MOST_WORKERS:
            raise UsageError(f"num_workers must be 0 to {MOST_WORKERS}, not {num_workers}.")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise UsageError(f"prefetch_factor must be at least 1, not {prefetch_factor}.")
        if not timeout >= 0:
            raise UsageError(f"timeout must be at least 0 seconds, not {timeout}.")
        self.stream = stream
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        if stream.decode_device != "cpu":
            pin_memory = False
            multiprocessing_context = "spawn" if num_workers else None
        # Without workers torch takes neither.
        in_workers: dict[str, Any] = {}
        if num_workers:
            in_workers = {
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "timeout": timeout,
            }
        self._are_workers_kept = persistent_workers and num_workers > 0
        self._batch_stream: _BatchStream | None = None
        if collate_fn is None:
            self._batch_stream = _BatchStream(stream, batch_size, drop_last=drop_last)
            self._loader: DataLoader[Any] = DataLoader(
                self._batch_stream,
                batch_size=None,
                num_workers=num_workers,
                collate_fn=_as_it_is,
                pin_memory=pin_memory,
                **in_workers,
            )
        else:
            self._loader = DataLoader(
                stream,
                batch_size=batch_size,
                num_workers=num_workers,
                collate_fn=collate_fn,
                drop_last=drop_last,
                pin_memory=pin_memory,
                **in_workers,
            )
        self._epoch = stream.epoch
        self._batches = 0
        self._is_loaded = False
        self._buffers: SharedBufferPool | None = None
        self._newest: object | None = None

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next one between two."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin with an epoch."""
        self._epoch = epoch
        self._batches = 0
        self._is_loaded = False
        self._newest = None

    def __len__(self) -> int:
        """Return the batches of this rank in the epoch."""
        if self.stream.repeat:
            raise TypeError("a stream that repeats has no length")
        return sum(self._counts(self._epoch, self.stream.rank))

    def batches_on_every_rank(self) -> int:
        """Return how many batches each rank has in the epoch at least.

        Where training steps wait for all ranks, stop an epoch after so many.

        Raises:
            TypeError: The stream repeats: every rank has as many as anybody asks for.
        """
        if self.stream.repeat:
            raise TypeError("a stream that repeats has no last batch on any rank")
        ranks = range(self.stream.world_size)
        return min(sum(self._counts(self._epoch, rank)) for rank in ranks)

    def batch_workers(self) -> Iterator[int]:
        """Yield which worker makes each batch of the epoch, from its first one on."""
        workers = max(1, self.num_workers)
        available = self._available(self._epoch, self.stream.rank)
        numbers = count() if available is None else range(sum(available))
        for number in numbers:
            yield turn_after(number, available, workers).next_worker

    def __iter__(self) -> Iterator[Any]:
        if not self._is_loaded:
            self._batches = 0
        self._is_loaded = False
        workers = max(1, self.num_workers)
        turn = turn_after(self._batches, self._available(self._epoch, self.stream.rank), workers)
        self.stream.begin_at(
            self._epoch,
            first_worker=turn.next_worker,
            skips=[taken * self.batch_size for taken in turn.taken],
            # Workers that stay read the same memory for ever.
            renew=not self._are_workers_kept,
        )
        if self._buffers is None or not self._are_workers_kept:
            self._buffers = SharedBufferPool(workers)
            if self._batch_stream is not None:
                self._batch_stream.renew(self._buffers)
        # Its own, although the loader may be iterated once more meanwhile: batches lie in it.
        buffers = self._buffers
        self._newest = mine = object()
        for batch in self._loader:
            buffers.collect()
            if isinstance(batch, _WorkerError):
                raise batch.error
            # Counted first: whoever asks for the state while using a batch has taken it.
            if self._newest is mine:
                self._batches += 1
            yield batch.batch() if isinstance(batch, SharedBatch) else batch
        if self._newest is mine:
            self._epoch += 1
            self._batches = 0

    # --- resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, as numbers and texts.

        Batches that were handed out count as used. The state is equal on all ranks in step; where
        nodes load files of their own, on those of a node.
        """
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "epoch": self._epoch,
            "batches": self._batches,
            **self._topology(),
            "order": self._witness(self._epoch, self._batches),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on where a state was taken.

        Raises:
            PlanMismatchError: The stream, the loader or the number of ranks are others, or NumPy
                draws other numbers now; ``details`` says what changed.
        """
        if state.get("format") != _FORMAT or state.get("version") != _VERSION:
            raise PlanMismatchError(
                "This is no state of a stream, or one of another version of leconvert.",
                next_step="Give what state_dict() returned.",
            )
        changed = [
            f"{_SAID_AS[key]} was {state.get(key)!r} and is {value!r}"
            for key, value in self._topology().items()
            if state.get(key) != value
        ]
        if changed:
            raise PlanMismatchError(
                f"The stream cannot go on where it stopped: {changed[0]}.",
                next_step="Resume with what the state was taken with, or begin a new epoch.",
                details=changed,
            )
        epoch, batches = int(state["epoch"]), int(state["batches"])
        if state.get("order") != self._witness(epoch, batches):
            raise PlanMismatchError(
                "The stream cannot go on where it stopped: this version of NumPy shuffles "
                "differently from the one before.",
                next_step="Install the version of NumPy that the state was taken with.",
            )
        self._epoch, self._batches = epoch, batches
        self._is_loaded = True
        self._newest = None

    def _topology(self) -> dict[str, Any]:
        stream = self.stream
        return {
            "seed": stream.seed,
            "shuffle": stream.shuffle,
            "repeat": stream.repeat,
            "episode_pool_size": stream.episode_pool_size,
            "world_size": stream.world_size,
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "dataset": stream.fingerprint(),
        }

    def _available(self, epoch: int, rank: int) -> list[int] | None:
        """Return the batches that each worker of a rank has in an epoch; None where no end is."""
        return None if self.stream.repeat else self._counts(epoch, rank)

    def _counts(self, epoch: int, rank: int) -> list[int]:
        frames = self.stream.order.worker_frames(
            epoch, rank, self.stream.world_size, max(1, self.num_workers)
        )
        return [
            num_batches(count, self.batch_size, drop_last=self.drop_last)
            for count in frames.tolist()
        ]

    def _witness(self, epoch: int, batches: int) -> str:
        """Return a digest of what comes next on the first rank; pure, so every rank knows it."""
        workers = max(1, self.num_workers)
        turn = turn_after(batches, self._available(epoch, 0), workers)
        part = turn.next_worker
        share = Share(0, self.stream.world_size, part, workers)
        digest = hashlib.blake2b(digest_size=8)
        skip = turn.taken[part] * self.batch_size
        for block in self.stream.coordinates(epoch, share, skip=skip):
            digest.update(block.episodes[:_WITNESSES].tobytes())
            digest.update(block.frames[:_WITNESSES].tobytes())
            break
        return digest.hexdigest()


def _as_it_is(batch: Any) -> Any:
    return batch
