"""Trajectories with many rates brought to one.

`resample`, `Resampled` and `ResampledDataset` are for everybody; the other names are for
``leconvert probe resample``.
"""

from typing import TYPE_CHECKING

from leconvert.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.resampling.api import resample
    from leconvert.resampling.benchmark import (
        ResampleOptions,
        everything,
        open_source,
        run_resample,
        stem_of,
    )
    from leconvert.resampling.kernel import Resampled
    from leconvert.resampling.loaders import ResampledDataset
    from leconvert.resampling.report import csv_rows, draw_resampling, result_tables
    from leconvert.resampling.trajectories import Method

__all__ = [
    "Method",
    "ResampleOptions",
    "Resampled",
    "ResampledDataset",
    "csv_rows",
    "draw_resampling",
    "everything",
    "open_source",
    "resample",
    "result_tables",
    "run_resample",
    "stem_of",
]

_NAMES = {
    "api": ("resample",),
    "benchmark": ("ResampleOptions", "everything", "open_source", "run_resample", "stem_of"),
    "kernel": ("Resampled",),
    "loaders": ("ResampledDataset",),
    "report": ("csv_rows", "draw_resampling", "result_tables"),
    "trajectories": ("Method",),
}

__getattr__ = lazy_names(__name__, _NAMES, title="Resampling")


def __dir__() -> list[str]:
    return sorted(__all__)
