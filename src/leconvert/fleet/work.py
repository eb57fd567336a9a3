"""A fleet: many datasets, each converted in the ordinary way, and one pool of workers for all.

A fleet's work dir is a work dir like any other: ``current`` names a run. Instead of a plan the run
has a list of datasets, and a worker leases a dataset. The holder of a dataset converts it with
`leconvert.api.convert`, in a work dir of the dataset's own: it plans, works, packs and swaps like a
single conversion. A worker that finds no free dataset joins a conversion that another worker holds,
with `leconvert.api.run_worker`, and takes batches of it. So planning is shared work too; a small
dataset is one unit of work, and a large one is as many units as it has batches.

Long datasets begin first and are shared first, since one worker alone packs each at the end. So
before a worker takes a small dataset, it joins a large one that has longer to go, and it moves on
to another one that has even longer to go.

Guaranteed: a result has the bytes of a single conversion with the same options, since it is one.
When a worker is killed, another takes over: the dataset's lease expires like a batch's, and the
next holder continues the dataset's run. Not guaranteed: that only one worker holds a dataset. A
frozen worker may come back while its successor works. Both then work on the same run, whose leases
and locks are made for that.

A dataset that cannot be converted is set aside, like a failed batch, and the others go on. Only the
reason is recorded: when the fleet runs again, the dataset is tried again.

The holder of a dataset on the Hub downloads it to the scratch folder of its host, and only workers
of that host can join (`leconvert.fleet.results`). A dataset that becomes v3.0 in its own repo is
not downloaded: its holder runs a migration. While the Hub asks to wait, or fails, all workers wait
(`leconvert.transfer.client`), and no dataset is set aside because of it. The exception is a dataset
for which the Hub fails again and again while it answers other requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from leconvert.api import (
    ConversionReport,
    Submission,
    check_may_submit,
    find_finished,
    hand_over,
    run_conversion,
    run_worker,
)
from leconvert.fleet.lists import FleetDataset, Policy, errors_of, map_on_hub
from leconvert.fleet.results import (
    AtHand,
    Host,
    Made,
    already_on_hub,
    asked_of,
    by_record,
    push_options,
    read_made,
    replacing,
    source_state,
    write_made,
)
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.remote.push import PushReport
from leconvert.remote.source import read_info
from leconvert.run.conversion import (
    Control,
    Conversion,
    LeaseOptions,
    Places,
    PlanOptions,
    WorkerOptions,
)
from leconvert.run.engines import JobRequest, Submitter
from leconvert.run.engines.local import LocalEngine
from leconvert.run.leasing import (
    Board,
    HeartbeatKeeper,
    Lease,
    LeaseLostError,
    LeaseStore,
    WorkerIdentity,
    list_batches,
)
from leconvert.run.packer import swap_has_begun
from leconvert.run.planner import MovedBytes, PlanSummary, draft_plan, moved_bytes
from leconvert.run.upkeep import CleanReport, Leftover, clean_former_states
from leconvert.support.errors import (
    BusyError,
    FindingsError,
    HubUnavailableError,
    InterruptedRunError,
    LeconvertError,
    PlanMismatchError,
    SourceChangedError,
    StorageError,
    TargetError,
    UnfitFilesError,
    UsageError,
    WorkDirError,
)
from leconvert.support.machine import Machine
from leconvert.support.parallel import run_threads
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.storage_errors import any_storage_errors, lacks_permission, storage_errors
from leconvert.support.values import dataclass
from leconvert.transfer.client import Pace, check_can_push
from leconvert.transfer.hub import HubStore
from leconvert.transfer.names import HubName
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.activity import WorkerReporter, read_workers
from leconvert.workdir.former import former_states, former_target
from leconvert.workdir.fs import is_there, make_durably, write_durably
from leconvert.workdir.locks import (
    Backoff,
    OneHost,
    admit_host,
    plan_one_host,
    planner_lock,
    read_one_host,
)
from leconvert.workdir.records import RunPaths, WorkDir, encode_record, new_run_id, read_record
from leconvert.workdir.run import (
    check_current,
    check_tool_versions,
    open_run,
    read_manifest,
    tool_versions,
)
from leconvert.workdir.swap import info_path, kept_meta, nearest_above, old_dir

# The record of a fleet: its datasets, the longest first, and its policy.


FLEET_VERSION = 2


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """A fleet's current run, opened for reading."""

    work_dir: WorkDir  # the folder that all hosts share
    run_id: str  # the run
    paths: RunPaths  # every path of the run
    datasets: Sequence[FleetDataset]  # the datasets by their numbers, the longest first
    policy: Policy  # the repairs and findings that are allowed
    one_host: OneHost | None = None  # the only host that may work on it; None if any may

    def board(self, leases: LeaseOptions) -> Board:
        """Return one worker's view of the datasets."""
        store = self.store(leases, WorkerIdentity.of_this_process())
        return Board(store, len(self.datasets))

    def store(self, leases: LeaseOptions, identity: WorkerIdentity) -> LeaseStore:
        """Return one worker's access to the leases of datasets.

        The first error sets a dataset aside, since the next attempt would meet it too.
        """
        return LeaseStore(
            self.paths,
            identity,
            lease_seconds=leases.lease_seconds,
            max_attempts=1,
            max_losses=_MOST_LOSSES,
        )


# A dataset keeps its finished batches, so a lost worker costs less than it costs a batch.
_MOST_LOSSES = 30


