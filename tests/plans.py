"""Plans of conversions between folders, for tests that name each folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leconvert.remote.provenance import Origin
from leconvert.run import planner
from leconvert.run.conversion import Conversion, Places
from leconvert.run.planner import Draft
from leconvert.workdir.run import OpenedRun


def _places(
    sources: Path | Sequence[Path], target: Path, work_dir: Path, arrival: Origin | None
) -> Places:
    return Places([sources] if isinstance(sources, Path) else sources, target, work_dir, arrival)


def open_or_plan(
    sources: Path | Sequence[Path],
    target: Path,
    work_dir: Path,
    conversion: Conversion = Conversion(),
    *,
    arrival: Origin | None = None,
    **given: Any,
) -> OpenedRun:
    """Return the run of a work dir, planned if need be."""
    return planner.open_or_plan(_places(sources, target, work_dir, arrival), conversion, **given)


def draft_plan(
    sources: Path | Sequence[Path],
    target: Path,
    work_dir: Path,
    conversion: Conversion = Conversion(),
) -> Draft:
    """Return a plan without writing it."""
    return planner.draft_plan(_places(sources, target, work_dir, None), conversion)
