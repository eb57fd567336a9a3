"""The scan of a source, and whether the source changed since.

The scan is imported when it is first used: a worker does not pay for it.
"""

from typing import TYPE_CHECKING, Any

from leconvert.dataset.scan.changes import (
    FileFacts,
    changed_files,
    check_source_unchanged,
    check_tables_unchanged,
    files_along,
    meta_digest,
    source_changed,
)

if TYPE_CHECKING:
    from leconvert.dataset.scan.scan import scan_source

__all__ = [
    "FileFacts",
    "changed_files",
    "check_source_unchanged",
    "check_tables_unchanged",
    "files_along",
    "meta_digest",
    "scan_source",
    "source_changed",
]


def __getattr__(name: str) -> Any:
    if name != "scan_source":
        raise AttributeError(f"module 'leconvert.dataset.scan' has no attribute {name!r}")
    from leconvert.dataset.scan.scan import scan_source as scan

    globals()[name] = scan
    return scan
