"""Complete conversions: plan, work, pack, verify and swap; merges, splits and trims."""

from __future__ import annotations

import math
import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from leconvert.dataset.files import overlaid_pair
from leconvert.dataset.formats import Totals, open_dataset, open_sources, read_provenance, target_of
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.dataset.scan import source_reading
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.selection import EpisodeSelection, FrameInterval, split_episodes
from leconvert.model.values import (
    OVERLAY,
    TARGET_VERSIONS,
    Finding,
    LayoutOptions,
    SourceScan,
)
from leconvert.run.appending import former_episodes
from leconvert.run.conversion import (
    Control,
    Conversion,
    LeaseOptions,
    Places,
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
    check_overlays_one,
    check_same_plan,
    kept_files,
    moved_bytes,
    open_or_plan,
    preview_plan,
    scan_sources,
)
from leconvert.run.proof import verify_pair
from leconvert.run.space import check_room
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
from leconvert.support.text import count, first_few, json_record, numbered
from leconvert.support.values import dataclass
from leconvert.transfer.options import PushOptions, ScratchOptions
from leconvert.workdir.activity import read_workers, record_invocation, record_probe
from leconvert.workdir.fs import is_there
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import OneHost
from leconvert.workdir.records import Journal, PackStep, RunPaths, WorkDir, is_default_work_dir
from leconvert.workdir.removal import give_up_run, remove_leftovers, remove_work_dir
from leconvert.workdir.run import OpenedRun, open_run
from leconvert.workdir.swap import (
    META,
    check_places,
    is_converted,
    is_same_folder,
    lies_in,
    old_dir,
    overlaid_meta,
    result_aside,
    source_as_output,
    work_dir_beside,
)

if TYPE_CHECKING:
    from leconvert.remote.provenance import Origin
    from leconvert.remote.push import PushReport
    from leconvert.run.repairing import RepairReport

__all__ = [
    "ConversionReport",
    "SharedOptions",
    "SplitPart",
    "Submission",
    "check_extras",
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
        source: The dataset: its folder, or its URL on the Hub with the commit.
        output: The folder of the result. After a migration, whose result is only on the Hub, it is
            the folder in the work dir that stood for the result.
        kept_source: The folder that keeps the replaced dataset; None if nothing was replaced, or
            the dataset was removed.
        removed_source: The folder that kept it until it was removed on request.
        kept_because: The reason why it was kept although its removal was requested.
        run_id: The run.
        episodes: Number of episodes of the dataset.
        frames: Number of frames of the dataset.
        files: Number of data and video files of the result.
        source_bytes: Size of the source's data and video files, in bytes; if episodes were
            appended, only of the new ones.
        batches: Number of batches of the plan.
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        seconds: Wall clock of the whole command.
        stage_seconds: Wall clock of plan, work and pack.
        verified: The depth of the check before the swap, ``none`` if it was skipped. If the result
            was in its place before this command, the depth of the comparison now.
        verified_because: Why less was compared than requested, for example because a source is
            gone; else None.
        findings: The findings of the scan: warnings, remarks and repairs.
        repairs: The changes of the conversion, as in ``meta/repairs.json``. Empty for no changes,
            and for merged datasets, whose changes are in ``meta/provenance.parquet``.
        probe: How fast the result loads, as in results of `leconvert probe run`, or the error of
            the measurement; None if it was not requested.
        report: The page about the conversion, or None.
        work_dir: The folder of the run's records; None if they were removed.
        quantiles: Whether the statistics of episodes have quantiles. Without them LeRobot loads the
            result, but cannot resume recording on it.
        push: The report of the push; None if none was requested.
        peak_memory_bytes: The most memory that processes had resident. ``command``: this process,
            whose threads may be workers too. ``workers``: the largest of the other worker processes
            on all hosts, None if there were none. 0 means unknown.
        version: The version of the result.
        kept_files: Number of files that are the source's own, unchanged; None for layouts without
            such files.
        kept_episodes: Number of episodes that were there before others were appended; their files
            are unchanged.
        moves: The bytes that a migration moved between this host and the Hub, as planned; else
            None.
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
    arrival: Origin | None = None,
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

    The result appears in its place complete and in one step, or not at all. If a call was
    interrupted, killed or failed, the same call resumes it.

    Args:
        root: The dataset folder, the one that holds ``meta/``.
        arrival: The dataset's origin on the Hub, see `leconvert.remote.source`; None for a local
            dataset.
        output: The folder of the result; then the source, which must be another folder, is never
            touched. None puts the result in the source's place and keeps the source beside it as
            ``<root>_old``. If ``root`` is an outline, None migrates: the result is made on the Hub,
            in the source's repo. This needs ``push`` and a layout that keeps files.
        work_dir: Folder for the state of the run, shared by all hosts that work on it. None uses a
            hidden folder beside the target, which is removed after success.
        layout: How episodes are cut into files and batches.
        repairs: The changes that the conversion may make to the dataset; by default none.
        selection: The episodes to convert; by default all.
        plan: Whether to join or give up a run under way, and who may work on it.
        workers: Who does the work: threads, processes, or an engine's workers.
        leases: Lease time and attempts.
        proof: The proof before the swap, and the datasets that it may replace and remove.
        scratch: The folder for files that workers fetch from a source on the Hub.
        push: Push the result, to `PushOptions.repo_id` or to the repo that ``arrival`` names; None
            for no push. If the push fails, its error is raised, and the result stays in its place.
        keep_work_dir: Keep the run's records after success.
        for_push: Write the record beside the result that a later push needs, which requires reading
            the whole result. It is always written with ``push``, and for a source from the Hub.
        probe_seconds: Seconds to measure how fast the result loads; None for no measurement. Needs
            torch. The conversion also succeeds if the measurement fails.
        report: Path of a page about the conversion, which is written even if the conversion fails
            after planning; None for none.
        command: The command line, for the run's records; secrets are removed from it.
        stop: Set it from another thread to stop; the run can be resumed.
        progress: Receives the progress.

    Returns:
        The report.

    Raises:
        LeconvertError: One of its subclasses; `leconvert.support.errors` describes them.
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
        Control(stop=stop or threading.Event(), progress=progress, command=command),
        arrival=arrival,
        output=output,
        work_dir=work_dir,
        keep_work_dir=keep_work_dir,
        for_push=for_push,
        probe_seconds=probe_seconds,
        report=report,
    )


