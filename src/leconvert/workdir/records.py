"""The work dir: the form of its records, their paths, and the journal.

Every path of the work dir comes from `WorkDir` or `RunPaths`; no other module builds one. A record
is one line of JSON. Its first keys are ``format`` (``leconvert/<kind>``), ``version`` and
``run_id``. A reader ignores unknown keys and refuses unknown versions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from leconvert.support.errors import BusyError, LeconvertError, UsageError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    FileSystem,
    names_in,
    publish_exclusively,
    sync_dir,
    write_durably,
)

_HEADER = ("format", "version", "run_id")
_RESTART = "Begin a new run with --restart. Nothing of the dataset is lost."


class DamagedRecordError(WorkDirError):
    """A record is torn, edited, or of another kind or run; its writer can replace it."""


def encode_record(kind: str, version: int, run_id: str, fields: Mapping[str, Any]) -> bytes:
    """Return a record as bytes: one line of JSON with a line feed."""
    taken = [name for name in _HEADER if name in fields]
    if taken:
        raise ValueError(f"a record's own field may not be called {', '.join(taken)}")
    record = {"format": f"leconvert/{kind}", "version": version, "run_id": run_id, **fields}
    return (json.dumps(record, allow_nan=False, separators=(", ", ": ")) + "\n").encode()


def decode_record(
    raw: bytes, kind: str, *, version: int, path: Path | str, run_id: str | None = None
) -> dict[str, Any]:
    """Return a record's keys, after checking its kind, version and run.

    Raises:
        DamagedRecordError: It is no such record, or of another run.
        WorkDirError: Its version is unknown.
    """
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != f"leconvert/{kind}":
        raise DamagedRecordError(
            f"{path} is not a {kind} record of leconvert.",
            path=str(path),
            next_step="Check that --work-dir is a folder that leconvert made. " + _RESTART,
        )
    number = record.get("version")
    if type(number) is not int or not 1 <= number <= version:
        raise WorkDirError(
            f"{path} is a {kind} record of version {number}. This leconvert knows versions "
            f"up to {version}.",
            path=str(path),
            next_step="Use the version of leconvert that began this run, or begin a new run "
            "with --restart.",
        )
    if run_id is not None and record.get("run_id") != run_id:
        raise DamagedRecordError(
            f"{path} belongs to run {record.get('run_id')}, not to {run_id}.",
            path=str(path),
            next_step=_RESTART,
        )
    return record  # type: ignore[no-any-return]


@contextmanager
def fields_of(path: Path) -> Iterator[None]:
    """Raise a `DamagedRecordError` if a field that the block reads is missing, or no such value."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path | str) -> DamagedRecordError:
    return DamagedRecordError(
        f"The record {path} is damaged: it is empty, cut off or was edited.",
        path=str(path),
        next_step=_RESTART,
    )


def read_record(
    path: Path,
    kind: str,
    *,
    version: int,
    run_id: str | None = None,
    fs: FileSystem = LOCAL,
) -> dict[str, Any]:
    """Read a record by open and read (never ``stat``: see docs/leasing.md).

    Raises:
        FileNotFoundError: There is no such file.
        DamagedRecordError: It is no such record, or of another run.
        WorkDirError: Its version is unknown.
    """
    with storage_errors(path):
        raw = fs.read_bytes(path)
    return decode_record(raw, kind, version=version, path=path, run_id=run_id)


def find_record(
    path: Path, kind: str, *, version: int, run_id: str | None = None
) -> dict[str, Any] | None:
    """Read a record as `read_record` does; return None if there is no such file."""
    try:
        return read_record(path, kind, version=version, run_id=run_id)
    except FileNotFoundError:
        return None


_CURRENT_VERSION = 1
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_OWN_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{6}\Z")  # the form of `new_run_id`


_WORK_DIR = ".leconvert-work"


def beside(target: Path, form: str) -> Path:
    """Return the path beside a target whose name has the target's in place of ``{}``.

    Symbolic links in ``target`` are followed first, so that the path is on the file system of the
    tree that will be replaced.
    """
    real = Path(os.path.realpath(target))
    return real.with_name(form.format(real.name))