def open_fleet(root: Path, *, allow_mixed_versions: bool = False, only_look: bool = False) -> Fleet:
    """Open the current run of a fleet's work dir.

    Args:
        root: The work dir.
        allow_mixed_versions: Whether library versions may differ from the planner's.
        only_look: Whether the caller only reads; this skips the checks of versions and host.

    Raises:
        WorkDirError: The folder holds no fleet, or its list was changed.
    """
    work_dir = WorkDir(root)
    run_id = work_dir.current_run_id()
    if run_id is None:
        raise WorkDirError(
            f"{root} is not the work dir of a fleet.",
            path=str(root),
            next_step="Give the --work-dir of the `leconvert fleet` command.",
        )
    paths = work_dir.run(run_id)
    try:
        head = read_record(paths.fleet, "fleet", version=FLEET_VERSION, run_id=run_id)
    except FileNotFoundError:
        raise WorkDirError(
            f"{root} is the work dir of one conversion, not of a fleet.",
            path=str(root),
            next_step="Use `leconvert status` or `leconvert work` with it.",
        ) from None
    if not allow_mixed_versions and not only_look:
        check_tool_versions(root, head["versions"], "begun")
    with storage_errors(paths.fleet_datasets):
        raw = paths.fleet_datasets.read_bytes()
    if hashlib.sha256(raw).hexdigest() != head["datasets_sha256"]:
        raise WorkDirError(
            f"{paths.fleet_datasets} was changed after the fleet was planned.",
            path=str(paths.fleet_datasets),
            next_step="Run the command of the fleet again with --restart.",
        )
    one_host = read_one_host(paths)
    if one_host is not None:
        one_host = one_host if only_look else admit_host(paths, one_host)
        paths = one_host.paths(paths)
    return Fleet(
        work_dir=work_dir,
        run_id=run_id,
        paths=paths,
        datasets=[FleetDataset.from_record(json.loads(line)) for line in raw.splitlines()],
        policy=Policy.from_record(head["policy"]),
        one_host=one_host,
    )


def _same(one: Sequence[FleetDataset], other: Sequence[FleetDataset]) -> bool:
    """Return whether two lists hold the same datasets.

    Estimates for the Hub may differ, and the runs that only a command with --restart gives up.
    """

    def compared(datasets: Sequence[FleetDataset]) -> list[FleetDataset]:
        known = (
            replace(
                dataset,
                discard=None,
                cost_seconds=0.0 if isinstance(dataset.source, HubName) else dataset.cost_seconds,
            )
            for dataset in datasets
        )
        return sorted(known, key=lambda dataset: dataset.name)

    return compared(one) == compared(other)


@any_storage_errors()
def plan_fleet(
    datasets: Sequence[FleetDataset],
    work_dir: str | os.PathLike[str],
    *,
    policy: Policy = Policy(),
    plan: PlanOptions = PlanOptions(),
    progress: Progress = NO_PROGRESS,
) -> Fleet:
    """Return the fleet of a work dir: the unfinished one if it has these datasets, else a new one.

    An unfinished fleet with other datasets or another policy is replaced, unless workers are
    working on it. A fleet whose datasets are all settled is started again: conversions find
    finished results, and datasets that were set aside are tried again. Only ``info.json`` of each
    dataset is read, to estimate its time; for datasets on the Hub this is one request each.

    Args:
        datasets: The datasets.
        work_dir: The fleet's work dir.
        policy: The repairs and findings that are allowed.
        plan: Whether to restart, mixed versions, and one-host mode.
        progress: Receives remarks.

    Raises:
        UsageError: Paths would mix sources, results and the work dir.
        BusyError: Workers are working on another fleet in the work dir.
    """
    root = Path(work_dir).resolve()
    folder = WorkDir(root)
    check_fleet(datasets, root)
    known = [weighed(dataset) for dataset in datasets]
    if plan.restart:
        known = [
            replace(dataset, discard=_unfinished(folder.dataset(dataset.name))) for dataset in known
        ]
    with planner_lock(folder):
        _check_no_conversion(folder)
        if folder.current_run_id() is not None and not plan.restart:
            fleet = open_fleet(root, allow_mixed_versions=plan.allow_mixed_versions)
            board = fleet.board(LeaseOptions())
            board.refresh()
            same = fleet.policy == policy and _same(fleet.datasets, known)
            if same and not board.all_settled():
                progress.say(f"Resuming fleet {fleet.run_id} in {root}")
                return fleet
            if not board.all_settled():
                _check_not_in_use(fleet)
        ordered = sorted(
            _weighed_on_hub(known), key=lambda dataset: (-dataset.cost_seconds, dataset.name)
        )
        lines = "".join(json.dumps(one.as_record()) + "\n" for one in ordered).encode()
        run_id = new_run_id(datetime.now(UTC), os.urandom)
        paths = folder.run(run_id)
        with storage_errors(root):
            paths.ensure()
            plan_one_host(paths, asked_for=plan.one_host)
            write_durably(paths.fleet_datasets, lines)
            head = {
                "num_datasets": len(ordered),
                "datasets_sha256": hashlib.sha256(lines).hexdigest(),
                "policy": policy.as_record(),
                "versions": dict(tool_versions()),
            }
            write_durably(paths.fleet, encode_record("fleet", FLEET_VERSION, run_id, head))
            folder.set_current(run_id)
    return open_fleet(root, allow_mixed_versions=plan.allow_mixed_versions)


def _check_no_conversion(folder: WorkDir) -> None:
    """Refuse a work dir that holds the run of a single conversion."""
    if folder.current_run_id() is not None and not folder.is_fleet():
        raise UsageError(
            f"{folder.root} is the work dir of one conversion, not of a fleet.",
            path=str(folder.root),
            next_step="Choose another --work-dir.",
        )


def _check_not_in_use(fleet: Fleet) -> None:
    """Refuse to replace a fleet on which workers are working, as far as their records tell."""
    working = [
        f"process {worker.pid} on {worker.host}"
        for worker in read_workers(fleet.paths)
        if not worker.has_ended
    ]
    if working:
        root = str(fleet.work_dir.root)
        raise BusyError(
            f"{root} holds the unfinished fleet {fleet.run_id} with other datasets, options "
            "or another policy.",
            path=root,
            details=working,
            next_step="Wait for the workers of that fleet or end them, then run the same "
            "command again. Or choose another --work-dir. If the workers ended on "
            "another host, add --restart: it discards unfinished conversions.",
        )