class SharedOptions(TypedDict, total=False):
    """The keywords that `merge`, `split` and `trim` share with `convert`; all are optional."""

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
    """Return the conversion and control from a caller's keywords and further parts."""
    if unknown := given.keys() - SharedOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
    parts: dict[str, Any] = {**given}
    control = {name: parts.pop(name, None) for name in ("stop", "progress", "command")}
    told = {name: value for name, value in control.items() if value is not None}
    return Conversion(**parts, **own), Control(**told)


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

    The result has the episodes of the first dataset, then those of the second, and so on, with
    consecutive numbers. Tasks with the same text become one. ``meta/provenance.parquet`` names the
    dataset of each episode. If a call was interrupted, killed or failed, the same call resumes it.

    Args:
        roots: The dataset folders, at least two, each once. Their frame rates and features must be
            equal, except properties of the cameras' files.
        output: The folder of the result; no merged dataset may be there.
        work_dir: As for `convert`.
        push: Push the result to `PushOptions.repo_id`; None for no push.
        keep_work_dir: Keep the run's records after success.
        for_push: Write the record that a later push needs.
        report: Path of a page about the conversion; None for none.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress``, as for `convert`. A feature that ``repairs`` drops is dropped
            from each dataset that has it; ``accept=("robot-type",)`` merges datasets of different
            robots.

    Returns:
        The report; its ``source`` names all datasets.

    Raises:
        LeconvertError: One of its subclasses. A `SourceError` lists all differences.
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
    """Refuse to merge fewer than two datasets."""
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
    arrival: Origin | None = None,
    output: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_work_dir: bool = False,
    for_push: bool = False,
    probe_seconds: float | None = None,
    report: str | os.PathLike[str] | None = None,
) -> ConversionReport:
    """Convert one dataset, or merge several, for `convert`, `merge`, `split` and `trim`.

    See `convert` for the arguments and errors.
    """
    layout, plan, push = conversion.layout, conversion.plan, conversion.push
    progress = control.progress
    sources = [root.resolve() for root in roots]
    if push is not None:
        _check_push(push, arrival, layout.to, sources)
    if layout.layout == OVERLAY:  # also if a run is under way, whatever its options
        check_overlays_one(sources, conversion.selection)
    started = time.monotonic()
    source = sources[0]
    migrates = arrival is not None and arrival.outline is not None and output is None
    target = Path(output).resolve() if output is not None else source
    if migrates:
        _check_migration(arrival, push)
        target = WorkDir.migrated(source)
    if output is not None and len(sources) == 1 and is_same_folder(target, source):
        raise source_as_output(source)
    if migrates and work_dir is None:
        folder = source.parents[2]  # an outline lies in the work dir of its run
        work_dir = None if is_default_work_dir(folder) else folder
    else:
        folder = Path(work_dir).resolve() if work_dir is not None else work_dir_beside(target)
    places = Places(sources, target, folder, arrival)
    if len(sources) > 1:
        check_all_places(places)
    page = None if report is None else Path(report).resolve()
    check_extras(sources, target, layout.to, probe_seconds, page, migrates=migrates)
    seconds: dict[str, float] = {}

    if work_dir is None:
        remove_leftovers(folder)
    packed: PackReport | None = None
    begins_anew = plan.restart
    snapshot = source if migrates else None
    with _another_may_finish(
        folder, target, layout.to, own_place=work_dir is None, snapshot=snapshot
    ) as joined:
        run = None if begins_anew else _run_in_swap(folder, sources, target)
        if run is not None:
            with report_on_exit(run, page):
                record_invocation(run.paths, "convert", control.command)
                packed, begins_anew = _finish(run, places, conversion, control)
        if run is None or packed is None:
            conversion.proof.check_source(is_outline=places.outline is not None)
            check_asked(places, conversion)
            asked = replace(conversion, plan=replace(plan, restart=begins_anew))
            run = open_or_plan(places, asked, progress=progress)
            seconds["plan"] = time.monotonic() - started
        joined(run)
        with report_on_exit(run, page):
            if packed is None:
                watch = f"leconvert status {shlex.quote(str(folder))}"
                progress.say(f"The work dir is {folder}. Watch the progress with: {watch}")
                _say_who_works(run, progress)
                record_invocation(run.paths, "convert", control.command)
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
    if removes and not remove_work_dir(folder, run.paths.run_id, target):
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
    """Repair the findings of a check of a v3.0 dataset for which its own files are enough.

    `convert` repairs the others, as for any source. For example, ``convert(root,
    repairs=RepairOptions(on_bad_episode="drop"))`` leaves out episodes with missing files, and
    ``RepairOptions(quantiles=True)`` computes the quantiles of each episode, which LeRobot needs to
    resume recording.

    Args:
        root: The dataset.
        output: The folder of the repaired dataset, which must not exist, unless it already is this
            result; by default it takes the dataset's place, and the dataset is kept as
            ``<root>_old``.
        retime: Set timestamps of rows to ``frame_index / fps`` if they differ from it.
        dry_run: Only report what would be done.
        stop: Set it from another thread to stop; then nothing is changed.
        progress: Receives the progress.

    Returns:
        The changes; ``plan.left`` lists the findings that remain. If nothing can be repaired, the
        plan is empty, and nothing is written.

    Raises:
        SourceError: The dataset is not v3.0.
        TargetError: The output exists, or ``<root>_old`` does.
        VerificationError: The repaired dataset has other changes than planned; nothing was moved.
        SourceChangedError: The dataset was changed meanwhile.
        BusyError: Another process repairs or converts the dataset.
    """
    from leconvert.run.repairing import repair_dataset  # only this function needs its imports

    return repair_dataset(
        Path(root).resolve(),
        output=None if output is None else Path(output).resolve(),
        retime=retime,
        dry_run=dry_run,
        stop=stop,
        progress=progress,
    )


