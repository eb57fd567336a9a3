"""A story as one page: HTML with its style in it, no script, nothing that is fetched."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leconvert._version import __version__
from leconvert.errors import LeconvertError, StorageError, UsageError
from leconvert.report.charts import signs
from leconvert.report.parts import STYLE, Markup, element, note
from leconvert.report.sections import (
    conversion_section,
    environment_section,
    findings_section,
    header,
    loading_section,
    verification_section,
    work_section,
)
from leconvert.report.values import RunReport, gather_run
from leconvert.workdir.fs import replace_record
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.storage_errors import any_storage_errors, storage_errors

__all__ = ["check_report_place", "default_report_place", "page", "report_on_exit", "write_report"]


# Should anything on the page ever ask for something, the browser refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CONTENTS = (
    ("conversion", "What was converted"),
    ("findings", "Findings and repairs"),
    ("verification", "Verification"),
    ("work", "Work"),
    ("loading", "Loading"),
    ("environment", "Commands and environment"),
)


def page(story: RunReport) -> str:
    """Return the page; it takes time and room linear in attempts, findings and streams at most."""
    sections = {
        "conversion": conversion_section(story),
        "findings": findings_section(story),
        "verification": verification_section(story),
        "work": work_section(story),
        "loading": loading_section(story),
        "environment": environment_section(story),
    }
    links = [
        element("li", element("a", title, href=f"#{anchor}"))
        for anchor, title in _CONTENTS
        if sections[anchor] is not None
    ]
    body = element(
        "body",
        signs(),
        header(story),
        element("nav", element("ul", links), aria_label="Sections"),
        element("main", _remarks(story), list(sections.values())),
        element(
            "footer",
            f"Gathered {story.generated:%Y-%m-%d %H:%M:%S} UTC by leconvert {__version__}. "
            "Times are UTC.",
        ),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{story.name or 'dataset'}: leconvert report"),
        element("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _remarks(story: RunReport) -> Markup | None:
    if not story.remarks:
        return None
    shown = [element("li", remark) for remark in story.remarks[:10]]
    if len(story.remarks) > len(shown):
        shown.append(element("li", f"and {len(story.remarks) - len(shown):,} more"))
    return element(
        "aside", note("Not everything could be read:"), element("ul", shown), class_="remarks"
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Where the page goes, and where it may not.


def default_report_place(target: Path) -> Path:
    """Return where a conversion's report goes: ``<target>.report.html``, beside the result."""
    return target.with_name(f"{target.name}.report.html")


def check_report_place(path: Path, datasets: list[Path]) -> None:
    """Refuse a place that the page cannot be written to; call it before any work is done, too."""
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


def write_report(story: RunReport, path: Path) -> int:
    """Write the page, replacing what is there in one step.

    Returns:
        Its size in bytes.
    """
    _check_for(story.target, story.source, path)
    data = page(story).encode("utf-8")
    with storage_errors(path):
        replace_record(path, data)
    return len(data)


def _check_for(target: str, source: str | None, path: Path) -> None:
    check_report_place(path, [Path(place) for place in (target, source) if place])


@contextmanager
def report_on_exit(run: OpenedRun, path: Path | None) -> Iterator[None]:
    """Write a run's report when the block ends, however it ends; not at all without a path.

    What ends the block matters more than its report: where both fail, the block's own error is
    raised.
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
