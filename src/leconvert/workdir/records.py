"""The work dir: how every small file of it begins and is read back, and where it lies.

Every path of the work dir comes from `WorkDir` or `RunPaths`; no other module puts one together. A
record is one line of JSON. Its first keys are ``format`` (``leconvert/<kind>``), ``version`` and
``run_id``. A reader ignores keys that it does not know and refuses versions that it does not know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leconvert.support.errors import UsageError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import LOCAL, FileSystem, sync_dir, write_durably

_HEADER = ("format", "version", "run_id")
_RESTART = "Start a new run with --restart; nothing of the dataset is lost by that."


class DamagedRecordError(WorkDirError):
    """A record is torn, was edited, or is another's: whoever may write it anew can do so."""


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
    """Return a record's keys, after checking that it is what the caller expects."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(
            f"{path} is not a whole record: it is empty, cut off, or was edited.",
            path=str(path),
            next_step=_RESTART,
        ) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != f"leconvert/{kind}":
        raise DamagedRecordError(
            f"{path} is no leconvert {kind} record.",
            path=str(path),
            next_step="Check that --work-dir names a folder that leconvert made. " + _RESTART,
        )
    number = record.get("version")
    if type(number) is not int or not 1 <= number <= version:
        raise WorkDirError(
            f"{path} is a {kind} record of version {number}; this program knows up to {version}.",
            path=str(path),
            next_step="Use the leconvert version that began this run, or start a new run with"
            " --restart.",
        )
    if run_id is not None and record.get("run_id") != run_id:
        raise DamagedRecordError(
            f"{path} belongs to run {record.get('run_id')}, not to {run_id}.",
            path=str(path),
            next_step=_RESTART,
        )
    return record  # type: ignore[no-any-return]


def read_record(
    path: Path,
    kind: str,
    *,
    version: int,
    run_id: str | None = None,
    fs: FileSystem = LOCAL,
) -> dict[str, Any]:
    """Read a record by open and read (never ``stat``: see docs/leasing.md)."""
    with storage_errors(path):
        raw = fs.read_bytes(path)
    return decode_record(raw, kind, version=version, path=path, run_id=run_id)


def find_record(
    path: Path,
    kind: str,
    *,
    version: int,
    run_id: str | None = None,
    fs: FileSystem = LOCAL,
) -> dict[str, Any] | None:
    """Read a record as `read_record` does, or return None where there is no such file."""
    try:
        return read_record(path, kind, version=version, run_id=run_id, fs=fs)
    except FileNotFoundError:
        return None


_CURRENT_VERSION = 1
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_OWN_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{6}\Z")  # as `new_run_id` makes them


def default_work_dir(target: Path) -> Path:
    """Return the work dir beside a target: ``<parent>/.<name>.leconvert-work``.

    Symbolic links in ``target`` are followed first, so that it lies on the file system of the tree
    that will be replaced.
    """
    real = Path(os.path.realpath(target))
    return real.with_name(f".{real.name}.leconvert-work")


def is_default_work_dir(folder: Path) -> bool:
    """Tell whether a folder has the name of a work dir that nobody named."""
    head, tail = default_work_dir(folder / "*").name.split("*")
    return folder.name.startswith(head) and folder.name.endswith(tail)


def targets_beside(dataset: Path) -> list[Path]:
    """Return the targets in a dataset's folder that have a default work dir there, sorted."""
    folder = dataset.parent
    head, tail = default_work_dir(folder / "*").name.split("*")
    with storage_errors(folder):
        names = LOCAL.list_names(folder) if folder.is_dir() else []
    found = [name for name in names if name.startswith(head) and name.endswith(tail)]
    return sorted(folder / name[len(head) : -len(tail)] for name in found)


def removed_folder(folder: Path) -> Path:
    """Return the name that a work dir or a new tree has while it is removed: ``<name>.removed``."""
    return folder.with_name(f"{folder.name}.removed")


def target_lock_path(target: Path) -> Path:
    """Return the lock beside a target: ``.<name>.leconvert-lock/lock``."""
    real = Path(os.path.realpath(target))
    return real.with_name(f".{real.name}.leconvert-lock") / "lock"


