"""Memory for batches: one block per batch; workers use the same blocks again and again.

A worker passes a batch on in memory that the training process maps too. torch allocates new memory
for every tensor of every batch. The kernel then has to find, clear and map each page, which can
take as long as decoding the frames. Here a batch is one block, and when the training process has
released the batch, the worker writes the next batch into the same block.

torch's own count of references to a storage, including views, decides whether a batch is released.
So a batch that is kept stays unchanged for any time, and the worker uses other memory meanwhile.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from itertools import count
from operator import add
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import get_worker_info

from leconvert.model.values import IntArray
from leconvert.support.errors import REPORT_IT, LeconvertError
from leconvert.support.machine import use_large_pages
from leconvert.support.values import dataclass

_ALIGNMENT = 64
# If more than this many batches of one worker are kept, the others get memory of their own.
_SLOTS = 16
_FREE, _TAKEN = 0, 1

# Returns a one-dimensional uint8 tensor of this many bytes.
Memory = Callable[[int], torch.Tensor]


class TensorPlan(NamedTuple):
    """The key, type and shape of a tensor to allocate."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def allocate(plans: Sequence[TensorPlan], memory: Memory) -> dict[str, torch.Tensor]:
    """Return tensors of undefined content, side by side in one block."""
    places = []
    total = 0
    for plan in plans:
        places.append(total)
        size = math.prod(plan.shape) * plan.dtype.itemsize
        total += -(-size // _ALIGNMENT) * _ALIGNMENT
    piece = memory(total)
    tensors = {}
    for plan, place in zip(plans, places, strict=True):
        size = math.prod(plan.shape) * plan.dtype.itemsize
        tensors[plan.key] = piece[place : place + size].view(plan.dtype).view(plan.shape)
    return tensors


def private_memory(size_bytes: int) -> torch.Tensor:
    """Return memory of this process, in large pages if the system has them."""
    piece = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_large_pages(piece)
    return torch.frombuffer(piece, dtype=torch.uint8)


def shared_numbers(*shape: int) -> torch.Tensor:
    """Return int64 zeros in shared memory: processes that receive them see the same numbers."""
    numbers = torch.zeros(shape, dtype=torch.int64)
    numbers.share_memory_()  # type: ignore[no-untyped-call]
    return numbers


class _Entry(NamedTuple):
    """The position of a tensor in a block of memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class SharedBatch:
    """A batch on its way to the training process.

    Attributes:
        piece: The block of memory that contains its tensors.
        parts: By key: the tensor's position in the block, or a value that is not in the block.
    """

    def __init__(
        self, piece: torch.Tensor, parts: Mapping[str, Any], sending: tuple[Any, ...] = ()
    ) -> None:
        self.piece = piece
        self.parts = parts
        self._sending = sending

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (*self._sending, self.parts)

    def batch(self) -> dict[str, Any]:
        """Return the batch; its tensors keep the memory alive."""
        found = {}
        for key, part in self.parts.items():
            found[key] = part
            if isinstance(part, _Entry):
                tensor, storage = torch.empty(0, dtype=part.dtype), self.piece.untyped_storage()
                found[key] = tensor.set_(storage, part.offset, part.shape, part.strides)
        return found

    def pin_memory(self) -> dict[str, Any]:
        """Return the batch in pinned memory; torch's pinning thread calls this."""
        return {
            key: value.pin_memory() if isinstance(value, torch.Tensor) else value
            for key, value in self.batch().items()
        }


class SharedBufferPool:
    """The memory of a loader's workers, as the training process sees it."""

    def __init__(self, num_workers: int) -> None:
        self.number = next(_POOL_NUMBERS)
        self.states = shared_numbers(num_workers, _SLOTS)
        self._mapped: dict[tuple[int, int], torch.Tensor] = {}
        self._held: list[tuple[StorageWeakRef, int, int]] = []
        # torch's pinning thread receives batches while the training loop collects.
        self._lock = threading.Lock()
        _POOLS[self.number] = self

    def receive(self, worker: int, slot: int, piece: torch.Tensor | None) -> torch.Tensor:
        """Return the memory of a slot, for one batch."""
        with self._lock:
            if piece is not None:
                self._mapped[worker, slot] = piece
            if (worker, slot) not in self._mapped:
                raise LeconvertError(
                    "Internal error: a loader worker sent a batch in shared memory that the loader "
                    "does not know.",
                    next_step=f"{REPORT_IT}.",
                )
            # A separate storage for each batch: when it ends, the batch has ended.
            lent = torch.frombuffer(self._mapped[worker, slot].numpy(), dtype=torch.uint8)
            reference = StorageWeakRef(lent.untyped_storage())  # type: ignore[no-untyped-call]
            self._held.append((reference, worker, slot))
        return lent

    def collect(self) -> None:
        """Return slots to the workers if their batches are released."""
        with self._lock:
            held = []
            for reference, worker, slot in self._held:
                if reference.expired():  # type: ignore[no-untyped-call]
                    self.states[worker, slot] = _FREE
                else:
                    held.append((reference, worker, slot))
            self._held = held


_POOL_NUMBERS = count()
# The pools whose loaders still exist, by number.
_POOLS: WeakValueDictionary[int, SharedBufferPool] = WeakValueDictionary()


class SharedBufferWriter:
    """A worker's side of a pool: memory for one batch at a time."""

    def __init__(self, number: int, states: torch.Tensor, worker: int) -> None:
        self._number = number
        self._states = states.numpy()
        self._worker = worker
        self._slots: list[torch.Tensor] = []
        self._is_known: list[bool] = []
        self._current: tuple[int | None, torch.Tensor] = (None, torch.empty(0))

    def memory(self, size_bytes: int) -> torch.Tensor:
        """Return memory for the next batch."""
        slot = self._free_slot(size_bytes)
        piece = _shared_memory(size_bytes) if slot is None else self._slots[slot]
        self._current = slot, piece
        return piece

    def share(self, batch: Mapping[str, Any]) -> SharedBatch:
        """Wrap the batch that is in the memory given last."""
        slot, piece = self._current
        place = piece.data_ptr()
        parts = {}
        for key, value in batch.items():
            parts[key] = value
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == place:
                shape, strides = tuple(value.shape), value.stride()
                parts[key] = _Entry(value.dtype, shape, strides, int(value.storage_offset()))
        sent: torch.Tensor | None = piece
        if slot is not None:
            self._states[slot] = _TAKEN
            sent = None if self._is_known[slot] else piece
            self._is_known[slot] = True
        return SharedBatch(piece, parts, (self._number, self._worker, slot, sent))

    def _free_slot(self, size_bytes: int) -> int | None:
        for slot, piece in enumerate(self._slots):
            if self._states[slot] == _FREE:
                if len(piece) < size_bytes:
                    self._slots[slot] = _shared_memory(size_bytes)
                    self._is_known[slot] = False
                return slot
        if len(self._slots) == _SLOTS:
            return None
        self._slots.append(_shared_memory(size_bytes))
        self._is_known.append(False)
        return len(self._slots) - 1


def _shared_memory(size_bytes: int) -> torch.Tensor:
    # As in torch's own collation; share_memory_() would copy memory that has no content yet.
    storage = torch.UntypedStorage._new_shared(max(size_bytes, 1))  # type: ignore[no-untyped-call]  # noqa: SLF001
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size_bytes,), (1,))


