"""Reports of a run, and of a resampling benchmark: pages that need nothing else.

`gather` reads the records of a run, or a result alone, into a `RunReport`; `page` makes
HTML of it. Nothing of the run is written.
"""

from leconvert.report.page import (
    check_report_place,
    default_report_place,
    page,
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
    "page",
    "report_on_exit",
    "write_report",
    "write_resampling_report",
    "write_tables",
]
