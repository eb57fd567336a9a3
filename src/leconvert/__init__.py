"""Convert LeRobot datasets from codebase version v2.x to v3.0.

    import leconvert

    report = leconvert.convert("my_dataset", output="my_dataset_v30")
    print(report.output, report.seconds)

Everything in ``__all__`` is public; it is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leconvert._version import __version__

if TYPE_CHECKING:
    from leconvert.api import (
        ConversionReport,
        SplitPart,
        convert,
        merge,
        repair,
        split,
        trim,
    )
    from leconvert.compare import VerificationReport, verify_pair
    from leconvert.errors import LeconvertError
    from leconvert.hub.push import PushOptions, PushReport, push
    from leconvert.hub.scratch import ScratchOptions
    from leconvert.model import LayoutOptions
    from leconvert.packer import ProofOptions
    from leconvert.planner import PlanOptions
    from leconvert.repairing import RepairReport
    from leconvert.repairs import RepairOptions
    from leconvert.selection import EpisodeSelection, FrameInterval
    from leconvert.worker_pool import LeaseOptions, WorkerOptions

__all__ = [
    "ConversionReport",
    "EpisodeSelection",
    "FrameInterval",
    "LayoutOptions",
    "LeaseOptions",
    "LeconvertError",
    "PlanOptions",
    "ProofOptions",
    "PushOptions",
    "PushReport",
    "RepairOptions",
    "RepairReport",
    "ScratchOptions",
    "SplitPart",
    "VerificationReport",
    "WorkerOptions",
    "__version__",
    "convert",
    "merge",
    "push",
    "repair",
    "split",
    "trim",
    "verify_pair",
]

_HOME = {
    "ConversionReport": "leconvert.api",
    "EpisodeSelection": "leconvert.selection",
    "FrameInterval": "leconvert.selection",
    "LayoutOptions": "leconvert.model",
    "LeaseOptions": "leconvert.worker_pool",
    "LeconvertError": "leconvert.errors",
    "PlanOptions": "leconvert.planner",
    "ProofOptions": "leconvert.packer",
    "PushOptions": "leconvert.hub.push",
    "PushReport": "leconvert.hub.push",
    "RepairOptions": "leconvert.repairs",
    "RepairReport": "leconvert.repairing",
    "ScratchOptions": "leconvert.hub.scratch",
    "SplitPart": "leconvert.api",
    "VerificationReport": "leconvert.compare",
    "WorkerOptions": "leconvert.worker_pool",
    "convert": "leconvert.api",
    "merge": "leconvert.api",
    "push": "leconvert.hub.push",
    "repair": "leconvert.api",
    "split": "leconvert.api",
    "trim": "leconvert.api",
    "verify_pair": "leconvert.compare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leconvert' has no attribute {name!r}")
    if name != "LeconvertError":  # with which a caller catches what is raised here
        from leconvert.machine import check_linux

        check_linux()
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
