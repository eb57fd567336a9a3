"""The loaders that a run can measure, behind one face.

Each gives batches for the timing, samples in this process for the pass that tells reading from
decoding, and the counters of its decoder caches. What a loader of LeRobot's cannot do (shares of
several processes, decoding on a GPU) is refused or noted, never quietly left out.
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, override

import numpy as np
import torch
from lerobot.datasets import video_utils
from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset
from lerobot.datasets.video_utils import VideoDecoderCache
from torch.utils.data import DataLoader, Sampler, default_collate, get_worker_info

from leconvert.errors import InstallationError, UsageError
from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.loading.metadata import DatasetMeta, make_windows
from leconvert.loading.order import Share, num_batches, turn_after
from leconvert.model import IntArray
from leconvert.probe.measure import BatchFacts, Stopwatch, Watch, timed_calls
from leconvert.probe.options import Deltas, RunOptions

__all__ = [
    "LoaderUnderTest",
    "MapUnderTest",
    "SampleToCheck",
    "Subject",
    "open_loader",
    "require_packages",
]


Sample = Mapping[str, Any]

WORKER_KEY = "_worker"
"""Under this key a batch says which worker made it."""

_EXTRAS = {
    "torch": ("torch", "pip install 'leconvert[probe]'"),
    "lerobot": ("LeRobot", "pip install 'lerobot[dataset]'"),
    "datasets": ("LeRobot's datasets", "pip install 'lerobot[dataset]'"),
}


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What happened in the decoder caches of all workers together.

    Attributes:
        hits: Look-ups that found an open decoder.
        misses: Look-ups that opened one.
        evictions: Decoders closed to make room.
        size: Decoders open at the end.
    """

    hits: int
    misses: int
    evictions: int
    size: int

    def as_record(self) -> dict[str, float | int | None]:
        """Return a JSON-serialisable mapping, with the share of look-ups that were hits."""
        looked = self.hits + self.misses
        return {
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "hit_rate": self.hits / looked if looked else None,
            "size": self.size,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What a loader is opened on.

    Attributes:
        options: The run's, with every default filled in.
        meta: The dataset's metadata.
        deltas: Windows in seconds by feature; empty for none.
        episodes: Indices of the episodes of this node's share; None for all.
    """

    options: RunOptions
    meta: DatasetMeta
    deltas: Deltas
    episodes: Sequence[int] | None

    def windows(self) -> dict[str, list[float]] | None:
        """Return the windows as LeRobot takes them."""
        return {key: list(seconds) for key, seconds in self.deltas.items()} or None


class SampleToCheck(NamedTuple):
    """A sample of a loader that goes on where a frame cannot be decoded.

    Attributes:
        sample: The sample.
        unreadable: Cameras with a frame in it that could not be decoded, and which or why.
    """

    sample: Sample
    unreadable: Mapping[str, str]


class LoaderUnderTest(ABC):
    """A loader, opened.

    Attributes:
        num_shards: Pieces that its workers can take side by side.
        loaded_episodes: Episodes that this process loads.
        notes: What the reader of a result should know.
    """

    num_shards: int
    loaded_episodes: int
    notes: tuple[str, ...] = ()

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        # Whether times suit the frame rate is for the loader to say.
        self._windows = make_windows(
            subject.deltas,
            fps=subject.meta.fps,
            tolerance_s=math.inf,
            features=subject.meta.features,
        )
        self._by_index = np.argsort(subject.meta.episodes.index)

    @property
    @abstractmethod
    def unreadable_frames(self) -> int:
        """Frames that could not be decoded so far; loaders that stop at the first say 0."""

    @abstractmethod
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        """Return the batches of an epoch; workers stay between epochs."""

    @abstractmethod
    def cache_counts(self) -> CacheCounts | None:
        """Return the counters of all workers' decoder caches; None where nothing is decoded."""

    @abstractmethod
    def close_workers(self) -> None:
        """End the workers; samples can still be drawn in this process."""

    @abstractmethod
    def single(self) -> AbstractContextManager[tuple[Iterator[Sample], Watch]]:
        """Return samples made in this process, and what their decoding takes."""

    @abstractmethod
    def to_check(self) -> Iterator[SampleToCheck] | None:
        """Return samples made in this process to be compared; None for the reference itself."""

    def facts_of(self, batch: Sample) -> BatchFacts:
        """Return what is kept of a batch.

        Of each sample the distinct frames of its windows count, as they are decoded once. Steps
        beyond an episode's end all show its last frame, which is one of them.
        """
        places = self._places_of(batch["episode_index"].numpy())
        table = self.subject.meta.episodes
        at, lengths = batch["frame_index"].numpy(), table.length[places]
        frames = 0
        for camera in self.subject.meta.camera_keys:
            window = self._windows.get(camera)
            frames += len(at) if window is None else window.distinct_frames(at, lengths)
        return BatchFacts(len(at), len(np.unique(places)), int(batch.get(WORKER_KEY, 0)), frames)

    def _places_of(self, episodes: IntArray) -> IntArray:
        """Return where the table of episodes has those of these indices."""
        order = self._by_index
        return order[np.searchsorted(self.subject.meta.episodes.index, episodes, sorter=order)]


def open_loader(subject: Subject) -> LoaderUnderTest:
    """Open the loader that the options name; nothing is read yet by any worker."""
    name = subject.options.loader
    require_packages("torch", *(("lerobot", "datasets") if name != "stream" else ()))
    if name == "stream":
        return StreamUnderTest(subject)
    if subject.options.decode_device != "cpu":
        raise UsageError(
            f"The loader {name} decodes on the CPU only.",
            next_step="Choose --loader stream for --decode-device cuda.",
        )

    return MapUnderTest(subject) if name == "map" else StreamingUnderTest(subject)


def require_packages(*names: str) -> None:
    """Fail with what to install if a package is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            title, command = _EXTRAS[name]
            raise InstallationError(
                f"This needs {title}, which is not installed.", next_step=f"Run `{command}`."
            )


def loader_settings(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of a torch ``DataLoader`` that all loaders share.

    Pinned memory speeds up copies to a GPU, but frames that are decoded there are there already,
    and CUDA must not be used in a process that was forked.
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


# ------------------------------------------------------------------------------------------------
# Our own stream under test.


class _DecodingTime:
    """What the stream itself says that it spent on decoding."""

    def __init__(self, stream: EpisodeStream) -> None:
        self._stream = stream

    @property
    def seconds(self) -> float:
        return self._stream.facts().decode_ns / 1e9


def _unreadable_in(stream: EpisodeStream, sample: Sample) -> dict[str, str]:
    """Return which cameras' frames of the sample that was drawn last could not be decoded."""
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


def _episodes_of_rank(stream: EpisodeStream) -> int:
    """Return how many episodes a rank loads in the first epoch."""
    if stream.world_size == 1:
        return len(stream.episode_indices)
    share = Share(stream.rank, stream.world_size)
    blocks = stream.coordinates(0, share)
    return len(set[int]().union(*(np.unique(block.episodes).tolist() for block in blocks)))


class StreamUnderTest(LoaderUnderTest):
    """`EpisodeStream` through `StreamLoader`; frames that cannot be decoded are counted."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._stream = self._opened(subject)
        settings = loader_settings(subject.options)
        self._loader: StreamLoader | None = StreamLoader(self._stream, **settings)
        self.loaded_episodes = _episodes_of_rank(self._stream)
        self.num_shards = self.loaded_episodes

    @property
    @override
    def unreadable_frames(self) -> int:
        return self._stream.facts().unreadable

    @override
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        assert self._loader is not None
        self._loader.set_epoch(epoch)
        workers = max(1, self._loader.num_workers)
        stream = self._stream
        frames = stream.order.worker_frames(epoch, stream.rank, stream.world_size, workers)
        size = self._loader.batch_size
        available = [num_batches(count, size, drop_last=False) for count in frames.tolist()]
        for number, batch in enumerate(self._loader):
            batch[WORKER_KEY] = turn_after(number, available, workers).next_worker
            yield batch

    @override
    def cache_counts(self) -> CacheCounts | None:
        if not self.subject.meta.video_keys:
            return None
        facts = self._stream.facts()
        return CacheCounts(
            facts.cache_hits, facts.cache_misses, facts.cache_evictions, facts.cache_size
        )

    @override
    def close_workers(self) -> None:
        self._loader = None

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Watch]]:
        stream = self._opened(self.subject)
        yield iter(stream), _DecodingTime(stream)

    @override
    def to_check(self) -> Iterator[SampleToCheck]:
        stream = self._opened(self.subject)
        for sample in stream:
            yield SampleToCheck(sample, _unreadable_in(stream, sample))
            stream.reset_facts()  # what is counted from here on is the next sample's

    @staticmethod
    def _opened(subject: Subject) -> EpisodeStream:
        options = subject.options
        chosen: dict[str, Any] = {
            "episode_pool_size": options.episode_pool_size,
            "video_decoder_cache_size": options.video_decoder_cache_size,
            "video_fetch_workers": options.video_fetch_workers,
        }
        return EpisodeStream(
            str(options.root),
            data_files_root=options.data_files_root,
            revision=options.revision,
            delta_timestamps=subject.windows(),
            episodes=subject.episodes,
            seed=options.seed,
            decode_device=options.decode_device,
            on_unreadable="count",
            rank=options.rank,
            world_size=options.world_size,
            **{name: value for name, value in chosen.items() if value is not None},
        )


# ------------------------------------------------------------------------------------------------
# LeRobot's own loaders under test: the map-style dataset, and the released streaming one.
#
# They are measured as a user would use them, but for two things: their decoder caches are
# replaced by ones that count, and each batch says which worker made it.


_HITS, _MISSES, _EVICTIONS, _SIZE = range(4)
_DECODING = "_query_videos"
# What the released streaming dataset takes where nothing is said.
_FRAMES_BUFFERED = 1000
_MOST_SHARDS = 16
_LOCAL_NAME = "local/dataset"
# Begins a sample's key that says why a camera's picture is black.
_FAILED = "_failed."


class _CountingCache(VideoDecoderCache):  # type: ignore[misc]
    """LeRobot's decoder cache, with counters in memory that all workers share."""

    def __init__(self, counts: torch.Tensor, max_size: int | None) -> None:
        super().__init__(*([] if max_size is None else [max_size]))
        self._counts = counts

    def get_decoder(self, video_path: str) -> Any:
        info = get_worker_info()
        row = self._counts[0 if info is None else info.id]
        was_open, size = video_path in self, self.size()
        decoder = super().get_decoder(video_path)
        row[_HITS if was_open else _MISSES] += 1
        # Threads of one sample open decoders side by side: a difference may show another's too.
        row[_EVICTIONS] += 0 if was_open else max(0, size + 1 - self.size())
        row[_SIZE] = self.size()
        return decoder


class _TaggedCollate:
    """torch's collate function; the batch then says which worker made it.

    Args:
        unreadable: Counts, by worker, the pictures that stand in for frames that did not decode.
    """

    def __init__(self, unreadable: torch.Tensor) -> None:
        self._unreadable = unreadable

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for sample in samples:
            self._unreadable[worker] += len(_taken_out(sample))
        batch: dict[str, Any] = default_collate(samples)
        batch[WORKER_KEY] = worker
        return batch


def _shared(*shape: int) -> torch.Tensor:
    """Return zeros that workers write and this process reads."""
    zeros = torch.zeros(shape, dtype=torch.int64)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


def _taken_out(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """Remove from a sample what it says about cameras that failed: camera and reason."""
    marks = [key for key in sample if key.startswith(_FAILED)]
    return [(key.removeprefix(_FAILED), sample.pop(key)) for key in marks]


class _ShuffledShare(Sampler[int]):
    """A new permutation of all frames each epoch, of which a rank takes its share."""

    def __init__(self, length: int, seed: int, rank: int, world_size: int) -> None:
        self._length = length
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        order = torch.randperm(self._length, generator=generator)
        yield from order[self._rank :: self._world_size].tolist()

    def __len__(self) -> int:
        return len(range(self._rank, self._length, self._world_size))


class _LeRobotUnderTest(LoaderUnderTest):
    """What both have in common."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        workers = subject.options.num_workers or 0
        self._counts = _shared(max(1, workers), 4)
        self._unreadable = _shared(max(1, workers))
        self._loader: DataLoader[Any] | None = None

    @property
    @override
    def unreadable_frames(self) -> int:
        return int(self._unreadable.sum())

    @override
    def cache_counts(self) -> CacheCounts | None:
        if not self.subject.meta.video_keys:
            return None
        return CacheCounts(*self._counts.sum(0).tolist())

    @override
    def close_workers(self) -> None:
        # The iterator owns the workers; it goes with the loader.
        self._loader = None

    def _cache(self) -> _CountingCache:
        return _CountingCache(self._counts, self.subject.options.video_decoder_cache_size)

    def _place(self) -> dict[str, Any]:
        """Return the arguments that say where the dataset is."""
        options = self.subject.options
        if options.data_files_root is not None:
            raise UsageError(
                f"The loader {options.loader} knows no --data-files-root.",
                next_step="Choose --loader stream, or leave the option out.",
            )
        root = str(options.root)
        if "://" not in root:
            return {"repo_id": options.repo_id or _LOCAL_NAME, "root": root}
        name = root.removeprefix("hf://datasets/").strip("/")
        if "://" in name:
            raise UsageError(
                f"The loader {options.loader} does not read {root}.",
                next_step="Choose --loader stream, or give a local folder or hf://datasets/….",
            )
        revision = {} if options.revision is None else {"revision": options.revision}
        return {"repo_id": name, **revision}


class MapUnderTest(_LeRobotUnderTest):
    """``LeRobotDataset`` with a global shuffle, a share a rank."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        options = subject.options
        self.dataset = LeRobotDataset(
            **self._place(),
            episodes=None if subject.episodes is None else list(subject.episodes),
            delta_timestamps=subject.windows(),
            return_uint8=True,
        )
        # Workers inherit it, each with decoders of its own.
        video_utils._default_decoder_cache = self._cache()  # noqa: SLF001
        self._sampler = _ShuffledShare(
            len(self.dataset), options.seed, options.rank or 0, options.world_size or 1
        )
        self.num_shards = len(subject.meta.episodes.data_paths)
        self.loaded_episodes = self.dataset.num_episodes

    @override
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        self._sampler.epoch = epoch
        if self._loader is None:
            self._loader = DataLoader(
                self.dataset,
                sampler=self._sampler,
                collate_fn=_TaggedCollate(self._unreadable),
                **loader_settings(self.subject.options),
            )
        return self._loader

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Stopwatch]]:
        with timed_calls(DatasetReader, _DECODING) as watch:
            yield (self.dataset[place] for place in self._sampler), watch

    @override
    def to_check(self) -> None:
        return None