def check_fleet(datasets: Sequence[FleetDataset], work_dir: Path) -> None:
    """Refuse paths that would mix sources, results and the work dir, and a push without a right.

    Only the first of several pushes is checked.
    """
    _check_no_conversion(WorkDir(work_dir))
    owners = {
        dataset.source: f"the source {dataset.source}"
        for dataset in datasets
        if isinstance(dataset.source, Path)
    }
    targets = targets_of(datasets)
    for target in targets:
        if target in owners:
            raise UsageError(
                f"The result {target} would replace a source of the fleet.",
                path=str(target),
                next_step="Choose another --output-dir.",
            )
        if not (above := nearest_above(target)).is_dir():
            raise UsageError(
                f"The result {target} cannot be made: {above} is not a folder.",
                path=str(above),
                next_step="Choose another --output-dir.",
            )
    owners |= {target: f"the result {target}" for target in targets}
    for target in targets:
        if kept := owners.get(old_dir(target)):
            raise _place_of_former(target, old_dir(target), kept)
    for place, called in owners.items():
        if (former := former_target(place)) in owners:
            raise _place_of_former(former, place, called)
    owners[work_dir] = f"the work dir {work_dir}"
    for place, called in owners.items():
        for parent in place.parents:
            if parent in owners:
                raise UsageError(
                    f"{called[0].upper()}{called[1:]} lies inside {owners[parent]}.",
                    path=str(place),
                    next_step="Choose another folder for one of the two, outside of the other.",
                )
    pushed = next((dataset.push for dataset in datasets if dataset.push is not None), None)
    if pushed is not None:
        check_can_push(str(pushed.repo_id))


def targets_of(datasets: Sequence[FleetDataset]) -> list[Path]:
    """Return the paths of results, without those that go to the Hub only."""
    return [dataset.target for dataset in datasets if dataset.target is not None]


def _place_of_former(target: Path | None, place: Path, called: str) -> UsageError:
    return UsageError(
        f"{called[0].upper()}{called[1:]} has the name under which a conversion keeps an older "
        f"version of {target}.",
        path=str(place),
        next_step="Give one of the two results another name: write --name NAME at the end of "
        "its line. Or choose another --output-dir.",
    )


def clean_fleet(
    work_dir: str | os.PathLike[str], *, dry_run: bool = False, progress: Progress = NO_PROGRESS
) -> CleanReport:
    """Remove former states of a fleet's results, each after comparing it with its result.

    Folders called ``NAME_old`` are listed and kept: no record says that a run made them.

    Args:
        work_dir: The fleet's work dir.
        dry_run: Only compare, and report what would be removed.
        progress: Receives the progress.

    Raises:
        WorkDirError: There is no fleet, or its records cannot be used.
    """
    report = CleanReport(dry_run, (), ())
    datasets = open_fleet(Path(work_dir).resolve(), only_look=True).datasets
    targets = [target for target in targets_of(datasets) if target.parent.is_dir()]
    former = former_states(targets)  # lists each folder once
    for target in targets:
        if former[target] or kept_meta(target):
            report += clean_former_states(target, dry_run=dry_run, progress=progress)
        old = old_dir(target)
        if is_there(old):
            clean = f"leconvert clean --of {shlex.quote(str(target))} --old"
            reason = (
                f"no record says which run kept it; `{clean}` removes it if {target} "
                "contains every byte of it"
            )
            row = Leftover(old, "kept source", False, reason)
            report += CleanReport.of([row], dry_run=dry_run)
    return report


def _unfinished(folder: WorkDir) -> str | None:
    """Return a dataset's run that has not begun its swap; None if there is none."""
    run_id = folder.current_run_id()
    if run_id is None:
        return None
    with suppress(WorkDirError):
        run = open_run(folder.root, allow_mixed_versions=True, only_look=True)
        return None if swap_has_begun(run) else run_id
    return run_id  # its records cannot be used


# Time for planning, packing and proving a small dataset, and time for one file. Bytes of a frame
# are estimated from its shape. The estimates only decide the order of datasets.
_SECONDS_A_DATASET = 0.05
_SECONDS_A_FILE = 0.0004
_BYTES_A_SECOND = 5e8
_BYTES_A_PIXEL = {"video": 0.02, "image": 1.0}
_BYTES_A_VALUE = 8


def weighed(dataset: FleetDataset) -> FleetDataset:
    """Return a dataset with its cost, estimated from ``info.json``; the least without it."""
    info: Any = None
    if isinstance(dataset.source, Path):
        with suppress(OSError, ValueError):
            info = json.loads(info_path(dataset.source).read_bytes())
    return replace(dataset, cost_seconds=cost_seconds(info))


def cost_seconds(info: Any, *, moves: bool = True) -> float:
    """Return an estimate of one worker's time for a dataset, from its ``info.json``.

    Args:
        info: The contents of ``info.json``; anything that cannot be used gives the least cost.
        moves: Whether its bytes are moved; False if they stay on the Hub.
    """
    seconds = _SECONDS_A_DATASET
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        size_bytes, streams = 0.0, 1
        for feature in info["features"].values():
            values = 1
            for length in feature.get("shape") or [1]:
                values *= int(length)
            of_pixels = _BYTES_A_PIXEL.get(feature["dtype"])
            size_bytes += values * (_BYTES_A_VALUE if of_pixels is None else of_pixels)
            streams += feature["dtype"] == "video"
        if moves:
            seconds += float(info["total_frames"]) * size_bytes / _BYTES_A_SECOND
        seconds += float(info["total_episodes"]) * streams * _SECONDS_A_FILE
    return round(seconds, 3) if 0 <= seconds < float("inf") else _SECONDS_A_DATASET


