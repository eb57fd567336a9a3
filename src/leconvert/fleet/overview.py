"""The progress of a fleet: each dataset, what helps it, and totals; and the estimate of a dry run.

A look writes nothing and takes no lock. Later looks read only new records.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from leconvert.dataset.findings import DROP, TRIM, all_remedies, lossless_remedy, named
from leconvert.fleet.lists import FleetDataset, Policy, as_word, errors_of, map_on_hub
from leconvert.fleet.results import (
    asked_of,
    by_record,
    read_made,
    replacing,
    snapshot_at,
    source_state,
)
from leconvert.fleet.work import (
    Fleet,
    check_fleet,
    cost_seconds,
    draft_dataset,
    is_finished,
    open_fleet,
    targets_of,
    weighed,
    with_policy,
)
from leconvert.model.values import camera_of
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION
from leconvert.remote.provenance import Origin
from leconvert.remote.source import glance_at
from leconvert.report.status import FormerCount, Progressed, RateWindow, SettledBatches
from leconvert.run.conversion import LeaseOptions
from leconvert.run.leasing import list_batches, read_done, read_failed
from leconvert.run.planner import MovedBytes, PlanSummary
from leconvert.run.space import free_bytes_of
from leconvert.support.errors import (
    REPORT_IT,
    FindingsError,
    HubUnavailableError,
    LeconvertError,
    StorageError,
    TargetError,
    VerificationError,
    WorkDirError,
)
from leconvert.support.parallel import parallel_map
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import amount, count
from leconvert.support.values import dataclass
from leconvert.transfer.client import read_pause
from leconvert.transfer.names import HubName
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.activity import read_workers
from leconvert.workdir.former import count_former
from leconvert.workdir.fs import is_there, replace_record
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import read_manifest

# The message about a dataset that is set aside: its first finding, and what helps.
#
# A user of a fleet writes options after the dataset's line in the list, or has a policy give them.


_THIS_LINE, _THESE_LINES = "after the dataset in LIST_FILE", "after these datasets in LIST_FILE"
_OF_EPISODES = (DROP, TRIM)
# The part of an error's next step that calls for an option of the dataset.
_AGAIN = re.compile(r"\b[Rr]un the command again with (--assume-.*?)\.?$")


def first_error(errors: Sequence[Mapping[str, Any]], source: object) -> str:
    """Return the first of a dataset's errors with its file and episode, and their number."""
    first = errors[0]
    episode, camera = first["episode"], camera_of(first["stream"] or "")
    where = [] if episode is None else [f"episode {episode}"]
    where += [] if camera is None else [f"camera {camera.removeprefix('observation.images.')}"]
    if first["code"] == "missing-file" and episode is not None:
        what = "table" if camera is None else "video"
        of_what = ", ".join([f"the {what} of {where[0]}", *where[1:]])
        said = f"{of_what}{',' * (len(where) > 1)} is missing: {first['path']}."
    elif episode is not None:
        said = f"{', '.join(where)}: {first['message']}"
    else:
        said = str(first["message"])
    said = f"{said.removesuffix('.').replace(f'{source}/', '')}."
    if len(errors) == 1:
        return said
    numbers = Counter(str(error["code"]) for error in errors)
    if len(numbers) == 1:
        return f"{said} There are {len(errors):,} such errors."
    listed = ", ".join(f"{code} {number:,}" for code, number in numbers.items())
    return f"{said} {len(errors):,} errors in all: {listed}."