def default_work_dir(target: Path) -> Path:
    """Return the work dir beside a target: ``<parent>/.<name>.leconvert-work``."""
    return beside(target, f".{{}}{_WORK_DIR}")


def is_default_work_dir(folder: Path) -> bool:
    """Return whether a folder has the name of a default work dir."""
    return folder.name.startswith(".") and folder.name.endswith(_WORK_DIR)


def targets_beside(dataset: Path) -> list[Path]:
    """Return the targets in a dataset's folder that have a default work dir there, sorted."""
    folder = dataset.parent
    return sorted(
        folder / name[1 : -len(_WORK_DIR)]
        for name in names_in(folder)
        if is_default_work_dir(folder / name)
    )


def removed_folder(folder: Path) -> Path:
    """Return the name of a work dir or a new tree while it is removed: ``<name>.removed``."""
    return folder.with_name(f"{folder.name}.removed")


def target_lock_path(target: Path) -> Path:
    """Return the lock beside a target: ``.<name>.leconvert-lock/lock``."""
    return beside(target, ".{}.leconvert-lock") / "lock"


def new_run_id(now: datetime, randomness: Callable[[int], bytes]) -> str:
    """Return a run id that sorts by time: ``20250131T120000-<6 random hex digits>``, in UTC."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{randomness(3).hex()}"


class _Below:
    """The path of a fixed name below the root of a work dir, or of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: WorkDir | RunPaths, _: type) -> Path:
        return owner.root / self._name


class _Numbered:
    """The path of a name below the root of a run that numbers and tokens complete."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __get__(self, owner: RunPaths, _: type) -> Callable[..., Path]:
        return lambda *parts: owner.root / self._form.format(*parts)


_DATASETS = "datasets"


class WorkDir:
    """The folder that all hosts of a run share.

    Making the object touches nothing. ``current`` names one run; older runs may be beside it.
    """

    __slots__ = ("root",)

    current = _Below("current")  # the record that names the current run
    runs_dir = _Below("runs")  # the folder of all runs
    outlines_dir = _Below("outlines")  # outlines of sources on the Hub, one folder a commit
    planner_lock = _Below("planner.lock")  # the planner's lock: one host plans in a work dir
    fleet_result = _Below("result.json")  # what a fleet made from the dataset of this work dir
    hub_pause = _Below("hub-pause.json")  # the time until which no worker of a fleet asks the Hub

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    @staticmethod
    def migrated(tree: Path) -> Path:
        """Return the path of a migration's result, given the tree of the outline."""
        return tree.with_name("result")

    def is_fleet(self) -> bool:
        """Return whether the current run is that of a fleet, which has datasets and no plan."""
        run_id = self.current_run_id()
        return run_id is not None and self.run(run_id).fleet.is_file()

    def dataset(self, name: str) -> WorkDir:
        """Return the work dir of one dataset of a fleet."""
        return WorkDir(self.root / _DATASETS / name)

    def as_dataset(self) -> tuple[WorkDir, str] | None:
        """Return the fleet and the name of the dataset that this work dir is for; else None."""
        for folder in self.root.parents:
            if folder.name == _DATASETS and (fleet := WorkDir(folder.parent)).is_fleet():
                return fleet, str(self.root.relative_to(folder))
        return None

    def run(self, run_id: str) -> RunPaths:
        """Return the paths of a run."""
        if not _RUN_ID.match(run_id):
            raise UsageError(
                f"{run_id!r} is not the id of a run.",
                path=str(self.root),
                next_step="`leconvert status WORK_DIR` shows the id of the current run.",
            )
        return RunPaths(self.runs_dir / run_id)

    def current_run_id(self, *, fs: FileSystem = LOCAL) -> str | None:
        """Return the current run's id, or None if there is no run yet."""
        try:
            record = self._read_current(fs)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return str(record["run_id"])

    def _read_current(self, fs: FileSystem) -> dict[str, Any]:
        try:
            return read_record(self.current, "current", version=_CURRENT_VERSION, fs=fs)
        except FileNotFoundError:
            # An NFS client that looked before there was a plan remembers for half a minute that
            # there is none, unless it is made to ask.
            with suppress(OSError):
                for folder in (self.root.parent, self.root):
                    fs.ask_again(folder)
            return read_record(self.current, "current", version=_CURRENT_VERSION, fs=fs)

    def set_current(self, run_id: str, *, fs: FileSystem = LOCAL) -> None:
        """Make a run the current one; survives a power loss."""
        self.run(run_id)
        write_durably(self.current, encode_record("current", _CURRENT_VERSION, run_id, {}), fs=fs)

    def list_runs(self) -> list[str]:
        """Return the ids of all runs, oldest first; folders of others beside them are ignored.

        A user may name a folder as work dir whose ``runs`` holds the runs of another program.
        """
        names = names_in(self.runs_dir)
        return [name for name in names if _RUN_ID.match(name) and self._is_run(name)]

    def _is_run(self, name: str) -> bool:
        run = self.run(name)
        with storage_errors(run.root):
            # A run that was partly removed, or never fully planned, has only its name.
            return run.root.is_dir() and (
                bool(_OWN_RUN_ID.match(name)) or (run.leases_dir.is_dir() and run.journal.is_dir())
            )