def _weighed_on_hub(datasets: Sequence[FleetDataset]) -> list[FleetDataset]:
    """Return the datasets with estimates for those on the Hub, until the Hub is unavailable."""
    silent = threading.Event()

    def weigh(dataset: FleetDataset) -> FleetDataset:
        if not isinstance(dataset.source, HubName) or silent.is_set():
            return dataset
        try:
            revision = dataset.source.revision or "main"
            info = read_info(HubStore(dataset.source.repo_id, revision, tries=1))
        except HubUnavailableError:
            silent.set()
        except LeconvertError:
            pass  # the dataset's holder meets the error too, and reports it
        else:
            return replace(dataset, cost_seconds=cost_seconds(info, moves=not dataset.migrates))
        return dataset

    return list(map_on_hub(weigh, datasets))


# One dataset: an ordinary conversion, with the repairs that the policy allows for its findings.


def with_policy[T](
    policy: Policy, dataset: FleetDataset, attempt: Callable[[RepairOptions], T]
) -> tuple[RepairOptions, T]:
    """Call ``attempt`` with a dataset's repairs, and again with repairs that the policy adds.

    Returns:
        The repairs of the attempt that met no error, and its result.

    Raises:
        FindingsError: An attempt met errors that no rule of the policy resolves.
    """
    repairs, found = policy.always(dataset), None
    while True:
        try:
            return repairs, attempt(repairs)
        except (FindingsError, UnfitFilesError) as error:
            more = policy.after(dataset, repairs, errors_of(error.findings))
            if more is None:
                raise
            repairs, found = more, error
        except UsageError:
            if found is None:
                raise
            raise found from None  # a flag of a rule does not fit this dataset


class _NeedsRoomError(Exception):
    """Files of a dataset have to be fetched, for which more room in scratch must be reserved."""

    def __init__(self, moves: MovedBytes) -> None:
        super().__init__(moves)
        self.moves = moves


def _planned_moves(folder: WorkDir) -> MovedBytes | None:
    """Return the bytes that an unfinished migration moves; None if it fetches nothing."""
    with suppress(LeconvertError, OSError):
        moves = moved_bytes(open_run(folder.root, allow_mixed_versions=True, only_look=True))
        return moves if moves is not None and moves.to_fetch else None
    return None


def _done_fields(repairs: RepairOptions, verified: str) -> dict[str, Any]:
    """Return the fields of a result that was compared with its source."""
    fields: dict[str, Any] = {"was_finished": True, "flags": list(repairs.flags())}
    if verified:
        fields |= {"verified": verified, "verified_at": f"{datetime.now(UTC):%Y-%m-%d}"}
    return fields


def _report_fields(report: ConversionReport) -> dict[str, Any]:
    found = Counter((finding.code, finding.severity) for finding in report.findings)
    return {
        # A run whose swap had begun was not planned again.
        "was_finished": "plan" not in report.stage_seconds,
        "to": report.version,
        "episodes": report.episodes,
        "frames": report.frames,
        "files": report.files,
        "batches": report.batches,
        "source_bytes": report.source_bytes,
        "cloned_bytes": report.cloned_bytes,
        "copied_bytes": report.copied_bytes,
        "findings": [
            {"code": code, "severity": severity, "times": times}
            for (code, severity), times in sorted(found.items())
        ],
        "repairs": Repairs.from_record(report.repairs).summary(),
    }


def is_finished(
    dataset: FleetDataset, repairs: RepairOptions, control: Control = Control()
) -> str | None:
    """Return how an existing result without a run was compared; None if there is no result.

    Raises:
        LeconvertError: As `leconvert.api.find_finished`, for example if the result differs.
    """
    assert isinstance(dataset.source, Path)
    if dataset.target is None:
        return None
    conversion = replace(dataset.options, repairs=repairs)
    return find_finished([dataset.source], dataset.target, conversion, control)


def draft_dataset(
    dataset: FleetDataset, policy: Policy, folder: WorkDir, hand: AtHand | None = None
) -> tuple[RepairOptions, PlanSummary]:
    """Return a dataset's repairs, with those that the policy adds, and the summary of its plan."""
    here = hand.dataset if hand is not None else dataset
    assert isinstance(here.source, Path)
    target = here.target or folder.root / "result"
    places = Places([here.source], target, folder.root, None if hand is None else hand.origin)

    def draft(repairs: RepairOptions) -> PlanSummary:
        return draft_plan(places, replace(dataset.options, repairs=repairs)).summary

    return with_policy(policy, dataset, draft)


# A worker of the fleet.


_LONGEST_NAP_SECONDS = 0.5
_SHORTEST_NAP_SECONDS = 0.01
_SECONDS_BETWEEN_CHECKS = 1.0
_LOOK_SHARE = 20
_LOOKS_A_SHARE = 8
# Weight of the work that one worker does alone, relative to the whole dataset; from a simulation.
_SERIAL_SHARE = 0.3
# After this many storage errors, one worker sets a dataset aside.
_MOST_TROUBLES = 3


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """The work of one worker."""

    converted: int  # datasets that it finished
    set_aside: int  # datasets that it set aside
    joined: int  # how often it joined a conversion that another worker held
    seconds: float  # time from start to end, including waiting


class Conversions(Protocol):
    """The conversions of a fleet, as one worker makes and joins them."""

    def take(self, dataset: FleetDataset) -> Mapping[str, Any]:
        """Convert a dataset and push it if that is asked for; skip it if nothing changed.

        Returns:
            The fields of the dataset's ``done`` record.
        """

    def free(self, dataset: FleetDataset) -> Free | None:
        """Return the free part of a dataset that another worker holds.

        None if nothing is free, or there is no plan yet.
        """

    def join(self, dataset: FleetDataset, max_batches: int) -> bool:
        """Write up to ``max_batches`` free batches, and return whether there was one."""


@dataclass(frozen=True, slots=True)
class Free:
    """The free part of a dataset that another worker holds."""

    batches: int  # batches that nobody has claimed
    share: float  # their share of all batches
    workers: int  # batches that workers hold now


