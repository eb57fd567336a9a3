"""``leconvert status`` and ``leconvert report``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import stop_on_signals
from leconvert.cli.output import folded, show, table
from leconvert.cli.parser import OptionalValue, add_output, add_place_of_run
from leconvert.report.status import Liveness, RunStatus, WorkerStatus
from leconvert.run.engines.slurm import ENDED
from leconvert.support.errors import InterruptedRunError, UsageError, WorkDirError
from leconvert.support.flags import is_number
from leconvert.support.text import amount, count, duration, shorten
from leconvert.workdir.records import WorkDir

if TYPE_CHECKING:
    from leconvert.fleet import FleetStatus

# ``leconvert report``.


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "place", type=Path, metavar="WORK_DIR|DATASET",
        help="the work dir of a run, finished or not, or a dataset; a report on a dataset contains "
        "less than a report on a run",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
        help="the HTML page; an existing file is replaced (default: report.html)",
    )  # fmt: skip
    add_output(parser)


def run_report(options: argparse.Namespace) -> int:
    """Write the page, and print its place."""
    from leconvert.report.page import write_report
    from leconvert.report.values import StoryState, gather

    story = gather(options.place.resolve())
    size = write_report(story, options.output)
    record = {
        "report": str(options.output.resolve()),
        "size_bytes": size,
        "state": story.state.value,
        "run_id": story.run_id,
        "tries": len(story.attempts),
        "remarks": list(story.remarks),
    }
    told = story.state.value
    if story.state is StoryState.RESULT_ONLY:
        told = "the report shows only the dataset, since no record of its conversion was found"
    lines = (
        f"{story.name}: {told}.",
        *(f"  {remark}" for remark in story.remarks),
        f"  report  {options.output} ({amount(size)})",
    )
    return show(options, record, lines)


# ``leconvert status``.


_SHORTEST_SECONDS = 0.1
_CLEAR_SCREEN = "\x1b[H\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_place_of_run(parser)
    parser.add_argument(
        "--watch", type=float, action=OptionalValue, looks_right=is_number, otherwise="2",
        metavar="SECONDS",
        help="show the progress again every SECONDS until the result is in place (default: 2)",
    )  # fmt: skip
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Print batches by state, workers, speed and failures."""
    from leconvert.report.status import run_status, watch_run
    from leconvert.workdir.run import find_work_dir

    if options.watch is not None and not options.watch >= _SHORTEST_SECONDS:
        raise UsageError(f"--watch takes at least {_SHORTEST_SECONDS} seconds.")
    given = WorkDir(options.work_dir.resolve())
    of_fleet, has_run = given.as_dataset(), given.current_run_id() is not None
    if of_fleet is not None and not (has_run and (options.json or options.watch is not None)):
        _show_dataset(*of_fleet, has_run=has_run, as_json=options.json)
        if not has_run:
            return 0
    work_dir = find_work_dir(options.work_dir.resolve())
    is_fleet = WorkDir(work_dir).is_fleet()
    # Suggested commands name the work dir, as it was given if possible.
    named = options.work_dir if work_dir == options.work_dir.resolve() else work_dir

    def lines(status: RunStatus | FleetStatus) -> list[str]:
        if isinstance(status, RunStatus):
            return status_lines(status, named)
        return fleet_lines(status, open_only=options.watch is not None)

    status: RunStatus | FleetStatus
    if options.watch is None:
        status = next(_watch_fleet(work_dir, lambda: True)) if is_fleet else run_status(work_dir)
        return show(options, status.as_record(), lines(status))
    is_over = False
    with stop_on_signals() as stop:
        watch = _watch_fleet if is_fleet else watch_run
        for status in watch(work_dir, lambda: stop.wait(options.watch)):
            if options.json:
                print(json.dumps(status.as_record()), flush=True)
            else:
                print(_CLEAR_SCREEN if sys.stdout.isatty() else "", end="")
                print("\n".join([*lines(status), ""]), flush=True)
            is_over = status.packed if isinstance(status, RunStatus) else status.is_settled
    return 0 if is_over else InterruptedRunError.exit_code


# A fleet: a line for each dataset, and totals.


def _watch_fleet(work_dir: Path, pause: Callable[[], bool]) -> Iterator[FleetStatus]:
    """Yield the status of a fleet again and again, until it is settled or ``pause`` says stop."""
    from leconvert.fleet import FleetObserver, open_fleet

    observer = None
    while True:
        if observer is None or WorkDir(work_dir).current_run_id() != observer.run_id:
            observer = FleetObserver(open_fleet(work_dir, only_look=True))
        status = observer.look()
        yield status
        if status.is_settled or pause():
            return