class RunPaths:
    """Every path of one run. Batches are numbered with six digits, wider where needed."""

    __slots__ = ("fs", "root")

    manifest = _Below("manifest.json")  # head of the plan: source, options, versions
    batches = _Below("batches.jsonl")  # the plan's batches, one line each
    batches_offsets = _Below("batches.offsets")  # where each line of ``batches`` begins
    scan_table = _Below("scan.parquet")  # the scan's numbers for each episode
    fleet = _Below("fleet.json")  # head of a fleet, instead of a manifest
    fleet_datasets = _Below("datasets.jsonl")  # the datasets of a fleet, one line each
    done_dir = _Below("done")  # one record a finished batch
    failed_dir = _Below("failed")  # one record a batch that was set aside
    leases_dir = _Below("leases")  # one folder a batch that was ever claimed
    attempts_dir = _Below("attempts")  # files that workers wrote, one folder an attempt
    workers_dir = _Below("workers")  # one record a worker, for display
    # One record for each process that worked on the run, for display.
    invocations_dir = _Below("invocations")
    # How fast the result loads, if it was measured; for display.
    probe_result = _Below("probe.json")
    # The only host that may work on the run; only if there are no hard links.
    one_host = _Below("one_host.json")
    # Held while a record gets its name, if neither links nor renames are exclusive.
    naming_lock = _Below("naming.lock")
    # How far packing, swap and push have come: a folder with one record a packer.
    journal = _Below("journal")
    packer_lock = _Below("packer.lock")  # lock of the one packer
    logs_dir = _Below("logs")  # output of workers that an engine started
    jobs_dir = _Below("jobs")  # one record a submission to a scheduler, for display

    # Paths of a batch, by its number; further parts are a generation, a token, or a number.
    done = _Numbered("done/{:06d}.json")  # the record that makes a batch done
    voided = _Numbered("done/{:06d}.void-{}")  # a done record that was found to be wrong
    failed = _Numbered("failed/{:06d}.json")  # the record that sets a batch aside
    # The file that is linked to ``failed`` when a batch is set aside.
    failed_source = _Numbered("failed/.{:06d}.{}")
    released = _Numbered("failed/{:06d}.released-{}")  # a failed record whose batch was given back
    lease_dir = _Numbered("leases/{:06d}")  # the log of a batch's claims
    lease = _Numbered("leases/{:06d}/{:04d}")  # the claim of one generation
    heartbeat = _Numbered("leases/{:06d}/{:04d}.beat")  # the holder's heartbeat
    lease_end = _Numbered("leases/{:06d}/{:04d}.end")  # the record of how the generation ended
    # Says that generations up to this one no longer count as attempts.
    lease_reset = _Numbered("leases/{:06d}/{:04d}.reset")
    attempts_of = _Numbered("attempts/{:06d}")  # the folder of all attempts at a batch
    attempt = _Numbered("attempts/{:06d}/{:04d}-{}")  # the folder that one attempt writes to
    # A record that waits there to be published as ``done`` or ``failed``, which its kind names.
    attempt_record = _Numbered("attempts/{:06d}/{:04d}-{}/{}.json")
    # Paths of a process, by its token.
    worker = _Numbered("workers/{}.json")  # the activity of a worker
    claim_source = _Numbered("workers/.{}.claim")  # the file that a worker links to claim a batch
    invocation = _Numbered("invocations/{}.json")  # the call of one process
    job = _Numbered("jobs/{}.json")  # the request of one submission to a scheduler
    journal_record = _Numbered("journal/{:04d}.json")  # the record of one packer, by its generation

    def __init__(self, root: Path, fs: FileSystem = LOCAL) -> None:
        self.root = root
        self.fs = fs  # the file operations that every process of the run must publish with

    @property
    def run_id(self) -> str:
        """The run's id, which is in each of its records."""
        return self.root.name

    def using(self, fs: FileSystem) -> RunPaths:
        """Return the same paths with other file operations."""
        return RunPaths(self.root, fs)

    def read(self, path: Path, kind: str, version: int) -> dict[str, Any]:
        """Read one of the run's records; see `read_record`."""
        return read_record(path, kind, version=version, run_id=self.run_id, fs=self.fs)

    def encode(self, kind: str, version: int, fields: Mapping[str, Any]) -> bytes:
        """Return one of the run's records as bytes; see `encode_record`."""
        return encode_record(kind, version, self.run_id, fields)

    def ensure(self) -> None:
        """Make the folders of the run durably; existing ones are kept."""
        folders = (
            self.done_dir,
            self.failed_dir,
            self.leases_dir,
            self.attempts_dir,
            self.workers_dir,
            self.journal,
            self.logs_dir,
        )
        with storage_errors(self.root):
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        # A synced record in a folder that is not synced would be lost all the same.
        for folder in (self.root, self.root.parent, self.root.parent.parent):
            sync_dir(folder)


