"""Convert LeRobot datasets from codebase version v2.x to v3.0.

For example::

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
    from leconvert.model.repairs import RepairOptions
    from leconvert.model.selection import EpisodeSelection, FrameInterval
    from leconvert.model.values import LayoutOptions
    from leconvert.remote.push import PushReport, push
    from leconvert.run.conversion import (
        Conversion,
        LeaseOptions,
        PlanOptions,
        ProofOptions,
        WorkerOptions,
    )
    from leconvert.run.proof import VerificationReport, verify_pair
    from leconvert.run.repairing import RepairReport
    from leconvert.support.errors import LeconvertError
    from leconvert.transfer.options import PushOptions, ScratchOptions

__all__ = [
    "Conversion",
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
    "Conversion": "leconvert.run.conversion",
    "ConversionReport": "leconvert.api",
    "EpisodeSelection": "leconvert.model.selection",
    "FrameInterval": "leconvert.model.selection",
    "LayoutOptions": "leconvert.model.values",
    "LeaseOptions": "leconvert.run.conversion",
    "LeconvertError": "leconvert.support.errors",
    "PlanOptions": "leconvert.run.conversion",
    "ProofOptions": "leconvert.run.conversion",
    "PushOptions": "leconvert.transfer.options",
    "PushReport": "leconvert.remote.push",
    "RepairOptions": "leconvert.model.repairs",
    "RepairReport": "leconvert.run.repairing",
    "ScratchOptions": "leconvert.transfer.options",
    "SplitPart": "leconvert.api",
    "VerificationReport": "leconvert.run.proof",
    "WorkerOptions": "leconvert.run.conversion",
    "convert": "leconvert.api",
    "merge": "leconvert.api",
    "push": "leconvert.remote.push",
    "repair": "leconvert.api",
    "split": "leconvert.api",
    "trim": "leconvert.api",
    "verify_pair": "leconvert.run.proof",
}


if not TYPE_CHECKING:  # else any misspelt name would have a type

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'leconvert' has no attribute {name!r}")
        if name != "LeconvertError":  # with which a caller catches what is raised here
            from leconvert.support.machine import check_platform

            check_platform()
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
