"""The loaders that a run can measure, behind one interface, and how they are timed.

Timing begins with the latency of the first batch. The time that counts begins when the last warm-up
batch has arrived. It ends with the first batch that arrives after ``duration_s``, so it holds whole
batches only. A loader that reaches its end within this time starts its next epoch; this counts,
since training pays for it too.

There are two latencies. A *batch wait* is how long the consumer waited for a batch; with workers
ahead of it most waits are short and some are long. A *sample latency* is the wait of its batch
divided by the samples in it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, override
from unittest.mock import patch

import numpy as np

from leconvert.bench.environment import require_packages
from leconvert.bench.options import Deltas, RunOptions, mode_deltas, read_deltas
from leconvert.loading import (
    DatasetMeta,
    EpisodeStream,
    StreamFacts,
    StreamLoader,
    choose_backend,
    find_rank,
    load_meta,
    local_rank,
    make_windows,
)
from leconvert.support.errors import UsageError
from leconvert.support.machine import allowed_cores
from leconvert.support.values import dataclass
from leconvert.transfer.files import files_at

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts that are kept about a batch."""

    samples: int  # number of its samples
    episodes: int  # number of distinct episodes among them
    worker: int  # the worker that made it; 0 without workers
    frames: int = 0  # camera frames that were decoded for it


@dataclass(frozen=True, slots=True)
class Measured:
    """One timed pass."""

    first_batch_latency_s: float  # from the request for the iterator to the first batch
    wallclock_s: float  # from that request to the last batch, warm-up included
    steady_window_s: float  # the time that counts
    epochs: int  # passes over the data that were begun
    facts: tuple[BatchFacts, ...]  # of every batch that counts, in order of arrival
    waits_s: tuple[float, ...]  # the wait for each of them, in seconds

    @property
    def samples(self) -> int:
        """Number of samples that count."""
        return sum(fact.samples for fact in self.facts)

    @property
    def frames(self) -> int:
        """Number of decoded camera frames that count."""
        return sum(fact.frames for fact in self.facts)

    @property
    def frames_per_s(self) -> float:
        """Decoded camera frames a second in the time that counts; 0 if it is empty."""
        return self.frames / self.steady_window_s if self.steady_window_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples a second in the time that counts; 0 if it is empty."""
        return self.samples / self.steady_window_s if self.steady_window_s > 0 else 0.0

    @property
    def shuffle_randomness(self) -> float:
        """Distinct episodes in a batch over its size, as the mean over all batches."""
        shares = [fact.episodes / fact.samples for fact in self.facts if fact.samples]
        return sum(shares) / len(shares) if shares else 0.0

    def of_workers(self, num_workers: int) -> tuple[list[int], list[int]]:
        """Return samples and frames that each worker made; one entry if there are no workers."""
        samples: Counter[int] = Counter()
        frames: Counter[int] = Counter()
        for fact in self.facts:
            samples[fact.worker] += fact.samples
            frames[fact.worker] += fact.frames
        workers = range(max(1, num_workers))
        return [samples[worker] for worker in workers], [frames[worker] for worker in workers]

    def sample_latencies_s(self) -> list[float]:
        """Return each sample's share of the wait for its batch, in seconds."""
        return [
            wait / fact.samples
            for fact, wait in zip(self.facts, self.waits_s, strict=True)
            for _ in range(fact.samples)
        ]


