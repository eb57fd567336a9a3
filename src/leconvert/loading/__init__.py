"""Loading a v3.0 dataset for training: an exact stream of samples, and its loader.

    from leconvert.loading import EpisodeStream, StreamLoader

    loader = StreamLoader(EpisodeStream("my_dataset"), batch_size=64, num_workers=4)
    for batch in loader:
        ...

torch is needed, torchcodec wanted: ``pip install 'leconvert[probe]'``. Nothing of it is imported
before one of the names below is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leconvert.loading.loader import StreamLoader
    from leconvert.loading.stream import EpisodeStream, UnreadableFrame
    from leconvert.loading.tensors import StreamFacts

__all__ = ["EpisodeStream", "StreamFacts", "StreamLoader", "UnreadableFrame"]

_HOME = {
    "EpisodeStream": "leconvert.loading.stream",
    "StreamFacts": "leconvert.loading.tensors",
    "StreamLoader": "leconvert.loading.loader",
    "UnreadableFrame": "leconvert.loading.stream",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from leconvert.errors import InstallationError

        raise InstallationError(
            "Loading needs torch, which is not installed.",
            next_step="Install it: pip install 'leconvert[probe]'.",
        ) from error
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
