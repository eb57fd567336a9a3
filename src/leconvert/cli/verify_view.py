"""Says how a verification ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.workdir.secrets import without_credentials

if TYPE_CHECKING:
    from leconvert.verify import VerificationReport

__all__ = ["verification_lines"]

_DIFFERENCES_SHOWN = 50


def verification_lines(report: VerificationReport, result: Path, source: Path | str) -> list[str]:
    """Return what differs, with a count at the end, or what was compared.

    Args:
        report: What came of it.
        result: The result, as the user named it.
        source: Its source, as the user named it.
    """
    if report.ok:
        return [f"{result} matches {without_credentials(str(source))}: {_compared(report)}."]
    count = len(report.differences)
    shown = f", the first {_DIFFERENCES_SHOWN} above" if count > _DIFFERENCES_SHOWN else ""
    noun = "difference" if count == 1 else "differences"
    return [
        *map(str, report.differences[:_DIFFERENCES_SHOWN]),
        f"{count:,} {noun}{shown}: the result does not match its source.",
    ]


def _compared(report: VerificationReport) -> str:
    share = "" if report.share == 1 else f"a sample of {report.share:.0%}, "
    said = (
        f"{report.depth}, {share}{report.episodes:,} episodes, {report.rows:,} rows, "
        f"{report.video_frames:,} camera frames in {report.files:,} files"
    )
    if report.pictures:
        said += f"; {report.pictures:,} pictures decoded on both sides"
    if report.samples:
        said += f"; {report.samples:,} samples loaded through LeRobot"
    return said
