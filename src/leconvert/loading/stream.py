"""`EpisodeStream`: exact samples of a v3.0 dataset for training, in a shuffled order.

See ``docs/loading.md`` for its use and its guarantees.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, Unpack, overload

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from leconvert.loading.batches import BatchMaker, SampleFormat
from leconvert.loading.decoders import choose_backend
from leconvert.loading.episodes import EpisodePool, FrameReader, RowReader
from leconvert.loading.metadata import DatasetMeta, FeatureMeta, load_meta, make_windows
from leconvert.loading.order import (
    EpisodeOrder,
    Order,
    OrderBlock,
    Share,
    chosen_episodes,
    find_rank,
    is_shared_out_by_accelerate,
    order_batches,
)
from leconvert.loading.tensors import (
    Counters,
    Memory,
    PassLog,
    StreamFacts,
    WorkerCounters,
    private_memory,
)
from leconvert.model.values import IntArray
from leconvert.support.errors import UsageError
from leconvert.support.flags import whole_number
from leconvert.support.values import dataclass
from leconvert.transfer.byte_cache import ByteCache
from leconvert.transfer.files import files_at

Sample = dict[str, Any]

# Each decoder holds an open file; with torchcodec, also the buffers of FFmpeg.
_MOST_DECODERS, _MOST_SHARING_DECODERS = 128, 512
_REMOTE_FETCH_WORKERS = 4
# By default the pool has 256 episodes; fewer if they do not fit, but never too few to mix. Numbers
# take at most eight bytes, and images in tables hardly more than half of their pixels.
_POOL_EPISODES, _LEAST_POOL_EPISODES = 256, 32
_POOL_BYTES = 2**30
_NUMBER_BYTES = 8
# Recent single samples whose episodes stay in memory, for users who read neighbours or jump between
# a few episodes.
_KEPT_LOOKS = 8
_PNG_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class UnreadableFrame:
    """A frame that could not be decoded.

    Attributes:
        camera: The camera's feature.
        episode_index: The episode.
        frame_index: The frame's number in the episode.
        path: The file that contains the frame.
    """

    camera: str
    episode_index: int
    frame_index: int
    path: str


class Workplace(Protocol):
    """The files and decoders that a process has opened to make batches."""

    process: int  # the process that opened it

    def expect(self, episodes: list[int]) -> None:
        """Receive the next episodes of the order, to prepare them."""

    def make(self, block: OrderBlock, memory: Memory) -> Sample:
        """Return a batch in memory that ``memory`` provides."""

    def clear(self) -> None:
        """Release all episodes."""


class SampleStream(IterableDataset[Sample]):
    """The base of `EpisodeStream` and `MixedStream`: it shares an order among ranks and workers.

    Attributes:
        meta: The features of the samples.
        order: The order of all samples.
        rank: The number of this training process.
        world_size: Number of training processes.
        repeat: Whether the stream continues with the next epoch, without end.
        decode_device: ``cpu`` or ``cuda``.
        video_fetch_workers: Threads of each worker that fetch and decode.
    """

    meta: FeatureMeta
    order: Order
    rank: int
    world_size: int
    repeat: bool
    decode_device: str
    video_fetch_workers: int

    def __init__(self) -> None:
        super().__init__()
        self._passes = PassLog()
        self._workplace: Workplace | None = None

    @abstractmethod
    def enter(self, worker: int) -> Workplace:
        """Return this process's workplace, without episodes; the first call opens it."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return everything but the epoch that decides the order, as numbers and texts."""

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._passes.next_epoch

    @property
    def num_frames(self) -> int:
        """Samples of an epoch, over all ranks (of this partition): each frame once."""
        return self.order.num_frames

    @property
    def num_episodes(self) -> int:
        """Episodes that all ranks (of this partition) load."""
        return self.order.num_episodes

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """Features by key, as declared; for features of several datasets, by the first."""
        return self.meta.features

    @property
    def fps(self) -> float:
        """Frames a second; the first dataset's if they differ."""
        return self.meta.fps

    def __len__(self) -> int:
        """Return the number of samples of this rank in an epoch."""
        return Share(self.rank, self.world_size).num_batches(self.order.num_frames)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; persistent workers read it from shared memory.

        Without this call, each pass is the epoch after the epoch in which the previous pass began,
        even if that pass was not finished. A `StreamLoader` counts its own passes: call its
        ``set_epoch``.

        Raises:
            UsageError: accelerate would distribute samples that ranks already share, or ``epoch``
                is no whole number of at least 0.
        """
        if self.world_size > 1 and is_shared_out_by_accelerate(self):
            raise UsageError(
                f"The stream already shares the samples among {self.world_size} ranks. "
                "accelerate.prepare would share them a second time, and frames would "
                "be lost.",
                next_step="Use StreamLoader(stream, ...), which needs no accelerate.prepare, or "
                "make the stream with rank=0 and world_size=1.",
            )
        self._passes.next_epoch = whole_number("epoch", epoch)

    def __iter__(self) -> Iterator[Sample]:
        # The pass begins here and not with its first sample, so all workers of torch's loader take
        # part in it, even if it ends before some of them yield a sample.
        return (sample for batch in self.batches(1) for sample in split(batch))

    def batches(
        self,
        batch_size: int,
        *,
        begin: tuple[int, int] | None = None,
        drop_last: bool = False,
        memory: Memory = private_memory,
    ) -> Iterator[Sample]:
        """Begin a pass, and yield this worker's samples in batches as torch's collation makes them.

        This is faster than single samples: one call decodes all frames of a file, and one
        allocation holds a whole batch.

        Args:
            batch_size: Samples per batch.
            begin: The epoch, and the number of its samples that all ranks together skip, for a
                loader that counts by itself; None for the next epoch, which is counted here.
            drop_last: Leave out a last batch that is smaller on any rank.
            memory: Provides the memory for batches.

        Raises:
            UsageError: ``batch_size`` is no whole number of at least 1.
        """
        batch_size = whole_number("batch_size", batch_size, 1)
        epoch, taken = begin or (self._passes.begin(), 0)
        return self._batches(epoch, taken, batch_size, drop_last, memory)

    def _batches(
        self, epoch: int, taken: int, batch_size: int, drop_last: bool, memory: Memory
    ) -> Iterator[Sample]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        workplace = self.enter(worker)
        share = Share(self.rank, self.world_size, worker, num_workers, batch_size, drop_last)
        blocks = self.order.blocks(share, epoch=epoch, taken=taken, repeat=self.repeat)
        ahead = 2 * self.video_fetch_workers
        for block in order_batches(blocks, batch_size, coming=workplace.expect, ahead=ahead):
            yield workplace.make(block, memory)
        workplace.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workplace": None}


def split(batch: Sample) -> list[Sample]:
    """Return the samples of a batch; their tensors are views of its tensors."""
    return [
        {key: value[place] for key, value in batch.items()} for place in range(len(batch["task"]))
    ]


class LeRobotNames(TypedDict, total=False):
    """Arguments of `EpisodeStream` under the names of LeRobot's next streaming class."""

    streaming_episode_pool_size: int | None
    streaming_byte_budget_gb: float | None
    streaming_data_root: str | os.PathLike[str] | None
    streaming_decode_threads: int | None


