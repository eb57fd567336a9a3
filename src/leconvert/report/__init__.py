"""The story of a run as one page that needs nothing else.

`gather` reads the records of a run, or a result alone, into a `Story`, plain values; `page` makes
HTML of it. Nothing of the run is written.
"""

from leconvert.report.gather import gather, gather_run
from leconvert.report.page import page
from leconvert.report.values import Story
from leconvert.report.write import (
    check_report_place,
    default_report_place,
    telling,
    write_report,
)

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
