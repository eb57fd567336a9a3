"""``leconvert undo``, ``clean`` and ``release``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.options import controlled
from leconvert.cli.output import progress_for, show, table
from leconvert.cli.parser import add_output, add_place_of_run
from leconvert.support.errors import BusyError, UsageError
from leconvert.support.flags import some_seconds, whole
from leconvert.support.text import count, shorten
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import codebase_version, overlaid_meta, work_dir_beside

if TYPE_CHECKING:
    from leconvert.run.upkeep import CleanReport, ReleaseReport, UndoReport

_REASON_WIDTH = 60


def add_undo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "dataset",
        type=Path,
        metavar="DATASET",
        help="the dataset that was converted or repaired in place, or the result that "
        "--force-conversion or --append replaced",
    )
    add_output(parser, dry_run="compare both datasets and show what would be done; change nothing")


def run_undo(options: argparse.Namespace) -> int:
    """Put the kept source back, and print the place of the result."""
    from leconvert.run.upkeep import newest_kept, undo_conversion

    dataset = options.dataset.resolve()
    kept = newest_kept(dataset)
    with controlled(options) as control:
        report = undo_conversion(
            dataset,
            dry_run=options.dry_run,
            stop=control.stop,
            progress=control.progress,
        )
    place = dataset / "meta" if overlaid_meta(dataset) else dataset
    return show(options, report.as_record(), _undo_lines(report, kept, place))


def _undo_lines(report: UndoReport, kept: Path, place: Path) -> Iterator[str]:
    dataset = report.dataset
    if report.was_undone:
        yield (
            f"An earlier command already put {dataset} back. The result, which was at {dataset}, "
            f"is now at {report.result}."
        )
        return
    compared = (
        f"{count(report.episodes, 'episode')}, {count(report.rows, 'frame')}, "
        f"{count(report.camera_frames, 'camera frame')}"
    )
    yield f"Source and result contain the same: {compared}."
    if report.dry_run:
        yield f"Would put {kept} back as {place}."
        yield f"Would keep the result as {report.result}."
    else:
        yield f"  dataset  {dataset}"
        yield f"  kept     {report.result}"


def add_clean_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_place_of_run(parser, nargs="?")
    parser.add_argument(
        "--of", type=Path, metavar="DATASET",
        help="the dataset whose leftovers are removed; this path is always read as a dataset, "
        "never as a work dir",
    )  # fmt: skip
    parser.add_argument(
        "--give-up",
        action="store_true",
        help="also discard the unfinished run, unless somebody works on it",
    )
    parser.add_argument(
        "--old", action="store_true",
        help="also remove DATASET_old and former states of DATASET (replaced results that were "
        "kept); with the WORK_DIR of a fleet: those of all its results; a folder is removed only "
        "if every byte of the folder is proven to be in the result",
    )  # fmt: skip
    add_output(parser, dry_run="show what would be removed")


def _places(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """Return the work dir, and the dataset if the user gave that."""
    from leconvert.workdir.run import find_work_dir, work_dirs_of

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


def run_clean(options: argparse.Namespace) -> int:
    """Remove leftovers, and print what stays and why."""
    from leconvert.run.upkeep import clean_kept_source, clean_work_dir

    if (options.work_dir is None) == (options.of is None):
        raise UsageError("Give exactly one folder: WORK_DIR, DATASET or --of DATASET.")
    root, target = _places(options)
    progress = progress_for(options)
    if options.old and target is None:
        if not WorkDir(root).is_fleet():
            raise UsageError(
                "--old needs a converted dataset or the work dir of a fleet. "
                f"{options.work_dir} is neither.",
                next_step="Give the converted dataset.",
            )
        from leconvert.fleet import clean_fleet

        report = clean_fleet(root, dry_run=options.dry_run, progress=progress)
    else:
        report = clean_work_dir(
            root, target=target, give_up=options.give_up, dry_run=options.dry_run
        )
    if options.old and target is not None:
        report += clean_kept_source(target, dry_run=options.dry_run, progress=progress)
    return show(options, report.as_record(), _clean_lines(report, target))


def _clean_lines(report: CleanReport, target: Path | None) -> Iterator[str]:
    did = "would remove" if report.dry_run else "removed"
    for row in report.removed:
        yield f"{did} {row.kind} {row.path}: {row.reason}"
    for row in report.kept:
        # The kind of a kept source begins with "kept" already.
        yield f"kept {row.kind.removeprefix('kept ')} {row.path}: {row.reason}"
    if not report.removed:
        # A mistyped name must not look clean.
        missing = target is not None and not report.kept and not target.exists()
        why = f": {target} does not exist, and no run of it exists" if missing else ""
        yield f"There is nothing to remove{why}."


def add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_place_of_run(parser)
    parser.add_argument(
        "batches", type=whole(0), nargs="*", default=[], metavar="BATCH", help="batch numbers"
    )
    parser.add_argument("--failed", action="store_true", help="release all batches that failed")
    parser.add_argument(
        "--stuck",
        action="store_true",
        help="release all batches whose worker ended or shows no sign of life",
    )
    parser.add_argument(
        "--force", action="store_true",
        help="take batches away from workers on other hosts at once, without first watching "
        "for signs of life",
    )  # fmt: skip
    parser.add_argument(
        "--lease-seconds", type=some_seconds, default=60.0, metavar="S",
        help="seconds of silence after which a worker counts as gone; use at least the "
        "--lease-seconds of the workers (default: 60)",
    )  # fmt: skip
    add_output(parser, dry_run="show what would be done; change nothing")


def run_release(options: argparse.Namespace) -> int:
    """Give batches back, and print the reasons."""
    from leconvert.run.upkeep import release_batches
    from leconvert.workdir.activity import record_invocation
    from leconvert.workdir.run import find_work_dir, open_run

    def tell(held: int) -> None:
        print(
            f"Watching {count(held, 'batch', 'batches')} of workers for signs of life, for up to "
            f"{options.lease_seconds:g} s.",
            file=sys.stderr,
        )

    root = find_work_dir(options.work_dir.resolve())
    opened = open_run(root, allow_mixed_versions=True)
    if not options.dry_run:
        record_invocation(opened.paths, "release", options.command_line)
    report = release_batches(
        opened,
        options.batches,
        failed=options.failed,
        stuck=options.stuck,
        force=options.force,
        dry_run=options.dry_run,
        lease_seconds=options.lease_seconds,
        on_watch=tell,
    )
    code = BusyError.exit_code if report.refused else 0
    return show(options, report.as_record(), _release_lines(report, root), code)


def _release_lines(report: ReleaseReport, root: Path) -> Iterator[str]:
    rows = [
        (b.batch_id, b.verdict, shorten(b.reason, _REASON_WIDTH), b.host or "-", b.pid or "-")
        for b in report.batches
    ]
    yield from (
        table(("batch", "", "why", "host", "process"), rows)
        if rows
        else ("There is nothing to release.",)
    )
    if report.dry_run:
        yield "Nothing was written."
    elif any(b.verdict == "released" for b in report.batches):
        again = f"leconvert work {shlex.quote(str(root))}"
        yield f"Running workers will take these batches. Start another worker with: {again}"
