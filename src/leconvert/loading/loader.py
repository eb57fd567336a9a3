"""`StreamLoader`: torch's DataLoader over a stream of samples, able to resume anywhere.

The state is a few numbers, not a snapshot of workers: the order is a pure function of all ranks
together, so their position in it is enough. Batches that workers prepared ahead do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from leconvert.loading.order import Share
from leconvert.loading.stream import Sample, SampleStream, split
from leconvert.loading.tensors import (
    MOST_WORKERS,
    SharedBatch,
    SharedBufferPool,
    SharedBufferWriter,
    private_memory,
    shared_numbers,
)
from leconvert.support.errors import LeconvertError, PlanMismatchError, UsageError
from leconvert.support.flags import whole_number
from leconvert.support.machine import keep_freed_memory

_FORMAT = "leconvert.stream-state"
_VERSION = 4
# Facts that only some stores report: the Hub commits, the others sizes. A state from one store is
# valid for a copy of the dataset in another.
_WHERE_KNOWN = {"commit", "data_commit", "sizes"}
# Number of samples that are compared to see whether the order is still computed as before.
_WITNESSES = 64
_SAID_AS = {
    "seed": "the seed",
    "shuffle": "shuffle",
    "episode_pool_size": "the pool size",
    "dataset": "the dataset (its episodes, tasks or statistics) or the choice of episodes",
    "commit": "the commit of the dataset",
    "data_commit": "the commit of data/ and videos/",
    "sizes": "the size of a file",
    "mixture_seed": "the seed of the mixture",
    "shares": "the shares of the datasets, in ten-thousandths,",
}


class _WorkerError(NamedTuple):
    """The error that ended a worker. torch would raise another, with a traceback as its message."""

    error: LeconvertError


class _BatchStream(IterableDataset[Any]):
    """The batches of a stream, made in the process that makes the samples; workers share memory."""

    def __init__(
        self,
        stream: SampleStream,
        batch_size: int,
        *,
        drop_last: bool,
        collate_fn: Callable[[list[Sample]], Any] | None,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate_fn = collate_fn
        self._begin = shared_numbers(2)  # the epoch, and how many of its samples are taken
        self._buffers: tuple[int, torch.Tensor] | None = None
        self._writer: SharedBufferWriter | None = None

    def renew(self, buffers: SharedBufferPool) -> None:
        """Let workers that start from now on use these buffers; others keep theirs."""
        self._begin = shared_numbers(2)
        # Not the pool itself, whose mappings stay in the training process.
        self._buffers = buffers.number, buffers.states

    def begin_at(self, epoch: int, taken: int) -> None:
        """Choose the start of the next pass; persistent workers read it from shared memory."""
        self._begin[:] = torch.tensor([epoch, taken])

    def __iter__(self) -> Iterator[Any]:
        epoch, taken = self._begin.tolist()
        memory, share = private_memory, _as_it_is
        info = get_worker_info()
        if self._collate_fn is not None:
            share = self._collated
        elif info is not None:
            if self._writer is None:
                assert self._buffers is not None
                keep_freed_memory()
                number, states = self._buffers
                self._writer = SharedBufferWriter(number, states[info.id], info.id)
            memory, share = self._writer.memory, self._writer.share
        batches = self._stream.batches(
            self._batch_size, begin=(epoch, taken), drop_last=self._drop_last, memory=memory
        )
        made = map(share, batches)
        if info is None:
            # Without `except`: where Python ends in the middle of a pass, no names are left.
            yield from made
            return
        try:
            yield from made
        except LeconvertError as error:
            yield _WorkerError(error)

    def _collated(self, batch: Sample) -> Any:
        assert self._collate_fn is not None
        return self._collate_fn(split(batch))


class StreamLoader:
    """Batches of a stream, from worker processes.

    Guaranteed:

    - Global batches, the batches of all ranks together, are the same for any number of ranks and
      workers if the global batch size is equal.
    - After ``load_state_dict(state_dict())`` the samples are the same as without a break, wherever
      it stopped and whatever the numbers of ranks and workers and the batch size are now.
    - A state is refused if the stream cannot continue from it.
    - Each pass begins when its first batch is asked for. It is the epoch after that of the previous
      pass, even if the previous pass was not finished.

    Several passes may be under way, but not with ``persistent_workers``; epoch and state are those
    of the latest pass.

    Not guaranteed: that all ranks have the last batch; see `batches_on_every_rank`.

    Args:
        stream: The stream to load, an `EpisodeStream` or a `MixedStream`.
        batch_size: Samples per batch.
        num_workers: Worker processes; 0 loads in this process.
        drop_last: Leave out the last batch if it is smaller on any rank.
        prefetch_factor: Batches that each worker prepares ahead.
        pin_memory: Copy batches into pinned memory; without effect for frames decoded on a GPU.
        persistent_workers: Keep workers from epoch to epoch.
        collate_fn: Makes a batch from a list of samples, more slowly than `EpisodeStream.batches`.
        multiprocessing_context: How workers start; always ``spawn`` if they decode on a GPU.
        timeout: Seconds to wait for a batch; 0 for no limit.

    Raises:
        UsageError: A number is out of its range, or ``stream`` is no stream.
    """

    def __init__(
        self,
        stream: SampleStream,
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
        if not isinstance(stream, SampleStream):
            raise UsageError(
                f"A StreamLoader loads an EpisodeStream or a MixedStream, not {stream!r}.",
                next_step="Make a stream of the dataset first: EpisodeStream(dataset).",
            )
        batch_size = whole_number("batch_size", batch_size, 1)
        if whole_number("num_workers", num_workers) > MOST_WORKERS:
            raise UsageError(f"num_workers must be 0 to {MOST_WORKERS}, not {num_workers}.")
        if prefetch_factor is not None:
            prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1)
        if not timeout >= 0:
            raise UsageError(f"timeout must be at least 0 seconds, not {timeout}.")
        self.stream = stream
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        if stream.decode_device != "cpu":
            pin_memory = False
            multiprocessing_context = "spawn" if num_workers else None
        # Without workers, torch accepts none of these.
        in_workers: dict[str, Any] = {}
        if num_workers:
            in_workers = {
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "timeout": timeout,
            }
        self._are_workers_kept = persistent_workers and num_workers > 0
        self._batch_stream = _BatchStream(
            stream, batch_size, drop_last=drop_last, collate_fn=collate_fn
        )
        # These are the seeds of the workers. The training keeps torch's own generator, so after a
        # resume it draws the same numbers, although loading begins again.
        self._seeds = torch.Generator()
        self._loader: DataLoader[Any] = DataLoader(
            self._batch_stream,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            generator=self._seeds,
            **in_workers,
        )
        self._stand_at(stream.epoch, 0)
        self._buffers: SharedBufferPool | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the current or unfinished pass; after a finished pass, the next epoch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass begin at the first sample of this epoch.

        Raises:
            UsageError: It is no whole number of at least 0.
        """
        self._stand_at(whole_number("epoch", epoch), 0)

    def _stand_at(self, epoch: int, taken: int) -> None:
        """Let the next pass begin after this many samples of an epoch."""
        self._epoch = epoch
        self._taken = taken
        self._has_begun = False  # whether a pass has begun there, so the next pass is another epoch
        self._newest: object | None = None

    def start_at(self, samples: int) -> None:
        """Let the next pass begin after this many samples of all ranks together.

        The count starts at the beginning of epoch 0. This is for programs that count steps
        themselves.

        Raises:
            UsageError: It is no whole number of at least 0.
        """
        self._stand_at(*divmod(whole_number("samples", samples), self.stream.order.num_frames))

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        if self.stream.repeat:
            raise TypeError("a stream that repeats has no length")
        return self._share(self.stream.rank).num_batches(self.stream.order.num_frames)

    def batches_on_every_rank(self) -> int:
        """Return how many batches each rank has at least in the next pass.

        If training steps wait for all ranks, end an epoch after this many. A rank can lack only the
        last batch, if that batch has fewer samples than there are ranks.

        Raises:
            TypeError: The stream repeats, so the number is unlimited.
        """
        if self.stream.repeat:
            raise TypeError("a stream that repeats has no last batch on any rank")
        left = self.stream.order.num_frames - (0 if self._has_begun else self._taken)
        return self._share(self.stream.rank).num_batches_of_each(left)

    def batch_workers(self) -> Iterator[int]:
        """Yield the worker's number for each batch of the epoch, from the first batch on."""
        numbers = count() if self.stream.repeat else range(len(self))
        return (number % max(1, self.num_workers) for number in numbers)

    def __iter__(self) -> Iterator[Any]:
        if self._has_begun:
            self._stand_at(self._epoch + 1, 0)
        # Persistent workers read the same memory for ever.
        if self._buffers is None or not self._are_workers_kept:
            self._buffers = SharedBufferPool(max(1, self.num_workers))
            self._batch_stream.renew(self._buffers)
        self._batch_stream.begin_at(self._epoch, self._taken)
        self._has_begun = True
        self._tell_stream()
        # This pass keeps its own buffers, which contain its batches, even if the loader is iterated
        # again meanwhile.
        buffers = self._buffers
        self._newest = mine = object()
        self._seeds.manual_seed((torch.initial_seed() + self._epoch) % 2**63)
        for batch in self._loader:
            buffers.collect()
            if isinstance(batch, _WorkerError):
                try:
                    raise batch.error
                finally:
                    # The error must not hold itself by this frame. The garbage collector would
                    # close the workers' queues first, and each worker would be waited for 5 s.
                    del batch
            # Counted before the yield, so a state that is asked for while the batch is in use
            # includes it.
            if self._newest is mine:
                self._take()
            yield batch.batch() if isinstance(batch, SharedBatch) else batch
        if self._newest is mine:
            self._stand_at(self._epoch + 1, 0)

    def _tell_stream(self) -> None:
        """Let passes that other loaders begin over the stream be later epochs."""
        following = self._epoch + self._has_begun
        if self.stream.epoch != following:
            self.stream.set_epoch(following)

    def _take(self) -> None:
        """Count a batch of all ranks."""
        frames = self.stream.order.num_frames
        taken = self._taken + self._share(0).global_batch_size
        if not self.stream.repeat:
            self._taken = min(taken, frames)
            return
        self._epoch += taken // frames
        self._taken = taken % frames
        # An epoch of which no sample is taken yet is also new to the next pass.
        self._has_begun = self._taken > 0
        self._tell_stream()

    def _share(self, rank: int) -> Share:
        return Share(
            rank, self.stream.world_size, batch_size=self.batch_size, drop_last=self.drop_last
        )

    # --- resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks together, as numbers and texts.

        Batches that were handed out count as used. The state is equal on all ranks after the same
        step; if nodes load files of their own, on all ranks of a node.
        """
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "epoch": self._epoch,
            "samples": self._taken,
            **self.stream.identity(),
            "order": self._witness(self._epoch, self._taken),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where a state was taken, by any rank.

        The number of ranks, the number of workers and the batch size may have changed.

        Raises:
            PlanMismatchError: The order has changed, or NumPy now draws other numbers; ``details``
                lists the changes.
        """
        is_ours = isinstance(state, Mapping) and state.get("format") == _FORMAT
        if not is_ours or state.get("version") != _VERSION or not _has_place(state):
            raise PlanMismatchError(
                "This is not the state of a stream, or it is from another version of leconvert.",
                next_step="Give what state_dict() of this version returned, or begin a new epoch "
                "(set_epoch).",
            )
        changed = list(_changes(state, self.stream.identity()))
        if changed:
            raise PlanMismatchError(
                f"The stream cannot continue where it stopped: {changed[0]}.",
                next_step="Use the dataset and arguments of the saved state (give a commit as "
                "revision), or begin a new epoch.",
                details=changed,
            )
        epoch, taken = int(state["epoch"]), int(state["samples"])
        if state.get("order") != self._witness(epoch, taken):
            raise PlanMismatchError(
                "The stream cannot continue where it stopped: this version of NumPy "
                "shuffles differently.",
                next_step="Install the version of NumPy with which the state was saved.",
            )
        self._stand_at(epoch, taken)

    def _witness(self, epoch: int, taken: int) -> str:
        """Return a digest of the next samples of all ranks."""
        block = self.stream.order.at(epoch, np.arange(taken, taken + _WITNESSES))
        digest = hashlib.blake2b(block.episodes.tobytes(), digest_size=8)
        digest.update(block.frames.tobytes())
        return digest.hexdigest()


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> Iterator[str]:
    """Yield a sentence for each change of a fact that decides the order."""
    if ("datasets" in before) != ("datasets" in now):
        kinds = "one dataset", "a mixture"
        was, is_now = (kinds["datasets" in each] for each in (before, now))
        yield f"the state is from {was}, but the stream is {is_now}"
        return
    for key, value in now.items():
        if key == "datasets":
            for number, pair in enumerate(zip(before[key], value, strict=False)):
                yield from _changes(*pair, f" of dataset {number}")
        elif key in _WHERE_KNOWN and key not in before:
            continue
        elif key == "marks":
            # Stores mark equal files differently, so only marks of the same store are compared.
            for url, mark in value.items():
                if before.get(key, {}).get(url, mark) != mark:
                    yield f"the files of {url}{of} changed (ETag or time)"
        elif before.get(key) != value and key in {"dataset", "sizes"}:
            yield f"{_SAID_AS[key]}{of} changed"
        elif before.get(key) != value:
            yield f"{_SAID_AS[key]}{of} was {before.get(key)!r} and is {value!r} now"


def _has_place(state: Mapping[str, Any]) -> bool:
    """Return whether a state names a place in an epoch."""
    place = [state.get(name) for name in ("epoch", "samples")]
    return all(isinstance(number, int) and number >= 0 for number in place)


def _as_it_is(batch: Any) -> Any:
    return batch