class StreamingUnderTest(_LeRobotUnderTest):
    """``StreamingLeRobotDataset`` as released; it knows neither ranks nor chosen episodes."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        options = subject.options
        if subject.episodes is not None:
            raise UsageError(
                "The loader stream-lerobot reads all episodes, whatever is asked of it.",
                next_step="Leave out --max-episodes and --num-partitions.",
            )
        if (options.world_size or 1) > 1:
            self.notes += ("stream-lerobot ignores ranks: every process loads everything",)
        self.dataset = StreamingLeRobotDataset(
            **self._place(),
            delta_timestamps=subject.windows(),
            buffer_size=options.episode_pool_size or _FRAMES_BUFFERED,
            max_num_shards=options.max_buffer_input_shards or _MOST_SHARDS,
            seed=options.seed,
            return_uint8=True,
        )
        self.dataset.video_decoder_cache = self._cache()
        if options.check:
            # As released, the first frame that does not decode ends the stream.
            self._query = self.dataset._query_videos  # noqa: SLF001 - the one place that decodes
            self.dataset._query_videos = self._query_each  # noqa: SLF001
            self.notes += ("frames that stream-lerobot fails to decode are black and counted",)
        self.num_shards = int(self.dataset.num_shards)
        self.loaded_episodes = int(self.dataset.num_episodes)

    @override
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        del epoch  # it goes on drawing from its own generator
        if self._loader is None:
            self._loader = DataLoader(
                self.dataset,
                collate_fn=_TaggedCollate(self._unreadable),
                **loader_settings(self.subject.options),
            )
        return self._loader

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Stopwatch]]:
        with timed_calls(self.dataset, _DECODING) as watch:
            yield iter(self.dataset), watch

    @override
    def to_check(self) -> Iterator[SampleToCheck]:
        for sample in self.dataset:
            unreadable = dict(_taken_out(sample))
            yield SampleToCheck(sample, unreadable)

    def _query_each(self, times: Mapping[str, Sequence[float]], episode: int) -> dict[str, Any]:
        """Decode each camera by itself; one that fails gives black pictures, and says why."""
        frames: dict[str, Any] = {}
        for camera, seconds in times.items():
            try:
                frames |= self._query({camera: seconds}, episode)
            except Exception as error:  # noqa: BLE001 - LeRobot's errors are of many kinds
                first_line = str(error).strip().partition("\n")[0]
                frames[_FAILED + camera] = f"{camera} of episode {int(episode)}: {first_line}"
                height, width, channels = self.subject.meta.features[camera]["shape"]
                black = torch.zeros((len(seconds), channels, height, width), dtype=torch.uint8)
                frames[camera] = black[0] if len(seconds) == 1 else black
        return frames
