"""Loading a v3.0 dataset: a streaming loader for training, and what measures loaders.

    from leconvert.probe import EpisodeStream, StreamLoader

    loader = StreamLoader(EpisodeStream("my_dataset"), batch_size=64, num_workers=4)
    for batch in loader:
        ...

torch is needed, torchcodec wanted: ``pip install 'leconvert[probe]'``. Nothing of it is imported
before one of the names below is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leconvert.probe.compare import Comparison, compare_with_map
    from leconvert.probe.counters import StreamFacts
    from leconvert.probe.loader import StreamLoader
    from leconvert.probe.resampling.api import resample
    from leconvert.probe.resampling.kernel import Resampled
    from leconvert.probe.stream import EpisodeStream, UnreadableFrame

__all__ = [
    "Comparison",
    "EpisodeStream",
    "Resampled",
    "StreamFacts",
    "StreamLoader",
    "UnreadableFrame",
    "compare_with_map",
    "resample",
]

_HOME = {
    "Comparison": "compare",
    "EpisodeStream": "stream",
    "Resampled": "resampling.kernel",
    "StreamFacts": "counters",
    "StreamLoader": "loader",
    "UnreadableFrame": "stream",
    "compare_with_map": "compare",
    "resample": "resampling.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leconvert.probe' has no attribute {name!r}")
    from leconvert.machine import check_linux

    check_linux()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from leconvert.errors import InstallationError

        raise InstallationError(
            "Loading needs torch, which is not installed.",
            next_step="Install it: pip install 'leconvert[probe]'.",
        ) from error
    value = getattr(import_module(f"leconvert.probe.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
