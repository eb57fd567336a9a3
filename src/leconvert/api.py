"""One command from source to result: plan, work, pack, verify, swap; and several of them."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from leconvert.dataset.files import overlaid_pair
from leconvert.dataset.formats import Totals, open_dataset, open_sources, read_provenance, target_of
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.selection import EpisodeSelection, FrameInterval, split_episodes
from leconvert.model.values import TARGET_VERSIONS, Finding, LayoutOptions, SourceScan
from leconvert.run.appending import former_episodes
from leconvert.run.conversion import (
    Control,
    Conversion,
    LeaseOptions,
    PlanOptions,
    ProofOptions,
    WorkerOptions,
)
from leconvert.run.engines import JobRequest, Submitter
from leconvert.run.layout import layout_streams
from leconvert.run.packer import (
    NoResultError,
    PackReport,
    does_not_match,
    finish_run,
    swap_has_begun,
    taken_over,
)
from leconvert.run.planner import (
    MovedBytes,
    PlanSummary,
    check_all_places,
    check_asked,
    check_room,
    check_same_plan,
    is_outline,
    kept_files,
    moved_bytes,
    open_or_plan,
    planned_name,
    preview_plan,
    scan_sources,
)
from leconvert.run.proof import verify_pair
from leconvert.run.worker import WorkerSummary
from leconvert.run.worker_pool import WorkerPool, work_and_pack
from leconvert.support.errors import (
    BusyError,
    HubSourceChangedError,
    InterruptedRunError,
    LeconvertError,
    OneHostOnlyError,
    PlanMismatchError,
    ProbeError,
    SourceChangedError,
    SourceError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.support.machine import Machine
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import any_storage_errors, raise_storage_trouble
from leconvert.support.text import count, first_few, json_record
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.activity import read_workers, record_invocation, record_probe
from leconvert.workdir.fs import is_there
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import OneHost
from leconvert.workdir.records import Journal, PackStep, RunPaths, WorkDir, is_default_work_dir
from leconvert.workdir.removal import give_up_run, remove_leftovers, remove_work_dir
from leconvert.workdir.run import OpenedRun, open_run
from leconvert.workdir.swap import (
    META,
    is_converted,
    is_same_folder,
    old_dir,
    overlaid_meta,
    result_aside,
    source_as_output,
    work_dir_beside,
)

if TYPE_CHECKING:
    from leconvert.remote.options import PushOptions
    from leconvert.remote.provenance import HubOrigin
    from leconvert.remote.push import PushReport
    from leconvert.run.repairing import RepairReport

__all__ = [
    "ConversionReport",
    "SharedOptions",
    "SplitPart",
    "Submission",
    "check_several",
    "convert",
    "find_finished",
    "merge",
    "repair",
    "run_conversion",
    "run_worker",
    "split",
    "split_dataset",
    "submit_run",
    "trim",
]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The report of a conversion.

    Attributes:
        source: The dataset: its folder, or its URL on the Hub, with the commit.
        output: The folder of the result. A migration has its result on the Hub alone; this is then
            the folder of the work dir that stood for it.
        kept_source: The folder that keeps the replaced dataset; None if nothing was replaced, or
            the dataset was removed.
        removed_source: The folder that kept it before it was removed on request.
        kept_because: Why it was kept although it was to be removed.
        run_id: The run.
        episodes: Episodes of the dataset.
        frames: Frames of the dataset.
        files: Data and video files of the result.
        source_bytes: Bytes of the source's data and video files; where episodes were appended, of
            those of the new ones.
        batches: Batches of the plan.
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        seconds: Wall clock of the whole command.
        stage_seconds: Wall clock of plan, work and pack.
        verified: The depth of the check before the swap, ``none`` if it was skipped. Where the
            result was in its place before, what was compared now.
        verified_because: Why less was compared than was asked for, such as a source that is gone;
            None otherwise.
        findings: What the scan found: warnings, remarks, and what was repaired.
        repairs: What the conversion changed, as ``meta/repairs.json`` says it; empty for nothing,
            and where datasets were merged: ``meta/provenance.parquet`` says it for each.
        probe: How fast the result loads, as `leconvert probe run` says it; None if it was not
            measured. Where it could not be, the error.
        report: The page that tells what happened, or None.
        work_dir: Where the run's records are kept; None where they were removed.
        quantiles: Whether the table of the episodes' statistics has quantiles. Without them LeRobot
            loads the result, but cannot resume recording on it.
        push: What the push did; None where nothing was to be pushed.
        peak_memory_bytes: The most that processes had resident: ``command``, this one, whose
            threads may be workers too; ``workers``, the largest of the other processes that worked,
            on any host, None where there was none. 0 is not known.
        version: The version of the result.
        kept_files: How many of the files are the source's own as they are; None in layouts that
            have none.
        kept_episodes: To how many episodes, whose files stay, the others were appended.
        moves: The bytes that a migration moved between here and the Hub, as planned; else None.
    """

    source: str
    output: Path
    kept_source: Path | None
    run_id: str
    episodes: int
    frames: int
    files: int
    source_bytes: int
    batches: int
    cloned_bytes: int
    copied_bytes: int
    seconds: float
    stage_seconds: dict[str, float] = field(default_factory=dict)
    verified: str = "structure"
    removed_source: Path | None = None
    kept_because: str | None = None
    findings: Sequence[Finding] = ()
    repairs: Mapping[str, Any] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None
    report: Path | None = None
    work_dir: Path | None = None
    peak_memory_bytes: Mapping[str, int | None] = field(default_factory=dict)
    quantiles: bool = False
    push: PushReport | None = None
    version: str = TARGET_VERSIONS[0]
    kept_files: int | None = None
    kept_episodes: int = 0
    moves: MovedBytes | None = None
    verified_because: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


