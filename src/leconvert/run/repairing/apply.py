"""Carries out a repair: a new tree beside the dataset is compared with it and put in its place.

A dataset is repaired by making another one. This costs a copy, but almost nothing if the file
system shares extents: then every file is cloned, and only indices of videos and the tables under
``meta/`` are written. Otherwise the bytes are copied, which `repair_dataset` reports before it
begins. No file is hard-linked, because LeRobot's tools rewrite parquet files in place and would
change both trees. No file of the dataset is written to. So a reader that has one open continues to
read the same content, and a repair that dies has changed nothing.

Other ways were considered. Patching files in place, with a log, writes a few hundred bytes; but
between two of the writes a reader finds new times with old ``meta/episodes``, and there is no old
dataset to return to. A run with a journal is made for many processes, and here there is only one.
So the mark of the new tree (`leconvert.workdir.swap`) is the only state:

| killed | state | the same command |
|---|---|---|
| while files are copied or compared | the dataset, and a tree of leconvert's | begins again |
| after the exchange | the repaired dataset, the old one under our name | names it ``_old`` |
| between two renames (without an exchange) | nothing; ``_old`` is the dataset | renames it back |
| before the mark is removed | the repaired dataset with a mark | removes the mark |

The target's lock is held from the first look to the end, so only one process repairs at a time.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media, tables
from leconvert.dataset.check import DatasetCheck, checked
from leconvert.dataset.files import names_to_keep
from leconvert.dataset.findings import all_named
from leconvert.dataset.formats import v3
from leconvert.dataset.formats.v2 import legacy_version, read_info, refuse_pointers
from leconvert.dataset.scan import reads_as_v3
from leconvert.model.repairs import NO_REPAIRS, RepairOptions
from leconvert.model.values import Finding, Slice
from leconvert.model.versions import V3_VERSION, said_version
from leconvert.run.packer import facts_of_tree
from leconvert.run.planner import PlannedRepairs, plan_repairs
from leconvert.run.repairing.changes import (
    Changes,
    compare_trees,
    kept_names,
    repairs_of,
    write_changes,
)
from leconvert.run.repairing.plan import (
    INDEX_COLUMNS,
    RepairPlan,
    VideoRepair,
    plan_repair,
    stored_stats,
)
from leconvert.run.space import Room, SpaceNeeded, check_room, free_bytes_of
from leconvert.support.errors import (
    REPORT_IT,
    InterruptedRunError,
    SourceChangedError,
    SourceError,
    StorageError,
    UnreadableSourceError,
    VerificationError,
)
from leconvert.support.file_calls import copy_file
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import any_storage_errors, storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import LOCAL, can_clone, make_folders_below, sync_tree
from leconvert.workdir.locks import target_lock
from leconvert.workdir.records import default_work_dir
from leconvert.workdir.swap import (
    SwapPlan,
    check_places,
    check_target,
    exchange_trees,
    has_mark_of,
    is_same_folder,
    mark_tree,
    marked_by,
    old_dir,
    recover_marked,
    remove_mark,
    remove_new_tree,
    source_as_output,
    staging_dir,
    staging_trees,
    superseded,
    try_renames,
)

# The name of the tree says whether the dataset there is put aside, which must survive a crash.
_IN_PLACE, _OUTPUT = "repair", "repair-output"
REPAIR_RUNS = frozenset({_IN_PLACE, _OUTPUT})
"""The run ids that mark the trees of repairs."""
_DIFFERENCES_SHOWN = 20
# With this alignment, a join shares blocks with the stored file if the file system can.
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The report of a repair, or of its dry run.

    Attributes:
        dataset: The dataset that was repaired.
        target: The folder of the repaired dataset.
        kept: The folder of the dataset that it replaced; None if there is none.
        dry_run: Whether nothing was written.
        was_repaired: Whether the output existed already and was proven again; nothing was written.
        plan: The changes.
        written_bytes: Bytes of video indices and of files that were rewritten.
        copied_bytes: Bytes that were copied unchanged.
        cloned_bytes: Bytes that the two datasets share.
        seconds: The duration.
    """

    dataset: Path
    target: Path
    kept: Path | None
    dry_run: bool
    plan: RepairPlan
    written_bytes: int = 0
    copied_bytes: int = 0
    cloned_bytes: int = 0
    seconds: float = 0.0
    was_repaired: bool = False

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "dataset": str(self.dataset),
            "target": str(self.target),
            "kept": None if self.kept is None else str(self.kept),
            "dry_run": self.dry_run,
            "was_repaired": self.was_repaired,
            **self.plan.as_record(),
            "written_bytes": self.written_bytes,
            "copied_bytes": self.copied_bytes,
            "cloned_bytes": self.cloned_bytes,
            "seconds": round(self.seconds, 3),
        }