def measure[Batch](
    open_epoch: Callable[[int], Iterable[Batch]],
    facts_of: Callable[[Batch], BatchFacts],
    *,
    warmup_batches: int,
    duration_s: float,
    num_batches: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_batch: Callable[[float], None] = lambda _: None,
) -> Measured:
    """Draw batches and time them.

    Args:
        open_epoch: Returns the batches of an epoch.
        facts_of: Returns the facts to keep about a batch.
        warmup_batches: Number of batches that do not count.
        duration_s: Minimum of seconds that count.
        num_batches: Maximum of batches that count; None for no limit.
        clock: Returns the time in seconds.
        on_batch: Called for every batch that counts, with the seconds since the counted time began.

    Returns:
        The measurement. It has no facts if the loader gave no batch after the warm-up, which
        happens only if an epoch is empty.
    """
    started = clock()
    batches = iter(open_epoch(0))
    epochs = 1
    drawn_in_epoch = drawn = 0
    facts: list[BatchFacts] = []
    waits: list[float] = []
    first_latency = 0.0
    window_began = arrived = asked = started
    while True:
        batch = next(batches, None)
        if batch is None:
            if not drawn_in_epoch:
                break
            batches = iter(open_epoch(epochs))
            epochs += 1
            drawn_in_epoch = 0
            continue
        arrived = clock()
        fact = facts_of(batch)
        del batch
        drawn += 1
        drawn_in_epoch += 1
        if drawn == 1:
            first_latency = arrived - started
        if drawn <= warmup_batches:
            window_began = arrived
        else:
            facts.append(fact)
            waits.append(arrived - asked)
            on_batch(arrived - window_began)
            if arrived - window_began >= duration_s:
                break
        if num_batches is not None and len(facts) >= num_batches:
            break
        asked = clock()
    return Measured(
        first_batch_latency_s=first_latency,
        wallclock_s=arrived - started,
        steady_window_s=arrived - window_began if facts else 0.0,
        epochs=epochs,
        facts=tuple(facts),
        waits_s=tuple(waits),
    )


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return p50, p95 and p99 in milliseconds; None each if there are no values."""
    values = np.fromiter(seconds, np.float64)
    if not len(values):
        return {f"p{rank}": None for rank in _PERCENTILES}
    found = np.percentile(values, _PERCENTILES) * 1000
    return {f"p{rank}": float(value) for rank, value in zip(_PERCENTILES, found, strict=True)}


NO_SINGLE_PASS: dict[str, float | None] = dict.fromkeys(
    ("single_proc_samples_per_s", "fetch_pct", "decode_pct")
)


@contextmanager
def timed_calls(
    owner: Any, method: str, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Callable[[], float]]:
    """Time every call of a method while the block runs, and restore the method.

    Yields:
        A function that returns the seconds of all calls so far.
    """
    spent = 0.0
    original = getattr(owner, method)

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal spent
        began = clock()
        try:
            return original(*arguments, **options)
        finally:
            spent += clock() - began

    with patch.object(owner, method, timed):
        yield lambda: spent


def time_single_pass(
    samples: Iterable[Mapping[str, Any]],
    decoding_s: Callable[[], float] | None,
    *,
    num_warmup: int,
    num_samples: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float | None]:
    """Draw samples one by one, in one process and without batches; return the rate and shares.

    ``decode_pct`` is the share of time inside the frame decoder, opening included. ``fetch_pct`` is
    the rest: reading rows and bytes, windows, assembling the sample.

    Args:
        samples: The samples.
        decoding_s: Returns the seconds spent on decoding so far; None if nothing is decoded.
        num_warmup: Number of samples that are not timed.
        num_samples: Number of samples that are timed after these.
        clock: Returns the time in seconds.
    """
    drawn = iter(samples)
    for _ in islice(drawn, num_warmup):
        pass
    before = decoding_s() if decoding_s else 0.0
    began = clock()
    count = sum(1 for _ in islice(drawn, num_samples))
    seconds = clock() - began
    if not count or seconds <= 0:
        return NO_SINGLE_PASS
    decoding = 100 * (decoding_s() - before) / seconds if decoding_s else 0.0
    return {
        "single_proc_samples_per_s": count / seconds,
        "fetch_pct": 100 - decoding,
        "decode_pct": decoding,
    }


# The loaders. Each gives batches for the timing, samples in this process for the pass that
# separates reading from decoding, and the counters of its decoder caches. Abilities that a loader
# of LeRobot's lacks (shares of several processes, decoding on a GPU) are refused or noted, never
# silently ignored.


Sample = Mapping[str, Any]

WORKER_KEY = "_worker"
"""The key of a batch under which it says which worker made it."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The dataset and options on which a loader is opened."""

    options: RunOptions  # the options of the run, with every default filled in
    meta: DatasetMeta  # the dataset's metadata
    deltas: Deltas  # windows in seconds by feature; empty for none
    episodes: Sequence[int] | None  # indices of the episodes of this node's share; None for all


