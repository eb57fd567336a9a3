"""The commands that make a dataset: ``convert``, ``merge``, ``split``, ``trim``, ``repair``."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import (
    VERIFY_WITHOUT_DELETE,
    add_conversion_options,
    add_engine_options,
    add_flags,
    add_group,
    add_keep_work_dir,
    add_plan_options,
    add_proof_options,
    add_push_options,
    add_push_wish,
    add_report_option,
    add_target,
    add_work_dir,
    controlled,
    conversion_options,
    filled,
    local_dataset,
    local_path,
    named_push_target,
    push_options,
    push_target,
    report_place,
    works_only,
)
from leconvert.cli.output import planned_lines, print_findings, progress_for, show
from leconvert.cli.parser import EDITING_OPTIONS, USUAL_OPTIONS, Parser, add_output
from leconvert.cli.push import planned_push, push_lines
from leconvert.cli.sources import (
    NamedDataset,
    asks_more,
    named_datasets,
    named_places,
    places,
    take_arguments,
)
from leconvert.cli.work import print_plan, show_dry_run
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.selection import EpisodeSelection, parse_frames, parse_parts
from leconvert.run.conversion import Control, Conversion, LeaseOptions, ProofOptions
from leconvert.support.errors import (
    LeconvertError,
    SourceError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.support.flags import flags_of, some_seconds, whole
from leconvert.support.text import amount, count, numbered
from leconvert.transfer.client import check_can_push
from leconvert.workdir.records import WorkDir
from leconvert.workdir.removal import remove_work_dir

if TYPE_CHECKING:
    from leconvert.api import ConversionReport, SplitPart
    from leconvert.cli.sources import FoundPlaces
    from leconvert.remote.push import PushReport
    from leconvert.run.planner import MovedBytes, PlannedRepairs, PlanSummary
    from leconvert.run.repairing import RepairReport

# ``leconvert convert``.


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_plan_options(parser)
    add_engine_options(parser)
    add_group(parser, LeaseOptions, without=("trouble_seconds",))
    add_proof_options(parser)
    add_keep_work_dir(parser)
    add_push_wish(parser)
    add_push_options(parser)
    _add_probe_wish(parser)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the outcome."""
    take_arguments(options)
    if options.probe_seconds is not None and not options.probe:
        raise UsageError("--probe-seconds works only with --probe.", next_step="Add --probe.")
    # Contradictory options of a push are refused before anything is read or downloaded.
    conversion = conversion_options(options)
    push_target(options, conversion.layout, None)
    return make_dataset(
        options,
        conversion,
        partial(places, options, conversion, stream=bool(conversion.workers.orchestrate)),
        push_of=partial(planned_push, options, conversion),
        probe_seconds=(options.probe_seconds or 10.0) if options.probe else None,
    )


def _add_probe_wish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probe", action="store_true", help="also measure how fast the result loads; needs torch"
    )
    parser.add_argument(
        "--probe-seconds",
        type=some_seconds,
        metavar="S",
        help="seconds to measure with --probe (default: 10)",
    )


# ``leconvert merge``.


def add_merge_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--drop-feature", "--push-repo-id"}
    parser.add_argument(
        "datasets",
        nargs="+",
        metavar="DATASET",
        help="the datasets to merge, two or more: folders, or ORG/NAME or "
        "hf://datasets/ORG/NAME@REV on the Hub; their episodes follow each other in this "
        "order; the datasets stay as they are",
    )
    parser.add_argument(
        "-o", "--output", type=local_path, required=True, metavar="DIR",
        help="where the merged dataset goes",
    )  # fmt: skip
    add_work_dir(parser, "output")
    add_conversion_options(parser)
    add_keep_work_dir(parser)
    add_push_options(parser, of_several=True)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run_merge(options: argparse.Namespace) -> int:
    """Merge, and print the outcome."""
    from leconvert.api import check_several

    check_several(options.datasets)
    writes_nothing = "--dry-run writes nothing" if options.dry_run else None
    datasets = named_datasets(options.datasets, unfetched=writes_nothing)
    conversion = conversion_options(options)
    repo_id = named_push_target(options)
    if repo_id is not None:
        check_can_push(repo_id)
    return make_dataset(
        options,
        conversion,
        partial(named_places, options, datasets),
        push_of=lambda _: (repo_id, None),
    )


