"""A planned run as its actors see it: paths, manifest, batches and scan in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import PlanMismatchError, StorageError, WorkDirError
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.manifest import (
    BatchFile,
    Manifest,
    ScanTable,
    read_manifest,
    tool_versions,
)
from leconvert.workdir.one_host import OneHost, check_still_alone, come_in, read_one_host
from leconvert.workdir.paths import RunPaths, WorkDir

__all__ = ["OpenedRun", "check_current", "open_run"]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRun:
    """One run, opened for reading.

    Attributes:
        work_dir: The folder that all hosts share.
        paths: Every path of the run.
        manifest: The head of the plan.
        batches: Its batches.
        scan: Its scan table.
        one_host: Who alone may work on it; None for any number of hosts.
    """

    work_dir: WorkDir
    paths: RunPaths
    manifest: Manifest
    batches: BatchFile
    scan: ScanTable
    one_host: OneHost | None = None

    @property
    def fs(self) -> FileSystem:
        """The file operations that every process of this run must publish with."""
        return LOCAL if self.one_host is None else self.one_host.file_system(self.paths)


def open_run(
    root: Path, *, allow_mixed_versions: bool = False, only_look: bool = False
) -> OpenedRun:
    """Open the current run of a work dir.

    Args:
        root: The work dir.
        allow_mixed_versions: Work even if this host's libraries differ from the planner's, at the
            price of results that may differ in their bytes.
        only_look: Nothing will be written: then any host may open a run of one host.

    Raises:
        OneHostOnlyError: Another host alone may work on it.
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
    manifest = read_manifest(paths, run_id, check_files=not only_look)
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
    batches = BatchFile(paths, manifest.streams)
    if len(batches) != manifest.num_batches:
        # Who goes by either number would wait for batches that are none, or leave some out.
        raise WorkDirError(
            f"{paths.manifest} cannot be used: it names {manifest.num_batches} batches, and "
            f"{paths.batches_offsets.name} {len(batches)}.",
            path=str(paths.manifest),
            next_step="Start a new run with --restart.",
        )
    one_host = read_one_host(paths, run_id)
    if one_host is not None and not only_look:
        one_host = come_in(paths, run_id, one_host)
    return OpenedRun(
        work_dir=work_dir,
        paths=paths,
        manifest=manifest,
        batches=batches,
        scan=ScanTable(paths, manifest.streams),
        one_host=one_host,
    )


def check_current(run: OpenedRun) -> None:
    """Check that a run is still the one that its work dir names.

    Raises:
        PlanMismatchError: It was given up for another one (``--restart``).
        OneHostOnlyError: It is one host's alone, and is now used through another one or mount.
        StorageError: The work dir names no run any more: it was removed, or is not mounted; or it
            cannot be read just now.
    """
    root, mine = run.work_dir.root, run.manifest.run_id
    now = run.work_dir.current_run_id()
    if now == mine:
        if run.one_host is not None:
            check_still_alone(run.paths, mine, run.one_host)
        return
    if now is None:
        raise StorageError(
            f"{root} is gone, or holds run {mine} no longer.",
            path=str(root),
            next_step="If nobody removed it, check that its file system is mounted; then run the "
            "same command again.",
        )
    raise PlanMismatchError(
        f"Run {mine} was given up: {root} now holds run {now}.",
        path=str(root),
        next_step="Start again to work on the new run; what this one had done is not used.",
    )
