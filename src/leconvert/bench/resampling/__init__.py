"""Trajectories with many rates brought to one.

`resample`, `Resampled` and `ResampledDataset` are for everybody; the other names are for
``leconvert probe resample``.
"""

from typing import TYPE_CHECKING

from leconvert.support.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.bench.resampling.api import resample
    from leconvert.bench.resampling.benchmark import (
        ResampleOptions,
        everything,
        open_source,
        run_resample,
        stem_of,
    )
    from leconvert.bench.resampling.kernel import Resampled
    from leconvert.bench.resampling.loaders import ResampledDataset
    from leconvert.bench.resampling.report import csv_rows, draw_resampling, result_tables
    from leconvert.bench.resampling.trajectories import Method

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
