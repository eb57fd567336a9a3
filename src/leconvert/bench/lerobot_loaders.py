"""LeRobot's own loaders under test: the map-style dataset, and the released streaming one.

They are measured as a user would use them, except for two things: counting caches replace their
decoder caches, and each batch says which worker made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, override

import torch
from lerobot.datasets import video_utils
from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset
from lerobot.datasets.video_utils import VideoDecoderCache
from torch.utils.data import DataLoader, DistributedSampler, default_collate, get_worker_info

from leconvert.bench.loaders import (
    WORKER_KEY,
    LoaderUnderTest,
    Sample,
    SampleToCheck,
    Subject,
    loader_settings,
    timed_calls,
)
from leconvert.bench.options import RunOptions
from leconvert.loading import Counters, StreamFacts
from leconvert.support.errors import UsageError

_DECODING = "_query_videos"
# Defaults of the released streaming dataset.
_FRAMES_BUFFERED = 1000
_MOST_SHARDS = 16
_LOCAL_NAME = "local/dataset"
# Prefix of a sample's key that holds the reason for a camera's black picture.
_FAILED = "_failed."


class _CountingCache(VideoDecoderCache):  # type: ignore[misc]
    """LeRobot's decoder cache, with counters in memory that all workers share."""

    def __init__(self, counters: Counters, max_size: int | None) -> None:
        super().__init__(*([] if max_size is None else [max_size]))
        self._counters = counters

    def get_decoder(self, video_path: str) -> Any:
        counters = self._counters.of_worker(_worker())
        was_open, size = video_path in self, self.size()
        decoder = super().get_decoder(video_path)
        counters.add("cache_hits" if was_open else "cache_misses")
        # Threads of one sample open decoders in parallel, so a difference may include another
        # thread's.
        counters.add("cache_evictions", 0 if was_open else max(0, size + 1 - self.size()))
        counters.put("cache_size", self.size())
        return decoder


class _TaggedCollate:
    """torch's collate function; the batch then says which worker made it."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        worker = _worker()
        unreadable = sum(len(_taken_out(sample)) for sample in samples)
        self._counters.of_worker(worker).add("unreadable", unreadable)
        batch: dict[str, Any] = default_collate(samples)
        batch[WORKER_KEY] = worker
        return batch


def _worker() -> int:
    """Return the number of this worker; 0 in the process itself."""
    info = get_worker_info()
    return 0 if info is None else info.id


def _taken_out(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """Remove the marks of failed cameras from a sample, and return camera and reason of each."""
    marks = [key for key in sample if key.startswith(_FAILED)]
    return [(key.removeprefix(_FAILED), sample.pop(key)) for key in marks]


class _LeRobotUnderTest(LoaderUnderTest):
    """The common part of both loaders."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._counters = Counters(len(subject.meta.camera_keys))
        self.dataset: Any = None

    @override
    def facts(self) -> StreamFacts:
        return self._counters.total()

    def _batches(self, **more: Any) -> Iterable[Sample]:
        """Return the loader of the dataset; its workers stay between epochs."""
        if self._loader is None:
            self._loader = DataLoader(
                self.dataset,
                collate_fn=_TaggedCollate(self._counters),
                **more,
                **loader_settings(self.subject.options),
            )
        batches: Iterable[Sample] = self._loader
        return batches

    def _cache(self) -> _CountingCache:
        return _CountingCache(self._counters, self.subject.options.video_decoder_cache_size)


def _place(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of LeRobot's classes for a dataset's location."""
    if options.data_files_root is not None:
        raise UsageError(
            f"The loader {options.loader} does not support --data-files-root.",
            next_step="Use --loader stream, or leave --data-files-root out.",
        )
    root = str(options.root)
    if "://" not in root:
        return {"repo_id": options.repo_id or _LOCAL_NAME, "root": root}
    name = root.removeprefix("hf://datasets/").strip("/")
    if "://" in name:
        raise UsageError(
            f"The loader {options.loader} cannot read {root}.",
            next_step="Choose --loader stream, or give a local folder or hf://datasets/….",
        )
    revision = {} if options.revision is None else {"revision": options.revision}
    return {"repo_id": name, **revision}


def open_map(
    options: RunOptions,
    deltas: Mapping[str, Sequence[float]],
    episodes: Sequence[int] | None = None,
    *,
    return_uint8: bool = True,
) -> LeRobotDataset:
    """Open LeRobot's map-style dataset; with all episodes an item has its frame's number."""
    return LeRobotDataset(
        **_place(options),
        episodes=None if episodes is None else list(episodes),
        delta_timestamps=_windows(deltas),
        tolerance_s=options.tolerance_s,
        return_uint8=return_uint8,
    )


def _windows(deltas: Mapping[str, Sequence[float]]) -> dict[str, list[float]] | None:
    return {key: list(seconds) for key, seconds in deltas.items()} or None


class MapUnderTest(_LeRobotUnderTest):
    """``LeRobotDataset`` with a global shuffle, and a share for each rank."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        options = subject.options
        self.dataset = open_map(options, subject.deltas, subject.episodes)
        self.backend = self.dataset._video_backend  # noqa: SLF001 - LeRobot chose it
        # Workers inherit it, each with decoders of its own.
        video_utils._default_decoder_cache = self._cache()  # noqa: SLF001
        # The ranks stay disjoint, and one without frames gets none.
        self._sampler: Any = DistributedSampler(
            self.dataset,
            num_replicas=options.world_size or 1,
            rank=options.rank or 0,
            seed=options.seed,
            drop_last=True,
        )
        self.num_shards = len(subject.meta.table.data.paths)
        self.loaded_episodes = self.dataset.num_episodes

    @override
    def open_epoch(self, epoch: int) -> Iterable[Sample]:
        self._sampler.set_epoch(epoch)
        return self._batches(sampler=self._sampler)

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Callable[[], float]]]:
        with timed_calls(DatasetReader, _DECODING) as decoding_s:
            yield (self.dataset[place] for place in self._sampler), decoding_s

    @override
    def to_check(self) -> None:
        return None


class StreamingUnderTest(_LeRobotUnderTest):
    """``StreamingLeRobotDataset`` as released; it supports neither ranks nor chosen episodes."""

    backend = "torchcodec"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        options = subject.options
        if subject.episodes is not None:
            raise UsageError(
                "The loader stream-lerobot always reads all episodes.",
                next_step="Leave --max-episodes and --num-partitions out.",
            )
        if (options.world_size or 1) > 1:
            self.notes += ("stream-lerobot ignores ranks: every process loads everything",)
        self.pool_size = options.episode_pool_size or _FRAMES_BUFFERED
        self.dataset = StreamingLeRobotDataset(
            **_place(options),
            delta_timestamps=_windows(subject.deltas),
            tolerance_s=options.tolerance_s,
            buffer_size=self.pool_size,
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
        del epoch  # the dataset goes on drawing from its own generator
        return self._batches()

    @override
    @contextmanager
    def single(self) -> Iterator[tuple[Iterator[Sample], Callable[[], float]]]:
        with timed_calls(self.dataset, _DECODING) as decoding_s:
            yield iter(self.dataset), decoding_s

    @override
    def to_check(self) -> Iterator[SampleToCheck]:
        for sample in self.dataset:
            unreadable = dict(_taken_out(sample))
            yield sample, unreadable

    def _query_each(self, times: Mapping[str, Sequence[float]], episode: int) -> dict[str, Any]:
        """Decode each camera by itself; a camera that fails gives black pictures and the reason."""
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