def flags_for(errors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the flags that help with a dataset's errors, each once."""
    # An episode that is left out needs no other repair.
    lost = {one["episode"] for one in errors if one["remedy"] in _OF_EPISODES} - {None}
    needed = [one for one in errors if one["remedy"] in _OF_EPISODES or one["episode"] not in lost]
    return tuple(dict.fromkeys(one["remedy"] for one in needed if one["remedy"]))


def helps_with(errors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what helps with each code of a dataset's errors: sentences, and flags of a policy."""
    found: dict[str, dict[str, None]] = {}
    for error in errors:
        helps = found.setdefault(error["code"], {})
        if remedy := error.get("remedy"):
            helps[as_word(remedy, error)] = None
    none = "no option helps; correct the source"
    return {
        code: all_remedies(code, " ".join(helps) or None) or none for code, helps in found.items()
    }


def reasons(datasets: Iterable[Mapping[str, str]]) -> list[tuple[str, int, str]]:
    """Return codes, the number of datasets with each, and what helps them; the most frequent first.

    For each dataset it is given what helps with each code. Datasets with the same code that need
    different help are counted separately.
    """
    numbers = Counter((code, helps) for told in datasets for code, helps in told.items())
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return [(code, number, helps) for (code, helps), number in ordered]


def message_of(error: Mapping[str, Any], source: object) -> str:
    """Return why a dataset is set aside, given the record of its error."""
    errors = errors_of(error.get("findings") or ())
    if errors and error.get("error") == FindingsError.__name__:
        return first_error(errors, source)
    message = str(error.get("message") or "")
    if error.get("error") in (TargetError.__name__, VerificationError.__name__):
        message = " ".join([message, *error.get("details", ())[:1]])  # the first difference
    return message.replace(f"{source}/", "")


def next_step_of(error: Mapping[str, Any], source: object) -> str:
    """Return what to do about a dataset's error, in terms of the fleet."""
    errors = errors_of(error.get("findings") or ())
    if not errors or error.get("error") != FindingsError.__name__:
        told = error.get("next_step")
        if not error:
            return (
                "Find out what ends the workers, such as too little memory. Then run the "
                "fleet again."
            )
        if told is None and error.get("exit_code", 1) in (1, LeconvertError.exit_code):
            return f"This is a bug. {REPORT_IT}."
        if told is None:
            return f"`leconvert explain {shlex.quote(str(error['exit_code']))}` says what to do."
        return _AGAIN.sub(rf"Write \1 {_THIS_LINE}.", str(told))
    sentences = dict.fromkeys(filter(None, (lossless_remedy(one["code"]) for one in errors)))
    flags = flags_for(errors)
    parts = [*sentences]
    parts += dict.fromkeys(
        f"No option repairs {one['code']}: correct {one['path'] or 'the source'}."
        for one in errors
        if not one["remedy"] and not lossless_remedy(one["code"])
    )
    if flags and not all(one["remedy"] for one in errors):
        parts.append(f"For the other errors write `{' '.join(flags)}` {_THIS_LINE}.")
    elif flags:
        write = "Or write" if parts else "Write"
        parts.append(f"{write} `{' '.join(flags)}` {_THIS_LINE}.")
    return named(" ".join(parts), source)


def for_these_lines(next_step: str) -> str:
    """Return the step in the plural, for several datasets."""
    return next_step.replace(_THIS_LINE, _THESE_LINES)


# The progress of a fleet.


class DatasetState(StrEnum):
    """The state of a dataset in a fleet."""

    WAITING = "waiting"
    PLANNING = "planning"
    WORKING = "working"
    PACKING = "packing"
    CONVERTED = "converted"
    FINISHED = "finished before"
    SET_ASIDE = "set aside"


_SETTLED = frozenset({DatasetState.CONVERTED, DatasetState.FINISHED, DatasetState.SET_ASIDE})


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """One dataset at one moment."""

    name: str  # its name in the fleet
    source: str  # its folder, or its name on the Hub
    target: str  # path or repo of its result
    state: DatasetState  # its state
    batches: int = 0  # batches of its plan; like all numbers, 0 while there is no plan
    done: int = 0  # batches that are done
    version: str = ""  # the version of its result
    episodes: int = 0  # episodes of its result
    frames: int = 0  # frames of its result
    files: int = 0  # files of its result
    source_bytes: int = 0  # bytes of its source
    seconds: float = 0.0  # how long the worker that settled it held it
    # Depth of the comparison by the worker that settled it. For a dataset that was skipped because
    # nothing changed, it is that of the earlier conversion.
    verified: str = ""
    # The day of that comparison, such as ``2026-11-25``; empty if no record has it.
    verified_at: str = ""
    source_digest: str = ""  # the digest of its source's tables
    flags: Sequence[str] = ()  # the repairs that it was converted with
    repairs: Sequence[str] = ()  # the changes that these repairs made
    # Codes of the findings, with severity and number; for errors also what helps, as a policy
    # writes it.
    findings: Sequence[Mapping[str, Any]] = ()
    message: str = ""  # why it was set aside: its first error, with file and episode
    next_step: str | None = None  # the help, if it was set aside
    remedies: Sequence[str] = ()  # the flags that help with the findings
    error: str | None = None  # the class of the error for which it was set aside
    pushed: str = ""  # repo and commit of its result on the Hub; empty if it was not pushed
    received_bytes: int = 0  # bytes that were downloaded from the Hub for it
    sent_bytes: int = 0  # bytes that its push sent

    @property
    def stops_at(self) -> tuple[str, ...]:
        """Codes of its errors, or else the message of another error."""
        found = dict.fromkeys(str(one["code"]) for one in errors_of(self.findings))
        return tuple(found) or (self.message,)


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet at one moment."""

    run_id: str  # its run
    work_dir: str  # its folder
    datasets: Sequence[DatasetStatus]  # each dataset, the longest first
    bytes_per_second: float = 0.0  # source bytes that all workers together process a second
    # Estimate until the last dataset is settled; None if it is not known.
    seconds_left: float | None = None
    workers: int = 0  # workers that may still run
    # How long all workers will still leave the Hub alone, because it asked them to or failed.
    hub_pause_seconds: float = 0.0
    former_states: int = 0  # number of former states beside the results; `clean_fleet` removes them
    former_bytes: int = 0  # bytes of their files, which they may share with the results

    @property
    def counts(self) -> Mapping[DatasetState, int]:
        """Number of datasets in each state."""
        found = Counter(dataset.state for dataset in self.datasets)
        return {state: found[state] for state in DatasetState}

    @property
    def is_settled(self) -> bool:
        """Whether every dataset is finished or set aside."""
        return all(dataset.state in _SETTLED for dataset in self.datasets)

    @property
    def set_aside(self) -> list[DatasetStatus]:
        """The datasets that were set aside."""
        return [one for one in self.datasets if one.state is DatasetState.SET_ASIDE]

    def why_set_aside(self) -> list[tuple[str, int, str]]:
        """Return reasons, the number of datasets, and what helps; the most frequent first."""
        return reasons(
            {str(one["code"]): str(one["helps"]) for one in errors_of(dataset.findings)}
            or {str(dataset.error): _for_any(dataset)}
            for dataset in self.set_aside
        )

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["counts"] = {state.value: number for state, number in self.counts.items()}
        record["set_aside_by"] = [
            {"code": code, "datasets": number, "helps": helps or None}
            for code, number, helps in self.why_set_aside()
        ]
        return record


class FleetObserver:
    """One observer of one fleet.

    A look lists three folders, and those of the results if they changed. It reads new records of
    settled datasets, and looks into the work dirs of datasets that workers hold.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.run_id = fleet.run_id
        self._fleet = fleet
        self._board = fleet.board(LeaseOptions())
        self._done = SettledBatches(partial(self._read, read_done, _done_row))
        self._failed = SettledBatches(partial(self._read, read_failed, _failed_row))
        self._window = RateWindow()
        self._former = FormerCount(targets_of(fleet.datasets))

    def look(self) -> FleetStatus:
        """Return the fleet as it is now."""
        self._board.refresh()
        done, failed = self._board.done_ids(), self._board.failed()
        settled = {**self._done.look(done), **self._failed.look(failed)}
        torn = dict.fromkeys(done, DatasetState.CONVERTED)
        torn |= dict.fromkeys(failed, DatasetState.SET_ASIDE)
        open_ids = set(self._board.open_ids())
        rows = []
        for number, dataset in enumerate(self._fleet.datasets):
            if number in settled:
                rows.append(settled[number])
            elif number in torn:
                told = {"message": "its record cannot be read", "next_step": "Look again."}
                rows.append(_row(dataset, torn[number], **told))
            elif number in open_ids:
                rows.append(_look_at_open(dataset, self._fleet.work_dir.dataset(dataset.name)))
            else:
                rows.append(_row(dataset, DatasetState.WAITING))
        rate, workers, worked_seconds = self._look_at_workers()
        former_states, former_bytes = self._former.look()
        return FleetStatus(
            run_id=self._fleet.run_id,
            work_dir=str(self._fleet.work_dir.root),
            datasets=rows,
            bytes_per_second=round(rate, 1),
            seconds_left=self._seconds_left(rows, workers, worked_seconds),
            workers=workers,
            hub_pause_seconds=round(read_pause(self._fleet.work_dir.hub_pause, time.time()), 1),
            former_states=former_states,
            former_bytes=former_bytes,
        )

    def _read(
        self,
        read: Callable[..., Mapping[str, Any]],
        row: Callable[[FleetDataset, Mapping[str, Any]], DatasetStatus],
        number: int,
    ) -> DatasetStatus:
        fleet = self._fleet
        record = read(fleet.paths, number)
        return row(fleet.datasets[number], record)

    def _look_at_workers(self) -> tuple[float, int, float]:
        records = read_workers(self._fleet.paths)
        self._window.add(
            time.monotonic(),
            {
                worker.token: Progressed(
                    worker.processed_bytes, worker.processed_bytes, worker.frames, worker.seconds
                )
                for worker in records
            },
        )
        alive = [worker for worker in records if not worker.has_ended]
        rate = sum(self._window.rates(worker.token).size_bytes for worker in alive)
        return rate, len(alive), sum(worker.seconds for worker in records)

    def _seconds_left(
        self, rows: Sequence[DatasetStatus], workers: int, worked_seconds: float
    ) -> float | None:
        """Return an estimate for the rest, from the time that workers took so far."""
        done = left = 0.0
        for row, dataset in zip(rows, self._fleet.datasets, strict=True):
            share = row.done / row.batches if row.batches else 0.0
            share = 1.0 if row.state in _SETTLED else share
            done += share * dataset.cost_seconds
            left += (1 - share) * dataset.cost_seconds
        if not left:
            return 0.0
        return left * worked_seconds / done / workers if done and workers else None


def alike(
    datasets: Iterable[DatasetStatus | PricedDataset], most: int | None = None
) -> list[tuple[str, str, str]]:
    """Group datasets that cannot be converted by what helps them.

    Returns:
        For each group its names, at most ``most``; why the first cannot be converted; and what
        helps all.
    """
    groups: defaultdict[tuple[str, ...], list[DatasetStatus | PricedDataset]] = defaultdict(list)
    for one in datasets:
        # Errors of one class, unlike findings, may have another reason in each dataset.
        reason = one.message if isinstance(one, PricedDataset) and not one.remedies else ""
        groups[(*one.stops_at, reason, _for_any(one))].append(one)
    told = []
    for (*_, step), group in groups.items():
        names = [one.name for one in group[:most]]
        more = f" and {len(group) - len(names):,} more" if len(group) > len(names) else ""
        helps = str(group[0].next_step) if len(group) == 1 else for_these_lines(step)
        told.append((f"{', '.join(names)}{more}", group[0].message, helps))
    return told


def _for_any(one: DatasetStatus | PricedDataset) -> str:
    """Return a dataset's next step without its paths, so that equal steps compare equal."""
    step = str(one.next_step)
    for place, word in ((one.target, "RESULT"), (one.source, "DATASET")):
        step = step.replace(place, word)
    return step


def _row(dataset: FleetDataset, state: DatasetState, **fields: Any) -> DatasetStatus:
    return DatasetStatus(dataset.name, str(dataset.source), dataset.place, state, **fields)


def _look_at_open(dataset: FleetDataset, folder: WorkDir) -> DatasetStatus:
    if dataset.needs_scratch:  # its run is in the scratch folder of a host
        return _row(dataset, DatasetState.WORKING)
    try:
        run_id = folder.current_run_id()
        if run_id is None:
            return _row(dataset, DatasetState.PLANNING)
        paths = folder.run(run_id)
        manifest = read_manifest(paths)
        done = len(list_batches(paths.done_dir))
    except (OSError, StorageError, WorkDirError):
        return _row(dataset, DatasetState.PLANNING)
    is_packing = done >= manifest.num_batches
    return _row(
        dataset,
        DatasetState.PACKING if is_packing else DatasetState.WORKING,
        batches=manifest.num_batches,
        done=done,
        version=manifest.to,
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        source_bytes=manifest.source_bytes,
    )


def _done_row(dataset: FleetDataset, record: Mapping[str, Any]) -> DatasetStatus:
    """Return a dataset's row from its ``done`` record, whose fields are named like a row's."""
    told = {"version": record.get("to"), "done": record.get("batches"), **record}
    told["pushed"] = "@".join((record.get("pushed") or {}).values())
    fields = {
        one.name: _KINDS[type(one.default)](told[one.name])
        for one in dataclass_fields(DatasetStatus)
        if type(one.default) in _KINDS and told.get(one.name) is not None
    }
    finished = DatasetState.FINISHED if record["was_finished"] else DatasetState.CONVERTED
    return _row(dataset, finished, **fields)


# Converters for the fields of a row, by the type of their defaults.
_KINDS: Mapping[type, Callable[[Any], Any]] = {int: int, float: float, str: str, tuple: tuple}


def _failed_row(dataset: FleetDataset, record: Mapping[str, Any]) -> DatasetStatus:
    error = record.get("error") or {}
    found = error.get("findings") or ()
    errors = errors_of(found)
    losses = int(record.get("losses", 0))
    lost = (
        f"{losses} workers ended or froze during the work on this dataset."
        if losses
        else "no message"
    )
    seen = Counter((finding["code"], finding["severity"]) for finding in found)
    remedy = {finding["code"]: finding.get("remedy") for finding in reversed(found)}
    helps = helps_with(errors)
    return _row(
        dataset,
        DatasetState.SET_ASIDE,
        message=message_of(error, dataset.source) or lost,
        next_step=next_step_of(error, dataset.source),
        error=error.get("error") or "WorkersLost",
        findings=tuple(
            {"code": code, "severity": severity, "times": times, "remedy": remedy[code]}
            | ({"helps": helps[code]} if severity == "error" else {})
            for (code, severity), times in sorted(seen.items())
        ),
        remedies=flags_for(errors),
    )


def status(work_dir: str | os.PathLike[str]) -> FleetStatus:
    """Look at a fleet once; nothing is written and no lock is taken.

    Raises:
        WorkDirError: The folder holds no fleet.
    """
    return FleetObserver(open_fleet(Path(work_dir).resolve(), only_look=True)).look()


def write_fleet_report(status: FleetStatus, page: Path, csv_file: Path) -> None:
    """Write the outcome of each dataset: an HTML page, and a CSV file with a row for each.

    Existing files are replaced, except files inside datasets.

    Raises:
        UsageError: A path cannot be written, or is inside a dataset.
        StorageError: Writing failed.
    """
    from leconvert.report.page import (  # only this function needs them
        check_report_place,
        write_tables,
    )

    places = [
        Path(place)
        for one in status.datasets
        for place in (one.source, one.target)
        if "://" not in place
    ]
    for path in (page, csv_file):
        check_report_place(path, places)
    rows = [_csv_row(one) for one in status.datasets]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_CSV_COLUMNS, *rows])
    with storage_errors(csv_file):
        replace_record(csv_file, text.getvalue().encode("utf-8", "backslashreplace"))
    write_tables(
        page,
        kicker="leconvert fleet report",
        heading=f"{count(len(status.datasets), 'dataset')}",
        facts_title="The fleet",
        facts=[
            ("Work dir", status.work_dir),
            ("Run", status.run_id),
            ("CSV", Path(csv_file.name)),
        ],
        tables=_page_tables(status),
        state=_page_state(status),
        lead=_lead(status),
        tiles=_tiles(status),
    )