def _show_dataset(fleet: WorkDir, name: str, *, has_run: bool, as_json: bool) -> None:
    """Print the state of a dataset of a fleet, and of its run, if it has one."""
    from dataclasses import asdict  # the status of a run does not need it

    from leconvert import fleet as fleets

    known = {one.name: one for one in fleets.status(fleet.root).datasets}
    if name not in known:
        raise WorkDirError(
            f"The fleet {fleet.root} has no dataset {name}.",
            path=str(fleet.dataset(name).root),
            next_step=f"`leconvert status {shlex.quote(str(fleet.root))}` lists its datasets.",
        )
    one = known[name]
    if as_json:
        print(json.dumps(asdict(one), indent=2))
        return
    lines = [f"dataset  {name}", f"state    {one.state.value}"]
    lines += [] if has_run else [f"source   {one.source}", f"target   {one.target}"]
    if one.message:
        lines += [*folded(one.message, WIDTH, ""), *folded(f"  → {one.next_step}", WIDTH, "    ")]
    print("\n".join(lines))


def fleet_lines(status: FleetStatus, *, open_only: bool = False) -> list[str]:
    """Return the lines of a fleet; with ``open_only``, only those of unfinished datasets."""
    counts = ", ".join(f"{number:,} {state}" for state, number in status.counts.items() if number)
    pace = f"{amount(status.bytes_per_second)}/s by {count(status.workers, 'worker')}"
    if status.seconds_left:
        pace += f", about {duration(status.seconds_left)} left"
    if status.hub_pause_seconds:
        pace += f"; the Hub is asked again in {duration(status.hub_pause_seconds)}"
    lines = [
        f"fleet     {status.run_id}",
        f"datasets  {counts} of {len(status.datasets):,}",
        f"bytes     {amount(sum(one.source_bytes for one in status.datasets))} planned so far, "
        f"{pace}",
        "",
    ]
    # Rows of waiting datasets are alike. Datasets set aside are listed below, with their remedies.
    left_out = {"waiting", "set aside"} | ({"converted", "finished before"} if open_only else set())
    rows = [
        (
            shorten(one.name, _NAME_WIDTH, keep="tail"),
            one.state.value,
            f"{one.done}/{one.batches}" if one.batches else "-",
            f"{one.episodes:,}" if one.episodes else "-",
            amount(one.source_bytes) if one.source_bytes else "-",
            f"{one.seconds:.1f}" if one.seconds else "-",
        )
        for one in status.datasets
        if one.state.value not in left_out
    ]
    head = "dataset", "state", "batches", "episodes", "size", "seconds"
    lines += table(head, rows) if rows else []
    if status.set_aside:
        lines += ["", *set_aside_lines(status, width=WIDTH)]
    if status.former_states:
        clean = f"leconvert clean {shlex.quote(status.work_dir)} --old"
        lines.append(
            f"{count(status.former_states, 'former state')} of results are kept, up to "
            f"{amount(status.former_bytes)}; `{clean}` removes those that the results contain."
        )
    if not status.is_settled and not status.workers:
        lines.append(f"To continue: leconvert work {shlex.quote(status.work_dir)}")
    return lines


_NAME_WIDTH = 48


def set_aside_lines(
    status: FleetStatus, most: int | None = None, width: int | None = None
) -> list[str]:
    """Return why datasets were set aside, with numbers and remedies, then at most ``most`` groups.

    Lines have at most ``width`` columns.
    """
    from leconvert.fleet import alike  # its imports take time

    groups = alike(status.set_aside, most=3)
    told = [
        ["", *_folded(f"{names}: {message}", width, "    "), *_folded(f"  → {step}", width, "    ")]
        for names, message, step in groups[:most]
    ]
    lines = [*reason_lines("reason", status.why_set_aside(), width), *chain(*told)]
    left = len(groups) - len(told)
    return [*lines, f"... and {left:,} more; --json lists them all"] if left else lines


def reason_lines(
    heading: str, reasons: Sequence[tuple[str, int, str]], width: int | None = None
) -> list[str]:
    """Return a table of reasons, with numbers and remedies; the last column folds."""
    rows = [(code, f"{number:,}", helps) for code, number, helps in reasons]
    head = table((heading, "datasets"), (row[:2] for row in rows))
    margin = max(map(len, head)) + 2
    lines = [f"{head[0]:<{margin}}what helps"]
    for begin, (*_, helps) in zip(head[1:], rows, strict=True):
        first, *rest = _folded(helps, width and width - margin, "")
        lines += [f"{begin:<{margin}}{first}", *(f"{'':<{margin}}{piece}" for piece in rest)]
    return lines


def _folded(line: str, width: int | None, margin: str) -> list[str]:
    return [line] if width is None else folded(line, width, margin)


# How many rows the tables of a run's status show.


HOST_WIDTH = 20
ROWS_SHOWN = 10


