"""Trajectories with many rates brought to one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leconvert.resampling.api import resample
    from leconvert.resampling.kernel import Resampled

__all__ = ["Resampled", "resample"]

_HOME = {
    "Resampled": "leconvert.resampling.kernel",
    "resample": "leconvert.resampling.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from leconvert.errors import InstallationError

        raise InstallationError(
            "Resampling needs torch, which is not installed.",
            next_step="Install it: pip install 'leconvert[probe]'.",
        ) from error
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
