"""v2.x datasets in: ``info.json``, the JSON-lines tables, file names, and the scan.

The scan is imported when it is first used: whoever only reads a source does not pay for it.
"""

from typing import TYPE_CHECKING, Any

from leconvert.source.changes import (
    FileFacts,
    changed_files,
    check_source_unchanged,
    check_tables_unchanged,
    source_changed,
)
from leconvert.source.dataset import (
    DatasetInfo,
    EpisodeLines,
    SourcePaths,
    load_info,
    load_tasks,
    tasks_of_episodes,
)

if TYPE_CHECKING:
    from leconvert.source.scan import scan_source

__all__ = [
    "DatasetInfo",
    "EpisodeLines",
    "FileFacts",
    "SourcePaths",
    "changed_files",
    "check_source_unchanged",
    "check_tables_unchanged",
    "load_info",
    "load_tasks",
    "scan_source",
    "source_changed",
    "tasks_of_episodes",
]


def __getattr__(name: str) -> Any:
    if name != "scan_source":
        raise AttributeError(f"module 'leconvert.source' has no attribute {name!r}")
    from leconvert.source.scan import scan_source as scan

    globals()[name] = scan
    return scan