def _check_push(
    push: PushOptions, arrival: Origin | None, to: str, sources: Sequence[Path]
) -> None:
    """Refuse a push that could not succeed, before any work."""
    if not isinstance(push, PushOptions):
        raise TypeError(f"push must be PushOptions(...), not {push!r}.")
    if push.repo_id is None and (arrival is None or to != TARGET_VERSIONS[0]):
        raise UsageError(
            "The repo for the push is not given.",
            next_step="Pass PushOptions(repo_id='ORG/NAME').",
        )
    if not push.dry_run:
        from leconvert.remote.push import check_card
        from leconvert.transfer.client import check_can_push

        repo_id = push.repo_id or (arrival.repo_id if arrival else "")
        check_can_push(repo_id)
        check_card(repo_id, push, sources)


def _check_migration(arrival: Origin | None, push: PushOptions | None) -> None:
    """Refuse a push that does not fit a conversion whose files stay on the Hub."""
    if arrival is None or push is None or push.repo_id not in (None, arrival.repo_id):
        raise UsageError(
            "The files of this result stay on the Hub, so it can only be pushed to the repo that "
            "has them.",
            next_step=f"Push to {arrival.repo_id if arrival else 'that repo'}, or give a folder "
            "for the result with --output.",
        )


def check_extras(
    sources: Sequence[Path],
    target: Path,
    to: str,
    probe_seconds: float | None,
    page: Path | None,
    *,
    migrates: bool,
) -> None:
    """Refuse a measurement or a page that could not be made, before any work."""
    if probe_seconds is not None:
        wrong = None
        if not 0 < probe_seconds < math.inf:
            wrong = f"--probe takes a number of seconds above 0, not {probe_seconds}."
        elif to != TARGET_VERSIONS[0]:
            wrong = f"--probe measures only v3.0 datasets, not {to}."
        elif migrates:
            wrong = "--probe measures results on this machine, but the files of this result stay "
            wrong += "on the Hub."
        if wrong is not None:
            raise UsageError(wrong, next_step="Leave --probe out.")
        from leconvert.bench import require_packages

        require_packages("torch")
    if page is not None:
        from leconvert.report.page import check_report_place

        check_report_place(page, [*sources, target])


