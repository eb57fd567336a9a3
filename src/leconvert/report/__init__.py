"""Reports of a run, and of a resampling benchmark: self-contained pages.

`gather` reads the records of a run, or a result alone, into a `RunReport`. `write_report` turns
it into HTML. Neither writes to the run's work dir.
"""

from typing import TYPE_CHECKING

from leconvert.support.extras import lazy_names

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

# `leconvert status`, whose module is in this room, needs neither datasets nor pages.
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
