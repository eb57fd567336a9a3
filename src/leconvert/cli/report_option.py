"""``--report``, and where its page goes."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_report_option", "report_place"]


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--report``; `report_place` reads it."""
    parser.add_argument(
        "--report", type=Path, nargs="?", const=Path(), metavar="FILE",
        help="tell what happened as one HTML page, also where it fails once there is a plan "
        "(default: <target>.report.html)",
    )  # fmt: skip


def report_place(given: Path | None, target: Path) -> Path | None:
    """Return where ``--report`` wants the page, or None where it was not given."""
    if given is None:
        return None
    from leconvert.report import default_report_place

    return default_report_place(target) if given == Path() else given.resolve()