def _on_hub(run: OpenedRun) -> Mapping[str, str]:
    """Return the SHA-256 of the result's files that are only on the Hub, by path."""
    if not run.manifest.is_migration:
        return {}
    from leconvert.remote.sparse_snapshot import contents_on_hub  # local sources do not need it

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
        # The Hub would copy files of the changed dataset, so this run can never be pushed.
        give_up_run(run.work_dir.root, run.paths.run_id)
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
    """Report the workers of the run so far, unless their processes have certainly ended."""
    workers = [worker for worker in read_workers(run.paths) if not worker.has_ended]
    if not workers:
        return
    hosts = Counter(worker.host for worker in workers)
    named = ", ".join(f"{number} on {host}" for host, number in sorted(hosts.items()))
    join = f"leconvert work {shlex.quote(str(run.work_dir.root))}"
    progress.say(
        f"{count(len(workers), 'worker')} of earlier commands ({named}) may still work on "
        "this run. This command works on the same run together with them. `"
        f"{join}` adds workers on another host."
    )


@contextmanager
def _another_may_finish(
    work_dir: Path, target: Path, to: str, *, own_place: bool, snapshot: Path | None
) -> Iterator[Callable[[OpenedRun], None]]:
    """Raise a plain error if another process finished this conversion and removed its run.

    Args:
        work_dir: The folder of the run's state.
        target: The folder of the result.
        to: The version of the result.
        own_place: Whether the work dir has its default place, and is removed at the end.
        snapshot: The sparse snapshot in the work dir that a migration reads; else None.

    Yields:
        A function that takes the run that this process joined.

    Raises:
        BusyError: A new result is in place, or the snapshot is gone, although this process failed.
    """
    runs: list[str] = []
    before = _result_at(target, to)
    try:
        yield lambda run: runs.append(run.paths.run_id)
    except (InterruptedRunError, HubSourceChangedError):
        raise
    except (LeconvertError, OSError) as error:
        if snapshot is not None and not snapshot.is_dir():
            raise BusyError(
                f"{work_dir} was removed during this command; another process may have finished "
                "the command.",
                path=str(work_dir),
                next_step="Run the same command again. It does what is left to do.",
            ) from error
        left = None
        with suppress(LeconvertError, OSError):
            work = WorkDir(work_dir)
            left = work.current_run_id()
            if (
                left is not None
                and left not in runs
                and Journal(work.run(left)).read().step is PackStep.FINISHED
            ):
                # The other process left the removal to this one, which planned in the work dir.
                runs.append(left)
                left = None
        if left is not None or _result_at(target, to) in {None, before}:
            raise
        if own_place:  # removes locks and records that this process has made since
            remove_work_dir(work_dir, runs[-1] if runs else "", target)
        raise _another_finished(target, replaced=before is not None) from error


