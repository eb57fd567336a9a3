"""``leconvert clean``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.progress import progress_for
from leconvert.support.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir",
        type=Path,
        nargs="?",
        metavar="WORK_DIR|DATASET",
        help="the work dir, or a dataset beside it",
    )
    parser.add_argument(
        "--of", type=Path, metavar="DATASET",
        help=(
            "the dataset whose leftovers are removed; unlike WORK_DIR|DATASET, it is never taken "
            "for a work dir"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--give-up",
        action="store_true",
        help="also discard the unfinished run, unless somebody works on it",
    )
    parser.add_argument(
        "--old", action="store_true",
        help="also remove DATASET_old and former states of DATASET, or of all results of a fleet's "
            "WORK_DIR; each is removed only if every byte of it is proven to be in the result",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed")
    add_json(parser)


def _places(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """Return the work dir, and the dataset at its target where that is what was given."""
    from leconvert.workdir.run import find_work_dir, work_dirs_of
    from leconvert.workdir.swap import codebase_version, work_dir_beside

    if options.of is not None:
        target = options.of.resolve()
        return work_dir_beside(target), target
    given = options.work_dir.resolve()
    own = work_dir_beside(given)
    if codebase_version(given) is None and not own.is_dir():
        return given, None
    others = [root for root in work_dirs_of(given) if root != own]
    if others and not own.is_dir():
        return find_work_dir(given), None
    return own, given


def run(options: argparse.Namespace) -> int:
    """Remove leftovers, and name what stays and why."""
    from leconvert.run.upkeep import clean_kept_source, clean_work_dir
    from leconvert.workdir.records import WorkDir

    if (options.work_dir is None) == (options.of is None):
        raise UsageError("Give exactly one folder: WORK_DIR, DATASET or --of DATASET.")
    root, target = _places(options)
    progress = progress_for(quiet=options.json)
    if options.old and target is None:
        if not WorkDir(root).is_fleet():
            raise UsageError(
                "--old needs a converted dataset, or the work dir of a fleet.",
                next_step="Give the dataset instead of this work dir.",
            )
        from leconvert.fleet import clean_fleet

        report = clean_fleet(root, dry_run=options.dry_run, progress=progress)
    else:
        report = clean_work_dir(
            root, target=target, give_up=options.give_up, dry_run=options.dry_run
        )
    if options.old and target is not None:
        report += clean_kept_source(target, dry_run=options.dry_run, progress=progress)
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
        return 0
    did = "would remove" if options.dry_run else "removed"
    for row in report.removed:
        print(f"{did} {row.kind} {row.path}: {row.reason}")
    for row in report.kept:
        # A kept source is called so.
        print(f"kept {row.kind.removeprefix('kept ')} {row.path}: {row.reason}")
    if not report.removed:
        # A name with a slip in it must not pass for one that is clean.
        missing = target is not None and not report.kept and not target.exists()
        why = f": {target} does not exist, and no run of it exists" if missing else ""
        print(f"There is nothing to remove{why}.")
    return 0