def _receive(
    number: int,
    worker: int,
    slot: int | None,
    piece: torch.Tensor | None,
    parts: Mapping[str, Any],
) -> SharedBatch:
    """Unpack a batch from a worker; called by pickle."""
    pool = _POOLS.get(number)
    if slot is not None and pool is not None:
        piece = pool.receive(worker, slot, piece)
    return SharedBatch(torch.empty(0) if piece is None else piece, parts)


# Counters of loader workers, in memory that the training process also sees.
# Each worker writes a row of its own, so no process waits for another. The training process reads
# numbers that may be slightly old.


MOST_WORKERS = 512
_NAMED_UNREADABLE = 16


@dataclass(slots=True)
class StreamFacts:
    """The work of one worker, or of all together, so far.

    Attributes:
        samples: Samples yielded.
        frames: Camera frames yielded, including the frames of windows.
        episodes: Episodes that entered the pool.
        cache_hits: How often a needed decoder was open.
        cache_misses: How often a needed decoder had to be opened.
        cache_evictions: Decoders closed to make room.
        cache_size: Decoders open now.
        fetched_bytes: Bytes fetched from remote stores.
        unreadable: Frames that could not be decoded.
        rows_ns: Nanoseconds spent on reading rows and fetching bytes.
        decode_ns: Nanoseconds spent on decoding frames.
        assemble_ns: Nanoseconds spent on assembling samples, without decoding.
    """

    samples: int = 0
    frames: int = 0
    episodes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_evictions: int = 0
    cache_size: int = 0
    fetched_bytes: int = 0
    unreadable: int = 0
    rows_ns: int = 0
    decode_ns: int = 0
    assemble_ns: int = 0

    def __add__(self, other: StreamFacts) -> StreamFacts:
        return StreamFacts(*map(add, astuple(self), astuple(other)))

    @property
    def hit_rate(self) -> float | None:
        """Share of needed decoders that were open; None if none was needed."""
        wanted = self.cache_hits + self.cache_misses
        return self.cache_hits / wanted if wanted else None

    @property
    def video_decoder_cache(self) -> dict[str, float | int | None]:
        """The counts of the decoder cache, as in results of ``probe run``."""
        return {
            "hits": self.cache_hits,
            "misses": self.cache_misses,
            "evictions": self.cache_evictions,
            "hit_rate": self.hit_rate,
            "size": self.cache_size,
        }