def _result_at(target: Path, to: str) -> tuple[int, int] | None:
    """Return facts of a result that differ after a swap, and stay when a file of it is edited."""
    with suppress(OSError):
        if is_converted(target, to):
            found = (target / META).stat()
            return found.st_dev, found.st_ino
    return None


def _another_finished(target: Path, *, replaced: bool) -> BusyError:
    check = f"`leconvert check {shlex.quote(str(target))}`"
    if replaced:
        return BusyError(
            f"Another process replaced {target} during this command.",
            path=str(target),
            next_step=f"Look at the dataset there before you run this command again. {check} "
            "checks that dataset.",
        )
    return BusyError(
        f"Another process finished this conversion during this command. The result is {target}.",
        path=str(target),
        next_step=f"There is nothing left to do. {check} checks the result.",
    )


def report_on_exit(run: OpenedRun, report: Path | None) -> AbstractContextManager[None]:
    """Write a run's report when the block ends, however it ends; do nothing without a path."""
    if report is None:
        return nullcontext()
    from leconvert.report import page  # its imports take time

    return page.report_on_exit(run, report)


def _probe(run: OpenedRun, target: Path, seconds: float) -> Mapping[str, Any]:
    """Measure how fast the result loads; return the result, or the error as a record."""
    from leconvert.bench import probe_result  # only this function needs its imports

    try:
        found: Mapping[str, Any] = probe_result(target, duration_s=seconds)
    except ProbeError as error:
        found = error.as_record()
    record_probe(run.paths, found)
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
    """Run one worker on a work dir until there is no more work for it.

    Args:
        work_dir: The folder of the run's state.
        leases: Lease time and attempts, the same for all workers of the run.
        scratch: The folder for files that workers fetch from a source on the Hub.
        max_batches: End after this many batches; None for no limit.
        max_idle_seconds: End after waiting this long for work; None for no limit.
        allow_mixed_versions: Work even if library versions differ from the planner's.
        command: The command line, for the run's records; secrets are removed from it.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Returns:
        The worker's summary.

    Raises:
        LeconvertError: One of its subclasses; `leconvert.support.errors` describes them.
    """
    for name, limit in (("max_batches", max_batches), ("max_idle_seconds", max_idle_seconds)):
        if limit is not None and not limit >= 0:
            raise UsageError(f"{name} cannot be {limit}.")
    run = open_run(Path(work_dir).resolve(), allow_mixed_versions=allow_mixed_versions)
    crew = WorkerPool(run, leases, stop or threading.Event(), scratch)
    left = crew.cost_left()
    if not left:  # the result may already be in the source's place
        return WorkerSummary(0, 0, 0, 0, 0, 0.0)
    record_invocation(run.paths, "work", command)
    with crew.inputs() as inputs, crew.stage(progress, left) as stage:
        return crew.make(stage.advance, inputs).run(
            max_batches=max_batches, max_idle_seconds=max_idle_seconds
        )


def _run_in_swap(work_dir: Path, sources: Sequence[Path], target: Path) -> OpenedRun | None:
    """Return this conversion's run if its swap has begun; the source may then be elsewhere."""
    if WorkDir(work_dir).current_run_id() is None:
        return None
    run = open_run(work_dir, allow_mixed_versions=True)
    planned = [source.root for source in run.manifest.sources]
    if (planned, run.manifest.target) != (list(map(str, sources)), str(target)):
        return None
    return run if swap_has_begun(run) else None