def more_lines(rows: Sequence[object]) -> list[str]:
    """Return a line that says how many rows a table leaves out, if any."""
    left = len(rows) - ROWS_SHOWN
    return [f"... and {left} more; --json lists them all"] if left > 0 else []


# Batches that will be tried again, and failed batches.


_MESSAGE_WIDTH = 60


def tried_lines(status: RunStatus) -> list[str]:
    """List failed or lost attempts at batches that wait for another attempt."""
    tried = [r for r in status.unsettled if r.state == "pending" and (r.errors or r.losses)]
    if not tried:
        return []
    rows = (
        (row.batch_id, row.errors, row.losses, shorten(row.message or "-", _MESSAGE_WIDTH))
        for row in tried[:ROWS_SHOWN]
    )
    return ["", *table(("to retry", "errors", "lost", "last error"), rows), *more_lines(tried)]


def failure_lines(status: RunStatus) -> list[str]:
    """List the batches that failed."""
    if not status.failures:
        return []
    head = "failed", "errors", "lost", "host", "reason"
    rows = (
        (f.batch_id, f.errors, f.losses, shorten(f.host, HOST_WIDTH), shorten(f.message, 2000))
        for f in status.failures[:ROWS_SHOWN]
    )
    return ["", *table(head, rows), *more_lines(status.failures)]


def next_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Return the next command if nobody works: release, workers, or the packer."""
    lines = []
    if status.failures:
        command = f"leconvert release {shlex.quote(str(work_dir))} --failed"
        lines.append(f"Fix the causes above, then run: {command}")
    if status.packed or _somebody_comes(status):
        return lines
    if status.done == status.batches:
        if status.packer.liveness is not Liveness.RUNNING:
            command = f"leconvert pack {shlex.quote(str(work_dir))}"
            lines.append(f"All batches are done. Unless a packer runs already, run: {command}")
    elif status.pending or status.leased:
        lines.append(f"To continue: leconvert work {shlex.quote(str(work_dir))}")
    return lines


def _somebody_comes(status: RunStatus) -> bool:
    """Return whether a worker may be alive or a job may still run; true in doubt."""
    if any(worker.liveness is not Liveness.ENDED for worker in status.workers):
        return True
    return any(job.states is None or job.states.keys() - ENDED for job in status.jobs)


# The workers of a run, one by one, or by host if there are many.


_WORKERS_SHOWN = 20


def worker_lines(status: RunStatus) -> list[str]:
    """Return the batches of each worker, or of each host if there are many."""
    workers = status.workers
    if not workers:
        return ["", "No worker is working on a batch."] if not status.packed else []
    if len(workers) <= _WORKERS_SHOWN:
        lines = ["", *_each(status, workers)]
    else:
        lines = ["", *_by_host(workers)]
        doubtful = [w for w in workers if w.liveness in {Liveness.SILENT, Liveness.ENDED}]
        doubtful.sort(key=lambda worker: -worker.silent_seconds)
        if doubtful:
            lines += ["", *_each(status, doubtful[:ROWS_SHOWN]), *more_lines(doubtful)]
    if not status.observed_seconds:
        lines += [
            "This is a single look: rates are means since each worker's start, and silent workers "
            "are not",
            "recognized. --watch shows present rates and silent workers.",
        ]
    return lines


_OF_A_WORKER = (
    "host", "pid", "process", "batch", "err/lost", "quiet", "did", "written", "rate", "rows+frames",
)  # fmt: skip
_OF_A_HOST = (
    "host", "workers", "hold", "silent", "ended", "did", "written", "rate", "rows+frames",
)  # fmt: skip


def _each(status: RunStatus, workers: Sequence[WorkerStatus]) -> list[str]:
    attempts = {row.batch_id: (row.errors, row.losses) for row in status.unsettled}

    def row(worker: WorkerStatus) -> tuple[object, ...]:
        errors, losses = attempts.get(-1 if worker.batch_id is None else worker.batch_id, (0, 0))
        return (
            shorten(worker.host, HOST_WIDTH),
            worker.pid,
            worker.liveness.value,
            "-" if worker.batch_id is None else worker.batch_id,
            f"{errors}/{losses}",
            duration(worker.silent_seconds) if status.observed_seconds else "-",
            *_work_of([worker]),
        )

    return table(_OF_A_WORKER, map(row, workers))


def _by_host(workers: Sequence[WorkerStatus]) -> list[str]:
    hosts: defaultdict[str, list[WorkerStatus]] = defaultdict(list)
    for worker in workers:
        hosts[worker.host].append(worker)
    busiest = sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = dict(busiest[:_WORKERS_SHOWN])
    rest = [worker for _, crew in busiest[_WORKERS_SHOWN:] for worker in crew]
    if rest:
        shown[f"and {len(hosts) - _WORKERS_SHOWN} more hosts"] = rest
    rows = (
        (
            shorten(host, HOST_WIDTH),
            len(crew),
            sum(worker.batch_id is not None for worker in crew),
            sum(worker.liveness is Liveness.SILENT for worker in crew),
            sum(worker.liveness is Liveness.ENDED for worker in crew),
            *_work_of(crew),
        )
        for host, crew in shown.items()
    )
    return table(_OF_A_HOST, rows)


def _work_of(crew: Sequence[WorkerStatus]) -> tuple[object, ...]:
    """Return the batches, bytes and rates of workers together, the last columns of both tables."""
    return (
        sum(worker.batches for worker in crew),
        amount(sum(worker.written_bytes for worker in crew)),
        f"{amount(sum(worker.bytes_per_second for worker in crew))}/s",
        f"{sum(worker.frames_per_second for worker in crew):,.0f}/s",
    )


# A run's status as text of at most 100 columns, for any number of workers.


WIDTH = 100
_JOBS_SHOWN = 6


def status_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Return the lines. Only a line with a long command is longer than `WIDTH` characters."""
    lines = [
        *_head(status),
        *worker_lines(status),
        *tried_lines(status),
        *failure_lines(status),
    ]
    # A shortened command could not be pasted.
    return [*map(shorten_line, lines), *next_lines(status, work_dir)]


