"""The commands of a run on many hosts: ``leconvert plan``, ``work``, ``submit`` and ``pack``."""

from __future__ import annotations

import argparse
import json
import shlex
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import (
    add_added_options,
    add_flags,
    add_group,
    add_plan_options,
    add_proof_options,
    add_report_option,
    add_slurm_worker_options,
    check_whose_options,
    controlled,
    conversion_options,
    filled,
    lease_options,
    report_place,
    slurm_options,
)
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
from leconvert.run.conversion import (
    Control,
    Conversion,
    LeaseOptions,
    PlanOptions,
    ProofOptions,
)
from leconvert.run.engines import EngineNames, make_submitter, parse_engine_options
from leconvert.support.errors import UsageError
from leconvert.support.flags import seconds, whole
from leconvert.support.text import amount, count, guessed_duration
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.former import former_dir
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import old_dir

if TYPE_CHECKING:
    from leconvert.api import Submission
    from leconvert.run.engines import Submitter
    from leconvert.run.packer import PackReport
    from leconvert.run.planner import MovedBytes, PlannedRepairs, PlanSummary
    from leconvert.support.progress import Progress
    from leconvert.workdir.run import OpenedRun

# ``leconvert plan``, and what a dry run shows.


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


def add_plan_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_plan_options(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run_plan(options: argparse.Namespace) -> int:
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


# ``leconvert work``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the shared folder of a run or a fleet"
    )
    add_group(parser, LeaseOptions)
    parser.add_argument("--max-batches", type=whole(1), metavar="N", help="stop after N batches")
    parser.add_argument(
        "--max-idle-seconds",
        type=seconds,
        metavar="S",
        help="stop after S seconds without work",
    )
    add_group(parser, ScratchOptions)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_output(parser, quiet=True)


def _work_on_fleet(options: argparse.Namespace) -> int:
    from leconvert.fleet import work_on_fleet

    if options.max_batches is not None:
        raise UsageError(
            f"--max-batches does not work for a fleet; {options.work_dir} is the work dir of a "
            "fleet.",
            next_step="Use --max-idle-seconds S, or end the worker with SIGTERM.",
        )
    with controlled(options) as control:
        summary = work_on_fleet(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            stop=control.stop,
        )
    said = (
        f"This worker converted {count(summary.converted, 'dataset')}, set {summary.set_aside:,} "
        f"aside and helped with others {count(summary.joined, 'time')}, in {summary.seconds:.1f} s."
    )
    return show(options, asdict(summary), [said])


def run(options: argparse.Namespace) -> int:
    """Work until nothing is left, and print the outcome."""
    from leconvert.api import run_worker

    if WorkDir(options.work_dir.resolve()).is_fleet():
        return _work_on_fleet(options)
    with controlled(options) as control:
        summary = run_worker(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_batches=options.max_batches,
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            command=control.command,
            stop=control.stop,
            progress=control.progress,
        )
    failed = count(summary.batches_failed, "failed attempt")
    said = (
        f"This worker finished {count(summary.batches_done, 'batch', 'batches')}, "
        f"{amount(summary.written_bytes)}, in {summary.seconds:.1f} s; "
        f"{failed if summary.batches_failed else 'no failed attempts'}."
    )
    return show(options, asdict(summary), [said])


# ``leconvert submit``.


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the shared folder of a run or of a fleet"
    )
    parser.add_argument(
        "--engine", choices=EngineNames(("ray", "slurm")), default="slurm", metavar="NAME",
        help="how the workers are started: slurm, or an engine that a separate Python package "
        "adds (default: slurm); ray does not work here: use `leconvert convert --engine ray`; "
        "installed engines: %(choices)s",
    )  # fmt: skip
    add_added_options(parser)
    add_slurm_worker_options(parser)
    add_group(parser, LeaseOptions)
    add_group(parser, ScratchOptions)
    add_proof_options(parser, may_delete=False)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_output(parser, dry_run="print a shell script that would submit the same; submit nothing")


def run_submit(options: argparse.Namespace) -> int:
    """Submit workers and a packer, for a fleet only workers, and print the jobs."""
    is_fleet = WorkDir(options.work_dir.resolve()).is_fleet()
    engine = _engine(options, is_fleet=is_fleet)
    submitted = _submit(options, engine, is_fleet=is_fleet)
    return show(
        options, submitted.as_record(), _submitted_lines(options, submitted, is_fleet=is_fleet)
    )