# The progress of a run's packer: one record a packer; the highest number counts.
#
#     journal/0001.json    written and replaced by the first packer only
#     journal/0002.json    made by an exclusive link when another packer takes over
#
# A packer that was frozen and comes back can rewrite its own record, which nobody reads any more.
# So it can never undo a record of its successor.


JOURNAL_VERSION = 1
_RECORD = re.compile(r"([0-9]{4,})\.json\Z")


class PackStep(StrEnum):
    """The progress of packing."""

    PACKING = "packing"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class JournalState:
    """The record of the newest packer.

    Attributes:
        generation: The packer's number, from 1; 0 if there was none.
        step: The step that it reached.
        swap: Target and old folder of a swap that was begun, absolute paths, or None.
        notes: Further facts for its successor, JSON-serialisable.
        host: Its host; ``?`` if the record does not name it.
        pid: Its process there, or 0.
        times: When it reached each step, by its host's wall clock, ISO 8601 in UTC.
    """

    generation: int = 0
    step: PackStep = PackStep.PACKING
    swap: Mapping[str, Any] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    host: str = "?"
    pid: int = 0
    times: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        """Whether the result is in place."""
        return self.step in {PackStep.SWAPPED, PackStep.FINISHED}


class Journal:
    """The journal of one run.

    Guaranteed: each generation has one packer, and a record that ``write`` wrote is on the disk.
    Not guaranteed: that the packer of an older generation knows that it was superseded; ``write``
    raises when it notices.
    """

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self.run_id = run.run_id
        self.fs = run.fs
        self.generation = 0
        self._nonce = os.urandom(8).hex()
        self._times: dict[str, str] = {}

    def read(self) -> JournalState:
        """Return the record of the newest packer."""
        generations = self.generations()
        return self._read(generations[-1]) if generations else JournalState()

    def last_swap(self) -> Mapping[str, Any] | None:
        """Return the swap that was recorded last; None if none was ever begun.

        A packer that was superseded while it was writing recorded it in a record that is no longer
        the newest.
        """
        swaps = (self._read(generation).swap for generation in reversed(self.generations()))
        return next((swap for swap in swaps if swap is not None), None)

    def history(self) -> list[JournalState]:
        """Return the records of all packers, the oldest first, without unreadable ones."""
        states = []
        for generation in self.generations():
            # an older packer's record, which decides nothing
            with suppress(OSError, LeconvertError):
                states.append(self._read(generation))
        return states

    def _read(self, generation: int) -> JournalState:
        path = self.run.journal_record(generation)
        record = self.run.read(path, "journal", JOURNAL_VERSION)
        try:
            step = PackStep(record.get("step", ""))
        except ValueError as error:
            raise WorkDirError(
                f"The record {path} contains a step that this leconvert does not know.",
                path=str(path),
                next_step="Use the version of leconvert that wrote the record.",
            ) from error
        pid, times = record.get("pid"), record.get("times")
        return JournalState(
            generation,
            step,
            record.get("swap"),
            record.get("notes") or {},
            host=str(record.get("host") or "?"),
            pid=pid if isinstance(pid, int) else 0,
            times=times if isinstance(times, Mapping) else {},
        )

    def begin(self) -> JournalState:
        """Become the newest packer, and return the record of the last one.

        Call it once, under the packer's lock.

        Raises:
            BusyError: Another packer took over.
        """
        state = self.read()
        generation = state.generation + 1
        path = self.run.journal_record(generation)
        source = path.with_name(f".{path.name}.{self._nonce}")
        self._times = {"began": _wall_clock()}
        raw = self._encode(state.step, state.swap, state.notes, generation)
        write_durably(source, raw, fs=self.fs)
        try:
            publish_exclusively(source, path, fs=self.fs)
        except AlreadyPublishedError:
            raise self._superseded(generation) from None
        finally:
            with suppress(OSError):
                self.fs.remove_file(source)
        self.generation = generation
        return JournalState(generation, state.step, state.swap, state.notes)

    def write(
        self,
        step: PackStep,
        *,
        swap: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how far this packer came; arguments that are None leave their values.

        Raises:
            BusyError: Another packer took over.
            WorkDirError: The run was removed.
        """
        if self.generation == 0:
            raise RuntimeError("internal error: the packer wrote the journal before it began")
        before = self.read()
        if before.generation != self.generation:
            raise (
                self._superseded(before.generation) if before.generation else run_removed(self.run)
            )
        self._times.setdefault(step.value, _wall_clock())
        raw = self._encode(
            step,
            before.swap if swap is None else swap,
            before.notes if notes is None else notes,
            self.generation,
        )
        write_durably(self.run.journal_record(self.generation), raw, fs=self.fs)

    def _encode(
        self,
        step: PackStep,
        swap: Mapping[str, Any] | None,
        notes: Mapping[str, Any],
        generation: int,
    ) -> bytes:
        fields = {
            "generation": generation,
            "nonce": self._nonce,
            "step": step.value,
            "swap": swap,
            "notes": notes,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "times": self._times,
        }
        return self.run.encode("journal", JOURNAL_VERSION, fields)

    def generations(self) -> list[int]:
        """Return the numbers of all packers that ever began, ascending."""
        names = names_in(self.run.journal, fs=self.fs)
        return sorted(int(found[1]) for name in names if (found := _RECORD.match(name)))

    def _superseded(self, generation: int) -> BusyError:
        path = self.run.journal_record(generation)
        return BusyError(
            f"Another packer (number {generation}) took over this run; its record is {path}.",
            path=str(path),
            next_step="Let the other packer finish. `leconvert status` shows its progress.",
        )


def run_removed(run: RunPaths) -> WorkDirError:
    """Return the error for a run whose records are gone, ready to raise."""
    return WorkDirError(
        f"Run {run.run_id} was removed during the work on it.",
        path=str(run.root),
        next_step="Look at the target: another process may have finished the run. If not, "
        "convert again.",
    )


def _wall_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