_NAMES = [field.name for field in fields(StreamFacts)]
_PLACE_OF = {name: place for place, name in enumerate(_NAMES)}


class UnreadablePlace(NamedTuple):
    """A frame that could not be decoded: positions of camera and episode, and the frame."""

    camera: int
    episode: int
    frame: int


class WorkerCounters:
    """The row of one worker; several threads may write to it."""

    def __init__(
        self,
        row: IntArray,
        unreadable: IntArray,
        by_camera: IntArray,
    ) -> None:
        self._row = row
        self._unreadable = unreadable
        self._by_camera = by_camera
        self._lock = threading.Lock()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a fact of `StreamFacts`."""
        with self._lock:
            self._row[_PLACE_OF[name]] += amount

    def put(self, name: str, value: int) -> None:
        """Set a fact of `StreamFacts`."""
        with self._lock:
            self._row[_PLACE_OF[name]] = value

    def name_unreadable(self, place: UnreadablePlace) -> None:
        """Count a frame that could not be decoded, and remember it if it is among the first 16."""
        with self._lock:
            number = int(self._row[_PLACE_OF["unreadable"]])
            if number < _NAMED_UNREADABLE:
                self._unreadable[number] = place
            self._row[_PLACE_OF["unreadable"]] = number + 1
            self._by_camera[place.camera] += 1


class Counters:
    """The rows of all workers. Processes can receive it by fork or by torch's pickling."""

    def __init__(self, num_cameras: int) -> None:
        self._rows = shared_numbers(MOST_WORKERS, len(_NAMES))
        self._unreadable = shared_numbers(MOST_WORKERS, _NAMED_UNREADABLE, 3)
        self._by_camera = shared_numbers(MOST_WORKERS, num_cameras)

    def of_worker(self, worker: int) -> WorkerCounters:
        """Return the row of a worker."""
        return WorkerCounters(
            self._rows[worker].numpy(),
            self._unreadable[worker].numpy(),
            self._by_camera[worker].numpy(),
        )

    def workers(self) -> list[StreamFacts]:
        """Return the facts of each worker, up to the last one that did anything."""
        rows = self._rows.numpy().copy()
        busy = np.flatnonzero(rows.any(axis=1))
        return [StreamFacts(*row) for row in rows[: int(busy[-1]) + 1 if len(busy) else 0].tolist()]

    def total(self) -> StreamFacts:
        """Return the sum over workers."""
        return StreamFacts(*self._rows.sum(dim=0).tolist())

    def unreadable(self) -> list[UnreadablePlace]:
        """Return the first frames of each worker that could not be decoded, without duplicates."""
        found: set[UnreadablePlace] = set()
        for worker, facts in enumerate(self.workers()):
            named = min(facts.unreadable, _NAMED_UNREADABLE)
            found.update(
                UnreadablePlace(*place) for place in self._unreadable[worker, :named].tolist()
            )
        return sorted(found)

    def unreadable_by_camera(self) -> list[int]:
        """Return how many frames of each camera could not be decoded."""
        counts: list[int] = self._by_camera.sum(dim=0).tolist()
        return counts

    def reset(self) -> None:
        """Set all counters to zero; call it only while no worker runs."""
        self._rows.zero_()
        self._by_camera.zero_()