def _page_state(status: FleetStatus) -> tuple[str, str, str]:
    if not status.is_settled:
        return "plain", "…", "Not finished"
    return (
        ("bad", "✕", "Some datasets set aside") if status.set_aside else ("good", "✓", "Converted")
    )


def _lead(status: FleetStatus) -> str:
    """Return what to do next."""
    if not status.is_settled:
        return f"`leconvert work {shlex.quote(status.work_dir)}` continues the work."
    if not status.set_aside:
        return "Every dataset is converted. There is nothing left to do."
    return (
        "The tables below say what helps. `leconvert fleet suggest "
        f"{shlex.quote(status.work_dir)} > policy.toml` writes a policy with the "
        "options that lose no data."
    )


def _tiles(status: FleetStatus) -> list[tuple[str, object, str]]:
    """Return the number of datasets in each state, and the amount that was converted."""
    counts = [
        (state.value.capitalize(), f"{number:,}", f"of {len(status.datasets):,} datasets")
        for state, number in status.counts.items()
        if number
    ]
    total = [
        sum(getattr(one, name) for one in status.datasets)
        for name in ("episodes", "frames", "source_bytes")
    ]
    return [
        *counts,
        ("Episodes", f"{total[0]:,}", f"{total[1]:,} frames"),
        ("Size", amount(total[2]), "of the sources"),
    ]


