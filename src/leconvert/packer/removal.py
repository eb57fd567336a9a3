"""Removes the source that a conversion replaced, where the user asked for it and all is proven.

The new dataset is in place by then, and was proven to the byte before it took that place. The old
tree is first renamed to a name of ours: **the commit point**. A crash before leaves it where it
was kept; after it, the next try removes the rest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leconvert.packer.report import PackReport
from leconvert.repairs import Repairs
from leconvert.verify import reason_to_keep
from leconvert.workdir.durable import storage_errors, sync_dir
from leconvert.workdir.target import removed_old_dir
from leconvert.workdir.trees import remove_tree

__all__ = ["remove_source"]


def remove_source(source: Path, report: PackReport, repairs: Repairs) -> PackReport:
    """Remove the kept source of a finished conversion, unless something would be lost with it.

    Args:
        source: Where the source was when it was planned.
        report: What the packer did.
        repairs: What the conversion changed.

    Returns:
        The report, with what became of the source.

    Raises:
        StorageError: The disk is read-only or fails.
    """
    if source != report.target:
        return replace(report, kept_because="it was not replaced")
    doomed = removed_old_dir(source)
    if doomed.exists():
        remove_tree(doomed)
    if report.kept is None or not report.kept.exists():
        return replace(report, kept=None, removed=report.kept)
    if report.verified != "bytes":
        said = f"the result was checked by {report.verified} before the swap, not by bytes"
        return replace(report, kept_because=said)
    reason = reason_to_keep(report.target, report.kept, repairs)
    if reason is not None:
        return replace(report, kept_because=reason)
    with storage_errors(report.kept):
        report.kept.rename(doomed)
        sync_dir(doomed.parent)
    remove_tree(doomed)
    return replace(report, kept=None, removed=report.kept)
