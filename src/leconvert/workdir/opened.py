"""A planned run as its actors see it: paths, manifest, batches and scan in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import PlanMismatchError, WorkDirError
from leconvert.workdir.manifest import (
    BatchFile,
    Manifest,
    ScanTable,
    read_manifest,
    tool_versions,
)
from leconvert.workdir.paths import RunPaths, WorkDir

__all__ = ["OpenedRun", "open_run"]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRun:
    """One run, opened for reading.

    Attributes:
        work_dir: The folder that all hosts share.
        paths: Every path of the run.
        manifest: The head of the plan.
        batches: Its batches.
        scan: Its scan table.
    """

    work_dir: WorkDir
    paths: RunPaths
    manifest: Manifest
    batches: BatchFile
    scan: ScanTable


def open_run(root: Path, *, allow_mixed_versions: bool = False) -> OpenedRun:
    """Open the current run of a work dir.

    Args:
        root: The work dir.
        allow_mixed_versions: Work even if this host's libraries differ from the planner's, at the
            price of results that may differ in their bytes.

    Raises:
        WorkDirError: There is no run, or its records cannot be used.
        PlanMismatchError: This host's libraries differ from the planner's.
    """
    work_dir = WorkDir(root)
    run_id = work_dir.current_run_id()
    if run_id is None:
        raise WorkDirError(
            f"{root} holds no run.",
            path=str(root),
            next_step="Give the work dir that `leconvert plan` or `leconvert convert` printed.",
        )
    paths = work_dir.run(run_id)
    manifest = read_manifest(paths, run_id)
    here = tool_versions()
    differing = sorted(name for name in here if manifest.versions.get(name) != here[name])
    if differing and not allow_mixed_versions:
        raise PlanMismatchError(
            f"{root} was planned with other library versions than this host has.",
            path=str(root),
            details=[
                f"{name}: planned with {manifest.versions.get(name)}, {here[name]} here"
                for name in differing
            ],
            next_step="Install the same versions, or pass --allow-mixed-versions to accept results "
            "that are equal in content but perhaps not in bytes.",
        )
    return OpenedRun(
        work_dir=work_dir,
        paths=paths,
        manifest=manifest,
        batches=BatchFile(paths, manifest.streams),
        scan=ScanTable(paths, manifest.streams),
    )
