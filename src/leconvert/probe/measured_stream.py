"""Our own stream under test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, override

import numpy as np

from leconvert.probe.dealing import num_batches, turn_after
from leconvert.probe.loader import StreamLoader
from leconvert.probe.measured import (
    WORKER_KEY,
    CacheCounts,
    LoaderUnderTest,
    Sample,
    SampleToCheck,
    Subject,
    loader_settings,
)
from leconvert.probe.order import Share
from leconvert.probe.stopwatch import Watch
from leconvert.probe.stream import EpisodeStream

__all__ = ["StreamUnderTest"]


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