def _finish(
    run: OpenedRun, places: Places, conversion: Conversion, control: Control
) -> tuple[PackReport | None, bool]:
    """End a run whose swap has begun; return its report, if any, and whether to start over.

    The run counts only if its result is in place, from this source and these options.
    """
    manifest, target = run.manifest, Path(run.manifest.target)
    in_place, proof, progress = manifest.in_place, conversion.proof, control.progress

    def check() -> None:
        old = old_dir(manifest.exchanged)
        if manifest.is_migration:  # its result is for the push alone
            helps = "The same options as before push its result. --restart gives it up."
        elif not in_place:
            helps = f"--force-conversion converts again. The dataset at {target} is kept as {old}."
        elif old.is_dir():
            exchanged = manifest.exchanged
            pair = (exchanged, result_aside(exchanged, manifest.to))
            there, aside = (shlex.quote(str(place)) for place in pair)
            helps = (
                f"To convert it with other options, put the source back, `mv {there} {aside} && "
                f"mv {shlex.quote(str(old))} {there}`, and convert again."
            )
        else:
            helps = "Its source was removed. Give the same options as before to finish the run."
        check_same_plan(run, places, conversion, helps=helps)

    try:
        return finish_run(run, proof, check=check, stop=control.stop, progress=progress), False
    except NoResultError as error:
        if in_place and not target.exists():
            raise
        progress.say(f"{error.message} Converting again from the start.")
    except (PlanMismatchError, SourceChangedError, VerificationError) as error:
        # Episodes are appended only to a result that is right.
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
        for worker in read_workers(run.paths)
        if (worker.host, worker.pid, worker.lock) != (me.host, me.pid, me.lock)
    ]
    return ConversionReport(
        source=manifest.source_name,
        output=Path(manifest.target),
        kept_source=packed.kept,
        run_id=run.paths.run_id,
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
    """Return whether a result has quantiles; False if somebody has moved it away."""
    with suppress(LeconvertError, OSError):
        return open_dataset(Path(run.manifest.target), version=run.manifest.to).has_quantiles
    return False


# Several results of one source, each by its own conversion.


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One part of a split dataset.

    Attributes:
        name: Its name.
        output: Its folder, which a dry run does not make.
        episodes: Its episodes, by their numbers in the source, such as ``0-3,7``.
        plan: The summary of its plan in a dry run; else None.
        report: The report of its conversion; None in a dry run, or if the part was finished before.
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
    """Split a dataset into several, each episode into exactly one; the source stays unchanged.

    Each part has its own conversion of some episodes, and appears complete or not at all. After an
    interruption, the same call finishes the parts: a part that is already there is compared with
    the source, every byte if ``proof`` requires it, and left unchanged.

    Args:
        root: The dataset folder.
        output_dir: The folder in which each part gets a folder with its name.
        into: Name of each part, and its share of the episodes, such as ``0.9``, or a list of
            episodes, such as ``"0-99,120"``.
        seed: Decides which episodes a share gets; see `leconvert.model.selection.split_episodes`.
        dry_run: Only plan the parts; nothing is written.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress`` of each part's conversion, as for `convert`.

    Returns:
        The parts, in the order of ``into``.

    Raises:
        UsageError: ``into`` does not give every episode to exactly one part.
        TargetError: Something else is in a part's place; nothing was written.
        VerificationError: A part that was finished before differs from the source; nothing was
            written.
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
        root: The dataset folder.
        conversion: The conversion of each part, whose selection is set here.
        control: How to stop, and where to report.
        output_dir: The folder of the parts.
        into: The parts.
        seed: Decides which episodes a share gets.
        dry_run: Only plan the parts.
        work_dir: The folder in which each part's run has a work dir with the part's name, which
            stays; None for hidden ones beside the parts.
        reports: Whether each part gets a report beside it.
    """
    source, folder, progress = root.resolve(), Path(output_dir).resolve(), control.progress
    if lies_in(folder, source):
        raise UsageError(
            f"The parts in {folder} would lie inside the source {source}.",
            path=str(folder),
            next_step="Choose folders side by side.",
        )
    reading = source_reading(source, conversion.repairs)
    episode_index = open_dataset(source, reading).episodes.episode_index
    asked = []
    for name, episodes in split_episodes(into, episode_index, seed=seed).items():
        part = SplitPart(name, folder / name, str(episodes))
        if lies_in(source, part.output):
            raise UsageError(
                f"The part {name} would take the place of the source {source}, or contain it.",
                path=str(part.output),
                next_step="Give the part another name, or choose another --output-dir.",
            )
        own = replace(conversion, selection=EpisodeSelection(episodes=part.episodes))
        place = work_dir_beside(part.output) if work_dir is None else work_dir.resolve() / name
        check_places(source, part.output, place, makes_folder=True)
        if not dry_run and work_dir is None:
            remove_leftovers(place)
        # A run under way knows its progress.
        if conversion.plan.restart or WorkDir(place).current_run_id() is None:
            part = replace(part, verified=find_finished([source], part.output, own, control))
            if part.verified is None and is_there(part.output):
                conversion.check_target(source, part.output)
        asked.append((part, own, place))
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    done, taken = [], Counter[str]()
    for part, own, place in asked:
        plan = report = None
        if part.verified is not None:
            progress.say(f"{part.output} is finished. It has {numbered('episode', part.episodes)}.")
        elif dry_run:
            plan = preview_plan(Places([source], part.output, place), own, progress=progress)
            check_room(plan.space, part.output, taken)
            for room in plan.space.rooms:
                taken[room.folder] += room.bytes_needed - plan.space.twice_bytes
        else:
            report = run_conversion(
                [source],
                own,
                control,
                output=part.output,
                work_dir=None if work_dir is None else place,
                report=_page_beside(part.output) if reports else None,
            )
        done.append(replace(part, plan=plan, report=report))
    return done


def _page_beside(target: Path) -> Path:
    from leconvert.report.page import default_report_place  # only this function needs its imports

    return default_report_place(target)


@any_storage_errors()
def trim(
    root: str | os.PathLike[str],
    *,
    frames: Mapping[int, tuple[int, int | None]],
    output: str | os.PathLike[str] | None = None,
    **given: Unpack[SharedOptions],
) -> ConversionReport:
    """Cut frames off the beginning or end of some episodes, without encoding a video.

    This converts the whole dataset; the trimmed episodes have fewer rows, with numbers and times
    from 0 again. Their videos keep every sample that a kept frame needs to decode. Samples between
    a keyframe and the first kept frame stay in the file, but no reader shows them as part of the
    episode. The statistics of these episodes are computed from their decoded frames.

    Args:
        root: The dataset folder.
        frames: For each episode's number: its first kept frame, counted from 0, and the frame after
            the last kept one, or None for its end.
        output: The folder of the result; None for the source's place, as for `convert`.
        given: ``layout``, ``repairs``, ``plan``, ``workers``, ``leases``, ``proof``, ``command``,
            ``stop`` and ``progress``, as for `convert`.

    Returns:
        The report.

    Raises:
        UsageError: An episode does not exist; an interval keeps no frame or all frames of it, or
            reaches beyond it; or v2.1 is to be written, and an interval is not bounded by
            keyframes.
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


# The check whether a target already holds the result of some sources, to some depth.


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
    """Compare the dataset at a target with the result that a conversion would put there.

    A name or a note proves nothing here, and nothing is written. A comparison by bytes reads the
    result and its sources completely.

    Args:
        sources: The conversion's sources. For a conversion in place, the source is looked for where
            such a conversion keeps it.
        target: The folder of the result.
        conversion: The conversion. Every byte is compared if its ``proof`` requires it, else the
            structure.
        control: How to stop, and where to report.

    Returns:
        The depth of the comparison, ``structure`` or ``bytes``, if nothing differs. None if there
        is something to convert: the target holds no dataset of this version, ``proof`` replaces it,
        ``layout.append`` adds episodes to it, or the source of a dataset in place is not kept, so
        nothing can be compared.

    Raises:
        TargetError: The target's dataset was made with other options, or has other episodes.
        VerificationError: It was made with these options, but its content differs from the sources.
        SourceError: A source cannot be read, or cannot be converted with these options.
        StorageError: The disk fails, so the result is unknown.
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
            if in_place:  # the kept folder may be something else
                return None
            raise
        if layout.append and former_episodes(target) < scan.num_episodes:
            return None
        differences = _made_otherwise(result, scan, layout)
        if differences:
            raise _other_result(target, conversion, sources, differences, in_place=in_place)
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
    if not report.files:  # other episodes, so no file could be compared
        raise _other_result(target, conversion, sources, shown, in_place=in_place)
    exchanged = target / META if sources[0] == overlaid_meta(target) else target
    raise does_not_match(exchanged, sources, shown, in_place=in_place)


def _nothing_to_compare(target: Path, kept: Path, to: str) -> SourceError:
    # Opened, so an unreadable dataset raises its own error.
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
    """Return the options of a result that differ from this conversion's, as sentences."""
    found: list[str] = []
    try:
        result, told = open_dataset(target, version=options.to), read_provenance(target)
        made = [read_repairs(target)] if told is None else [each.repairs for each in told.sources]
        views = open_sources(scan.sources)
        if len(made) != len(views):
            given = count(len(views), "dataset is", "datasets are")
            return [f"it was made from {count(len(made), 'dataset')}, but {given} given"]
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
        if options.append:  # appended episodes are in files of their own
            return found
        episodes = scan.num_episodes
        writes = target_of(options.to, options.layout, views[0].dataset, episodes)
        totals = Totals(
            fps=scan.fps,
            episodes=episodes,
            frames=scan.num_frames,
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


def _other_result(
    target: Path,
    asked: Conversion,
    sources: Sequence[Path],
    differences: Sequence[str],
    *,
    in_place: bool,
) -> TargetError:
    if in_place:
        undo = shlex.join(["leconvert", "undo", str(target)])
        helps = (
            f"With --output the command makes another dataset of the present one. `{undo}` puts "
            f"{sources[0]} back."
        )
    else:
        may_append = len(sources) == 1 and asked.selection == EpisodeSelection()
        append = "If the source has new episodes, `leconvert convert --append` adds them. "
        helps = (
            f"Choose another folder for the result. {append if may_append else ''}"
            "--force-conversion converts again and keeps the old result as "
            f"{old_dir(target)}."
        )
    return TargetError(
        f"{target} already contains a {asked.layout.to} dataset, which differs from the one that "
        "this command would make.",
        path=str(target),
        details=differences,
        next_step=f"Nothing was changed. {helps}",
    )


# Passes a planned run to a scheduler: workers, and a packer after them. Nothing waits for them.


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of a submission, or of its dry run.

    Attributes:
        run_id: The run.
        finished: Whether the result is already in place; then nothing is submitted.
        workers: Number of workers requested.
        worker_job: The scheduler's id of the workers; None if there are none, or for a dry run.
        packer_job: The scheduler's id of the packer; None if there is none, for a dry run, and for
            a fleet, whose workers pack.
        logs: The folder of the logs.
        script: A shell script that submits the same jobs.
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
    """Submit workers for the remaining work of a run, and a packer that begins after them.

    The same call again submits workers for the work that remains then, for the same run.

    Args:
        work_dir: The folder that all hosts share; every node must see it, the source and the target
            under the same paths.
        engine: The scheduler and its options; None for SLURM with its defaults.
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
        OneHostOnlyError: Only one host may work on the run.
        UsageError: The proof is not enough for removing the source, or needs a source that is not
            on this machine.
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
    run_id, logs = run.paths.run_id, str(run.paths.logs_dir)
    # Checked now, and not only by the packer after all workers.
    proof.check_source(is_outline=run.manifest.outline is not None)
    proof.check_proof(Path(run.manifest.source), Path(run.manifest.target))
    if proof.keep_as_former:
        raise UsageError(
            "keep_as_former does not work with a submitted packer.",
            next_step="Leave it out: the replaced result is kept as "
            f"{old_dir(Path(run.manifest.target))}.",
        )
    if Journal(run.paths).read().is_packed:
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
    return hand_over(engine, handover, run.paths, dry_run=dry_run)


def check_may_submit(root: Path, one_host: OneHost | None) -> None:
    """Refuse to submit a work dir on which only one host may work."""
    if one_host is not None:
        raise OneHostOnlyError(
            f"Only the host {one_host.host.name} may work on {root}, so nothing can be submitted.",
            path=str(root),
            next_step="Plan again with a --work-dir on a file system with hard links, such as "
            "ext4, XFS or NFS.",
        )


def hand_over(
    engine: Submitter, handover: JobRequest, paths: RunPaths, *, dry_run: bool
) -> Submission:
    """Submit workers and packer; for a dry run, only return their script."""
    logs, script = str(paths.logs_dir), engine.script(handover, paths)
    jobs = (None, None) if dry_run else engine.submit(handover, paths)
    return Submission(paths.run_id, False, handover.workers, *jobs, logs, script)


def _batches_left(run: OpenedRun, leases: LeaseOptions) -> int:
    board = WorkerPool(run, leases, threading.Event()).look()
    return run.manifest.num_batches - len(board.done_ids())