def shorten_line(line: str) -> str:
    """Cut a line at the last column, and keep its spaces."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _head(status: RunStatus) -> list[str]:
    share = status.done_bytes / status.total_bytes if status.total_bytes else 1.0
    pace = f"{amount(status.bytes_per_second)}/s, "
    pace += f"{status.frames_per_second:,.0f} rows and camera frames/s"
    if status.seconds_left and status.done:  # before, it would be a guess from the first seconds
        pace += f", about {duration(status.seconds_left)} left"
    video = f"{amount(status.video.cloned)} shared (reflink), {amount(status.video.copied)} copied"
    if status.video.batches_read < status.done:
        video += f" ({status.video.batches_read:,} of {status.done:,} batches counted so far)"
    path_width = WIDTH - 9
    return [
        f"run      {status.run_id}",
        f"source   {shorten(status.source, path_width, keep='tail')}",
        f"target   {shorten(status.target, path_width, keep='tail')}",
        f"batches  {status.done:,} done, {status.leased:,} in work, {status.pending:,} pending, "
        f"{status.failed:,} failed of {status.batches:,}",
        f"bytes    {amount(status.done_bytes)} of {amount(status.total_bytes)} ({share:.0%}), "
        f"{pace}",
        f"video    {video}",
        f"packer   {_packer(status)}",
        *_memory(status),
        *_former(status),
        *_hosts(status),
        *(f"jobs     {line}" for line in _jobs(status)),
    ]


def _memory(status: RunStatus) -> list[str]:
    told = [
        f"{what} {amount(peak)}"
        for what, peak in (
            ("of a worker", status.peak_memory_bytes),
            ("of the packer", status.packer.peak_memory_bytes),
        )
        if peak
    ]
    return [f"memory   peak {', '.join(told)}"] if told else []


def _former(status: RunStatus) -> list[str]:
    if not status.former_states:
        return []
    states = count(status.former_states, "former state")
    return [f"kept     {states} of the result, up to {amount(status.former_bytes)}"]


def _jobs(status: RunStatus) -> list[str]:
    jobs = status.jobs[-_JOBS_SHOWN:]
    lines = []
    for job in jobs:
        if job.engine == "ray":
            said = "each is listed below once it works on a batch"
        elif job.states is None:
            said = "state unknown: the scheduler does not answer on this host"
        else:
            said = ", ".join(f"{count:,} {state.lower()}" for state, count in job.states.items())
            said = said or "ended: the scheduler no longer lists it"
        if job.reason is not None and job.reason != "None":
            said += f" ({job.reason})"
        lines.append(f"{job.engine} {job.job_id}, {job.tasks:,} {job.role}: {said}")
    return lines


def _hosts(status: RunStatus) -> list[str]:
    if status.one_host is None:
        return []
    name = shorten(status.one_host, HOST_WIDTH)
    return [f"hosts    only {name} may work on this run"]


def _packer(status: RunStatus) -> str:
    packer = status.packer
    if status.packed:
        return "the result is in place"
    if not packer.number:
        return "not started"
    step = packer.step
    if step == "packing" and status.done < status.batches:
        step = "waiting for workers"
    text = f"number {packer.number}, {step}"
    if packer.host is not None:
        text += f"; process {packer.pid} on {shorten(packer.host, HOST_WIDTH)}"
        text += {Liveness.ENDED: " has ended", Liveness.RUNNING: " runs"}.get(packer.liveness, "")
    return text
