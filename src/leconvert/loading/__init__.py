"""Loading a v3.0 dataset for training: an exact stream of samples, and its loader.

For example::

    from leconvert.loading import EpisodeStream, StreamLoader

    loader = StreamLoader(EpisodeStream("my_dataset"), batch_size=64, num_workers=4)
    for batch in loader:
        ...

torch and torchcodec are in the extra ``probe``; PyAV can replace torchcodec on the CPU. They are
imported only when one of the names below is used. `EpisodeStream`, `MixedStream`, `SampleStream`,
`StreamLoader`, `StreamFacts`, `UnreadableFrame`, `group_episodes_by_files`, `partition_episodes`,
`resample`, `Resampled` and `ResampledDataset` are public; the other names are for benchmarks.
"""

from typing import TYPE_CHECKING

from leconvert.support.extras import lazy_names

if TYPE_CHECKING:
    from leconvert.loading.decoders import (
        Backend,
        choose_backend,
        open_clip,
        open_decoder,
        torchcodec_trouble,
    )
    from leconvert.loading.loader import StreamLoader
    from leconvert.loading.metadata import (
        PAD_SUFFIX,
        DatasetMeta,
        FeatureMeta,
        load_meta,
        make_windows,
    )
    from leconvert.loading.mixture import MixedStream
    from leconvert.loading.order import (
        chosen_episodes,
        find_rank,
        group_episodes_by_files,
        local_rank,
        partition_episodes,
    )
    from leconvert.loading.resampling import (
        LENGTHS,
        Packed,
        PackMemory,
        Resampled,
        ResampledBatches,
        ResampledDataset,
        pack,
        resample,
    )
    from leconvert.loading.stream import (
        EpisodeStream,
        Sample,
        SampleStream,
        UnreadableFrame,
    )
    from leconvert.loading.tensors import Counters, StreamFacts
    from leconvert.loading.trajectories import (
        DatasetSet,
        Hdf5Set,
        Method,
        Methods,
        Trajectory,
        TrajectorySource,
        methods_for,
        preload,
    )

__all__ = [
    "LENGTHS",
    "PAD_SUFFIX",
    "Backend",
    "Counters",
    "DatasetMeta",
    "DatasetSet",
    "EpisodeStream",
    "FeatureMeta",
    "Hdf5Set",
    "Method",
    "Methods",
    "MixedStream",
    "PackMemory",
    "Packed",
    "Resampled",
    "ResampledBatches",
    "ResampledDataset",
    "Sample",
    "SampleStream",
    "StreamFacts",
    "StreamLoader",
    "Trajectory",
    "TrajectorySource",
    "UnreadableFrame",
    "choose_backend",
    "chosen_episodes",
    "find_rank",
    "group_episodes_by_files",
    "load_meta",
    "local_rank",
    "make_windows",
    "methods_for",
    "open_clip",
    "open_decoder",
    "pack",
    "partition_episodes",
    "preload",
    "resample",
    "torchcodec_trouble",
]

_NAMES = {
    "decoders": (
        "Backend",
        "choose_backend",
        "open_clip",
        "open_decoder",
        "torchcodec_trouble",
    ),
    "loader": ("StreamLoader",),
    "metadata": (
        "PAD_SUFFIX",
        "DatasetMeta",
        "FeatureMeta",
        "load_meta",
        "make_windows",
    ),
    "mixture": ("MixedStream",),
    "order": (
        "chosen_episodes",
        "find_rank",
        "group_episodes_by_files",
        "local_rank",
        "partition_episodes",
    ),
    "resampling": (
        "LENGTHS",
        "PackMemory",
        "Packed",
        "Resampled",
        "ResampledBatches",
        "ResampledDataset",
        "pack",
        "resample",
    ),
    "stream": (
        "EpisodeStream",
        "Sample",
        "SampleStream",
        "UnreadableFrame",
    ),
    "tensors": ("Counters", "StreamFacts"),
    "trajectories": (
        "DatasetSet",
        "Hdf5Set",
        "Method",
        "Methods",
        "Trajectory",
        "TrajectorySource",
        "methods_for",
        "preload",
    ),
}

if not TYPE_CHECKING:  # else any misspelt name would have a type
    __getattr__ = lazy_names(__name__, _NAMES, title="Loading")


def __dir__() -> list[str]:
    return sorted(__all__)