@any_storage_errors()
def repair_dataset(
    root: Path,
    *,
    output: Path | None = None,
    retime: bool = False,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> RepairReport:
    """Repair a dataset; both paths are resolved. See `leconvert.api.repair`."""
    started = time.monotonic()
    if output is not None and is_same_folder(output, root):
        raise source_as_output(root)
    target = root if output is None else output
    run_id = _IN_PLACE if output is None else _OUTPUT
    plan = SwapPlan(
        target, staging_dir(target, run_id, 1), old_dir(target) if output is None else None
    )
    check_places(root, target, default_work_dir(target))
    with ExitStack() as held:
        if not dry_run:
            held.enter_context(target_lock(target, run_id))
            _end_interrupted(plan, run_id)
        before = facts_of_tree(root)
        found, tables_root = held.enter_context(_planned(root, retime=retime, progress=progress))
        report = RepairReport(root, target, plan.old, dry_run, found)
        if not found:
            return replace(report, kept=None, seconds=time.monotonic() - started)
        changes = Changes.of(found, 1 + (repairs_of(root) or 0))
        repair = _Repair(root, tables_root, found, changes, stop or threading.Event(), progress)
        if output is not None and repairs_of(output) == changes.number:
            with suppress(VerificationError, UnreadableSourceError):
                repair.prove(output)
                seconds = time.monotonic() - started
                return replace(report, was_repaired=True, seconds=seconds)
        check_target(target, plan.old)
        _check_room(root, target)
        if dry_run:
            return replace(report, seconds=time.monotonic() - started)
        try_renames(target)

        def unchanged(tree: Path) -> None:
            if facts_of_tree(tree) != before:
                raise SourceChangedError(
                    f"{root} was changed during the repair.",
                    path=str(root),
                    next_step="Nothing was moved. Run the same command again when no other program "
                    "writes to the dataset.",
                )

        with storage_errors(plan.staging):
            LOCAL.make_dir(plan.staging)
        mark_tree(plan.staging, run_id)
        try:
            repair.write(plan.staging)
            sync_tree(plan.staging)
            repair.prove(plan.staging)
            unchanged(root)
        except BaseException as error:
            is_gone = False
            with suppress(Exception):
                is_gone = marked_by(plan.staging) != run_id
                remove_new_tree(plan.staging, run_id)
            # A process that lost the lock finds that its tree was removed, or put in place.
            if is_gone and isinstance(error, VerificationError | StorageError | OSError):
                raise superseded(plan.staging) from error
            raise
        exchange_trees(plan, is_new=has_mark_of(run_id), came_out=unchanged, run_id=run_id)
        remove_mark(target, run_id)
    return replace(
        report,
        written_bytes=repair.written_bytes,
        copied_bytes=repair.copied_bytes,
        cloned_bytes=repair.cloned_bytes,
        seconds=time.monotonic() - started,
    )


@contextmanager
def _planned(root: Path, *, retime: bool, progress: Progress) -> Iterator[tuple[RepairPlan, Path]]:
    """Yield the plan, and the folder that contains the derived tables."""
    raw: Mapping[str, Any] = read_info(root)
    refuse_pointers(root)
    if not reads_as_v3(root):
        version, said = legacy_version(root, raw), raw.get("codebase_version")
        if version != said:
            raise SourceError(
                f"{root / v3.INFO_PATH} {said_version(said)}; the files are those of {version}.",
                path=str(root / v3.INFO_PATH),
                next_step=f"`leconvert convert {shlex.quote(str(root))} --assume-version "
                f"{shlex.quote(version)}` converts them.",
            )
        raise SourceError(
            f"{root} is {version}. `leconvert repair` works only on {V3_VERSION} datasets.",
            path=str(root / v3.INFO_PATH),
            next_step=f"Use `leconvert convert {shlex.quote(str(root))}` for this dataset. The "
            "repairs are options of this command; its option --help-all lists them.",
        )
    with checked(root, raw, progress) as check:
        if check.derived is not None:
            raw = check.derived.raw
        plan = plan_repair(check, raw, retime=retime, progress=progress)
        mended, left = all_named(plan.mended, root), all_named(plan.left, root)
        yield replace(plan, root=root, mended=mended, left=left), check.root


def _end_interrupted(plan: SwapPlan, run_id: str) -> None:
    """End or take back an earlier repair of this target, and remove its tree."""
    recover_marked(plan, run_id)
    for owner, tree in staging_trees(plan.target):
        if owner == run_id:
            remove_new_tree(tree, run_id)


def _check_room(root: Path, target: Path) -> None:
    """Refuse a copy of the dataset for which there is no room."""
    if can_clone(root / v3.INFO_PATH, target.parent):
        return
    files = (root / path for path in names_to_keep(root))
    needed = sum(path.stat().st_size for path in files if path.is_file())
    room = Room(str(target.parent), needed, free_bytes_of(target.parent))
    check_room(SpaceNeeded(cloned=False, twice_bytes=0, rooms=(room,)), target)


@dataclass(eq=False)
class _Repair:
    """Writes the repaired dataset, file by file, and proves it.

    Attributes:
        root: The dataset.
        tables_root: The folder that contains the derived tables.
        plan: The plan.
        changes: The record of its changes.
        stop: Ends the work.
        progress: Receives the progress.
        written_bytes: See `RepairReport`, as for the other two.
    """

    root: Path
    tables_root: Path
    plan: RepairPlan
    changes: Changes
    stop: threading.Event
    progress: Progress
    written_bytes: int = 0
    copied_bytes: int = 0
    cloned_bytes: int = 0

    def __post_init__(self) -> None:
        self._videos = {video.path: video for video in self.plan.videos}
        self._data = {data.path: data for data in self.plan.data}

    @cached_property
    def _rows(self) -> Mapping[str, range]:
        """The rows of each file of ``meta/episodes``; empty if none of these files changes."""
        if not self.plan.episodes and self.plan.episode_rows is None:
            return {}
        return v3.EpisodesReader(self.tables_root).rows_of_files

    @cached_property
    def _in_order(self) -> pa.Table | None:
        """All rows of ``meta/episodes`` in their new order; None if the order stays."""
        if self.plan.episode_rows is None:
            return None
        with storage_errors(self.root / v3.EPISODES_DIR):
            stored = pa.concat_tables(pq.read_table(self.tables_root / path) for path in self._rows)
        return stored.take(pa.array(self.plan.episode_rows))

    def write(self, tree: Path) -> None:
        """Write all files without syncing them, and the record of the changes."""
        new = [*self.plan.derived, *([v3.STATS_PATH] if self.plan.stats else [])]
        names = sorted({*kept_names(self.root, self.plan.derived), *new})
        with self.progress.stage("repair", len(names), "files") as stage:
            for path in names:
                if self.stop.is_set():
                    raise InterruptedRunError(
                        "The repair was interrupted. Nothing was changed.",
                        next_step="Run the same command again.",
                    )
                with storage_errors(tree / path):
                    make_folders_below(tree, (tree / path).parent)
                    self._write(tree, path)
                stage.advance(1)
        write_changes(tree, self.changes)

    def _write(self, tree: Path, path: str) -> None:
        plan, target = self.plan, tree / path
        is_derived = path in plan.derived
        source = (self.tables_root if is_derived else self.root) / path
        if path in self._videos:
            self._write_video(self._videos[path], source, target)
            return
        if path in self._data:
            data = self._data[path]
            columns = data.values(plan.fps, source)
            tables.replace_columns(source, target, columns, row_groups=data.length.tolist())
        elif path in self._rows:
            rows, ordered = self._rows[path], self._in_order
            columns = {name: new[rows.start : rows.stop] for name, new in plan.episodes.items()}
            moved = None if ordered is None else ordered.slice(rows.start, len(rows))
            tables.replace_columns(source, target, columns, rows=moved)
        elif path == v3.TASKS_PATH and plan.task_rows is not None:
            number = {"task_index": np.arange(len(plan.task_rows))}
            with storage_errors(source):
                moved = pq.read_table(source).take(pa.array(plan.task_rows))
            tables.replace_columns(source, target, number, rows=moved)
        elif path == v3.INFO_PATH and plan.info:
            v3.write_info(tree, {**v3.read_json_object(source), **plan.info})
        elif path == v3.STATS_PATH and plan.stats:
            v3.write_stats(tree, {**stored_stats(self.root), **plan.stats})
        elif is_derived:
            copy_file(source, target)
        elif source.is_file():
            copied = media.copy_file(source, target)
            self.copied_bytes += copied.copied_bytes
            self.cloned_bytes += copied.cloned_bytes
            return
        else:
            # A link to a folder, or to nothing. If it leads out of the dataset, it keeps its
            # target.
            text, place = source.readlink(), Path(os.path.realpath(source))
            stays = place.is_relative_to(os.path.realpath(self.root))
            stays = stays or os.path.realpath(target.parent / text) == str(place)
            target.symlink_to(text if stays else place)
            return
        self.written_bytes += target.stat().st_size

    def _write_video(self, video: VideoRepair, source: Path, target: Path) -> None:
        if video.how == "remux":
            media.remux_clip(source, target, fps=self.plan.fps, other_tracks=True)
            self.copied_bytes += target.stat().st_size
            return
        joined = media.join_clips(
            [
                Slice(str(source), first, stop - first)
                for first, stop in pairwise([*video.begins, video.frames])
            ],
            target,
            fps=self.plan.fps,
            block_align=_BLOCK_BYTES,
            is_whole=len(video.begins) == 1,
        )
        self.copied_bytes += joined.copied_bytes
        self.cloned_bytes += joined.cloned_bytes
        self.written_bytes += joined.header_bytes

    def prove(self, tree: Path) -> None:
        """Compare the new tree with the dataset, and check it by itself."""
        differences = compare_trees(
            self.root, tree, self.changes, stop=self.stop, progress=self.progress
        )
        if not differences:
            raw = v3.read_json_object(tree / v3.INFO_PATH)
            expected = {_kind(finding) for finding in self.plan.left}
            differences = [
                f"{finding.code}: {finding.message}"
                for finding in DatasetCheck(tree, raw, self.progress).findings
                if finding.severity != "info" and _kind(finding) not in expected
            ]
        if differences:
            raise VerificationError(
                f"The repaired copy of {self.root} is not as planned. Nothing was replaced.",
                path=str(self.root),
                details=differences[:_DIFFERENCES_SHOWN],
                next_step=f"{REPORT_IT}. `leconvert check {shlex.quote(str(self.root))}` lists "
                "what is wrong with the dataset.",
            )


def _kind(finding: Finding) -> tuple[str, str | None, str | None]:
    return finding.code, finding.stream, finding.path


# The repairs that make a dataset right: from its own files if they are enough, else by a
# conversion. A conversion drops missing files, declares columns and computes statistics, as for
# v2.x. It also repairs everything for which the files are enough.


_RETIME = RepairOptions(retime=True)
# Findings that computed statistics repair.
_FILLED = frozenset({"episode-stats", "stats-missing"})


def follows_from_files(options: RepairOptions) -> bool:
    """Return whether `repair_dataset` does everything that is requested; else a conversion must."""
    # It reads a dataset as v3.0 and locates files without being asked.
    asked = replace(options, locate_files=False)
    if asked.assume_version == V3_VERSION:
        asked = replace(asked, assume_version=None)
    return asked in (RepairOptions(), _RETIME)


def choose_repairs(root: Path, *, progress: Progress = NO_PROGRESS) -> PlannedRepairs:
    """Find the repairs that make a dataset right; if there is a choice, those that lose least."""
    if not reads_as_v3(root):
        return plan_repairs(root, progress=progress)
    options, plan = RepairOptions(), _plan_of(root, progress=progress)
    if any(finding.code == "timestamps" for finding in plan.errors_left):
        options, plan = _RETIME, _plan_of(root, retime=True, progress=progress)
    if not plan.errors_left and plan.extent is not None:
        if not plan.puts_in_order and any(each.code in _FILLED for each in plan.left):
            return _planned_anew(plan, replace(options, fill_stats=True), progress)
        return PlannedRepairs(
            root,
            options.flags(),
            options,
            plan.extent,
            plan.extent,
            NO_REPAIRS,
            plan.left,
            plan.summary(),
        )
    planned = _planned_anew(plan, None, progress)
    if not follows_from_files(planned.options):
        return planned
    # A repair from the files leaves errors that a conversion mends. An option of a conversion asks
    # for one; this option declares columns as they are stored, and drops nothing.
    anew = replace(planned.options, declare_features=True)
    return replace(_planned_anew(plan, anew, progress), lossless=planned.lossless)


def plan_anew(
    root: Path, options: RepairOptions, *, progress: Progress = NO_PROGRESS
) -> PlannedRepairs:
    """Plan the conversion that makes a v3.0 dataset right, with the given repairs.

    As in `repair_dataset`, columns that only count are counted again, and files are located.
    """
    return _planned_anew(_plan_of(root, progress=progress), options, progress)


def _plan_of(root: Path, *, retime: bool = False, progress: Progress) -> RepairPlan:
    with _planned(root, retime=retime, progress=progress) as (plan, _):
        return plan


def _planned_anew(
    plan: RepairPlan, options: RepairOptions | None, progress: Progress
) -> PlannedRepairs:
    """Plan the conversion of a dataset whose files alone do not make it right.

    Args:
        plan: The plan from its files.
        options: The repairs; None for the best ones.
        progress: Receives the progress.
    """
    root = plan.root
    if plan.puts_in_order:
        raise SourceError(
            f"Rows of {root} are in the wrong order. This command would copy them in that order.",
            path=str(root),
            next_step=f"`leconvert repair {shlex.quote(str(root))}` puts the rows in order. Then "
            "run this command again.",
            details=[f"{f.code}: {f.message}" for f in plan.mended if f.code.endswith("-order")],
        )
    if options is not None and any(finding.code in INDEX_COLUMNS for finding in plan.mended):
        options = replace(options, reindex=True)
    if options is not None and plan.names_other_files:
        options = replace(options, locate_files=True)
    if options is not None and "codebase_version" in plan.info:
        options = replace(options, assume_version=V3_VERSION)
    return plan_repairs(root, options, progress=progress)