# ``leconvert split``.


def add_split_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--into", "--output-dir", "--seed"}
    parser.add_argument(
        "dataset", metavar="DATASET", help="the dataset to split; it stays as it is"
    )
    parser.add_argument(
        "--output-dir",
        type=local_path,
        required=True,
        metavar="DIR",
        help="the folder for the parts; each part becomes a subfolder with the name of the part",
    )
    parser.add_argument(
        "--into",
        action="append",
        required=True,
        metavar="PARTS",
        help="the parts, each with its share of the episodes (train=0.9,val=0.1) or with the "
        "numbers of its episodes (train=0-99,val=100-120); may be given several times",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="seed of the random choice of episodes for shares (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR",
        help="the folder for the state of the runs, with one folder for each part (default: a "
        "hidden folder beside each part)",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument(
        "--report", action="store_true",
        help="write an HTML report of each part beside the part, as PART.report.html",
    )  # fmt: skip
    add_output(parser, dry_run="show the plans; write nothing", quiet=True)


def run_split(options: argparse.Namespace) -> int:
    """Split, and print the outcome."""
    from leconvert.api import split_dataset

    conversion = conversion_options(options)
    [dataset] = named_datasets([options.dataset], unfetched="A dataset is split on this machine")
    with controlled(options) as control:
        parts = split_dataset(
            dataset.bring(control),
            conversion,
            control,
            output_dir=options.output_dir,
            into=parse_parts(options.into),
            seed=options.seed,
            dry_run=options.dry_run,
            work_dir=options.work_dir,
            reports=options.report,
        )
    if options.json:
        print(json.dumps({"parts": [part.as_record() for part in parts]}, indent=2))
        return 0
    for part in parts:
        _show_part(part, quiet=options.quiet)
    if options.dry_run and not options.quiet:
        print(_sums([part.plan for part in parts if part.plan is not None]))
        print("Nothing was written.")
    return 0


def _sums(plans: Sequence[PlanSummary]) -> str:
    """Return the totals of all parts. The plan of each part knows only the room of that part."""
    needed: Counter[str] = Counter()
    for plan in plans:
        for room in plan.space.rooms:
            needed[room.folder] += room.bytes_needed
    rooms = ", ".join(f"{amount(size)} in {folder}" for folder, size in needed.items())
    return (
        f"In all: {count(sum(plan.episodes for plan in plans), 'episode')}, "
        f"{count(sum(plan.frames for plan in plans), 'frame')} in "
        f"{count(len(plans), 'part')}. Disk space needed: about {rooms or 'none'}."
    )


def _show_part(part: SplitPart, *, quiet: bool) -> None:
    named = f"{part.name}: {numbered('episode', part.episodes)}"
    if quiet:
        for done in (part.report, part.plan):
            if done is not None:
                print_findings(done.findings)
        return
    if part.report is not None:
        print(named)
        print_report(part.report)
    elif part.plan is not None:
        print(f"{named}, {part.output}")
        print_plan(part.plan)
    else:
        print(
            f"{named}; {part.output} was finished before and matches "
            f"the source (compared now: {part.verified})."
        )


# ``leconvert trim``.


def add_trim_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--episode", "--frames"}
    parser.add_argument("dataset", metavar="DATASET", help="the dataset to trim")
    parser.add_argument(
        "--episode", type=whole(0), action="append", default=[], required=True, metavar="N",
        help=(
            "number of the episode to trim; the next --frames gives the frames to keep; give both "
            "options once for each episode"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--frames", action="append", default=[], required=True, metavar="FROM:TO",
        help="frames to keep; FROM is the first frame to keep, counted from 0; TO is the last "
            "frame to keep plus 1; FROM or TO may be left out",
    )  # fmt: skip
    add_target(parser, "DATASET", "DATASET_old")
    add_conversion_options(parser)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)
    parser.set_defaults(keep_work_dir=False)


def run_trim(options: argparse.Namespace) -> int:
    """Trim, and print the outcome."""
    selection = EpisodeSelection(frames=parse_frames(options.episode, options.frames))
    datasets = named_datasets([options.dataset], unfetched="A dataset is trimmed on this machine")
    conversion = conversion_options(options, selection)
    return make_dataset(options, conversion, partial(named_places, options, datasets))


# ``leconvert repair``.


# Options without use for a v3.0 dataset on this machine.
_OF_V2 = ("tasks_from", "fetch_unfit")
_WHEN_REPAIRED = (
    "a repair changes data only with one of these options; --retime writes only the files that are "
    "wrong; each other option writes the whole dataset again, like a conversion"
)


def add_repair_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {each.name for each in flags_of(RepairOptions)}
    parser.add_argument(
        "dataset", type=local_dataset, metavar="DATASET", help="the v3.0 dataset to repair"
    )
    add_target(parser, "DATASET", "DATASET_old")
    add_group(parser, RepairOptions, _WHEN_REPAIRED, without=_OF_V2)
    add_engine_options(parser)
    add_flags(
        parser, ProofOptions, without=("force_conversion", "delete_source", "max_wait_seconds"),
        verify=VERIFY_WITHOUT_DELETE,
    )  # fmt: skip
    add_report_option(parser)
    add_output(parser, dry_run="show what would be changed; write nothing", quiet=True)
    parser.set_defaults(verify=None, keep_work_dir=False)


# Options of a run, which a repair of single files does not have.
_OF_A_RUN = ("engine", "num_workers", "max_workers", "work_dir", "verify", "report")


def run_repair(options: argparse.Namespace) -> int:
    """Repair a dataset, and print the changes and what is left."""
    from leconvert.run.repairing import follows_from_files, repair_dataset

    dataset: Path = options.dataset.resolve()
    output: Path | None = None if options.output is None else options.output.resolve()
    asked = filled(RepairOptions, options)
    if not follows_from_files(asked):
        return _write_anew(dataset, asked, options)
    for name in _OF_A_RUN:
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise works_only(
                flag,
                "for a repair that writes the whole dataset again; this repair writes only the "
                "files that are wrong",
            )
    with controlled(options) as control:
        report = repair_dataset(
            dataset,
            output=output,
            retime=asked.retime,
            dry_run=options.dry_run,
            stop=control.stop,
            progress=control.progress,
        )
    if not options.json:
        print_findings(report.plan.left, report.dataset)
    code = SourceError.exit_code if report.plan.errors_left else 0
    return show(options, report.as_record(), _repair_lines(report), code)


def _write_anew(dataset: Path, asked: RepairOptions, options: argparse.Namespace) -> int:
    """Convert the dataset from v3.0 to v3.0, after a look at what this loses."""
    from leconvert.run.repairing import plan_anew

    plan = plan_anew(dataset, asked, progress=progress_for(options))
    conversion = replace(conversion_options(options), repairs=plan.options)
    bring = partial(named_places, options, [NamedDataset(dataset)])
    return make_dataset(options, conversion, bring, repairs=plan)


def _repair_lines(report: RepairReport) -> Iterator[str]:
    plan = report.plan
    yield from plan.remarks
    errors = len(plan.errors_left)
    if not plan and errors:
        stay = f"{count(errors, 'error')} {'stays' if errors == 1 else 'stay'}"
        yield (
            f"{report.dataset} has no error that `leconvert repair` can repair without an option; "
            f"{stay}."
        )
        return
    if not plan:
        yield f"{report.dataset} has nothing to repair."
        return
    if report.was_repaired:
        yield (
            f"{report.target} is already the result of the same repair of {report.dataset}. "
            "There is nothing to do."
        )
        return
    verb = "would change" if report.dry_run else "changed"
    for line in plan.summary():
        yield f"{verb}: {line}"
    if report.dry_run:
        yield f"{count(len(plan.mended), 'finding')} of {report.dataset} would be repaired."
    else:
        bytes_said = (
            f"{amount(report.written_bytes)} written, {amount(report.copied_bytes)} copied, "
            f"{amount(report.cloned_bytes)} shared"
        )
        yield (
            f"{count(len(plan.mended), 'finding')} repaired; {bytes_said}; {report.seconds:.1f} s."
        )
        yield f"  dataset  {report.target}"
        if report.kept is not None:
            yield f"  kept     {report.kept}"
    if errors:
        yield f"{count(errors, 'error')} left; the table above says what helps."


# The common flow: download, scan, plan or run, and report.


def make_dataset(
    options: argparse.Namespace,
    conversion: Conversion,
    bring: Callable[[Control], AbstractContextManager[FoundPlaces | str]],
    *,
    push_of: Callable[[FoundPlaces], tuple[str | None, bool | None]] = lambda _: (None, None),
    repairs: PlannedRepairs | None = None,
    probe_seconds: float | None = None,
) -> int:
    """Make one dataset of one or several, as ``convert``, ``merge``, ``trim`` and ``repair`` do.

    Args:
        options: The options: where the result goes, what is only shown, and what is kept.
        conversion: All options of the conversion.
        bring: Provides the sources, the target and the work dir; or says that the Hub has the
            dataset in this version already.
        push_of: Returns the repo to push to, None for no push; and whether an earlier call has put
            the result in place, None if no record tells.
        repairs: The repairs that are made, to be shown before the work; else None.
        probe_seconds: Seconds to measure how fast the result loads; None for no measurement.

    Returns:
        The exit code.
    """
    from leconvert.api import check_extras, run_conversion

    report = None
    with controlled(options) as control, bring(control) as found:
        if isinstance(found, str):
            return show(options, {"already_converted": found}, [found])
        (repo_id, is_there), verified = push_of(found), None
        pushes = repo_id is not None
        # A repair has planned changes, so there is something to do.
        if is_there is None and repairs is None:
            is_more = not pushes and asks_more(options, conversion)
            try:
                verified = None if is_more else _compared(options, found, conversion, control)
            except (TargetError, VerificationError):
                found.release()  # no conversion follows
                raise
            is_there = verified is not None
        record = {"already_converted": str(found.target), "verified": verified}
        if is_there and found.outline is not None and not (options.dry_run or options.work_dir):
            # Nothing is converted, so the sparse snapshot was only needed to compare.
            remove_work_dir(found.work_dir, "", found.target)
        if verified is not None and not pushes:
            found.release()
            how = "of every byte" if verified == "bytes" else "by structure"
            said = (
                f"{found.target} is already the {conversion.layout.to} dataset made from "
                f"{found.made_of}. A comparison {how} found no difference. There is nothing to do."
            )
            return show(options, record, [said])
        if options.dry_run and is_there:
            return show(options, record, [_PUSH_LEFT, "Nothing was written."])
        # The conversion itself checks it for a migration, whose push is a part of it.
        if repo_id is not None and not is_there and (options.dry_run or not found.migrates):
            from leconvert.remote.push import check_card

            check_card(repo_id, push_options(options, repo_id), found.sources)
        page = report_place(options.report, found.named)
        if options.dry_run:
            check_extras(
                *(found.sources, found.target, conversion.layout.to, probe_seconds, page),
                migrates=found.migrates,
            )
            return show_dry_run(options, found, conversion, control, repairs)
        if repairs is not None and not (options.json or options.quiet):
            print(*planned_lines(repairs), sep="\n")
        if not is_there:
            if found.migrates:
                conversion = replace(conversion, push=push_options(options, None))
            report = run_conversion(
                found.sources,
                conversion,
                control,
                arrival=found.arrival,
                output=None if found.migrates or found.in_place else found.target,
                work_dir=None if options.work_dir is None else found.work_dir,
                keep_work_dir=options.keep_work_dir,
                for_push=pushes,
                probe_seconds=probe_seconds,
                report=page,
            )
        found.release()
    return _show_outcome(options, report, found.target, repo_id)


# The same command again, when its result is in place.


def _compared(
    options: argparse.Namespace, found: FoundPlaces, conversion: Conversion, control: Control
) -> str | None:
    """Compare a result that is in place with the result of this command.

    Returns:
        The depth of the comparison; None if there is something to do.
    """
    from leconvert.api import find_finished

    proof = conversion.proof
    # In place, the next call has the result as its source: --restart must not trim it again.
    begins_anew = conversion.plan.restart and not found.in_place
    # A source is removed only by a conversion.
    if begins_anew or found.migrates or proof.delete_source:
        return None
    if _is_under_way(found.work_dir, to_look=options.dry_run):
        return None
    if options.dry_run and found.outline:  # the run itself may have the whole source
        proof = replace(proof, verify="structure")
    proof.check_source(is_outline=found.outline is not None)
    return find_finished(found.sources, found.target, replace(conversion, proof=proof), control)


def _is_under_way(work_dir: Path, *, to_look: bool) -> bool:
    """Return whether a run is unfinished; ``to_look``: if its swap began, it counts as finished."""
    from leconvert.run.packer import swap_has_begun
    from leconvert.workdir.run import open_run

    if WorkDir(work_dir).current_run_id() is None:
        return False
    return not (
        to_look and swap_has_begun(open_run(work_dir, allow_mixed_versions=True, only_look=True))
    )


_PUSH_LEFT = "The dataset was converted before. Only the push is left to do."


def _show_outcome(
    options: argparse.Namespace,
    report: ConversionReport | None,
    target: Path,
    repo_id: str | None,
) -> int:
    """Push if that is wanted, print the outcome, and return the exit code.

    Args:
        report: The conversion; None if the result was in place before.
        target: The folder of the result.
        repo_id: The repo to push to; None for no push.
    """

    def push() -> PushReport | None:
        done = None if report is None else report.push  # a part of the conversion
        if repo_id is None or done is not None:
            return done
        from leconvert.remote.push import push_converted

        progress = progress_for(options)
        return push_converted(target, push_options(options, repo_id), progress=progress)

    # If the result could not be measured, the command ends with the code of the probe.
    code = int((report.probe or {}).get("exit_code", 0)) if report else 0
    if options.json:
        record = {} if report is None else report.as_record()
        try:
            pushed = push()
            record["push"] = None if pushed is None else pushed.as_record()
        except LeconvertError as error:
            record["push"], code = error.as_record(), error.exit_code
        print(json.dumps(record, indent=2))
    elif options.quiet:
        push()
        if report is not None:
            print_findings(report.findings)
    else:
        if report is None:
            print(_PUSH_LEFT)
        else:
            print_report(report)
        pushed = push()
        if pushed is not None:
            print(*push_lines(pushed), sep="\n")
        elif not getattr(options, "no_push", True):  # a command without --no-push is silent
            print("  Hub           not pushed; `--push-repo-id ORG/NAME` pushes it")
    return code


def print_report(report: ConversionReport) -> None:
    """Print findings, sizes and places."""
    print_findings(report.findings)
    rate = report.source_bytes / report.seconds if report.seconds else 0.0
    if report.kept_episodes:
        print(
            f"Appended {count(report.episodes - report.kept_episodes, 'episode')}, "
            f"{amount(report.source_bytes)}, in {report.seconds:.1f} s. The "
            f"{report.kept_episodes:,} earlier episodes stay in their files. The result has "
            f"{report.files:,} files now."
        )
    else:
        print(
            f"Converted {count(report.episodes, 'episode')}, {count(report.frames, 'frame')}, "
            f"{amount(report.source_bytes)} into {count(report.files, 'file')} "
            f"in {report.seconds:.1f} s ({amount(rate)}/s)."
        )
    if report.moves is None:
        print(f"  made          {report.output} ({report.version})")
    else:
        print(f"  made          the {report.version} dataset, on the Hub only")
        _print_moves(report.moves)
    print(f"  checked       {_checked(report)}")
    print(f"  use           {_use(report)}")
    _print_source(report)
    if report.kept_files is not None:
        print(
            f"  unchanged     {count(report.kept_files, 'file is', 'files are')} taken from the "
            "source without a change"
        )
    if report.cloned_bytes:
        print(f"  shared        {amount(report.cloned_bytes)} of video with the source, not copied")
    changes = Repairs.from_record(report.repairs).summary()
    if changes:
        print(f"  changed       {changes[0]}")
        for change in changes[1:]:
            print(f"                {change}")
    if report.work_dir is not None:
        clean = f"leconvert clean {shlex.quote(str(report.work_dir))}"
        print(f"  records       {report.work_dir}; `{clean}` removes them")
    if report.report is not None:
        print(f"  report        {report.report}")
    if report.probe is not None:
        print(f"  loads         {_loading(report.probe)}")
    print(f"  peak memory   {_memory(report.peak_memory_bytes)}")


def _checked(report: ConversionReport) -> str:
    """Return how the result was compared with its source, and the command that compares more."""
    because = "" if report.verified_because is None else f": {report.verified_because}"
    if report.verified == "none":
        return f"not compared with the source{because}"
    if report.verified == "bytes":
        return f"matches the source; every byte compared{because}"
    said = f"matches the source; {report.verified} compared{because}"
    source = Path(report.source)
    if _is_in_place(report) and report.kept_source is not None:
        source = report.kept_source
    if report.moves is not None or not source.is_dir():
        return said
    verify = shlex.join(
        ["leconvert", "verify", str(report.output), "--source", str(source), "--bytes"]
    )
    return f"{said} (`{verify}` compares every byte)"


def _is_in_place(report: ConversionReport) -> bool:
    """Return whether the source was replaced: an append, and --force-conversion, keep a result."""
    return report.source == str(report.output)


def _use(report: ConversionReport) -> str:
    if report.version != "v3.0":
        return "ready for GR00T, openpi and LeRobot up to 0.3.3"
    if report.quantiles:
        return "ready for training, and for recording more episodes into it"
    return "ready for training; to record more episodes into it, convert with --quantiles (slower)"


def _print_source(report: ConversionReport) -> None:
    """Print what happened to a source that the result replaced."""
    if report.kept_source is not None:
        because = f"; not removed: {report.kept_because}" if report.kept_because else ""
        in_place = _is_in_place(report)
        what = "the source" if in_place else "the earlier result"
        print(f"  kept          {report.kept_source}, {what}{because}")
        print(
            f"  next          `leconvert undo {shlex.quote(str(report.output))}` puts {what} "
            f"back; or `leconvert clean --of {shlex.quote(str(report.output))} --old` removes "
            f"{'the kept source' if in_place else 'it'} for good, if every byte of it is in the "
            "result"
        )
    if report.removed_source is not None:
        print(
            f"  removed       {report.removed_source}, the source: every byte of it is in the "
            "result"
        )


def _print_moves(moves: MovedBytes) -> None:
    received = moves.received + moves.to_fetch
    print(
        f"  network       {amount(received)} downloaded, about {amount(moves.to_send)} uploaded; "
        f"the dataset has {amount(moves.of)}"
    )


def _memory(peak: Mapping[str, int | None]) -> str:
    command, workers = peak.get("command"), peak.get("workers")
    own = amount(command) if command else "unknown"
    return own if not workers else f"{own} for this command, {amount(workers)} for a worker"


def _loading(probe: Mapping[str, Any]) -> str:
    if "error" in probe:
        return str(probe["message"])
    return (
        f"{probe['samples_per_s']:,.0f} samples/s, {probe['frames_per_s_node']:,.0f} decoded "
        f"frames/s, first batch after {probe['first_batch_latency_s']:.1f} s"
    )