def _either(others: Any, other: str, name: str, value: Any) -> Any:
    """Return an argument that has two names, and remove the other name from ``others``."""
    given = others.pop(other, None)
    if given is not None and value is not None:
        raise UsageError(f"{other} and {name} are the same argument. Give only one of them.")
    return value if given is None else given


class EpisodeStream(SampleStream):
    """An iterable dataset over the frames of a v3.0 dataset.

    Guaranteed:

    - A sample equals the sample of ``LeRobotDataset`` for the same frame: keys and their order,
      types, shapes, values, task, pads. ``return_uint8`` also applies to images in tables.
    - In an epoch, all ranks and workers together yield each frame once.
    - All ranks and workers take turns in one order. It depends only on seed, epoch, chosen episodes
      and pool size, and not on timing, caches or threads.
    - Ranks differ by at most one sample.
    - All workers and epochs read a repo on the Hub at one commit, to which the revision pointed
      when the stream was made. Elsewhere, the pass ends with a `SourceChangedError` if a file has
      changed since then, according to the disk or the store.
    - Nothing is opened before a worker is asked for its first sample. A worker holds the rows of
      its pooled episodes, a bounded number of decoders and one batch.

    Not guaranteed: that it can resume by itself; a `StreamLoader` can.

    Images are views of memory of shape (height, width, channels); use ``reshape`` rather than
    ``view``.

    Args:
        root: The dataset: a folder, or a URL that fsspec knows (``hf://datasets/OWNER/NAME``,
            ``hf://buckets/…``).
        data_files_root: Folder or URL of ``data/`` and ``videos/``, if they are not beside
            ``meta/``.
        revision: Branch, tag or commit of a dataset on the Hub.
        delta_timestamps: Windows by feature: seconds relative to the sample's frame.
        episodes: ``episode_index`` of the episodes to load; None for all.
        shuffle: False yields episodes and frames in stored order.
        seed: Selects the order.
        episode_pool_size: Episodes that are mixed, over all ranks, at most 65,536 or the number of
            frames; None for 256, or for 128, 64 or 32 if the rows of so many would take more than 1
            GiB.
        video_decoder_cache_size: Decoders that a worker keeps open; None for one per pooled episode
            and camera, at most 512, or 128 with torchcodec.
        video_fetch_workers: Threads of each worker that fetch and decode; None for 0 if files are
            local, else 4.
        video_backend: ``pyav``, ``torchcodec``, or ``auto`` for PyAV on the CPU and torchcodec on a
            GPU.
        decode_device: ``cpu`` or ``cuda``.
        return_uint8: Return images as uint8, a quarter of the memory, instead of float32 between 0
            and 1.
        image_transforms: Called as LeRobot calls it, with the images of each camera of a sample
            except depth; shape (C, H, W), or (T, C, H, W) with a window.
        on_unreadable: ``raise``, or ``count`` for black images, which `unreadable` lists.
        strict_decoding: Treat a frame as unreadable if FFmpeg concealed damaged bytes in it. None
            for True with PyAV and False with torchcodec, which does not report such damage. False
            returns the same images as LeRobot.
        repeat: Continue with the next epoch, without end.
        rank: The number of this training process; None to ask accelerate, torchrun or SLURM.
        world_size: Number of training processes; likewise.
        num_partitions: Number of nodes, if each loads episodes from files of its own. With more
            than one, ``rank`` and ``world_size`` count the processes of a node, and None asks
            accelerate or torchrun for them.
        partition_index: The number of this node.
        max_episodes: Load at most this many episodes, the first ones.
        tolerance_s: The largest distance of ``delta_timestamps`` from multiples of 1 / fps, in
            seconds.
        cache_dir: Folder that keeps fetched bytes for all processes of this host; None for a folder
            of the user in the temporary directory.
        cache_size_in_gb: Size of that cache; 0 for none. None for a quarter of the free space, at
            most 32 GB, or for a twentieth of the free memory if the folder is in memory.
        **lerobot_names: ``streaming_episode_pool_size``, ``streaming_byte_budget_gb``,
            ``streaming_data_root`` and ``streaming_decode_threads`` of LeRobot's next class stand
            for ``episode_pool_size``, ``cache_size_in_gb``, ``data_files_root`` and
            ``video_fetch_workers``.

    Attributes:
        commit: The commit of the Hub that is read; None for datasets elsewhere.

    Raises:
        SourceError: The dataset is not v3.0.
        UnreadableSourceError: Metadata are missing or damaged.
        UsageError: An argument is invalid, or a package is missing.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        data_files_root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        episode_pool_size: int | None = None,
        video_decoder_cache_size: int | None = None,
        video_fetch_workers: int | None = None,
        video_backend: Literal["auto", "torchcodec", "pyav"] = "auto",
        decode_device: str = "cpu",
        return_uint8: bool = False,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        on_unreadable: Literal["raise", "count"] = "raise",
        strict_decoding: bool | None = None,
        repeat: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        num_partitions: int = 1,
        partition_index: int = 0,
        max_episodes: int | None = None,
        tolerance_s: float = 1e-4,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size_in_gb: float | None = None,
        **lerobot_names: Unpack[LeRobotNames],
    ) -> None:
        super().__init__()
        episode_pool_size = _either(
            lerobot_names, "streaming_episode_pool_size", "episode_pool_size", episode_pool_size
        )
        cache_size_in_gb = _either(
            lerobot_names, "streaming_byte_budget_gb", "cache_size_in_gb", cache_size_in_gb
        )
        data_files_root = _either(
            lerobot_names, "streaming_data_root", "data_files_root", data_files_root
        )
        video_fetch_workers = _either(
            lerobot_names, "streaming_decode_threads", "video_fetch_workers", video_fetch_workers
        )
        if lerobot_names:
            unknown = next(iter(lerobot_names))
            raise TypeError(f"EpisodeStream() got an unexpected keyword argument {unknown!r}")
        if on_unreadable not in {"raise", "count"}:
            raise UsageError(f"on_unreadable must be raise or count, not {on_unreadable!r}.")
        cache = _open_cache(cache_dir, cache_size_in_gb)
        files = files_at(root, revision=revision, cache=cache)
        self.meta: DatasetMeta = load_meta(files)
        self.commit = files.commit
        self._files = files if data_files_root is None else files_at(data_files_root, cache=cache)
        self._files.fix()
        self._backend = choose_backend(video_backend, decode_device)
        if strict_decoding and self._backend != "pyav":
            raise UsageError(
                "strict_decoding=True does not work with torchcodec, which cannot tell "
                "whether coded bytes are damaged.",
                next_step="Decode with PyAV on the CPU (video_backend='pyav'), or leave "
                "strict_decoding out.",
            )
        self.strict_decoding = self._backend == "pyav" and strict_decoding is not False
        self._sample = SampleFormat(
            windows=make_windows(
                delta_timestamps,
                fps=self.meta.fps,
                tolerance_s=tolerance_s,
                features=self.meta.features,
            ),
            return_uint8=return_uint8,
            image_transforms=image_transforms,
            count_unreadable=on_unreadable == "count",
        )
        self.delta_timestamps = delta_timestamps
        self.return_uint8 = return_uint8
        self.image_transforms = image_transforms
        self.episodes = None if episodes is None else list(episodes)
        self.rank, self.world_size = find_rank(rank, world_size, of_node=num_partitions > 1)
        self.decode_device = decode_device
        self.repeat = repeat
        self.shuffle = shuffle
        table = self.meta.table
        self._places = chosen_episodes(
            table.index,
            table.length,
            table.files(),
            episodes=self.episodes,
            max_episodes=max_episodes,
            num_partitions=num_partitions,
            partition_index=partition_index,
        )
        if not len(self._places):
            raise UsageError("The dataset has no episode to load.", path=self.meta.root)
        self._files.note(table.paths(self._places))
        if episode_pool_size is None:
            episode_pool_size = default_pool_size(self.meta, table.length[self._places])
        self.order: EpisodeOrder = EpisodeOrder(
            table.length[self._places], seed=seed, shuffle=shuffle, pool_size=episode_pool_size
        )
        self.seed, self.episode_pool_size = self.order.seed, self.order.pool_size
        if video_fetch_workers is None:
            video_fetch_workers = 0 if self._files.is_local else _REMOTE_FETCH_WORKERS
        self.video_fetch_workers = video_fetch_workers
        if video_decoder_cache_size is None:
            cameras = max(1, len(self.meta.video_keys))
            most = _MOST_SHARING_DECODERS if self._backend == "pyav" else _MOST_DECODERS
            video_decoder_cache_size = min(most, episode_pool_size * cameras)
        self.video_decoder_cache_size = video_decoder_cache_size
        self._counters = Counters(len(self.meta.camera_keys))
        self._desk: Workplace | None = None  # makes single samples
        self._looks = 0  # number of single samples made

    # --- its contents ------------------------------------------------------------------------

    # These properties have the names of LeRobot's own dataset class.

    @property
    def root(self) -> Path | str:
        """The dataset's folder or URL."""
        return Path(self.meta.root) if self._files.is_local else self.meta.root

    @property
    def repo_id(self) -> str:
        """``OWNER/NAME`` on the Hub, else the folder's name."""
        return self.meta.repo_id

    @property
    def video_backend(self) -> str:
        """The decoding library: ``torchcodec`` or ``pyav``."""
        return self._backend

    @property
    def episode_indices(self) -> list[int]:
        """``episode_index`` of the episodes that all ranks of this partition load, ascending."""
        indices: list[int] = self.meta.table.index[self._places].tolist()
        return indices

    def rank_episodes(self) -> list[int]:
        """Return ``episode_index`` of the episodes of this rank in the next epoch, ascending."""
        if self.world_size == 1:
            return self.episode_indices
        mine = self.order.episodes(self.epoch, self.rank, self.world_size)
        return sorted(self.meta.table.index[self._places[mine]].tolist())

    def fingerprint(self) -> str:
        """Return a digest of the dataset and the choice of episodes."""
        digest = hashlib.blake2b(self.meta.fingerprint().encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.meta.table.index[self._places], np.int64))
        return digest.hexdigest()

    def identity(self) -> dict[str, Any]:
        """Return everything but the epoch that decides the samples, as numbers and texts."""
        sizes, marks = self._files.noted_sizes, self._files.noted_marks
        where_known = {
            "commit": self.commit,
            "data_commit": self._files.commit,
            "sizes": _digest(sizes) if sizes else None,
            "marks": {self._files.root: _digest(marks)} if marks else None,
        }
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "episode_pool_size": self.episode_pool_size,
            "dataset": self.fingerprint(),
            **{name: value for name, value in where_known.items() if value is not None},
        }

    # --- what happened ------------------------------------------------------------------------

    def facts(self) -> StreamFacts:
        """Return the work of all workers since the stream was made, or since `reset_facts`."""
        return self._counters.total()

    def worker_facts(self) -> list[StreamFacts]:
        """Return the same for each worker."""
        return self._counters.workers()

    def reset_facts(self) -> None:
        """Set the facts of all workers to zero; call it while no worker runs."""
        self._counters.reset()

    def unreadable(self) -> list[UnreadableFrame]:
        """Return the frames that could not be decoded: the first 16 of each worker."""
        found = []
        table = self.meta.table
        for camera, place, frame in self._counters.unreadable():
            key = self.meta.camera_keys[camera]
            files = table.cameras.get(key, table.data)
            path = files.paths[int(files.file[place])]
            found.append(
                UnreadableFrame(key, int(table.index[place]), frame, self._files.name(path))
            )
        return found

    def unreadable_by_camera(self) -> dict[str, int]:
        """Return how many frames of each camera could not be decoded."""
        counts = self._counters.unreadable_by_camera()
        return dict(zip(self.meta.camera_keys, counts, strict=True))

    # --- single samples -----------------------------------------------------------------------

    @overload
    def __getitem__(self, number: int) -> Sample: ...
    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...
    def __getitem__(self, number: int | slice) -> Sample | list[Sample]:
        """Return the sample that ``LeRobotDataset`` has under this number; for a slice, a list.

        Numbers 0 to ``num_frames - 1`` count the frames of this stream's episodes in stored order;
        ``len``, in contrast, counts this rank's samples. Passes and `facts` are not affected.

        Use it to look at samples, in tests and for evaluation. Each sample is decoded by itself in
        this process. The first sample of an episode reads the episode's rows and, if the dataset is
        a URL, all of its video.
        """
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self.num_frames))]
        frame = number + self.num_frames if number < 0 else number
        if not 0 <= frame < self.num_frames:
            raise IndexError(f"there is no sample {number} among {self.num_frames}")
        if self._desk is None or self._desk.process != os.getpid():
            self._desk = self._opened(Counters(len(self.meta.camera_keys)).of_worker(0))
        episode = int(np.searchsorted(self._ends, frame, side="right"))
        frame -= int(self._ends[episode - 1]) if episode else 0
        # The episodes of the last few samples stay in memory.
        number, self._looks = self._looks, self._looks + 1
        numbers = episode, frame, number - _KEPT_LOOKS, number
        block = OrderBlock(*(np.array([each]) for each in numbers))
        return split(self._desk.make(block, private_memory))[0]

    @cached_property
    def _ends(self) -> IntArray:
        """The number after the last frame of each episode, as single samples are numbered."""
        return np.cumsum(self.meta.table.length[self._places])

    # --- passes -------------------------------------------------------------------------------

    def enter(self, worker: int) -> Workplace:
        """Return this process's workplace, without the episodes of an earlier pass."""
        if self._workplace is not None and self._workplace.process == os.getpid():
            self._workplace.clear()
            return self._workplace
        self._workplace = self._opened(self._counters.of_worker(worker))
        return self._workplace

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_desk": None}

    def _opened(self, counters: WorkerCounters) -> Workplace:
        if not self._files.is_local:
            self._files.connect(self.meta.table.data.paths[0])
        reader = FrameReader(
            self.meta,
            self._files,
            backend=self._backend,
            device=self.decode_device,
            cache_size=self.video_decoder_cache_size,
            threads=self.video_fetch_workers,
            is_strict=self.strict_decoding,
            counters=counters,
        )
        pool = EpisodePool(
            RowReader(self.meta, self._files),
            reader,
            fetch_workers=0 if self._files.is_local else self.video_fetch_workers,
            counters=counters,
        )
        return BatchMaker(
            self.meta,
            self._places,
            self._sample,
            pool,
            reader,
            device=self.decode_device,
            counters=counters,
        )


def default_pool_size(meta: DatasetMeta, lengths: IntArray) -> int:
    """Return how many episodes to mix: a power of two, which most numbers of ranks divide.

    It depends only on the metadata, because the order depends on it.
    """
    row_bytes = sum(
        math.prod(feature["shape"]) * (_PNG_SHARE if feature["dtype"] == "image" else _NUMBER_BYTES)
        for feature in meta.features.values()
        if feature["dtype"] != "video"
    )
    size = _POOL_EPISODES
    while size > _LEAST_POOL_EPISODES and size * float(lengths.mean()) * row_bytes > _POOL_BYTES:
        size //= 2
    return size


def _digest(said: Mapping[str, object]) -> str:
    text = json.dumps(sorted(said.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _open_cache(
    folder: str | os.PathLike[str] | None, size_in_gb: float | None
) -> ByteCache | None:
    if size_in_gb is not None and not size_in_gb >= 0:
        raise UsageError(f"cache_size_in_gb must be at least 0, not {size_in_gb}.")
    if size_in_gb == 0:
        return None
    limit_bytes = None if size_in_gb is None else int(size_in_gb * 10**9)
    return ByteCache(None if folder is None else Path(folder).absolute(), limit_bytes)