# The epoch of each pass over a stream, on which the workers of the pass agree.


# Number of passes that workers may still look for.
_PASSES = 16
# Columns of the log: the number that torch drew, the epoch, then one column per worker.
_DRAWN, _EPOCH, _JOINED = range(3)
_NOT_DRAWN = -1  # for a pass in the process itself; torch's numbers are at least 0


class PassLog:
    """Counts the passes over a stream: each pass is the epoch after the epoch of the previous pass.

    torch's `DataLoader` begins a pass in its workers alone, and the training process then runs no
    code of the stream. Workers recognise a common pass by the random number that torch drew for
    them. So the first worker enters this number with the next epoch, and the others find it.
    Numbers can be equal, for persistent workers or after the same ``manual_seed``. Then the workers
    that have joined distinguish the passes: a worker joins each pass once, in the order in which
    they began.

    It needs no lock, which would stay locked if torch ended its worker: one number counts the
    passes, and workers that come at the same time write the same entries.

    Not guaranteed: different epochs for passes of different loaders that begin within the same
    microseconds; and, for a worker that torch ended before it joined, a distinction of equal
    numbers.
    """

    def __init__(self) -> None:
        # One row per pass, in turn; the last row holds the number of passes.
        self._rows = shared_numbers(_PASSES + 1, _JOINED + MOST_WORKERS)
        self.next_epoch = 0

    @property
    def next_epoch(self) -> int:
        """The epoch of the pass that begins next."""
        return int(self._row(self._count())[_EPOCH]) + 1

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._enter(self._count() + 1, _NOT_DRAWN, epoch - 1)

    def begin(self) -> int:
        """Return the epoch of the pass that begins in this process or that its worker joins."""
        count = self._count()
        info = get_worker_info()
        if info is None:
            return self._enter(count + 1, _NOT_DRAWN, self.next_epoch)
        drawn = info.seed - info.id
        # The oldest row is left out: another worker may be writing the next pass there.
        for number in range(max(1, count - _PASSES + 2), count + 1):
            row = self._row(number)
            if row[_DRAWN] == drawn and row[_JOINED + info.id] != number:
                row[_JOINED + info.id] = number
                return int(row[_EPOCH])
        epoch = int(self._row(count)[_EPOCH]) + 1
        self._row(count + 1)[_JOINED + info.id] = count + 1
        return self._enter(count + 1, drawn, epoch)

    def _enter(self, number: int, drawn: int, epoch: int) -> int:
        """Enter a pass, and count it last, so counted passes are complete."""
        self._row(number)[: _EPOCH + 1] = drawn, epoch
        if self._count() < number:
            self._rows[_PASSES, 0] = number
        return epoch

    def _count(self) -> int:
        return int(self._rows[_PASSES, 0])

    def _row(self, number: int) -> IntArray:
        row: IntArray = self._rows[number % _PASSES].numpy()
        return row