SampleToCheck = tuple[Sample, Mapping[str, str]]
"""A sample, and the cameras with a frame that could not be decoded, each with the reason."""


class LoaderUnderTest(ABC):
    """An opened loader.

    Attributes:
        backend: The library that decodes its videos.
        num_shards: Number of pieces that its workers can take in parallel.
        loaded_episodes: Number of episodes that this process loads.
        pool_size: Number of episodes that it mixes (frames for LeRobot's streaming class); None if
            all frames are shuffled.
        notes: Remarks for the reader of a result.
    """

    backend: str
    num_shards: int
    loaded_episodes: int
    pool_size: int | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        # The loader itself decides whether times suit the frame rate.
        self._windows = make_windows(
            subject.deltas,
            fps=subject.meta.fps,
            tolerance_s=math.inf,
            features=subject.meta.features,
        )
        self._by_index = np.argsort(subject.meta.table.index)
        self._loader: Any = None

    @abstractmethod
    def facts(self) -> StreamFacts:
        """Return the counts of all workers' decoder caches, and of frames that do not decode."""

    @abstractmethod
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        """Return the batches of an epoch; workers stay between epochs."""

    def close_workers(self) -> None:
        """End the workers; samples can still be drawn in this process."""
        self._loader = None  # its iterator owns the workers

    @abstractmethod
    def single(self) -> AbstractContextManager[tuple[Iterator[Sample], Callable[[], float]]]:
        """Return samples made in this process, and a function for the seconds of their decoding."""

    @abstractmethod
    def to_check(self) -> Iterator[SampleToCheck] | None:
        """Return samples made in this process for comparison; None for the reference itself."""

    def facts_of(self, batch: Sample) -> BatchFacts:
        """Return the facts to keep about a batch.

        The distinct frames of a sample's windows count, since each is decoded once. Steps beyond an
        episode's end all show its last frame, which is one of them.
        """
        table = self.subject.meta.table
        episodes = batch["episode_index"].numpy()
        places = self._by_index[np.searchsorted(table.index, episodes, sorter=self._by_index)]
        at, lengths = batch["frame_index"].numpy(), table.length[places]
        frames = 0
        for camera in self.subject.meta.camera_keys:
            window = self._windows.get(camera)
            frames += len(at) if window is None else window.distinct_frames(at, lengths)
        return BatchFacts(len(at), len(np.unique(places)), int(batch.get(WORKER_KEY, 0)), frames)


def open_loader(subject: Subject) -> LoaderUnderTest:
    """Open the loader that the options name; no worker reads yet."""
    name = subject.options.loader
    require_packages("torch", *(("lerobot", "datasets") if name != "stream" else ()))
    if name == "stream":
        return StreamUnderTest(subject)
    if subject.options.decode_device != "cpu":
        raise UsageError(
            f"The loader {name} decodes on the CPU only.",
            next_step="Choose --loader stream for --decode-device cuda.",
        )
    from leconvert.bench.lerobot_loaders import MapUnderTest, StreamingUnderTest

    return MapUnderTest(subject) if name == "map" else StreamingUnderTest(subject)


