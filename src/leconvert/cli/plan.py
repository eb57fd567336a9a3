"""``leconvert plan``."""

from __future__ import annotations

import argparse
import json
import shlex
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from leconvert.cli.options import add_plan_options, conversion_options, take_arguments
from leconvert.cli.output import former_line, print_findings, table
from leconvert.cli.parser import USUAL_OPTIONS, Parser, add_output
from leconvert.cli.progress import progress_for
from leconvert.cli.sources import Places, places
from leconvert.model.values import OVERLAY
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.support.text import amount, count, guessed_duration
from leconvert.workdir.former import former_dir
from leconvert.workdir.records import WorkDir, default_work_dir
from leconvert.workdir.swap import old_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leconvert.run.planner import MovedBytes, PlanSummary

# Refuse a bad target in the plan, so that the user learns of it before the work.


def replaced_target(
    sources: Sequence[Path],
    target: Path,
    work_dir: Path,
    conversion: Conversion,
    *,
    is_outlined: bool = False,
) -> str | None:
    """Refuse places that the packer would refuse, unless a run is under way here.

    The packer of a run under way owns the target: it may be in the middle of the swap.

    Returns:
        The folder that will keep the dataset at the target, with ``--force-conversion`` or
        ``--append``; otherwise None.
    """
    from leconvert.run.planner import check_all_places, check_asked

    check_all_places(sources, target, work_dir, outlined=is_outlined)
    if not conversion.plan.restart and WorkDir(work_dir).current_run_id() is not None:
        return None
    check_asked(sources, target, conversion)
    conversion.check_target(sources[0], target)
    if target in sources or not target.exists():
        return None
    appends = conversion.layout.append
    return str(former_dir(target, "RUN_ID")) if appends else str(old_dir(target))


# Prints a plan: files, batches, disk space and time.


# A cautious rate for the estimate: one worker copies at least this much on an ordinary disk.
_BYTES_PER_SECOND_AND_WORKER = 200 * 1024**2


_META_ALONE = (
    "Only meta/ will be written. The present meta/ is kept as meta_old, and no other file changes. "
    "To go back: leconvert undo DATASET."
)
_OF_AN_OVERLAY = (
    "With this layout LeRobot can load and split the dataset and delete episodes. LeRobot's merge, "
    "its feature tools, its streaming class and the Hub's visualizer do not find the files.",
    "To join the files later: leconvert convert DATASET --output DIR.",
)
_OF_STREAMING = (
    "LeRobot's streaming class (0.6.1) cannot read a camera with several video files. Read this "
    "layout with LeRobotDataset or leconvert.loading.EpisodeStream."
)


def print_plan(plan: PlanSummary, *, quiet: bool = False) -> None:
    """Print the findings, and the plan unless the command is quiet."""
    print_findings(plan.findings)
    if not quiet:
        print("\n".join(_lines(plan)))


def show_preview(
    options: argparse.Namespace,
    plan: PlanSummary,
    sources: Sequence[object],
    target: Path,
    work_dir: Path | None = None,
    *,
    after: Sequence[str] = ("Nothing was written.",),
) -> int:
    """Show a plan, and return the exit code.

    Args:
        work_dir: The folder of the plan; None for a dry run.
        after: The last lines.
    """
    if options.json:
        named = list(map(str, sources))
        record = {
            **({"source": named[0]} if len(named) == 1 else {"sources": named}),
            "target": str(target),
            "work_dir": None if work_dir is None else str(work_dir),
            **asdict(plan),
            "estimated_worker_seconds": _estimated_seconds(plan),
        }
        print(json.dumps(record, indent=2))
        return 0
    print_plan(plan, quiet=options.quiet)
    if not options.quiet:
        print("\n".join(after))
    return 0


def _estimated_seconds(plan: PlanSummary) -> float | None:
    """Return the time that one worker needs, about; None with decoding, whose time is unknown."""
    return None if plan.decoded_cameras else plan.source_bytes / _BYTES_PER_SECOND_AND_WORKER


def _lines(plan: PlanSummary) -> list[str]:
    is_overlay = plan.layout == OVERLAY
    seconds = _estimated_seconds(plan)
    lines = [
        _files_table(plan),
        f"New: {plan.episodes - plan.kept_episodes:,} of {plan.episodes:,} episodes, "
        f"{amount(plan.source_bytes)}, in {plan.batches:,} batches. The other "
        f"{plan.kept_episodes:,} episodes stay in their files."
        if plan.kept_episodes
        else f"{plan.episodes:,} episodes, {plan.frames:,} frames, {amount(plan.source_bytes)}"
        + ("." if plan.meta_alone else f" in {plan.batches:,} batches."),
    ]
    if plan.meta_alone:
        lines.append(_META_ALONE)
    elif plan.moves is not None:
        lines += list(_moves(plan.moves, is_overlay=is_overlay))
    elif plan.space.cloned:
        lines.append("The result will share its video bytes with the source; they are not copied.")
    elif seconds is None:
        lines.append("The bytes will be copied.")
    else:
        lines.append(
            f"The bytes will be copied. One worker needs about {guessed_duration(seconds)} on an "
            "ordinary disk."
        )
    if plan.decoded_cameras:
        some = plan.decoded_episodes < plan.episodes
        where = f" in {plan.decoded_episodes:,} of {plan.episodes:,} episodes" if some else ""
        lines.append(
            f"Pictures of {count(len(plan.decoded_cameras), 'camera')}{where} will be decoded to "
            "compute statistics. This takes longer."
        )
    if is_overlay:
        lines += _OF_AN_OVERLAY
    if plan.layout == "streaming" and max(plan.files.values()) > 1:
        lines.append(_OF_STREAMING)
    # Only the dry run of a migration shows this; its folder is gone by now.
    for room in plan.space.rooms if plan.moves is None else ():
        free = "unknown" if room.free_bytes is None else amount(room.free_bytes)
        lines.append(
            f"Disk space in {room.folder}: about {amount(room.bytes_needed)} needed, {free} free."
        )
    if plan.space.twice_bytes:
        lines.append(
            f"{amount(plan.space.twice_bytes)} of this space are free again when the "
            "result is in place."
        )
    if plan.space.former_states:
        lines.append(former_line(plan.space.former_states, plan.space.former_bytes))
    if not plan.quantiles and plan.version == "v3.0":
        lines.append(
            "The result will be ready for training. To record more episodes into it, "
            "convert with --quantiles (slower)."
        )
    return lines


