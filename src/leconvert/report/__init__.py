"""Reports of a run, and of a resampling benchmark: pages that need nothing else.

`gather` reads the records of a run, or a result alone, into a `RunReport`, which `write_report`
makes HTML of. Nothing of the run is written.
"""

from typing import TYPE_CHECKING

from leconvert.support.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.report.page import (
        check_report_place,
        default_report_place,
        report_on_exit,
        write_report,
        write_resampling_report,
        write_tables,
    )
    from leconvert.report.values import RunReport, gather, gather_run

__all__ = [
    "RunReport",
    "check_report_place",
    "default_report_place",
    "gather",
    "gather_run",
    "report_on_exit",
    "write_report",
    "write_resampling_report",
    "write_tables",
]

# `leconvert status`, whose module lies here too, needs neither datasets nor pages.
__getattr__ = lazy_names(
    __name__,
    {
        "page": (
            "check_report_place",
            "default_report_place",
            "report_on_exit",
            "write_report",
            "write_resampling_report",
            "write_tables",
        ),
        "values": ("RunReport", "gather", "gather_run"),
    },
)
