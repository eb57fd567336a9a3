"""Which repairs make a dataset right: what follows from its own files, else a conversion's.

`repair_dataset` changes what follows from the files of a v3.0 dataset and keeps everything. What it
cannot make right (files that are gone, columns that nobody declares, statistics that no episode
has) a conversion leaves out, declares or computes, as it does for v2.x; it makes right in passing
what follows from the files.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from leconvert.model.repairs import NO_REPAIRS, RepairOptions
from leconvert.run.planner import PlannedRepairs, plan_repairs
from leconvert.run.repairing.apply import repair_dataset
from leconvert.run.repairing.plan import INDEX_COLUMNS
from leconvert.support.errors import SourceError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.workdir.swap import is_converted

_RETIME = RepairOptions(retime=True)


def follows_from_files(options: RepairOptions) -> bool:
    """Tell whether `repair_dataset` does all that is asked for; else a conversion has to."""
    return options in (RepairOptions(), _RETIME)


def choose_repairs(root: Path, *, progress: Progress = NO_PROGRESS) -> PlannedRepairs:
    """Find the repairs that make a dataset right, of several the ones that lose least."""
    if not is_converted(root):
        return plan_repairs(root, progress=progress)
    for options in (RepairOptions(), _RETIME):
        plan = repair_dataset(root, retime=options.retime, dry_run=True, progress=progress).plan
        if not plan.errors_left and plan.extent is not None:
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
    return plan_anew(root, None, progress=progress)


def plan_anew(
    root: Path, options: RepairOptions | None, *, progress: Progress = NO_PROGRESS
) -> PlannedRepairs:
    """Plan the conversion of a v3.0 dataset that makes it right, with some repairs or the best.

    Columns that only count are counted anew wherever `repair_dataset` would count them.
    """
    plan = repair_dataset(root, dry_run=True, progress=progress).plan
    if plan.puts_in_order:
        raise SourceError(
            f"Tables of {root} have rows that are not where their numbers say, which a conversion "
            "would take as they stand.",
            path=str(root),
            next_step=f"`leconvert repair {shlex.quote(str(root))}` puts them in order. Then run "
            "this command again.",
            details=[f"{f.code}: {f.message}" for f in plan.mended if f.code.endswith("-order")],
        )
    if options is not None and any(finding.code in INDEX_COLUMNS for finding in plan.mended):
        options = replace(options, reindex=True)
    return plan_repairs(root, options, progress=progress)