_CSV_COLUMNS = (
    "name", "state", "source", "target", "version", "episodes", "frames", "files", "source_bytes",
    "seconds", "verified", "findings", "repairs", "flags", "source_digest", "error", "message",
    "next_step", "remedies", "pushed", "received_bytes", "sent_bytes",
)  # fmt: skip


def _csv_row(one: DatasetStatus) -> list[object]:
    told = {
        **asdict(one),
        "state": one.state.value,
        "seconds": round(one.seconds, 3),
        "findings": _said(one.findings),
        "repairs": "; ".join(one.repairs),
        "flags": " ".join(one.flags),
        "remedies": " ".join(one.remedies),
    }
    return [told[name] for name in _CSV_COLUMNS]


def _said(findings: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{one['code']} ({one['severity']}, {one['times']})" for one in findings)


_OF_LIST = (
    "LIST_FILE is the list of datasets that the fleet was started with. In a policy, words in "
    "braces such as {column} stand for the value that a finding names."
)


def _page_tables(status: FleetStatus) -> list[tuple[str, str, list[list[object]], list[int]]]:
    """Return the tables of the page; findings are ordered by the number of datasets."""
    why: list[list[object]] = [["Set aside by", "Datasets", "What helps"]]
    why += [[code, number, helps] for code, number, helps in status.why_set_aside()]
    aside: list[list[object]] = [["Datasets", "Why", "What helps"]]
    aside += [list(row) for row in alike(status.set_aside)]
    having = Counter(
        (str(finding["code"]), str(finding["severity"]))
        for one in status.datasets
        for finding in one.findings
    )
    found: list[list[object]] = [["Finding", "Severity", "Datasets"]]
    found += [[*kind, number] for kind, number in having.most_common()]
    each: list[list[object]] = [
        ["Dataset", "State", "Version", "Episodes", "Frames", "Size", "Seconds", "Proof", "Repairs"]
    ]
    each += [
        [
            one.name,
            one.state.value,
            one.version or "-",
            f"{one.episodes:,}",
            f"{one.frames:,}",
            amount(one.source_bytes),
            f"{one.seconds:.1f}",
            " on ".join(filter(None, (one.verified, one.verified_at))) or "-",
            "; ".join(one.repairs) or "-",
        ]
        for one in status.datasets
    ]
    tables = [
        ("Datasets not converted, by reason", "", why, [1]),
        ("What helps each dataset that was not converted", _OF_LIST, aside, []),
        (
            "Findings",
            "Number of datasets with each finding, including repaired findings.",
            found,
            [2],
        ),
        (
            "Every dataset",
            "The longest conversion comes first. The CSV file beside this page has more columns.",
            each,
            [3, 4, 6],
        ),
    ]
    return [table for table in tables if table[2][1:]]


# The estimate of a dry run.


@dataclass(frozen=True, slots=True)
class PricedDataset:
    """The estimate for the conversion of one dataset."""

    name: str  # its name in the fleet
    source: str  # its folder, or its name on the Hub
    target: str  # path or repo of its result
    # Codes of the errors for which it would be set aside; the error's class if it is not a
    # finding.
    stops_at: Sequence[str] = ()
    message: str = ""  # why it would be set aside: its first error, with file and episode
    next_step: str = ""  # the help for that error
    # By code, what helps with the finding, as a policy writes it.
    remedies: Mapping[str, str] = field(default_factory=dict)
    is_finished: bool = False  # whether its result is in place already
    flags: Sequence[str] = ()  # the repairs that it would be converted with
    episodes: int = 0  # number of episodes; like all numbers, 0 if it would be set aside
    frames: int = 0  # number of frames
    files: int = 0  # files of the result
    batches: int = 0  # batches of work
    source_bytes: int = 0  # bytes of the source
    # Space that the result takes, by folder.
    new_bytes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # an estimate of one worker's time for it; the longest datasets come first
    # Whether its files were read. Files on the Hub are not, unless they stay there.
    is_scanned: bool = True
    # Bytes that move between this host and the Hub if the files stay there; else None.
    moves: MovedBytes | None = None


@dataclass(frozen=True, slots=True)
class FleetPrice:
    """The estimate for a fleet."""

    datasets: Sequence[PricedDataset]  # each dataset
    new_bytes: Mapping[str, int]  # space that all results take, by folder
    free_bytes: Mapping[str, int | None]  # free space there; None if it is not known
    former_states: int = 0  # number of former states beside the results, which no run removes
    former_bytes: int = 0  # bytes of their files, which they may share with the results

    def why_set_aside(self) -> list[tuple[str, int, str]]:
        """Return the reasons why datasets would be set aside, as `FleetStatus.why_set_aside`."""
        return reasons(
            {code: one.remedies.get(code) or _for_any(one) for code in one.stops_at}
            for one in self.datasets
        )

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def price_fleet(
    datasets: Sequence[FleetDataset],
    work_dir: Path,
    policy: Policy = Policy(),
    scratch: ScratchOptions = ScratchOptions(),
) -> FleetPrice:
    """Scan all datasets and estimate their conversion; nothing that is written stays.

    An existing result is compared with its source, as the conversion would do. For a dataset on the
    Hub only ``meta/info.json`` and the listing are read. If its files stay there, everything that a
    plan needs is downloaded to a temporary folder in ``scratch``, or beside it until it exists.

    Raises:
        UsageError: Paths would mix sources, results and the work dir.
    """
    check_fleet(datasets, work_dir)
    here = [dataset for dataset in datasets if isinstance(dataset.source, Path)]
    there = [dataset for dataset in datasets if isinstance(dataset.source, HubName)]
    found = list(parallel_map(_price, [(dataset, policy, WorkDir(work_dir)) for dataset in here]))
    found += map_on_hub(partial(_price_on_hub, policy=policy, scratch=scratch), there)
    found.sort(key=lambda priced: priced.name)
    rooms: Counter[str] = Counter()
    folders: dict[int, str] = {}  # one folder for each file system
    free: dict[str, int | None] = {}
    fitting: dict[str, PricedDataset] = {}
    # The longest come first, as in the fleet; a dataset without room is set aside then.
    for priced in sorted(found, key=lambda priced: (-priced.seconds, priced.name)):
        needed = {
            folders.setdefault(_device(folder), folder): size_bytes
            for folder, size_bytes in priced.new_bytes.items()
        }
        fitting[priced.name] = priced
        for room, size_bytes in needed.items():
            left = free.setdefault(room, free_bytes_of(Path(room)))
            if left is not None and rooms[room] + size_bytes > left:
                full = StorageError(
                    f"{room} has only {amount(left)} free: after the longer datasets there is no "
                    "room for this one.",
                    next_step="Free disk space or choose another --output-dir.",
                )
                place = priced.name, priced.source, priced.target
                fitting[priced.name] = _stopped(place, full)
                needed = {}
        rooms.update(needed)
    found = [fitting[priced.name] for priced in found]
    return FleetPrice(found, dict(rooms), free, *count_former(targets_of(datasets)))


def _device(folder: str) -> int:
    return os.stat(folder).st_dev  # noqa: PTH116 - st_dev alone


_TAKE_OUT = "Take the line of this dataset out of LIST_FILE, or give another revision."


def _price_on_hub(
    dataset: FleetDataset, *, policy: Policy, scratch: ScratchOptions
) -> PricedDataset:
    assert isinstance(dataset.source, HubName)
    place = dataset.name, str(dataset.source), dataset.place
    seen = glance_at(dataset.source.repo_id, dataset.source.revision)
    if seen.problem is not None:
        stops_at = "SourceError" if seen.info else "HubError"
        return PricedDataset(
            *place, stops_at=(stops_at,), message=seen.problem, next_step=_TAKE_OUT
        )
    if seen.version == V3_VERSION and not dataset.source.revision:
        is_there = dataset.target is None and str(dataset.place) == str(dataset.source)
        if is_there:
            return PricedDataset(*place, is_finished=True, is_scanned=False)
    if seen.version not in SOURCE_VERSIONS:
        said = f"It is {seen.version or 'not a dataset'}."
        return PricedDataset(*place, stops_at=("SourceError",), message=said, next_step=_TAKE_OUT)
    if dataset.migrates:
        seconds = cost_seconds(seen.info, moves=False)
        return _price_migration(dataset, seen.origin, policy, scratch, seconds)
    rooms = {} if dataset.target is None else {_existing(dataset.target): seen.size_bytes}
    return PricedDataset(
        *place,
        episodes=seen.episodes or 0,
        frames=_whole(seen.info.get("total_frames")),
        source_bytes=seen.size_bytes,
        new_bytes=rooms,
        seconds=cost_seconds(seen.info),
        is_scanned=False,
    )


def _price_migration(
    dataset: FleetDataset, found: Origin, policy: Policy, scratch: ScratchOptions, seconds: float
) -> PricedDataset:
    """Plan a migration in a temporary folder."""
    place = dataset.name, str(dataset.source), dataset.place
    near = None if scratch.folder is None else _existing(scratch.folder / "plan")
    try:
        with TemporaryDirectory(prefix="leconvert-plan-", dir=near) as begun:
            folder = WorkDir(Path(begun) / "work")
            hand = snapshot_at(dataset, found, folder, Path(begun), stop=threading.Event())
            repairs, plan = draft_dataset(dataset, policy, folder, hand)
    except HubUnavailableError:
        raise
    except LeconvertError as error:
        return _stopped(place, error)
    return _priced(place, repairs.flags(), plan, seconds)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _existing(place: Path) -> str:
    return str(next(folder for folder in place.parents if folder.is_dir()))


def _price(dataset: FleetDataset, policy: Policy, folder: WorkDir) -> PricedDataset:
    source, place = dataset.source, (dataset.name, str(dataset.source), dataset.place)
    assert isinstance(source, Path)
    try:
        made = read_made(folder.dataset(dataset.name))
        asked = asked_of(dataset, policy)
        before, changed = by_record(made, dataset, source_state(dataset), asked)
        if before is not None:
            return PricedDataset(*place, is_finished=True, flags=before["flags"])
        if changed:
            dataset = replacing(dataset)
        repairs, verified = with_policy(policy, dataset, partial(is_finished, dataset))
        if verified is not None:
            return PricedDataset(*place, is_finished=True, flags=repairs.flags())
        repairs, plan = draft_dataset(dataset, policy, folder.dataset(dataset.name))
        if dataset.target is not None and is_there(dataset.target):
            proof = replace(dataset.options.proof, keep_as_former=True)  # as in the conversion
            replace(dataset.options, proof=proof).check_target(source, dataset.target)
    except LeconvertError as error:
        return _stopped(place, error)
    return _priced(place, repairs.flags(), plan, weighed(dataset).cost_seconds)


def _stopped(place: tuple[str, str, str], error: LeconvertError) -> PricedDataset:
    """Return the estimate for a dataset that would be set aside."""
    wrong = errors_of(error.findings)
    return PricedDataset(
        *place,
        stops_at=tuple(dict.fromkeys(str(finding["code"]) for finding in wrong))
        or (type(error).__name__,),
        message=message_of(error.as_record(), place[1]),
        next_step=next_step_of(error.as_record(), place[1]),
        remedies=helps_with(wrong),
    )


def _priced(
    place: tuple[str, str, str], flags: Sequence[str], plan: PlanSummary, seconds: float
) -> PricedDataset:
    return PricedDataset(
        *place,
        flags=flags,
        episodes=plan.episodes,
        frames=plan.frames,
        files=sum(plan.files.values()),
        batches=plan.batches,
        source_bytes=plan.source_bytes,
        new_bytes={}
        if plan.moves is not None
        else {room.folder: room.bytes_needed for room in plan.space.rooms},
        seconds=seconds,
        moves=plan.moves,
    )
