"""The loader that a training is given, made of the options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leconvert.probe.environment import cores
from leconvert.probe.files import dataset_files
from leconvert.probe.loader import StreamLoader
from leconvert.probe.metadata import load_meta
from leconvert.probe.modes import Deltas, mode_deltas, read_deltas
from leconvert.probe.options import RunOptions
from leconvert.probe.ranks import find_rank
from leconvert.probe.stream import EpisodeStream

__all__ = ["open_stream_loader"]

# Options of a stream that are its own to choose where nobody says.
_LEFT_TO_THE_STREAM = ("episode_pool_size", "video_decoder_cache_size", "video_fetch_workers")


def open_stream_loader(options: RunOptions) -> tuple[StreamLoader, Deltas]:
    """Return the batches of this rank, and the windows of their samples.

    Args:
        options: The dataset, the windows and the loader.

    Raises:
        SourceError: It is no v3.0 dataset.
        UsageError: The options make no sense, or something must be installed.
    """
    rank, world_size = find_rank(options.rank, options.world_size)
    options = options.placed().resolved(cores=cores(), cameras=1, rank=rank, world_size=world_size)
    windows = _windows(options)
    chosen: dict[str, Any] = {
        name: getattr(options, name)
        for name in _LEFT_TO_THE_STREAM
        if getattr(options, name) is not None
    }
    stream = EpisodeStream(
        str(options.root),
        data_files_root=options.data_files_root,
        revision=options.revision,
        delta_timestamps=windows or None,
        seed=options.seed,
        decode_device=options.decode_device,
        rank=rank,
        world_size=world_size,
        num_partitions=options.num_partitions,
        partition_index=options.partition_index,
        max_episodes=options.max_episodes,
        **chosen,
    )
    workers = options.num_workers or 0
    loader = StreamLoader(
        stream,
        batch_size=options.batch_size,
        num_workers=workers,
        prefetch_factor=options.prefetch_factor if workers else None,
        pin_memory=options.device != "cpu",
        persistent_workers=workers > 0,
    )
    return loader, windows


def _windows(options: RunOptions) -> Deltas:
    if options.mode == "single" and options.deltas is None:
        return {}
    meta = load_meta(dataset_files(str(options.root), revision=options.revision))
    features = tuple(meta.features)
    if options.deltas is not None:
        return read_deltas(Path(options.deltas), features)
    return mode_deltas(options.mode, meta.camera_keys, features, float(meta.fps))