def _submitted_lines(
    options: argparse.Namespace, submitted: Submission, *, is_fleet: bool
) -> Iterator[str]:
    if submitted.finished:
        done = "Every dataset is converted or set aside" if is_fleet else "The result is in place"
        yield f"{done}. There is nothing to submit."
    elif options.dry_run:
        yield submitted.script.removesuffix("\n")
    else:
        if submitted.worker_job is not None:
            yield f"workers  {submitted.workers} as job {submitted.worker_job}"
        if submitted.packer_job is not None:
            yield f"packer   job {submitted.packer_job}, which starts when the workers have ended"
        yield f"logs     {submitted.logs}"
        watch = f"leconvert status {shlex.quote(str(options.work_dir))} --watch"
        yield f"Watch the progress with: {watch}"


def _submit(options: argparse.Namespace, engine: Submitter, *, is_fleet: bool) -> Submission:
    proof = filled(ProofOptions, options)
    shared: dict[str, Any] = {
        "leases": lease_options(options),
        "scratch": filled(ScratchOptions, options),
        "allow_mixed_versions": options.allow_mixed_versions,
        "dry_run": options.dry_run,
    }
    if not is_fleet:
        from leconvert.api import submit_run

        return submit_run(options.work_dir, engine, proof=proof, **shared)
    from leconvert.fleet import submit

    if proof != ProofOptions(max_wait_seconds=proof.max_wait_seconds):
        raise UsageError(
            "`leconvert submit` takes no --verify, --force-conversion or --delete-source for a "
            "fleet.",
            next_step="Give these options to `leconvert fleet`, or after a dataset in its list.",
        )
    return submit(options.work_dir, engine, **shared)


def _engine(options: argparse.Namespace, *, is_fleet: bool) -> Submitter:
    check_whose_options(options)
    if options.engine == "slurm":
        from leconvert.run.engines import SlurmEngine

        return SlurmEngine(slurm_options(options))
    if options.engine == "ray":
        raise UsageError(
            "Ray cannot run workers after the command that started them has ended, so nothing can "
            "be submitted to it.",
            next_step=(
                "Give the `leconvert fleet` command again with --engine ray; it waits until "
                "all is done."
            )
            if is_fleet
            else "Use `leconvert convert --engine ray` with the --root, --output and --work-dir of "
            "this run; it continues the run and waits until all is done.",
        )
    return make_submitter(options.engine, parse_engine_options(options.engine_option))


# ``leconvert pack``.


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the work dir of the run")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="do not wait for workers: say what is missing, and end",
    )
    add_proof_options(parser, may_wait=True)
    add_flags(parser, PlanOptions, ("allow_mixed_versions",))
    add_report_option(parser)
    add_output(parser, quiet=True)


def _say_what_it_waits_for(run: OpenedRun, progress: Progress) -> None:
    """Print how many batches are not done. Without workers they would never be."""
    from leconvert.run.worker_pool import WorkerPool

    board = WorkerPool(run, LeaseOptions(), threading.Event()).look()
    if board.all_settled():
        return
    progress.say(
        f"Waiting for workers: {len(board.done_ids()):,} of {run.manifest.num_batches:,} batches "
        "are done. Start a worker on any host with: leconvert work "
        f"{shlex.quote(str(run.work_dir.root))}"
    )


def run_pack(options: argparse.Namespace) -> int:
    """Pack, and print the place of the result."""
    from leconvert.api import report_on_exit
    from leconvert.remote.provenance import note_result
    from leconvert.run.packer import pack_run
    from leconvert.workdir.activity import record_invocation
    from leconvert.workdir.run import open_run

    opened = open_run(options.work_dir.resolve(), allow_mixed_versions=options.allow_mixed_versions)
    page = report_place(options.report, Path(opened.manifest.target))
    with report_on_exit(opened, page), controlled(options) as control:
        record_invocation(opened.paths, "pack", control.command)
        if not options.no_wait:
            _say_what_it_waits_for(opened, control.progress)
        packed = pack_run(
            opened,
            filled(ProofOptions, options),
            wait=not options.no_wait,
            stop=control.stop,
            progress=control.progress,
        )
        note_result(opened, packed.kept, for_push=False, progress=control.progress)
    return show(options, packed.as_record(), _packed_lines(packed, page))


def _packed_lines(packed: PackReport, page: Path | None) -> Iterator[str]:
    yield f"made          {packed.target}"
    if packed.kept is not None:
        reason = f": {packed.kept_because}" if packed.kept_because else ""
        yield f"kept          {packed.kept}{reason}"
    if packed.removed is not None:
        yield f"removed       {packed.removed}: every byte of it is proven to be in the result"
    because = f": {packed.verified_because}" if packed.verified_because else ""
    yield (
        f"files         {packed.linked} taken from the work dir (hard links), {packed.copied} "
        f"copied, {packed.joined} joined"
    )
    yield f"checked       {packed.verified} compared with the source{because}"
    if page is not None:
        yield f"report        {page}"
