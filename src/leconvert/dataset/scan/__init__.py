"""The scan of a source, and whether the source changed since.

The scan is imported when it is first used: a worker does not pay for it.
"""

from typing import TYPE_CHECKING

from leconvert.dataset.scan.changes import (
    FileFacts,
    changed_files,
    check_source_unchanged,
    check_tables_unchanged,
    files_along,
    meta_digest,
    source_changed,
)
from leconvert.support.extras import lazy_names

if TYPE_CHECKING:
    from leconvert.dataset.scan.scan import reads_as_v3, scan_source, source_reading

__all__ = [
    "FileFacts",
    "changed_files",
    "check_source_unchanged",
    "check_tables_unchanged",
    "files_along",
    "meta_digest",
    "reads_as_v3",
    "scan_source",
    "source_changed",
    "source_reading",
]

__getattr__ = lazy_names(__name__, {"scan": ("reads_as_v3", "scan_source", "source_reading")})