@any_storage_errors()
def convert(
    root: str | os.PathLike[str],
    *,
    arrival: HubOrigin | None = None,
    output: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    layout: LayoutOptions = LayoutOptions(),
    repairs: RepairOptions = RepairOptions(),
    selection: EpisodeSelection = EpisodeSelection(),
    plan: PlanOptions = PlanOptions(),
    workers: WorkerOptions = WorkerOptions(),
    leases: LeaseOptions = LeaseOptions(),
    proof: ProofOptions = ProofOptions(),
    scratch: ScratchOptions = ScratchOptions(),
    push: PushOptions | None = None,
    keep_work_dir: bool = False,
    for_push: bool = False,
    probe_seconds: float | None = None,
    report: str | os.PathLike[str] | None = None,
    command: Sequence[str] | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> ConversionReport:
    """Convert a dataset to v3.0, or to v2.1.

    The result appears at its place at once and complete, or not at all. A call that was
    interrupted, killed or failed is resumed by the same call.

    Args:
        root: The dataset folder, the one that holds ``meta/``.
        arrival: How it came from the Hub, see `leconvert.remote.source`; None for a local dataset.
        output: Where the result goes; the source, which it may not be, is then never touched. None
            puts the result in the source's place and keeps the source beside it as ``<root>_old``.
            Where ``root`` is an outline, None migrates: the result is made on the Hub, in the
            source's repo, which needs ``push`` and a layout that keeps files.
        work_dir: Folder for the state of the run; shared by all hosts that work on it. None takes
            a hidden sibling of the target, which is removed after success.
        layout: How episodes are cut into files and batches.
        repairs: What the conversion may change about the dataset; nothing by default.
        selection: Which episodes are converted; all by default.
        plan: Whether a run under way is joined or given up, and who may work on it.
        workers: Who does the work: threads, processes, or an engine's workers.
        leases: Lease time and attempts.
        proof: What is proven before the swap, and what it may replace and remove.
        scratch: Where workers keep what they fetch of a source on the Hub.
        push: Push the result, to `PushOptions.repo_id` or to where ``arrival`` came from; None for
            not at all. Where the push fails, the error says so, and the result is in its place.
        keep_work_dir: Keep the run's records after success.
        for_push: Write the record that a later push goes by beside the result, which costs reading
            all of it; with ``push``, and where the source came from the Hub, it is written in any
            case.
        probe_seconds: Measure for so long how fast the result loads; None for not at all. Needs
            torch. A result that cannot be measured is converted all the same.
        report: Where to write a page that tells what happened, also where the conversion fails
            once there is a plan; None for none.
        command: The command line that asks for it, for the run's records; secrets are taken out.
        stop: Set it from another thread to stop; the run can be resumed.
        progress: Where to report.

    Returns:
        What was done.

    Raises:
        LeconvertError: One of its subclasses; see `leconvert.support.errors` for which.
    """
    conversion = Conversion(
        layout=layout,
        repairs=repairs,
        selection=selection,
        plan=plan,
        workers=workers,
        leases=leases,
        proof=proof,
        scratch=scratch,
        push=push,
    )
    return run_conversion(
        [Path(root)],
        conversion,
        _control(stop, progress, command),
        arrival=arrival,
        output=output,
        work_dir=work_dir,
        keep_work_dir=keep_work_dir,
        for_push=for_push,
        probe_seconds=probe_seconds,
        report=report,
    )


class SharedOptions(TypedDict, total=False):
    """The keywords that `merge`, `split` and `trim` take as `convert` does; all may be left out."""

    layout: LayoutOptions
    repairs: RepairOptions
    plan: PlanOptions
    workers: WorkerOptions
    leases: LeaseOptions
    proof: ProofOptions
    command: Sequence[str] | None
    stop: threading.Event | None
    progress: Progress


def _asked(given: SharedOptions, **own: Any) -> tuple[Conversion, Control]:
    """Return what a caller's keywords ask for, with further parts of the conversion."""
    if unknown := given.keys() - SharedOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
    parts: dict[str, Any] = {**given}
    control = {name: parts.pop(name, None) for name in ("stop", "progress", "command")}
    return Conversion(**parts, **own), _control(**control)


def _control(
    stop: threading.Event | None, progress: Progress | None, command: Sequence[str] | None
) -> Control:
    return Control(
        stop=stop or threading.Event(), progress=progress or NO_PROGRESS, command=command
    )


@any_storage_errors()
def merge(
    roots: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    work_dir: str | os.PathLike[str] | None = None,
    push: PushOptions | None = None,
    keep_work_dir: bool = False,
    for_push: bool = False,
    report: str | os.PathLike[str] | None = None,
    **given: Unpack[SharedOptions],
) -> ConversionReport:
    """Merge datasets of any versions into a new one, v3.0 or v2.1.

    The result has the episodes of the first dataset, then those of the second, and so on. They are
    numbered through, and tasks of the same text become one. From which dataset each episode is
    stands in ``meta/provenance.parquet``. A call that was interrupted, killed or failed is resumed
    by the same call.

    Args:
        roots: The dataset folders, two or more, each once. Their frame rates and, but for what
            their cameras' files are like, their features must be the same.
        output: Where the result goes; no dataset that is merged may be there.
        work_dir: See `convert`, as for all that follow.
        push: Push the result to `PushOptions.repo_id`; None for not at all.
        keep_work_dir: Keep the run's records after success.
        for_push: Write the record that a later push goes by.
        report: Where to write a page that tells what happened; None for none.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress``. A feature that ``repairs`` leaves out is left out of each
            dataset that has it; ``accept=("robot-type",)`` merges datasets of different robots.

    Returns:
        What was done; ``source`` names all datasets.

    Raises:
        LeconvertError: One of its subclasses. A `SourceError` lists all that differs.
    """
    check_several(roots)
    conversion, control = _asked(given, push=push)
    return run_conversion(
        list(map(Path, roots)),
        conversion,
        control,
        output=output,
        work_dir=work_dir,
        keep_work_dir=keep_work_dir,
        for_push=for_push,
        report=report,
    )


def check_several(roots: Sequence[object]) -> None:
    """Refuse to merge fewer datasets than two."""
    if isinstance(roots, str | os.PathLike) or len(roots) < 2:
        raise UsageError(
            "A merge needs at least two datasets.",
            next_step="Use `leconvert convert` for a single dataset.",
        )


@any_storage_errors()
def run_conversion(
    roots: Sequence[Path],
    conversion: Conversion,
    control: Control,
    *,
    arrival: HubOrigin | None = None,
    output: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_work_dir: bool = False,
    for_push: bool = False,
    probe_seconds: float | None = None,
    report: str | os.PathLike[str] | None = None,
) -> ConversionReport:
    """Convert one dataset, or merge several: what `convert`, `merge`, `split` and `trim` do.

    See `convert` for the arguments and errors.
    """
    layout, plan, push = conversion.layout, conversion.plan, conversion.push
    progress = control.progress
    if push is not None:
        _check_push(push, arrival, layout.to)
    if probe_seconds is not None:
        if layout.to != TARGET_VERSIONS[0]:
            raise UsageError(
                f"--probe measures only v3.0 datasets, not {layout.to}.",
                next_step="Leave --probe out.",
            )
        from leconvert.bench import require_packages

        require_packages("torch")
    started = time.monotonic()
    sources = [root.resolve() for root in roots]
    source = sources[0]
    migrates = is_outline(arrival) and output is None
    if migrates:
        _check_migration(arrival, push, probe_seconds)
    target = Path(output).resolve() if output is not None else source
    if migrates:
        target = WorkDir.migrated(source)
    if output is not None and len(sources) == 1 and is_same_folder(target, source):
        raise source_as_output(source)
    if migrates and work_dir is None:
        folder = source.parents[2]  # an outline lies in the work dir of its run
        work_dir = None if is_default_work_dir(folder) else folder
    else:
        folder = Path(work_dir).resolve() if work_dir is not None else work_dir_beside(target)
    if len(sources) > 1:
        check_all_places(sources, target, folder)
    page = None if report is None else Path(report).resolve()
    if page is not None:
        from leconvert.report import check_report_place

        check_report_place(page, [*sources, target])
    seconds: dict[str, float] = {}

    if work_dir is None:
        remove_leftovers(folder)
    packed: PackReport | None = None
    begins_anew = plan.restart
    with _another_may_finish(folder, target, layout.to, own_place=work_dir is None) as joined:
        run = None if begins_anew else _run_in_swap(folder, sources, target)
        if run is not None:
            with _report_on_exit(run, page):
                record_invocation(run.paths, run.manifest.run_id, "convert", control.command)
                packed, begins_anew = _finish(
                    run, planned_name(sources, arrival), conversion, control
                )
        if run is None or packed is None:
            # Faults of the source are reported before faults of the target.
            check_asked(sources, target, conversion)
            conversion.proof.check_source(is_outline=bool(arrival and arrival.outline))
            check_target = partial(conversion.check_target, source, target)
            check_target()
            run = open_or_plan(
                sources,
                target,
                folder,
                replace(conversion, plan=replace(plan, restart=begins_anew)),
                arrival=arrival,
                check_target=check_target,
                progress=progress,
            )
            seconds["plan"] = time.monotonic() - started
        joined(run)
        with _report_on_exit(run, page):
            if packed is None:
                watch = f"leconvert status {shlex.quote(str(folder))}"
                progress.say(f"The work dir is {folder}. Watch the progress with: {watch}")
                _say_who_works(run, progress)
                record_invocation(run.paths, run.manifest.run_id, "convert", control.command)
                packed, spent = work_and_pack(run, conversion, control)
                seconds |= spent
            from leconvert.remote.provenance import note_result

            wanted = for_push or push is not None
            on_hub = _on_hub(run)
            note_result(run, packed.kept, for_push=wanted, digests=dict(on_hub), progress=progress)
            done = _report(run, packed, seconds, time.monotonic() - started)
            if probe_seconds is not None:
                done = replace(done, probe=_probe(run, target, probe_seconds))
            if migrates and push is not None:
                done = replace(done, push=_push_migrated(run, target, push, on_hub, control))
    removes = not keep_work_dir and work_dir is None
    if removes and not remove_work_dir(folder, run.manifest.run_id, target):
        progress.say(f"{folder} could not be removed. It is no longer needed.")
    if push is not None and not migrates:
        from leconvert.remote.push import push_converted

        done = replace(done, push=push_converted(target, push, progress=progress))
    return replace(done, report=page, work_dir=None if removes else folder)


def repair(
    root: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    retime: bool = False,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> RepairReport:
    """Mend the findings of a check of a v3.0 dataset that its own files are enough to mend.

    `convert` mends the others, as for any source. For example
    ``convert(root, repairs=RepairOptions(on_bad_episode="drop"))`` leaves out the episodes of
    missing files, and ``RepairOptions(quantiles=True)`` computes the quantiles of each episode,
    which LeRobot needs to go on recording.

    Args:
        root: The dataset.
        output: Where the repaired dataset goes, which must not exist, or be that already; by
            default it takes the dataset's place, and the dataset is kept as ``<root>_old``.
        retime: Set timestamps of rows to ``frame_index / fps`` where they are something else.
        dry_run: Only say what would be done.
        stop: Set it from another thread to stop; then nothing is changed.
        progress: Where to report.

    Returns:
        What was changed, and in ``plan.left`` what stays wrong. Where nothing can be made right the
        plan is empty, and nothing is written.

    Raises:
        SourceError: It is no v3.0 dataset.
        TargetError: The output exists, or ``<root>_old`` does.
        VerificationError: The repaired dataset differs in more than was planned; nothing was moved.
        BusyError: Another process repairs or converts the dataset.
    """
    from leconvert.run.repairing import repair_dataset  # nobody else pays for its imports

    return repair_dataset(
        Path(root).resolve(),
        output=None if output is None else Path(output).resolve(),
        retime=retime,
        dry_run=dry_run,
        stop=stop,
        progress=progress,
    )


def _check_push(push: PushOptions, arrival: HubOrigin | None, to: str) -> None:
    """Refuse before any work what could not be pushed after it."""
    from leconvert.remote.options import PushOptions  # nobody else pays for its imports

    if not isinstance(push, PushOptions):
        raise TypeError(f"push must be PushOptions(...), not {push!r}.")
    if push.repo_id is None and (arrival is None or to != TARGET_VERSIONS[0]):
        raise UsageError(
            "No repo to push to is given.", next_step="Pass PushOptions(repo_id='ORG/NAME')."
        )
    if not push.dry_run:
        from leconvert.transfer.client import check_can_push

        check_can_push(push.repo_id or (arrival.origin.repo_id if arrival else ""))


def _check_migration(
    arrival: HubOrigin | None, push: PushOptions | None, probe_seconds: float | None
) -> None:
    """Refuse what a conversion whose files stay on the Hub cannot do."""
    origin = arrival.origin if arrival else None
    if origin is None or push is None or push.repo_id not in (None, origin.repo_id):
        raise UsageError(
            "The files of this result stay on the Hub, so it can only be pushed to the repo that "
            "has them.",
            next_step=f"Push to {origin.repo_id if origin else 'that repo'}, or give a folder for "
            "the result with --output.",
        )
    if probe_seconds is not None:
        raise UsageError(
            "--probe measures results on this machine, but the files of this result stay on the "
            "Hub.",
            next_step="Leave --probe out.",
        )


def _on_hub(run: OpenedRun) -> Mapping[str, str]:
    """Return the SHA-256 of files of a result that are on the Hub alone, by path."""
    if not run.manifest.is_migration:
        return {}
    from leconvert.remote.sparse_snapshot import contents_on_hub  # local sources have none

    return contents_on_hub(Path(run.manifest.source), taken_over(run))


def _push_migrated(
    run: OpenedRun,
    result: Path,
    options: PushOptions,
    on_hub: Mapping[str, str],
    control: Control,
) -> PushReport:
    from leconvert.remote.push import push
    from leconvert.remote.source import pinned_revision
    from leconvert.transfer.client import wait_for_hub

    pause = partial(wait_for_hub, control.stop)
    try:
        return push(result, options, on_hub=on_hub, pause=pause, progress=control.progress)
    except HubSourceChangedError as error:
        # The Hub would copy files of the changed dataset: this run can never be pushed.
        give_up_run(run.work_dir.root, run.manifest.run_id)
        error.next_step = (
            "Run the same command again. It begins with the present state of the repo."
        )
        if (stays := pinned_revision(Path(run.manifest.source))) is not None:
            error.next_step = (
                f"{stays} still leads to the dataset that was converted. Run the same command with "
                f"--revision {shlex.quote(options.branch)} to begin with the present state of "
                "that branch."
            )
        raise
    except LeconvertError as error:
        helps = "Then run the same command again. It continues where it stopped."
        error.next_step = f"{error.next_step or ''} {helps}".strip()
        raise


def _say_who_works(run: OpenedRun, progress: Progress) -> None:
    """Name the workers that the run has already, unless their processes have certainly ended."""
    workers = [
        worker for worker in read_workers(run.paths, run.manifest.run_id) if not worker.has_ended
    ]
    if not workers:
        return
    hosts = Counter(worker.host for worker in workers)
    named = ", ".join(f"{number} on {host}" for host, number in sorted(hosts.items()))
    join = f"leconvert work {shlex.quote(str(run.work_dir.root))}"
    progress.say(
        f"{count(len(workers), 'worker')} of earlier commands ({named}) may still work on "
        f"this run. This command helps them. Any other host helps with: {join}"
    )


@contextmanager
def _another_may_finish(
    work_dir: Path, target: Path, to: str, *, own_place: bool
) -> Iterator[Callable[[OpenedRun], None]]:
    """Tell the user if the same conversion, started elsewhere, was finished and its run removed.

    Yields:
        A function that is given the run that this process joined.
    """
    runs: list[str] = []
    was_there = is_converted(target, to)
    try:
        yield lambda run: runs.append(run.manifest.run_id)
    except (InterruptedRunError, HubSourceChangedError):
        raise
    except (LeconvertError, OSError) as error:
        left = None
        with suppress(LeconvertError, OSError):
            left = WorkDir(work_dir).current_run_id()
        if was_there or not is_converted(target, to) or left is not None:
            raise
        if own_place:  # locks and records that this process made since
            remove_work_dir(work_dir, runs[-1] if runs else "", target)
        raise BusyError(
            f"Another process finished this conversion meanwhile. The result is {target}.",
            path=str(target),
            next_step=f"There is nothing left to do. `leconvert check {shlex.quote(str(target))}` "
            "checks the result.",
        ) from error


def _report_on_exit(run: OpenedRun, report: Path | None) -> AbstractContextManager[None]:
    if report is None:
        return nullcontext()
    from leconvert.report import report_on_exit  # nobody else pays for its imports

    return report_on_exit(run, report)


def _probe(run: OpenedRun, target: Path, seconds: float) -> Mapping[str, Any]:
    """Measure how fast the result loads; where that fails, the error is what was found."""
    from leconvert.bench import probe_result  # nobody else pays for its imports

    try:
        found: Mapping[str, Any] = probe_result(target, duration_s=seconds)
    except ProbeError as error:
        found = error.as_record()
    record_probe(run.paths, run.manifest.run_id, found)
    return found


@any_storage_errors()
def run_worker(
    work_dir: str | os.PathLike[str],
    *,
    leases: LeaseOptions = LeaseOptions(),
    scratch: ScratchOptions = ScratchOptions(),
    max_batches: int | None = None,
    max_idle_seconds: float | None = None,
    allow_mixed_versions: bool = False,
    command: Sequence[str] | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> WorkerSummary:
    """Run one worker on a work dir until nothing is left for it."""
    for name, limit in (("max_batches", max_batches), ("max_idle_seconds", max_idle_seconds)):
        if limit is not None and not limit >= 0:
            raise UsageError(f"{name} cannot be {limit}.")
    run = open_run(Path(work_dir).resolve(), allow_mixed_versions=allow_mixed_versions)
    crew = WorkerPool(run, leases, stop or threading.Event(), scratch)
    left = crew.cost_left()
    if not left:  # by now the result may stand in the source's place
        return WorkerSummary(0, 0, 0, 0, 0, 0.0)
    record_invocation(run.paths, run.manifest.run_id, "work", command)
    with crew.inputs() as inputs, crew.stage(progress, left) as stage:
        return crew.make(stage.advance, inputs).run(
            max_batches=max_batches, max_idle_seconds=max_idle_seconds
        )


def _run_in_swap(work_dir: Path, sources: Sequence[Path], target: Path) -> OpenedRun | None:
    """Return this conversion's run if its swap began: then the source may be at another place."""
    if WorkDir(work_dir).current_run_id() is None:
        return None
    run = open_run(work_dir, allow_mixed_versions=True)
    planned = [source.root for source in run.manifest.sources]
    if (planned, run.manifest.target) != (list(map(str, sources)), str(target)):
        return None
    return run if swap_has_begun(run) else None


def _finish(
    run: OpenedRun,
    source: str,
    conversion: Conversion,
    control: Control,
) -> tuple[PackReport | None, bool]:
    """End a run whose swap began; return its report, if any, and whether to start over.

    A run answers only for a result that is there, from this source and these options.
    """
    manifest, target = run.manifest, Path(run.manifest.target)
    in_place, proof, progress = manifest.in_place, conversion.proof, control.progress

    def check() -> None:
        old = old_dir(manifest.exchanged)
        if not in_place:
            helps = f"--force-conversion converts again and keeps {target} as {old}."
        elif old.is_dir():
            exchanged = manifest.exchanged
            places = (exchanged, result_aside(exchanged, manifest.to))
            there, aside = (shlex.quote(str(place)) for place in places)
            helps = (
                f"To convert it with other options, put the source back, `mv {there} {aside} && "
                f"mv {shlex.quote(str(old))} {there}`, and convert again."
            )
        else:
            helps = "Its source was removed. Give the same options as before to finish the run."
        check_same_plan(run, source, target, conversion, helps=helps)

    try:
        return finish_run(run, proof, check=check, stop=control.stop, progress=progress), False
    except NoResultError as error:
        if in_place and not target.exists():
            raise
        progress.say(f"{error.message} Converting again from the start.")
    except (PlanMismatchError, SourceChangedError, VerificationError) as error:
        # Episodes are appended to a result that is right alone.
        appends = conversion.layout.append and not isinstance(error, VerificationError)
        if in_place or not (proof.force_conversion or appends):
            raise
        progress.say(f"{error.message} Converting again from the start.")
    return None, True


def _report(
    run: OpenedRun, packed: PackReport, seconds: dict[str, float], total_seconds: float
) -> ConversionReport:
    manifest = run.manifest
    only = manifest.sources[0] if len(manifest.sources) == 1 else None
    me = WorkerIdentity.of_this_process()
    others = [
        worker.peak_memory_bytes
        for worker in read_workers(run.paths, manifest.run_id)
        if (worker.boot, worker.pid, worker.started) != (me.boot, me.pid, me.started)
    ]
    return ConversionReport(
        source=manifest.source_name,
        output=Path(manifest.target),
        kept_source=packed.kept,
        run_id=manifest.run_id,
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        files=sum(layout.num_files for layout in manifest.streams),
        source_bytes=manifest.source_bytes,
        batches=manifest.num_batches,
        cloned_bytes=packed.cloned_bytes,
        copied_bytes=packed.copied_bytes,
        seconds=total_seconds,
        stage_seconds=seconds,
        verified=packed.verified,
        verified_because=packed.verified_because,
        removed_source=packed.removed,
        kept_because=packed.kept_because,
        findings=manifest.findings,
        repairs=only.repairs.as_record() if only is not None and only.repairs else {},
        peak_memory_bytes={
            "command": Machine().peak_memory(),
            "workers": max(others, default=None),
        },
        quantiles=_has_quantiles(run),
        version=manifest.to,
        kept_files=sum(kept.values()) if (kept := kept_files(manifest, run.batches)) else None,
        kept_episodes=manifest.kept_episodes,
        moves=moved_bytes(run),
    )


def _has_quantiles(run: OpenedRun) -> bool:
    """Tell whether a result has quantiles; no where somebody moved it away meanwhile."""
    with suppress(LeconvertError, OSError):
        return open_dataset(Path(run.manifest.target), version=run.manifest.to).has_quantiles
    return False


# Several results of one source: a conversion each.


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One part of a dataset that was split.

    Attributes:
        name: Its name.
        output: Its folder, which a dry run does not make.
        episodes: Its episodes, by their numbers in the source, such as ``0-3,7``.
        plan: What its conversion comes to, where nothing was to be written; else None.
        report: What was done; None where the part was finished before, or nothing was to be
            written.
        verified: How a part that was finished before was compared with the source now:
            ``structure`` or ``bytes``; else None.
    """

    name: str
    output: Path
    episodes: str
    plan: PlanSummary | None = None
    report: ConversionReport | None = None
    verified: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


@any_storage_errors()
def split(
    root: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str],
    into: Mapping[str, float | str],
    seed: int = 0,
    dry_run: bool = False,
    **given: Unpack[SharedOptions],
) -> list[SplitPart]:
    """Split a dataset into several, each episode into exactly one; the source stays as it is.

    Each part is a conversion of its own, of a selection of the episodes, and appears complete or
    not at all. The same call again finishes what was interrupted: a part that is there already is
    compared with the source, every byte where ``proof`` asks for that, and left as it is.

    Args:
        root: The dataset folder.
        output_dir: The folder in which each part gets a folder of its name.
        into: Name of each part, and its share of the episodes, such as ``0.9``, or a list of
            episodes, such as ``"0-99,120"``.
        seed: Decides which episodes a share takes; see `leconvert.model.selection.split_episodes`.
        dry_run: Only plan the parts; nothing is written.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress`` of each part's conversion, see `convert`.

    Returns:
        The parts, in the order of ``into``.

    Raises:
        UsageError: ``into`` does not give every episode to exactly one part.
        TargetError: Something else stands where a part goes; nothing was written then.
        VerificationError: A part that was finished before differs from the source; likewise.
        LeconvertError: One of its other subclasses, from the conversion of a part.
    """
    conversion, control = _asked(given)
    return split_dataset(
        Path(root),
        conversion,
        control,
        output_dir=output_dir,
        into=into,
        seed=seed,
        dry_run=dry_run,
    )


@any_storage_errors()
def split_dataset(
    root: Path,
    conversion: Conversion,
    control: Control,
    *,
    output_dir: str | os.PathLike[str],
    into: Mapping[str, float | str],
    seed: int = 0,
    dry_run: bool = False,
    work_dir: Path | None = None,
    reports: bool = False,
) -> list[SplitPart]:
    """Convert each part of a dataset; see `split`.

    Args:
        work_dir: The folder in which each part's run has a work dir of the part's name, which
            stays; None for hidden ones beside the parts.
        reports: Whether each part gets a report beside it.
    """
    source, folder, progress = root.resolve(), Path(output_dir).resolve(), control.progress
    if folder.is_relative_to(source):
        raise UsageError(
            f"The parts in {folder} would lie inside the source {source}.",
            path=str(folder),
            next_step="Choose folders side by side.",
        )
    episode_index = open_dataset(source, conversion.repairs.reading).episodes.episode_index
    parts = [
        SplitPart(name, folder / name, str(episodes))
        for name, episodes in split_episodes(into, episode_index, seed=seed).items()
    ]
    conversions = {
        part.name: replace(conversion, selection=EpisodeSelection(episodes=part.episodes))
        for part in parts
    }
    work_dirs = {
        part.name: work_dir_beside(part.output)
        if work_dir is None
        else work_dir.resolve() / part.name
        for part in parts
    }
    finished: dict[str, str] = {}
    for part in parts:
        if not dry_run and work_dir is None:
            remove_leftovers(work_dirs[part.name])
        run_id = WorkDir(work_dirs[part.name]).current_run_id()
        if not conversion.plan.restart and run_id is not None:
            continue  # its run knows how far it is
        verified = find_finished([source], part.output, conversions[part.name], control)
        if verified is not None:
            finished[part.name] = verified
        elif is_there(part.output):
            conversion.check_target(source, part.output)
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    done, taken = [], Counter[str]()
    for part in parts:
        if part.name in finished:
            progress.say(f"{part.output} is finished. It has the episodes {part.episodes}.")
            done.append(replace(part, verified=finished[part.name]))
        elif dry_run:
            summary = preview_plan(
                [source],
                part.output,
                work_dirs[part.name],
                conversions[part.name],
                progress=progress,
            )
            check_room(summary.space, part.output, taken)
            for room in summary.space.rooms:
                taken[room.folder] += room.bytes_needed - summary.space.twice_bytes
            done.append(replace(part, plan=summary))
        else:
            report = run_conversion(
                [source],
                conversions[part.name],
                control,
                output=part.output,
                work_dir=None if work_dir is None else work_dirs[part.name],
                report=_page_beside(part.output) if reports else None,
            )
            done.append(replace(part, report=report))
    return done


def _page_beside(target: Path) -> Path:
    from leconvert.report import default_report_place  # nobody else pays for its imports

    return default_report_place(target)


@any_storage_errors()
def trim(
    root: str | os.PathLike[str],
    *,
    frames: Mapping[int, tuple[int, int | None]],
    output: str | os.PathLike[str] | None = None,
    **given: Unpack[SharedOptions],
) -> ConversionReport:
    """Cut frames off the beginning or the end of some episodes, without encoding a video.

    This is a conversion of the whole dataset in which these episodes have fewer rows, counted and
    timed from 0 again. Their videos keep every sample that a kept frame needs to decode. Samples
    between a keyframe and the first kept frame stay in the file, but no reader shows them as part
    of the episode. The statistics of these episodes are computed from their decoded frames.

    Args:
        root: The dataset folder.
        frames: The first frame that stays of an episode, counted from 0, and the one after the
            last, None for all that follow; by the episode's number.
        output: The folder of the result; None for the source's place, as in `convert`.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress``, see `convert`.

    Returns:
        What was done.

    Raises:
        UsageError: There is no such episode, or an interval leaves nothing of it, all of it, or is
            not within it; or v2.1 is to be written, and the frames are not between keyframes.
        LeconvertError: One of its other subclasses, as from `convert`.
    """
    intervals = [FrameInterval(episode, *interval) for episode, interval in frames.items()]
    if not intervals:
        raise UsageError(
            "No frames to keep are given.",
            next_step="Give the frames to keep of at least one episode.",
        )
    conversion, control = _asked(given, selection=EpisodeSelection(frames=tuple(intervals)))
    return run_conversion([Path(root)], conversion, control, output=output)


# Is this the result of these sources, to this depth? Whoever gives a command again asks it here.


_DIFFERENCES_SHOWN = 20
# Keys of a result's `info.json` that differ if the result was made with other options.
_LAYOUT_KEYS = ("data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path")


@any_storage_errors()
def find_finished(
    sources: Sequence[Path],
    target: Path,
    conversion: Conversion = Conversion(),
    control: Control = Control(),
) -> str | None:
    """Compare what stands at a target with what a conversion would put there.

    Nothing is taken for done by its name or by a note, and nothing is written. A comparison by
    bytes reads the result and its sources completely.

    Args:
        sources: As the conversion gets them. The source of a conversion in place is looked for
            where such a conversion keeps it.
        target: The folder of the result.
        conversion: The conversion. Every byte is compared if its ``proof`` asks for that, else the
            structure.
        control: How to stop, and where to report.

    Returns:
        What was compared, ``structure`` or ``bytes``, where nothing differs. None where there is
        something to convert: no dataset of this version stands there, ``proof`` replaces it,
        ``layout.append`` adds episodes to it, or nothing is kept that a dataset in place could be
        compared with.

    Raises:
        TargetError: The dataset that stands there was made otherwise, or has other episodes.
        VerificationError: It was made so, and does not hold what the sources hold.
        SourceError: A source cannot be read, or not be converted so.
        StorageError: The disk fails, so that nobody knows.
        InterruptedRunError: ``stop`` was set.
    """
    layout, proof = conversion.layout, conversion.proof
    in_place = list(sources) == [target]
    if proof.force_conversion or not is_converted(target, layout.to):
        return None
    if in_place:
        sources = [overlaid_meta(target) or old_dir(target)]
        if not sources[0].is_dir():
            if not conversion.changes_anything:
                raise _nothing_to_compare(target, sources[0], layout.to)
            return None
    with overlaid_pair(target, sources) as (result, roots):
        try:
            scan = scan_sources(roots, conversion, progress=control.progress)
        except SourceError:
            if in_place:  # what is kept there may be something else
                return None
            raise
        if layout.append and former_episodes(target) < scan.num_episodes:
            return None
        differences = _made_otherwise(result, scan, layout)
        if differences:
            raise _other_result(target, layout.to, differences)
        report = verify_pair(
            result,
            roots,
            depth="bytes" if proof.depth == "bytes" else "structure",
            repairs=[source.repairs for source in scan.sources],
            progress=control.progress,
            stop=control.stop,
            keeps_further=layout.append,
        )
    if report.ok:
        return report.depth
    shown = first_few(report.differences, _DIFFERENCES_SHOWN)
    if not report.files:  # other episodes: no file could be compared
        raise _other_result(target, layout.to, shown)
    exchanged = target / META if sources[0] == overlaid_meta(target) else target
    raise does_not_match(exchanged, sources, shown, in_place=in_place)


def _nothing_to_compare(target: Path, kept: Path, to: str) -> SourceError:
    # Opened, so that one which cannot be read says so.
    version = open_dataset(target, version=to).info["codebase_version"]
    return SourceError(
        f"{target} is already {version}.",
        path=str(target),
        details=[f"It could not be compared with its source, since {kept} does not exist."],
        next_step="There is nothing to convert. If you meant another folder, give the v2.x "
        f"dataset. `leconvert check {shlex.quote(str(target))}` checks this dataset. --output "
        "DIR writes it again, for example with other file sizes.",
    )


def _made_otherwise(target: Path, scan: SourceScan, options: LayoutOptions) -> list[str]:
    """Say by which options a result was made that are not those of this conversion."""
    found: list[str] = []
    try:
        result, told = open_dataset(target, version=options.to), read_provenance(target)
        made = [read_repairs(target)] if told is None else [each.repairs for each in told.sources]
        views = open_sources(scan.sources)
        if len(made) != len(views):
            return [f"it was made from {count(len(made), 'dataset')}, but {len(views)} are given"]
        wanted = [each.repairs for each in scan.sources]
        if made != wanted:
            found.append(
                f"changed by the conversion: {_said_repairs(made)} then, "
                f"{_said_repairs(wanted)} now"
            )
        if told is not None and len(views) > 1:
            there = [each.meta_digest for each in told.sources]
            now = [each.meta_digest for each in scan.sources]
            if there != now and Counter(there) == Counter(now):
                found.append("the datasets are given in another order")
        if options.append:  # episodes that were appended lie in files of their own
            return found
        episodes = scan.num_episodes
        writes = target_of(options.to, options.layout, views[0].dataset, episodes)
        totals = Totals(
            fps=scan.fps,
            episodes=episodes,
            frames=int(scan.length.sum()),
            tasks=len(views.tasks),
        )
        info = writes.info(views.info, totals, asdict(options))
        found += [
            f"{key}: {result.info.get(key)} in the result, {info.get(key)} asked for now"
            for key in _LAYOUT_KEYS
            if result.info.get(key) != info.get(key)
        ]
        places = np.arange(episodes)
        found += [
            f"files of {layout.stream} begin at other episodes"
            for layout in layout_streams(scan, options)
            if len(result.episodes) == episodes
            and not np.array_equal(
                np.diff(result.slices(layout.stream).file) != 0,
                np.diff(layout.file_numbers(places)) != 0,
            )
        ]
    except SourceError as error:
        if error.path is None or not Path(error.path).is_relative_to(target):
            raise
        raise_storage_trouble(error, error.path)
        found.append(error.message)
    return found


def _said_repairs(repairs: Sequence[Repairs]) -> str:
    said = [change for each in repairs for change in each.summary()]
    return ", ".join(said) if said else "nothing"


def _other_result(target: Path, to: str, differences: Sequence[str]) -> TargetError:
    return TargetError(
        f"{target} already holds another {to} dataset than this command would make.",
        path=str(target),
        details=differences,
        next_step="Nothing was changed. Choose another --output. If the source has new episodes, "
        "--append adds them. --force-conversion converts anew and keeps the old result as "
        f"{old_dir(target)}.",
    )


# Hands a planned run to a scheduler: workers, a packer after them, and nobody who waits.


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of a submission, or of its dry run.

    Attributes:
        run_id: The run.
        finished: Whether the result is in place already; then nothing is submitted.
        workers: Workers that were asked for.
        worker_job: The scheduler's id for them; None if there are none, or for a dry run.
        packer_job: The packer's id; likewise, and of a fleet, whose workers pack.
        logs: The folder of the logs.
        script: A shell script that submits the same.
    """

    run_id: str
    finished: bool
    workers: int
    worker_job: str | None
    packer_job: str | None
    logs: str
    script: str

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def submit_run(
    work_dir: str | os.PathLike[str],
    engine: Submitter | None = None,
    *,
    leases: LeaseOptions = LeaseOptions(trouble_seconds=120.0),
    proof: ProofOptions = ProofOptions(),
    scratch: ScratchOptions = ScratchOptions(),
    allow_mixed_versions: bool = False,
    dry_run: bool = False,
) -> Submission:
    """Submit workers for what is left of a run, and a packer that begins when they have ended.

    The same call again joins the same run: it submits workers for what is left by then.

    Args:
        work_dir: The folder that all hosts share; every node must see it, the source and the
            target under the same paths.
        engine: Who starts them, and how; None for SLURM with its defaults.
        leases: Lease time and attempts, the same for all workers of a run.
        proof: Options of the packer: the depth of its proof, the datasets that it may replace and
            remove, and how long it waits for a silent packer's lock.
        scratch: The folder for files that workers fetch from a source on the Hub.
        allow_mixed_versions: Let nodes work whose library versions differ from the planner's.
        dry_run: Submit nothing.

    Returns:
        The jobs; empty if all batches are done and packed.

    Raises:
        EngineError: There is no scheduler here, or it refused a job.
        OneHostOnlyError: One host alone may work on the run.
        UsageError: The proof is too little for the removal of the source, or needs a source that
            is not on this machine.
        WorkDirError: There is no run, or its records cannot be used.
    """
    if engine is None:
        from leconvert.run.engines.slurm import SlurmEngine

        engine = SlurmEngine()
    root = Path(work_dir).resolve()
    if WorkDir(root).is_fleet():
        raise UsageError(
            f"{root} is the work dir of a fleet.",
            path=str(root),
            next_step="leconvert.fleet.submit submits it.",
        )
    run = open_run(root, allow_mixed_versions=True, only_look=True)
    check_may_submit(root, run.one_host)
    run_id, logs = run.manifest.run_id, str(run.paths.logs_dir)
    # Better now than by the packer, when the workers have ended.
    proof.check_source(is_outline=run.manifest.outline is not None)
    proof.check_proof(Path(run.manifest.source), Path(run.manifest.target))
    if proof.keep_as_former:
        raise UsageError(
            "keep_as_former does not work with a submitted packer.",
            next_step="Leave it out: the replaced result is kept as "
            f"{old_dir(Path(run.manifest.target))}.",
        )
    if _is_finished(run):
        if proof.delete_source and old_dir(run.manifest.exchanged).is_dir():
            raise UsageError(
                f"The result of {root} is in place already, so nothing is submitted. Its source is "
                "still kept.",
                path=str(root),
                next_step=f"`leconvert pack {shlex.quote(str(root))} --delete-source` removes the "
                "source once every byte of it is proven to be in the result.",
            )
        return Submission(run_id, True, 0, None, None, logs, "")
    workers = min(engine.workers, _batches_left(run, leases))
    mixed = ["--allow-mixed-versions"] if allow_mixed_versions else []
    fetched = scratch.as_arguments() if run.manifest.outline else []
    handover = JobRequest(
        workers,
        work_arguments=[str(root), *leases.as_arguments(), *fetched, *mixed],
        pack_arguments=[str(root), *proof.as_arguments(), *mixed],
    )
    return hand_over(engine, handover, run.paths, run_id, dry_run=dry_run)


def check_may_submit(root: Path, one_host: OneHost | None) -> None:
    """Refuse to submit what one host alone may work on."""
    if one_host is not None:
        raise OneHostOnlyError(
            f"Only the host {one_host.host.name} may work on {root}, so nothing can be submitted.",
            path=str(root),
            next_step="Plan again with a --work-dir on a file system with hard links, such as "
            "ext4, XFS or NFS.",
        )


def hand_over(
    engine: Submitter, handover: JobRequest, paths: RunPaths, run_id: str, *, dry_run: bool
) -> Submission:
    """Submit what there is to be started, or only say what that would be."""
    logs, script = str(paths.logs_dir), engine.script(handover, paths)
    jobs = (None, None) if dry_run else engine.submit(handover, paths)
    return Submission(run_id, False, handover.workers, *jobs, logs, script)


def _is_finished(run: OpenedRun) -> bool:
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.step in {PackStep.SWAPPED, PackStep.FINISHED}


def _batches_left(run: OpenedRun, leases: LeaseOptions) -> int:
    board = WorkerPool(run, leases, threading.Event()).look()
    return run.manifest.num_batches - len(board.done_ids())