def _moves(moves: MovedBytes, *, is_overlay: bool) -> Iterator[str]:
    what = "Files that need no change stay on the Hub and only get new names"
    if is_overlay:
        what = "Only meta/ will be replaced on the Hub; no other file changes"
    yield f"{what}. The tag of the old version still leads to the old commit."
    percent = 100 * (moves.received + moves.to_fetch + moves.to_send) / max(moves.of, 1)
    share = f"{percent:.2g}" if percent < 10 else f"{percent:,.0f}"
    fetched = f"{amount(moves.to_fetch)} more will be downloaded, " if moves.to_fetch else ""
    yield (
        f"{amount(moves.received)} were downloaded for this plan, {fetched}about "
        f"{amount(moves.to_send)} will be uploaded: {share} % of {amount(moves.of)}."
    )


def _files_table(plan: PlanSummary) -> str:
    if not plan.kept:
        return table([["output", "files"], *plan.files.items()])
    rows = [
        [stream, files, plan.kept[stream], files - plan.kept[stream]]
        for stream, files in plan.files.items()
    ]
    return table([["output", "files", "kept", "written again"], *rows])


# ``leconvert plan``.


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_plan_options(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run(options: argparse.Namespace) -> int:
    """Plan, and print the plan."""
    take_arguments(options)
    conversion = conversion_options(options)
    # The packer decides whether a dataset at the target may be replaced.
    proof = replace(conversion.proof, force_conversion=not conversion.layout.append)
    return show_plan(options, conversion, proof)


def show_plan(
    options: argparse.Namespace,
    conversion: Conversion,
    proof: ProofOptions,
    *,
    finished: Callable[[Places], int | None] = lambda _: None,
) -> int:
    """Write a plan and print it; or only print it.

    Args:
        proof: Decides whether the packer may replace a dataset at the target.
        finished: Called with the places of a dry run. Says that the result is in place already, and
            returns the exit code; None if it is not.
    """
    from leconvert.run.planner import is_outline, open_or_plan, preview_plan, summarize
    from leconvert.workdir.activity import record_invocation

    progress = progress_for(quiet=options.json or options.quiet)
    with ExitStack() as cleanup:
        given = options.work_dir
        if options.dry_run:  # files that were downloaded for the plan are removed
            begun = cleanup.enter_context(TemporaryDirectory(prefix="leconvert-plan-"))
            options.work_dir = Path(begun) / "work"
        found = places(options, conversion, stream=True, migrate=options.dry_run, progress=progress)
        if isinstance(found, str):
            print(json.dumps({"already_converted": found}) if options.json else found)
            return 0
        if options.dry_run and not found.migrates:
            work_dir = default_work_dir(found.target) if given is None else given.resolve()
            found = replace(found, work_dir=work_dir)
        code = finished(found)
        if code is not None:
            return code
        source, target, work_dir = found.source, found.target, found.work_dir
        arrival = found.arrival
        replaced = replaced_target(
            [source],
            target,
            work_dir,
            replace(conversion, proof=proof),
            is_outlined=is_outline(arrival),
        )
        if options.dry_run:
            plan = preview_plan(
                [source], target, work_dir, conversion, arrival=arrival, progress=progress
            )
        else:
            opened = open_or_plan(
                [source], target, work_dir, conversion, arrival=arrival, progress=progress
            )
            record_invocation(opened.paths, opened.manifest.run_id, "plan", options.command_line)
            plan = summarize(opened)
    after = ["Nothing was written."]
    if not options.dry_run:
        forced = replaced is not None and not conversion.layout.append
        pack = ["leconvert", "pack", str(work_dir), *(["--force-conversion"] if forced else [])]
        after = [
            f"The plan is written. Start workers with: leconvert work {shlex.quote(str(work_dir))}",
            f"Then run on one host:                    {shlex.join(pack)}",
        ]
        if plan.meta_alone:
            said = "The plan is written. Workers have nothing to do. Run on one host:"
            after = [f"{said} {shlex.join(pack)}"]
    if replaced:
        version = conversion.layout.to
        after.append(f"{target} holds a {version} dataset now, which will be kept as {replaced}.")
    named = (arrival.outline if arrival else None) or source
    written = None if options.dry_run else work_dir
    return show_preview(options, plan, [named], target, written, after=after)
