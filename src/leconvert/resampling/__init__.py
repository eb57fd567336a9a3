"""Trajectories with many rates brought to one.

`resample` and `Resampled` are for everybody; the other names are for ``leconvert probe resample``.
"""

from typing import TYPE_CHECKING

from leconvert.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.resampling.api import resample
    from leconvert.resampling.kernel import Resampled
    from leconvert.resampling.methods import Method
    from leconvert.resampling.report import (
        csv_rows,
        draw_resampling,
        loader_table,
        result_table,
        speedup_table,
        training_table,
    )
    from leconvert.resampling.run import (
        ResampleOptions,
        everything,
        open_source,
        run_resample,
        stem_of,
    )
    from leconvert.resampling.sources import write_hdf5

__all__ = [
    "Method",
    "ResampleOptions",
    "Resampled",
    "csv_rows",
    "draw_resampling",
    "everything",
    "loader_table",
    "open_source",
    "resample",
    "result_table",
    "run_resample",
    "speedup_table",
    "stem_of",
    "training_table",
    "write_hdf5",
]

_NAMES = {
    "api": ("resample",),
    "kernel": ("Resampled",),
    "methods": ("Method",),
    "report": (
        "csv_rows",
        "draw_resampling",
        "loader_table",
        "result_table",
        "speedup_table",
        "training_table",
    ),
    "run": (
        "ResampleOptions",
        "everything",
        "open_source",
        "run_resample",
        "stem_of",
    ),
    "sources": ("write_hdf5",),
}

__getattr__ = lazy_names(__name__, _NAMES, title="Resampling")


def __dir__() -> list[str]:
    return sorted(__all__)
