"""The story of a run as one page that needs nothing else.

`gather` reads the records of a run, or a result alone, into a `Story`, plain values; `page` makes
HTML of it. Nothing of the run is written.
"""

from leconvert.report.page import (
    check_report_place,
    default_report_place,
    page,
    telling,
    write_report,
)
from leconvert.report.values import Story, gather, gather_run

__all__ = [
    "Story",
    "check_report_place",
    "default_report_place",
    "gather",
    "gather_run",
    "page",
    "telling",
    "write_report",
]