def new_run_id(now: datetime, randomness: Callable[[int], bytes]) -> str:
    """Return a run id that sorts by time: ``20250131T120000-<6 random hex digits>``, in UTC."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{randomness(3).hex()}"


class WorkDir:
    """The folder that all hosts of a run share.

    Making the object touches nothing. ``current`` names one run; older runs may lie beside it.
    """

    __slots__ = ("root",)

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    @property
    def current(self) -> Path:
        """The record that names the current run."""
        return self.root / "current"

    @property
    def runs_dir(self) -> Path:
        """The folder of all runs."""
        return self.root / "runs"

    @property
    def outlines_dir(self) -> Path:
        """Outlines of sources on the Hub, one folder a commit."""
        return self.root / "outlines"

    @staticmethod
    def migrated(tree: Path) -> Path:
        """Return where the result of a migration stands, given the tree of the outline."""
        return tree.with_name("result")

    @property
    def planner_lock(self) -> Path:
        """The planner's lock: one host plans in a work dir."""
        return self.root / "planner.lock"

    def is_fleet(self) -> bool:
        """Tell whether the current run is that of a fleet, which has datasets and no plan."""
        run_id = self.current_run_id()
        return run_id is not None and self.run(run_id).fleet.is_file()

    def dataset(self, name: str) -> WorkDir:
        """Return the work dir of one dataset of a fleet."""
        return WorkDir(self.root / "datasets" / name)

    @property
    def fleet_result(self) -> Path:
        """What a fleet made of the dataset whose work dir this is."""
        return self.root / "result.json"

    @property
    def hub_pause(self) -> Path:
        """Until when no worker of a fleet asks the Hub."""
        return self.root / "hub-pause.json"

    def run(self, run_id: str) -> RunPaths:
        """Return the paths of a run."""
        if not _RUN_ID.match(run_id):
            raise UsageError(
                f"{run_id!r} is not a run id.",
                path=str(self.root),
                next_step="`leconvert status WORK_DIR` names the current run.",
            )
        return RunPaths(self.runs_dir / run_id)

    def current_run_id(self, *, fs: FileSystem = LOCAL) -> str | None:
        """Return the current run's id, or None where there is no run yet."""
        try:
            record = self._read_current(fs)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return str(record["run_id"])

    def _read_current(self, fs: FileSystem) -> dict[str, Any]:
        try:
            return read_record(self.current, "current", version=_CURRENT_VERSION, fs=fs)
        except FileNotFoundError:
            # An NFS client that looked before there was a plan goes on believing that there is
            # none for half a minute, unless it is made to ask.
            with suppress(OSError):
                for folder in (self.root.parent, self.root):
                    fs.ask_again(folder)
            return read_record(self.current, "current", version=_CURRENT_VERSION, fs=fs)

    def set_current(self, run_id: str, *, fs: FileSystem = LOCAL) -> None:
        """Make a run the current one; survives a power loss."""
        self.run(run_id)
        write_durably(self.current, encode_record("current", _CURRENT_VERSION, run_id, {}), fs=fs)

    def list_runs(self) -> list[str]:
        """Return the ids of all runs, oldest first; what others put beside them is none.

        A user may name a folder as work dir whose ``runs`` holds the runs of another program.
        """
        try:
            with storage_errors(self.runs_dir):
                names = LOCAL.list_names(self.runs_dir)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if _RUN_ID.match(name) and self._is_run(name)]

    def _is_run(self, name: str) -> bool:
        run = self.run(name)
        with storage_errors(run.root):
            # One that was removed by half, or never planned to the end, has its name alone.
            return run.root.is_dir() and (
                bool(_OWN_RUN_ID.match(name)) or (run.leases_dir.is_dir() and run.journal.is_dir())
            )