def loader_settings(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of a torch ``DataLoader`` that all loaders share.

    Pinned memory speeds up copies to a GPU. Frames that are decoded on the GPU need no copy, and
    CUDA must not be used in a forked process.
    """
    decodes_on_gpu = options.decode_device != "cpu"
    settings: dict[str, Any] = {
        "batch_size": options.batch_size,
        "num_workers": options.num_workers,
        "pin_memory": options.device != "cpu" and not decodes_on_gpu,
    }
    if options.num_workers:
        settings["prefetch_factor"] = options.prefetch_factor
        settings["persistent_workers"] = True
        if decodes_on_gpu:
            settings["multiprocessing_context"] = "spawn"
    return settings


def _unreadable_in(stream: EpisodeStream, sample: Sample) -> dict[str, str]:
    """Return the cameras whose frames in the sample drawn last could not be decoded."""
    seen = f"in the window of episode {int(sample['episode_index'])}"
    unreadable = {
        camera: f"{camera} {seen}, frame {int(sample['frame_index'])}"
        for camera, count in stream.unreadable_by_camera().items()
        if count
    }
    for frame in stream.unreadable():  # not all of them are named
        place = f"of episode {frame.episode_index}, frame {frame.frame_index}"
        unreadable[frame.camera] = f"{frame.camera} {place}: {frame.path}"
    return unreadable


class StreamUnderTest(LoaderUnderTest):
    """`EpisodeStream` through `StreamLoader`; in a check, frames that do not decode are counted."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.backend = choose_backend("auto", subject.options.decode_device)
        self._stream = self._opened(subject)
        settings = loader_settings(subject.options)
        self._loader = StreamLoader(self._stream, **settings)
        self.loaded_episodes = len(self._stream.rank_episodes())
        self.pool_size = self._stream.episode_pool_size
        self.num_shards = self.loaded_episodes

    @override
    def facts(self) -> StreamFacts:
        return self._stream.facts()

    @override
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        self._loader.set_epoch(epoch)
        for worker, batch in zip(self._loader.batch_workers(), self._loader, strict=True):
            batch[WORKER_KEY] = worker
            yield batch

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Callable[[], float]]]:
        stream = self._opened(self.subject)
        yield iter(stream), lambda: stream.facts().decode_ns / 1e9

    @override
    def to_check(self) -> Iterator[SampleToCheck]:
        stream = self._opened(self.subject)
        for sample in stream:
            yield sample, _unreadable_in(stream, sample)
            stream.reset_facts()  # the next counts belong to the next sample

    @staticmethod
    def _opened(subject: Subject) -> EpisodeStream:
        # Black frames cost no decoding, so they may count only if a check reports them, and fails.
        return open_stream(
            subject.options,
            subject.deltas,
            episodes=subject.episodes,
            on_unreadable="count" if subject.options.check else "raise",
        )


def open_stream(options: RunOptions, deltas: Deltas, **more: Any) -> EpisodeStream:
    """Open the stream that options ask for; the stream chooses what they leave open."""
    return EpisodeStream(
        str(options.root),
        data_files_root=options.data_files_root,
        revision=options.revision,
        delta_timestamps=deltas or None,
        seed=options.seed,
        tolerance_s=options.tolerance_s,
        decode_device=options.decode_device,
        rank=options.rank,
        world_size=options.world_size,
        return_uint8=True,  # as for the other loaders, and the fastest
        episode_pool_size=options.episode_pool_size,
        video_decoder_cache_size=options.video_decoder_cache_size,
        video_fetch_workers=options.video_fetch_workers,
        **more,
    )


def open_stream_loader(options: RunOptions) -> tuple[StreamLoader, Deltas]:
    """Return the batches of this rank for a training, and the windows of their samples."""
    rank, world_size = find_rank(options.rank, options.world_size)
    if options.decode_device == "cuda" and world_size > 1:
        options = replace(options, decode_device=f"cuda:{local_rank()}")
    options = options.placed().resolved(
        cores=allowed_cores(), cameras=1, rank=rank, world_size=world_size
    )
    deltas: Deltas = {}
    if options.mode != "single" or options.deltas is not None:
        deltas = windows_of(
            options, load_meta(files_at(str(options.root), revision=options.revision))
        )
    stream = open_stream(options, deltas, max_episodes=options.max_episodes)
    return StreamLoader(stream, **loader_settings(options)), deltas


def windows_of(options: RunOptions, meta: DatasetMeta) -> Deltas:
    """Return the windows that options ask for, in seconds by feature."""
    features = tuple(meta.features)
    if options.deltas is not None:
        return read_deltas(Path(options.deltas), features)
    return mode_deltas(options.mode, meta.camera_keys, features, float(meta.fps))
