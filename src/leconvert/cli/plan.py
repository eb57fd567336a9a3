"""``leconvert plan``."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from leconvert.cli.options import add_plan_options, conversion_options
from leconvert.cli.output import (
    former_line,
    planned_lines,
    print_findings,
    print_planned_findings,
    progress_for,
    show,
    table,
)
from leconvert.cli.parser import USUAL_OPTIONS, Parser, add_output
from leconvert.cli.sources import FoundPlaces, places, take_arguments
from leconvert.model.values import OVERLAY
from leconvert.run.conversion import Control, Conversion
from leconvert.support.text import amount, count, guessed_duration
from leconvert.workdir.former import former_dir
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import old_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leconvert.run.planner import MovedBytes, PlannedRepairs, PlanSummary

# Refuse a bad target in the plan, so that the user learns of it before the work.


def replaced_target(found: FoundPlaces, conversion: Conversion) -> list[str]:
    """Refuse places that the packer would refuse, unless a run is under way here.

    The packer of a run under way owns the target: it may be in the middle of the swap.

    Returns:
        With ``--force-conversion`` or ``--append``, a line that says where the dataset at the
        target will be kept.
    """
    from leconvert.run.planner import check_all_places, check_asked

    sources, target = found.sources, found.target
    check_all_places(found)
    if not conversion.plan.restart and WorkDir(found.work_dir).current_run_id() is not None:
        return []
    check_asked(found, conversion)
    if target in sources or not target.exists():
        return []
    layout = conversion.layout
    kept = former_dir(target, "RUN_ID") if layout.append else old_dir(target)
    return [f"{target} holds a {layout.to} dataset now, which will be kept as {kept}."]


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
    options: argparse.Namespace, plan: PlanSummary, found: FoundPlaces, after: list[str]
) -> int:
    """Show a plan with some last lines, and return the exit code."""
    if options.json:
        named = [found.outline] if found.outline else list(map(str, found.sources))
        record = {
            **({"source": named[0]} if len(named) == 1 else {"sources": named}),
            "target": str(found.target),
            "work_dir": None if options.dry_run else str(found.work_dir),
            **asdict(plan),
            "estimated_worker_seconds": _estimated_seconds(plan),
        }
        print(json.dumps(record, indent=2))
        return 0
    print_plan(plan, quiet=options.quiet)
    if not options.quiet:
        print("\n".join(after))
    return 0


def show_dry_run(
    options: argparse.Namespace,
    found: FoundPlaces,
    conversion: Conversion,
    control: Control,
    repairs: PlannedRepairs | None = None,
) -> int:
    """Show what a command would do, and return the exit code that it would have."""
    from leconvert.run.planner import preview_plan

    replaced = replaced_target(found, conversion)
    plan = preview_plan(found, conversion, progress=control.progress)
    if repairs is None:
        return show_preview(options, plan, found, ["Nothing was written.", *replaced])
    if not (options.json or options.quiet):
        print_planned_findings(repairs)
    return show(options, repairs.as_record(), planned_lines(repairs))


def _estimated_seconds(plan: PlanSummary) -> float | None:
    """Return the time that one worker needs, about; None with decoding, whose time is unknown."""
    return None if plan.decoded_cameras else plan.source_bytes / _BYTES_PER_SECOND_AND_WORKER


def _lines(plan: PlanSummary) -> list[str]:
    is_overlay = plan.layout == OVERLAY
    seconds = _estimated_seconds(plan)
    lines = [
        *_files_table(plan),
        f"New: {plan.episodes - plan.kept_episodes:,} of {plan.episodes:,} episodes, "
        f"{amount(plan.source_bytes)}, in {count(plan.batches, 'batch', 'batches')}. The other "
        f"{plan.kept_episodes:,} episodes stay in their files."
        if plan.kept_episodes
        else f"{count(plan.episodes, 'episode')}, {count(plan.frames, 'frame')}, "
        f"{amount(plan.source_bytes)}"
        + ("." if plan.meta_alone else f" in {count(plan.batches, 'batch', 'batches')}."),
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


def _files_table(plan: PlanSummary) -> list[str]:
    if not plan.kept:
        return table(("output", "files"), plan.files.items())
    rows = [
        [stream, files, plan.kept[stream], files - plan.kept[stream]]
        for stream, files in plan.files.items()
    ]
    return table(("output", "files", "kept", "written again"), rows)


# ``leconvert plan``.


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_plan_options(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run(options: argparse.Namespace) -> int:
    """Plan, and print the plan."""
    from leconvert.run.planner import open_or_plan, summarize
    from leconvert.workdir.activity import record_invocation

    take_arguments(options)
    conversion = conversion_options(options)
    # The packer decides whether a dataset at the target may be replaced.
    may_replace = replace(conversion.proof, force_conversion=not conversion.layout.append)
    conversion = replace(conversion, proof=may_replace)
    control = Control(progress=progress_for(options))
    with places(options, conversion, control, stream=True) as found:
        if isinstance(found, str):
            return show(options, {"already_converted": found}, [found])
        if options.dry_run:
            return show_dry_run(options, found, conversion, control)
    replaced = replaced_target(found, conversion)
    opened = open_or_plan(found, conversion, progress=control.progress)
    record_invocation(opened.paths, "plan", options.command_line)
    plan, work_dir = summarize(opened), str(found.work_dir)
    forced = ["--force-conversion"] if replaced and may_replace.force_conversion else []
    pack = shlex.join(["leconvert", "pack", work_dir, *forced])
    after = [
        f"The plan is written. Start workers with: leconvert work {shlex.quote(work_dir)}",
        f"Then run on one host:                    {pack}",
    ]
    if plan.meta_alone:
        after = [f"The plan is written. Workers have nothing to do. Run on one host: {pack}"]
    return show_preview(options, plan, found, [*after, *replaced])
