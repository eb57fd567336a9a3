"""Where the page goes, and where it may not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leconvert.errors import LeconvertError, StorageError, UsageError
from leconvert.report.gather import gather_run
from leconvert.report.page import page
from leconvert.report.values import Story
from leconvert.workdir.durable import replace_record
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.trouble import any_storage_errors, storage_errors

__all__ = ["check_report_place", "default_report_place", "telling", "write_report"]


def default_report_place(target: Path) -> Path:
    """Return where a conversion's report goes: ``<target>.report.html``, beside the result."""
    return target.with_name(f"{target.name}.report.html")


def check_report_place(path: Path, datasets: list[Path]) -> None:
    """Refuse a place that the page cannot be written to; call it before any work is done, too.

    Args:
        path: Where the page shall go.
        datasets: Folders that it may not lie in: a dataset holds what a conversion made of its
            source and nothing else, or it would not be the same twice.

    Raises:
        UsageError: It is a folder, lies in a dataset, or the folder that it names does not exist or
            cannot be written.
    """
    place = path.resolve()
    for dataset in datasets:
        if place.is_relative_to(dataset.resolve()):
            raise UsageError(
                f"{path} lies in the dataset {dataset}, which holds only what the conversion made.",
                path=str(path),
                next_step="Choose a place beside it.",
            )
    if place.is_dir():
        raise UsageError(
            f"{path} is a folder.", path=str(path), next_step="Give the name of a file in it."
        )
    if not place.parent.is_dir():
        raise UsageError(
            f"The folder {place.parent} does not exist.",
            path=str(path),
            next_step="Make it first, or choose another place.",
        )
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"The folder {place.parent} cannot be written.",
            path=str(path),
            next_step="Make it writable, or choose another place.",
        )


def write_report(story: Story, path: Path) -> int:
    """Write the page, replacing what is there in one step.

    Returns:
        Its size in bytes.

    Raises:
        UsageError: See `check_report_place`.
        StorageError: The disk is full, read-only, or fails.
    """
    _check_for(story.target, story.source, path)
    data = page(story).encode("utf-8")
    with storage_errors(path):
        replace_record(path, data)
    return len(data)


def _check_for(target: str, source: str | None, path: Path) -> None:
    check_report_place(path, [Path(place) for place in (target, source) if place])


@contextmanager
def telling(run: OpenedRun, path: Path | None) -> Iterator[None]:
    """Write a run's report when the block ends, however it ends; not at all without a path.

    What ends the block matters more than its report: where both fail, the block's own error is
    raised.

    Raises:
        UsageError: No page can be written there; the block is not begun.
        StorageError: The block succeeded, and the page cannot be written.
    """
    if path is not None:
        _check_for(run.manifest.target, run.manifest.source, path)
    try:
        yield
    except BaseException:
        if path is not None:
            with suppress(OSError, LeconvertError):
                write_report(gather_run(run), path)
        raise
    if path is not None:
        try:
            with any_storage_errors():
                write_report(gather_run(run), path)
        except StorageError as error:
            raise StorageError(
                f"The run came to its end, but its report could not be written. {error.message}",
                path=error.path,
                next_step="Nothing needs to be done again. For the report: `leconvert report "
                f"{shlex.quote(str(run.work_dir.root))} -o FILE`, with room for FILE.",
            ) from error