class FleetWorker:
    """One worker of a fleet: takes datasets, the longest first, and joins others' conversions.

    It does not know other workers, and others may work on its dataset; see the module's docstring.
    """

    def __init__(
        self,
        fleet: Fleet,
        leases: LeaseOptions,
        stop: threading.Event,
        *,
        conversions: Conversions,
        store: LeaseStore,
        pace: Pace | None = None,
        reporter: WorkerReporter | None = None,
        waiter: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._stop = stop
        self._conversions = conversions
        self._pace = pace
        self._board = Board(store, len(fleet.datasets))
        self._reporter = reporter
        self._waiter = waiter
        self._clock = clock
        self._patience = Backoff(leases.trouble_seconds)
        self._troubles: Counter[int] = Counter()
        self._next_check = clock()
        self._next_look = clock()
        self._converted = self._set_aside = self._joined = 0

    def run(self, *, max_idle_seconds: float | None = None) -> FleetSummary:
        """Work until every dataset is converted or set aside.

        Args:
            max_idle_seconds: End after waiting this long for work; None waits until all is settled.

        Raises:
            InterruptedRunError: The worker was stopped.
        """
        started = self._clock()
        try:
            self._work(max_idle_seconds)
        finally:
            if self._reporter is not None:
                self._reporter.end()
        return FleetSummary(self._converted, self._set_aside, self._joined, self._clock() - started)

    def _work(self, max_idle_seconds: float | None) -> None:
        idle_since: float | None = None
        while True:
            self._check()
            try:
                if self._join_longer():
                    idle_since = None
                    continue
                lease = self._board.next_lease()
                if lease is not None:
                    idle_since = None
                    self._convert(lease)
                    continue
            except (StorageError, OSError) as error:
                self._bear(error)
                continue
            self._patience.reset()
            if self._board.all_settled():
                return
            if self._join_any(0.0):
                idle_since = None
                continue
            now = self._clock()
            idle_since = now if idle_since is None else idle_since
            if max_idle_seconds is not None and now - idle_since >= max_idle_seconds:
                return
            if self._reporter is not None:
                self._reporter.wait()
            nap = min(self._board.wait_hint(), _LONGEST_NAP_SECONDS)
            self._waiter(self._stop, max(nap, _SHORTEST_NAP_SECONDS))

    def _check(self) -> None:
        if self._stop.is_set():
            raise InterruptedRunError(
                "The fleet was stopped. The unfinished datasets are free for other workers.",
                next_step="Run the same command again to continue. Finished work stays finished.",
            )
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + _SECONDS_BETWEEN_CHECKS
            check_current(self._fleet.work_dir, self._fleet.paths, self._fleet.one_host)

    def help_others(self) -> bool:
        """Join a conversion that another worker holds, while this worker waits with its own."""
        self._board.refresh()
        return self._join_any(0.0)

    def _join_longer(self) -> bool:
        """Join a conversion that has longer to go than the next free dataset would take.

        A look costs O(datasets), so looks take at most a twentieth of the time.
        """
        began = self._clock()
        if began < self._next_look:
            return False
        self._board.refresh()
        free = self._board.first_free()
        joined = free is not None and self._join_any(self._fleet.datasets[free].cost_seconds)
        cost = 0.0 if joined else self._clock() - began
        self._next_look = began + max(_SECONDS_BETWEEN_CHECKS, _LOOK_SHARE * cost)
        return joined

    def _join_any(self, least_seconds: float) -> bool:
        """Join the conversion that has the longest to go, if that exceeds ``least_seconds``.

        The time to go is each worker's part of the rest, plus the part that one worker does alone
        at the end. A worker that joined looks again after an eighth of its share: by then a longer
        dataset may have been planned. So one worker joins a dataset O(log batches) times, and looks
        through its batches as often.
        """
        found = []
        for number in self._board.open_ids():
            dataset = self._fleet.datasets[number]
            if dataset.cost_seconds * (0.5 + _SERIAL_SHARE) <= least_seconds:
                break  # the following datasets are shorter, and each has a worker
            # its holder meets the error too, and reports it
            with suppress(LeconvertError, OSError):
                free = self._conversions.free(dataset)
                if free is not None:
                    each = free.share / (free.workers + 1)
                    left = dataset.cost_seconds * (each + _SERIAL_SHARE)
                    max_batches = max(1, free.batches // (_LOOKS_A_SHARE * (free.workers + 1)))
                    found.append((left, -number, max_batches))
        for left, number, max_batches in sorted(found, reverse=True):
            if left <= least_seconds:
                break
            try:
                if self._conversions.join(self._fleet.datasets[-number], max_batches):
                    self._joined += 1
                    return True
            except InterruptedRunError:
                raise
            except (LeconvertError, OSError):
                continue
        return False

    def _convert(self, lease: Lease) -> None:
        """Convert one dataset, and settle its lease whatever happens."""
        number = lease.batch_id
        if self._reporter is not None:
            self._reporter.update(batch_id=number)
        fields: Mapping[str, Any] = {}
        before = self._told_by_hub()
        try:
            # A lost lease needs no quick reaction: the next holder joined the same conversion.
            with HeartbeatKeeper(lease):
                fields = self._conversions.take(self._fleet.datasets[number])
            self._converted += lease.publish_done(fields) == "won"
        except LeaseLostError:
            lease.abandon()
        except InterruptedRunError as error:
            self._hand_back(lease, error.message)
            raise
        except BusyError as error:
            # Another worker holds it, for example one that was thought to be gone.
            self._put_off(lease, error)
        except HubUnavailableError as error:
            answers, limited = self._told_by_hub()
            # If the Hub refuses or fails all requests, that says nothing about this dataset. It is
            # tried again after the pause that all workers make.
            self._troubles[number] += answers > before[0] and limited == before[1]
            if self._pace is not None:
                self._pace.failed(error.wait_seconds)
            self._put_off(lease, error)
        except (StorageError, OSError) as error:
            self._troubles[number] += _MOST_TROUBLES if lacks_permission(error) else 1
            self._put_off(lease, error)
        except LeconvertError as error:
            self._fail(lease, error)
        except Exception as error:  # noqa: BLE001 - a bug must set its dataset aside, not the fleet
            told = LeconvertError(
                f"{type(error).__name__}: {error}", path=str(self._fleet.datasets[number].source)
            )
            self._fail(lease, told, traceback.format_exc())
        except BaseException:
            self._hand_back(lease, "the worker was interrupted")
            raise
        if self._reporter is not None:
            done = int(fields.get("source_bytes", 0)), int(fields.get("frames", 0))
            self._reporter.update(batch_id=None, add_bytes=done[0], add_frames=done[1])

    def _told_by_hub(self) -> tuple[int, int]:
        return (self._pace.answers, self._pace.limited) if self._pace is not None else (0, -1)

    def _fail(self, lease: Lease, error: LeconvertError, told: str = "") -> None:
        # A worker that stood still until others had ended the fleet may find its source gone.
        if lease.is_needed():
            self._set_aside += lease.fail(error, told)
        else:
            lease.abandon()

    def _put_off(self, lease: Lease, error: LeconvertError | OSError) -> None:
        """Hand a dataset back for another attempt; set it aside if it met trouble too often."""
        told = _told(error)
        if self._troubles[lease.batch_id] >= _MOST_TROUBLES:
            self._fail(lease, told)
        else:
            self._hand_back(lease, told.message)
            self._waiter(self._stop, _LONGEST_NAP_SECONDS)

    def _hand_back(self, lease: Lease, reason: str) -> None:
        with suppress(StorageError, OSError):  # otherwise it expires
            lease.hand_back(reason)

    def _bear(self, error: StorageError | OSError) -> None:
        """Wait before the next look at the fleet's own records; raise after repeated errors."""
        pause = None if lacks_permission(error) else self._patience.next_pause()
        if pause is None:
            raise error
        self._waiter(self._stop, pause)


def _told(error: LeconvertError | OSError) -> LeconvertError:
    if isinstance(error, LeconvertError):
        return error
    return StorageError(str(error), path=error.filename if error.filename else None)


@dataclass(frozen=True, slots=True, eq=False)
class _Conversions:
    """The conversions of a fleet, in the work dirs of their datasets."""

    fleet: Fleet  # the fleet
    host: Host  # this host
    conversion: Conversion  # this worker's leases, and whether versions may be mixed
    progress: Progress  # receives the progress
    # Waits between two looks for room in the host's scratch folder.
    pause: Callable[[float], object]
    batches: dict[str, int] = field(default_factory=dict)  # number of batches of a run, by its id

    def take(self, dataset: FleetDataset) -> Mapping[str, Any]:
        folder = self.fleet.work_dir.dataset(dataset.name)
        state = source_state(dataset)
        made = read_made(folder)
        asked = asked_of(dataset, self.fleet.policy)
        before, changed = by_record(made, dataset, state, asked)
        if before is not None:
            return before
        if (
            state.converted is not None
            # Without a tag for its v2.x dataset, a repo or a folder has only the v3.0 one.
            and (made is None or state.converted == state.digest)
            and not dataset.options.proof.force_conversion
        ):
            assert isinstance(dataset.source, HubName)
            is_pushed_back = dataset.push is not None and (
                dataset.push.repo_id == dataset.source.repo_id
            )
            is_here = made is not None and made.target_is_as_made(dataset)
            if is_pushed_back and (dataset.target is None or is_here):
                fields = {"flags": []} if made is None else made.fields
                return {**fields, "was_finished": True}
            raise already_on_hub(dataset)
        state = self.host.state_before_push(dataset, state)
        if changed:
            dataset = replacing(dataset)
        fetches = _planned_moves(self.host.folder(dataset)) if dataset.migrates else None
        while True:
            try:
                with self.host.at_hand(dataset, state, fetches=fetches, pause=self.pause) as hand:
                    fields, pushed = self._convert(dataset, hand, made)
                    assert hand.dataset.target is not None
                    if dataset.push is not None and not dataset.migrates:
                        pushed = self.host.push(hand.dataset.target, dataset, made)
                break
            except _NeedsRoomError as error:
                fetches = error.moves
            except TargetError as error:
                if made is None or not changed or made.target_is_as_made(dataset):
                    raise
                raise BusyError(
                    f"Another run replaced {dataset.target} during this run.",
                    path=str(dataset.target),
                    next_step="Nothing needs to be done: the fleet tries this dataset again and "
                    "then compares the result with its source.",
                ) from error
        if pushed is not None:
            fields |= {
                "was_finished": False,
                "pushed": {"url": pushed.url, "commit": pushed.commit},
                "sent_bytes": pushed.added_bytes,
            }
        write_made(folder, Made.of(dataset, state, asked, pushed, fields))
        return fields

    def _convert(
        self, dataset: FleetDataset, hand: AtHand, made: Made | None
    ) -> tuple[dict[str, Any], PushReport | None]:
        """Convert a dataset whose source and result are folders, in a work dir of its own.

        Returns:
            The fields of its ``done`` record, and the report of its push if the conversion made
            one.
        """
        folder = self.host.folder(dataset)
        control = Control(stop=self.host.stop, progress=self.progress)
        options, source, target = dataset.options, hand.dataset.source, hand.dataset.target
        assert isinstance(source, Path)
        assert target is not None
        make_durably(target.parent)
        under_way_before = folder.current_run_id()
        discards = False

        def in_place(repairs: RepairOptions) -> tuple[dict[str, Any], None] | None:
            verified = is_finished(hand.dataset, repairs, control)
            return None if verified is None else (_done_fields(repairs, verified), None)

        def convert(repairs: RepairOptions) -> tuple[dict[str, Any], PushReport | None]:
            under_way = folder.current_run_id()
            if under_way is None and (done := in_place(repairs)) is not None:
                return done
            try:
                report = run_conversion(
                    [source],
                    replace(
                        options,
                        # Fetching needs room first, and the plan computes how much.
                        repairs=replace(
                            repairs, fetch_unfit=repairs.fetch_unfit and hand.scratch is not None
                        ),
                        plan=PlanOptions(
                            restart=under_way is not None
                            and (discards or under_way == hand.dataset.discard),
                            allow_mixed_versions=self.conversion.plan.allow_mixed_versions,
                        ),
                        workers=WorkerOptions(max_workers=1),
                        leases=self.conversion.leases,
                        # Nobody watches each dataset, so a replaced result is kept under a name
                        # of its own.
                        proof=replace(options.proof, keep_as_former=True),
                        scratch=hand.scratch or ScratchOptions(),
                        push=push_options(dataset, made) if dataset.migrates else None,
                    ),
                    control,
                    arrival=hand.origin,
                    output=None if dataset.migrates else target,
                    work_dir=folder.root,
                    for_push=dataset.push is not None,
                )
            except UnfitFilesError as error:
                wanted = (
                    self.fleet.policy.after(dataset, repairs, errors_of(error.findings)) or repairs
                )
                if wanted.fetch_unfit and error.moves is not None and hand.scratch is None:
                    raise _NeedsRoomError(error.moves) from error
                raise
            except TargetError:
                # Another fleet with the same list may have converted it meanwhile.
                if (done := in_place(repairs)) is None:
                    raise
                return done
            manifest = read_manifest(folder.run(report.run_id))
            fields = _done_fields(repairs, report.verified) | _report_fields(report)
            fields["source_digest"] = manifest.sources[0].meta_digest
            received = report.source_bytes if hand.origin is not None else 0
            if report.moves is not None:
                received = report.moves.received + report.moves.to_fetch
            if received:
                fields["received_bytes"] = received
            return fields, report.push

        def attempt(repairs: RepairOptions) -> tuple[dict[str, Any], PushReport | None]:
            nonlocal discards
            try:
                return convert(repairs)
            except SourceChangedError:
                # The source changed after an interrupted attempt was planned, so its work is
                # useless. If the source changes during this conversion, too, the next error is
                # raised.
                if discards or under_way_before is None:
                    raise
                discards = True
            except PlanMismatchError:
                # The unfinished run may have been planned with repairs that the policy added for
                # its findings. Only another scan shows that.
                allowed, _ = draft_dataset(dataset, self.fleet.policy, folder, hand)
                if allowed == repairs:
                    raise
                repairs = allowed
            return attempt(repairs)

        _, done = with_policy(self.fleet.policy, dataset, attempt)
        return done

    def free(self, dataset: FleetDataset) -> Free | None:
        if dataset.migrates:  # its holder reserved the room, and usually there is nothing to write
            return None
        folder = self.host.folder(dataset)
        run_id = folder.current_run_id()
        if run_id is None:  # it is being planned, or is on another host
            return None
        paths = folder.run(run_id)
        if run_id not in self.batches:
            self.batches[run_id] = read_manifest(paths).num_batches
        # A claimed batch is never free for newcomers again, only for workers that are already on
        # the run.
        num_batches = self.batches[run_id]
        num_claimed = len(list_batches(paths.leases_dir))
        if num_claimed >= num_batches:
            return None
        in_hand = num_claimed - len(list_batches(paths.done_dir))
        left = num_batches - num_claimed
        return Free(left, left / num_batches, max(0, in_hand))

    def join(self, dataset: FleetDataset, max_batches: int) -> bool:
        did = run_worker(
            self.host.folder(dataset).root,
            leases=self.conversion.leases,
            max_batches=max_batches,
            max_idle_seconds=0,
            allow_mixed_versions=self.conversion.plan.allow_mixed_versions,
            stop=self.host.stop,
            progress=self.progress,
        )
        return did.batches_done + did.batches_lost + did.batches_failed > 0


class _ReportedBytes:
    """Progress of a conversion; only its moved bytes are reported, in the worker's record."""

    def __init__(self, reporter: WorkerReporter) -> None:
        self._reporter = reporter

    def stage(self, name: str, total: int, unit: str) -> Stage:
        return self if (name, unit) == ("work", "B") else NO_PROGRESS.stage(name, total, unit)

    def say(self, line: str) -> None:
        pass

    def advance(self, amount: int) -> None:
        self._reporter.advance(amount)

    def __enter__(self) -> _ReportedBytes:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@any_storage_errors()
def work_on_fleet(
    work_dir: str | os.PathLike[str],
    *,
    leases: LeaseOptions = LeaseOptions(),
    scratch: ScratchOptions = ScratchOptions(),
    max_idle_seconds: float | None = None,
    allow_mixed_versions: bool = False,
    stop: threading.Event | None = None,
) -> FleetSummary:
    """Run one worker on a fleet until nothing is left to do.

    Any number of workers may run, on any hosts that see the work dir.

    Args:
        work_dir: The fleet's work dir.
        leases: Lease time and attempts, the same for all workers of a fleet.
        scratch: Folder for datasets from the Hub, and its limit.
        max_idle_seconds: End after waiting this long for work; None waits until all is settled.
        allow_mixed_versions: Whether library versions may differ from the planner's.
        stop: Set it from another thread to stop.

    Raises:
        WorkDirError: There is no fleet, or its records cannot be used.
        InterruptedRunError: ``stop`` was set.
    """
    plan = PlanOptions(allow_mixed_versions=allow_mixed_versions)
    folder = WorkDir(Path(work_dir).resolve())
    host = Host.of(folder, scratch, stop or threading.Event())
    with host.pace.followed():
        return _work(host, Conversion(leases=leases, plan=plan), max_idle_seconds)


def _work(
    host: Host, conversion: Conversion, max_idle_seconds: float | None = None
) -> FleetSummary:
    leases, mixed = conversion.leases, conversion.plan.allow_mixed_versions
    fleet = open_fleet(host.work_dir.root, allow_mixed_versions=mixed)
    identity = WorkerIdentity.of_this_process()
    reporter = WorkerReporter(fleet.paths, identity)
    told = _ReportedBytes(reporter)

    def pause(seconds: float) -> None:
        if not worker.help_others():
            host.stop.wait(seconds)

    worker = FleetWorker(
        fleet,
        leases,
        host.stop,
        conversions=_Conversions(fleet, host, conversion, told, pause),
        pace=host.pace,
        store=fleet.store(leases, identity),
        reporter=reporter,
    )
    return worker.run(max_idle_seconds=max_idle_seconds)


@any_storage_errors()
def submit(
    work_dir: str | os.PathLike[str],
    engine: Submitter | None = None,
    *,
    leases: LeaseOptions = LeaseOptions(trouble_seconds=120.0),
    scratch: ScratchOptions = ScratchOptions(),
    allow_mixed_versions: bool = False,
    dry_run: bool = False,
) -> Submission:
    """Submit workers for the rest of a fleet. There is no packer, since these workers also pack.

    Calling it again submits more workers, which join the first.

    Args:
        work_dir: The fleet's work dir; every node must see it, the sources and the folder of the
            results under the same paths.
        engine: The scheduler with its options; None for SLURM with its defaults.
        leases: Lease time and attempts, the same for all workers of a fleet.
        scratch: Folder for datasets from the Hub, and its limit.
        allow_mixed_versions: Let nodes work whose library versions differ from the planner's.
        dry_run: Submit nothing.

    Returns:
        The request, or what it would be; empty if every dataset is converted or set aside.

    Raises:
        EngineError: There is no scheduler here, or it refused a job.
        OneHostOnlyError: One host alone may work on the fleet.
        WorkDirError: There is no fleet, or its records cannot be used.
    """
    if engine is None:
        from leconvert.run.engines import SlurmEngine

        engine = SlurmEngine()
    root = Path(work_dir).resolve()
    fleet = open_fleet(root, allow_mixed_versions=True, only_look=True)
    check_may_submit(root, fleet.one_host)
    board = fleet.board(leases)
    board.refresh()
    if board.all_settled():
        return Submission(fleet.run_id, True, 0, None, None, str(fleet.paths.logs_dir), "")
    plan = PlanOptions(allow_mixed_versions=allow_mixed_versions)
    conversion = Conversion(leases=leases, scratch=scratch, plan=plan)
    # Each worker takes batches of a large dataset, so there can be more workers than datasets.
    arguments = [str(root), *conversion.work_arguments(fetches=True)]
    handover = JobRequest(engine.workers, work_arguments=arguments, pack_arguments=None)
    return hand_over(engine, handover, fleet.paths, dry_run=dry_run)


# The whole fleet from one process: its workers, and a loop that watches them.


_WATCH_SECONDS = 0.2
_MOST_WORKERS = 16
_SHARE_OF_FREE_MEMORY = 0.5
_BYTES_OF_A_WORKER = 512 * 1024**2


@any_storage_errors()
def convert_fleet(
    fleet: Fleet, conversion: Conversion = Conversion(), control: Control = Control()
) -> Sequence[str]:
    """Convert the rest of a fleet, with workers of this machine or of an engine.

    Args:
        fleet: The fleet; its datasets have their own options.
        conversion: Workers, leases, scratch, and whether versions may be mixed.
        control: The stop event and the progress.

    Returns:
        One line for each worker that failed.

    Raises:
        InterruptedRunError: The stop event was set.
    """
    workers, stop = conversion.workers, control.stop
    board = fleet.board(conversion.leases)
    board.refresh()
    settled = _number_settled(board)
    left = len(fleet.datasets) - settled
    if not left:
        return []
    in_threads = workers.engine is None and (
        workers.orchestrate is False or workers.max_workers is not None
    )
    number = workers.max_workers if in_threads else workers.num_workers
    if number in (None, "auto"):
        of_engine = workers.engine.workers if workers.engine is not None else None
        number = 1 if in_threads else of_engine or min(_workers_here(), left)
    assert isinstance(number, int)
    if workers.engine is None and number == 1 and not workers.orchestrate:
        in_threads = True
    with control.progress.stage("fleet", left, "datasets") as stage:

        def watch() -> None:
            nonlocal settled
            with suppress(StorageError):  # it is only for display
                board.refresh()
            now = _number_settled(board)
            stage.advance(max(0, now - settled))
            settled = max(now, settled)

        if in_threads:
            host = Host.of(fleet.work_dir, conversion.scratch, stop)
            with host.pace.followed():
                run_threads(
                    lambda: _work(host, conversion),
                    *(number, stop),
                    name="fleet",
                    watch=watch,
                    watch_seconds=_WATCH_SECONDS,
                )
            watch()
            return []
        engine = workers.engine or LocalEngine()
        arguments = [str(fleet.work_dir.root), *conversion.work_arguments(fetches=True)]
        try:
            engine.start(number, arguments, fleet.paths)
            while engine.running() and not board.all_settled():
                if stop.wait(_WATCH_SECONDS):
                    raise InterruptedRunError(
                        "The fleet was interrupted. Finished work stays finished.",
                        next_step="Run the same command again to continue.",
                    )
                watch()
        finally:
            engine.stop()
        watch()
        return engine.failures()


def _number_settled(board: Board) -> int:
    return len(board.done_ids()) + len(board.failed())


def _workers_here() -> int:
    machine = Machine()
    fitting = int(machine.free_memory() * _SHARE_OF_FREE_MEMORY) // _BYTES_OF_A_WORKER
    return max(1, min(machine.cores(), _MOST_WORKERS, fitting))
