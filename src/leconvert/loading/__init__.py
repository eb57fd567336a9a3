"""Loading a v3.0 dataset for training: an exact stream of samples, and its loader.

    from leconvert.loading import EpisodeStream, StreamLoader

    loader = StreamLoader(EpisodeStream("my_dataset"), batch_size=64, num_workers=4)
    for batch in loader:
        ...

torch is needed, torchcodec wanted: the extra ``probe``. Nothing of it is imported before one of
the names below is used. `EpisodeStream`, `MixedStream`, `SampleStream`, `StreamLoader`,
`StreamFacts`, `UnreadableFrame`, `group_episodes_by_files` and `partition_episodes` are for
everybody, the other names for the probe and resampling.
"""

from typing import TYPE_CHECKING

from leconvert.support.lazy import lazy_names

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
    from leconvert.loading.rows import RowReader
    from leconvert.loading.stream import (
        EpisodeStream,
        Sample,
        SampleStream,
        UnreadableFrame,
    )
    from leconvert.loading.tensors import StreamFacts, keep_freed_memory
    from leconvert.transfer.files import Files, OpenFile, files_at

__all__ = [
    "PAD_SUFFIX",
    "Backend",
    "DatasetMeta",
    "EpisodeStream",
    "FeatureMeta",
    "Files",
    "MixedStream",
    "OpenFile",
    "RowReader",
    "Sample",
    "SampleStream",
    "StreamFacts",
    "StreamLoader",
    "UnreadableFrame",
    "choose_backend",
    "chosen_episodes",
    "files_at",
    "find_rank",
    "group_episodes_by_files",
    "keep_freed_memory",
    "load_meta",
    "local_rank",
    "make_windows",
    "open_clip",
    "open_decoder",
    "partition_episodes",
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
    "leconvert.transfer.files": (
        "Files",
        "OpenFile",
        "files_at",
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
    "rows": ("RowReader",),
    "stream": (
        "EpisodeStream",
        "Sample",
        "SampleStream",
        "UnreadableFrame",
    ),
    "tensors": (
        "StreamFacts",
        "keep_freed_memory",
    ),
}

__getattr__ = lazy_names(__name__, _NAMES, title="Loading")


def __dir__() -> list[str]:
    return sorted(__all__)
