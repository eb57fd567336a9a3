"""What measures loaders: throughput, limits, and whether each sample is the right one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leconvert.probe.compare import Comparison, compare_with_map

__all__ = ["Comparison", "compare_with_map"]

_HOME = {
    "Comparison": "leconvert.probe.compare",
    "compare_with_map": "leconvert.probe.compare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from leconvert.errors import InstallationError

        raise InstallationError(
            "The probe needs torch, which is not installed.",
            next_step="Install it: pip install 'leconvert[probe]'.",
        ) from error
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