class RunPaths:
    """Every path of one run. Batches are numbered with six digits, wider where needed."""

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def manifest(self) -> Path:
        """The plan's head: source, options, versions."""
        return self.root / "manifest.json"

    @property
    def batches(self) -> Path:
        """The plan's batches, one line each."""
        return self.root / "batches.jsonl"

    @property
    def batches_offsets(self) -> Path:
        """Where each line of ``batches`` begins."""
        return self.root / "batches.offsets"

    @property
    def scan_table(self) -> Path:
        """What the scan learned about each episode."""
        return self.root / "scan.parquet"

    @property
    def fleet(self) -> Path:
        """The head of a fleet, in place of a manifest."""
        return self.root / "fleet.json"

    @property
    def fleet_datasets(self) -> Path:
        """The datasets of a fleet, one line each."""
        return self.root / "datasets.jsonl"

    @property
    def done_dir(self) -> Path:
        """One record a finished batch."""
        return self.root / "done"

    @property
    def failed_dir(self) -> Path:
        """One record a batch that was set aside."""
        return self.root / "failed"

    @property
    def leases_dir(self) -> Path:
        """One folder a batch that was ever claimed."""
        return self.root / "leases"

    @property
    def attempts_dir(self) -> Path:
        """What workers wrote, one folder an attempt."""
        return self.root / "attempts"

    @property
    def workers_dir(self) -> Path:
        """One record a worker, for people to look at."""
        return self.root / "workers"

    @property
    def invocations_dir(self) -> Path:
        """One record a process that worked on the run, for people to look at."""
        return self.root / "invocations"

    @property
    def probe_result(self) -> Path:
        """How fast the result loads, where it was measured; for people to look at."""
        return self.root / "probe.json"

    @property
    def one_host(self) -> Path:
        """Who alone may work on the run; only where there are no hard links."""
        return self.root / "one_host.json"

    @property
    def naming_lock(self) -> Path:
        """Held while a record is given its name, where neither links nor renames are exclusive."""
        return self.root / "naming.lock"

    @property
    def journal(self) -> Path:
        """How far packing, swap and push have come: a folder with one record a packer."""
        return self.root / "journal"

    @property
    def packer_lock(self) -> Path:
        """The lock of the one packer."""
        return self.root / "packer.lock"

    @property
    def logs_dir(self) -> Path:
        """Output of workers that an engine started."""
        return self.root / "logs"

    @property
    def jobs_dir(self) -> Path:
        """One record a submission to a scheduler, for people to look at."""
        return self.root / "jobs"

    def job(self, token: str) -> Path:
        """What one submission asked a scheduler for."""
        return self.jobs_dir / f"{token}.json"

    def lease_dir(self, batch_id: int) -> Path:
        """The log of a batch's claims."""
        return self.leases_dir / f"{batch_id:06d}"

    def lease(self, batch_id: int, generation: int) -> Path:
        """The claim of one generation."""
        return self.lease_dir(batch_id) / f"{generation:04d}"

    def heartbeat(self, batch_id: int, generation: int) -> Path:
        """The holder's heartbeat."""
        return self.lease_dir(batch_id) / f"{generation:04d}.beat"

    def lease_end(self, batch_id: int, generation: int) -> Path:
        """How the generation ended."""
        return self.lease_dir(batch_id) / f"{generation:04d}.end"

    def lease_reset(self, batch_id: int, generation: int) -> Path:
        """Says that generations up to this one no longer count as attempts."""
        return self.lease_dir(batch_id) / f"{generation:04d}.reset"

    def claim_source(self, token: str) -> Path:
        """The file that a worker links into ``leases/`` to claim."""
        return self.workers_dir / f".{token}.claim"

    def attempt(self, batch_id: int, generation: int, token: str) -> Path:
        """The folder that one attempt writes to."""
        return self.attempts_dir / f"{batch_id:06d}" / f"{generation:04d}-{token}"

    def attempts_of(self, batch_id: int) -> Path:
        """The folder of all attempts at a batch."""
        return self.attempts_dir / f"{batch_id:06d}"

    def attempt_record(self, batch_id: int, generation: int, token: str, kind: str) -> Path:
        """A record that waits in its attempt's folder to be published as ``done`` or ``failed``."""
        return self.attempt(batch_id, generation, token) / f"{kind}.json"

    def done(self, batch_id: int) -> Path:
        """The record that makes a batch done."""
        return self.done_dir / f"{batch_id:06d}.json"

    def voided(self, batch_id: int, number: int) -> Path:
        """A done record that was found wrong."""
        return self.done_dir / f"{batch_id:06d}.void-{number}"

    def failed(self, batch_id: int) -> Path:
        """The record that sets a batch aside."""
        return self.failed_dir / f"{batch_id:06d}.json"

    def failed_source(self, batch_id: int, token: str) -> Path:
        """The file that is linked to ``failed`` when a batch is set aside."""
        return self.failed_dir / f".{batch_id:06d}.{token}"

    def released(self, batch_id: int, number: int) -> Path:
        """A failed record whose batch was given back."""
        return self.failed_dir / f"{batch_id:06d}.released-{number}"

    def worker(self, token: str) -> Path:
        """What a worker is doing."""
        return self.workers_dir / f"{token}.json"

    def invocation(self, token: str) -> Path:
        """How one process was called."""
        return self.invocations_dir / f"{token}.json"

    def journal_record(self, generation: int) -> Path:
        """What one packer noted."""
        return self.journal / f"{generation:04d}.json"

    def ensure(self) -> None:
        """Make the folders of the run durably; those that exist are kept."""
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
        # A record that is on the disk in a folder that is not would be lost all the same.
        for folder in (self.root, self.root.parent, self.root.parent.parent):
            sync_dir(folder)
