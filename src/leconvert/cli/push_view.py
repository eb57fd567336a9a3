"""What is shown of a push; ``convert`` and ``push`` share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leconvert.cli.text import amount

if TYPE_CHECKING:
    from leconvert.hub.push_report import PushReport

__all__ = ["show_push"]

_KEPT_SHOWN = 5


def show_push(report: PushReport) -> None:
    """Print what a push did, or would do."""
    from leconvert.hub.push_report import MAIN

    if report.dry_run:
        print(f"Nothing was written. A push to {report.url} would:")
        if report.created:
            print("  make          the repo, unless it is a private one that this token cannot see")
    else:
        print(f"Pushed to {report.url}")
    print(
        f"  added         {report.added:,} files, {amount(report.added_bytes)}; "
        f"{report.unchanged:,} were there"
    )
    if report.deleted:
        print(f"  deleted       {report.deleted:,} files of the old dataset")
    if report.deleted and report.before:
        print(f"  before        {report.before[:12]}, where the old dataset stays")
    if report.kept:
        more = len(report.kept) - _KEPT_SHOWN
        shown = ", ".join(report.kept[:_KEPT_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        print(f"  not touched   {shown}")
    print(f"  card          {report.card}")
    place = f"branch {report.branch}"
    if report.pull_request is not None:
        place = f"pull request {report.pull_request}" + (", merged" if report.merged else "")
    made = f" {report.commit[:12]}" if report.commit else ""
    print(f"  commit       {made or f' {report.commits:,} to make'}, {place}")
    unset = "not set before the pull request is merged: then push again"
    if report.pull_request is None and report.branch != MAIN:
        unset = f"not touched: it names what {MAIN} holds"
    tags = {"none": unset}
    print(f"  tag v3.0      {tags.get(report.tag, report.tag)}")
