"""Breaks one operation of a conversion after the other, and runs the same conversion again.

    python -m tests.faults.campaign --case output --kinds die,tear
    python -m tests.faults.campaign --transcript FILE     everything there is

`tests.faults.trials` says what is tried and what must hold. A transcript grows by one section a
call.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.afterwards import (
    AFTERWARDS,
    CASES_AFTERWARDS,
    CHANGES,
    OVERWRITTEN,
    OVERWRITTEN_FILES,
    Datasets,
    after_trial,
    overwriting_trial,
)
from tests.faults.trials import (
    CASES,
    STAGES,
    Case,
    Quiet,
    Row,
    make_source,
    make_templates,
    quiet_run,
    run_each,
    run_trials,
)
from tests.faults.watched_disk import Fault, FaultKind

_AFTERWARDS, _OVERWRITTEN = "afterwards", "overwritten"
SYNCS = frozenset({"fsync", "fdatasync"})
CODES = (errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS)
_HEAD = """\
Every operation of a conversion goes wrong once; then the same command runs again.
Two episodes, one camera.

died: the process was gone, or the power; refused: it ended with one of our errors (counted at the
right); done: it succeeded all the same. same bytes: trials after which everything was as promised:
the source intact, a reader served, the next run's result the quiet run's bytes, nothing left over.
afterwards: after a fault in the swap something else happened, then the same command ran: that is
what died, was refused or was done; see tests/faults/afterwards.py.
overwritten: before an operation somebody overwrote a file in place and gave it its times back.
POWER: what is lost of what was not forced to the disk, see docs/leasing.md.
"""


def faults_of(quiet: Quiet, kinds: Iterable[str]) -> Iterator[Fault]:
    """Yield every fault of some kinds: ``die``, ``tear``, ``short``, ``fail``, ``last``, ``lie``,
    ``power``.

    A process that dies before an operation that only looks, or that forces to the disk what others
    see already, leaves what it would leave before the next one that changes something, so it dies
    before those alone; and after the last of all. Power fails wherever it leaves what no failure
    before it leaves.
    """
    operations = quiet.operations
    for kind in kinds:
        for number, operation in enumerate(operations):
            changes, writes = operation.changes, operation.size_bytes > 0
            match kind:
                case "die" if changes and operation.name not in SYNCS:
                    yield Fault(number, FaultKind.DIE)
                case "tear" if writes:
                    yield Fault(number, FaultKind.TEAR)
                case "short" if writes:
                    yield Fault(number, FaultKind.SHORT)
                case "fail":
                    for code in CODES if changes else (errno.EIO, errno.ESTALE):
                        yield Fault(number, FaultKind.FAIL, code)
                case "last" if changes:
                    for code in (errno.ENOSPC, errno.ESTALE):
                        yield Fault(number, FaultKind.FAIL, code, lasts=True)
                case "lie" if changes and not operation.error:
                    yield Fault(number, FaultKind.LIE, errno.EIO)
    if "power" in kinds:
        for number, loss in quiet.losses:
            yield Fault(number, FaultKind.DIE, loss=loss)
    if "die" in kinds:
        yield Fault(len(operations), FaultKind.DIE)


def program() -> None:
    """End the process with 1 if anything is not as promised."""
    sys.exit(main())


def main() -> int:
    parser = argparse.ArgumentParser(description="Break each operation of a conversion.")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="default: all")
    parser.add_argument("--kinds", default="die,tear,short,fail,last,lie,power,change")
    parser.add_argument("--stages", default=",".join((*STAGES, "end", _AFTERWARDS, _OVERWRITTEN)))
    parser.add_argument("--every", type=int, default=1, help="only each Nth fault")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--scratch", type=Path, default=None, help="an empty folder's parent")
    parser.add_argument("--source", type=Path, help="what `make_source` made; default: makes it")
    parser.add_argument("--rows", type=Path, help="write every row here, a JSON line each")
    parser.add_argument("--transcript", type=Path, help="add the table to this file")
    options = parser.parse_args()
    began, since = time.monotonic(), datetime.now(UTC)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="faults-", dir=options.scratch) as folder:
        cases = [CASES[name] for name in options.case or CASES]
        template = Path(folder, "template")
        if options.source is None:
            make_source(template)
        else:
            shutil.copytree(options.source, template)
        make_templates(template, cases)
        changed: Datasets | None = None
        overwritten: Datasets | None = None
        for case in cases:
            name, root = case.name, Path(folder)
            kinds, wanted = options.kinds.split(","), options.stages.split(",")
            if not {*STAGES, "end"}.isdisjoint(wanted):
                power = "power" in kinds
                quiet = quiet_run(case, template, root / f"quiet-{name}", with_losses=power)
                stages = [*(operation.stage for operation in quiet.operations), "end"]
                faults = [f for f in faults_of(quiet, kinds) if stages[f.at] in wanted]
                faults = faults[:: options.every]
                rows += run_trials(case, quiet, faults, template, root, jobs=options.jobs)
            if _AFTERWARDS in wanted and name in CASES_AFTERWARDS:
                changed = changed or Datasets(
                    root / "changed", template, CHANGES, other_options=True
                )
                quiet = quiet_run(case, template, root / f"own-{name}", own_source=True)
                trials = list(_trials_afterwards(case, quiet, options.kinds, changed, template))
                rows += run_each(trials[:: options.every], root, jobs=options.jobs)
            overwrites = _OVERWRITTEN in wanted and "change" in kinds
            if overwrites and case.delete_source and not case.exchanges_meta:
                overwritten = overwritten or Datasets(
                    root / "overwritten", template, OVERWRITTEN_FILES
                )
                quiet = quiet_run(case, template, root / f"changing-{name}", own_source=True)
                trials = list(_trials_overwritten(case, quiet, overwritten, template))
                rows += run_each(trials[:: options.every], root, jobs=options.jobs)
    if options.rows:
        options.rows.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    table = "\n".join(_table(rows, time.monotonic() - began))
    if options.transcript:
        _add_section(options.transcript, _command(parser, options), since, table)
    print(table)
    return int(any(row.problems for row in rows))


def _trials_afterwards(
    case: Case, quiet: Quiet, kinds: str, datasets: Datasets, template: Path
) -> Iterator[Callable[[Path], Row | None]]:
    """Yield a trial for each fault in the swap and what follows it, and each thing afterwards."""

    def trial(fault: Fault, afterwards: str) -> Callable[[Path], Row | None]:
        return lambda folder: after_trial(case, fault, afterwards, datasets, template, folder)

    for fault in faults_of(quiet, sorted({"die", "fail", "last", "lie"} & set(kinds.split(",")))):
        operation = quiet.operations[min(fault.at, len(quiet.operations) - 1)]
        told = fault.code in {0, errno.ESTALE if fault.lasts else errno.EIO}
        moves = operation.changes and operation.name not in SYNCS
        if told and moves and operation.stage in {"swap", "finish"}:
            for afterwards in AFTERWARDS:
                yield trial(fault, afterwards)


def _trials_overwritten(
    case: Case, quiet: Quiet, datasets: Datasets, template: Path
) -> Iterator[Callable[[Path], Row | None]]:
    """Yield a trial for each operation, looks included, and each file that is overwritten."""

    def trial(number: int, what: str) -> Callable[[Path], Row | None]:
        return lambda folder: overwriting_trial(case, number, what, datasets, template, folder)

    for number in range(len(quiet.operations)):
        for what in OVERWRITTEN:
            yield trial(number, what)


def _command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Return the command without the paths, which mean nothing elsewhere."""
    given = {name: getattr(options, name) for name in ("kinds", "stages", "every")}
    words = [f"--case {name}" for name in options.case or ()]
    words += [f"--{n} {value}" for n, value in given.items() if value != parser.get_default(n)]
    return " ".join(["python -m tests.faults.campaign", *words])


def _add_section(transcript: Path, command: str, since: datetime, table: str) -> None:
    """Add the command, where and when it ran, and its table; what the words mean stands on top."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    where = (
        f"{since:%Y-%m-%d %H:%M} to {datetime.now(UTC):%H:%M} UTC, commit {commit or 'unknown'}, "
        f"Linux {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    head = "" if transcript.exists() else _HEAD
    with transcript.open("a") as file:
        file.write(f"{head}\n$ {command}\n{where}\n\n{table}\n")


def _table(rows: Sequence[Row], seconds: float) -> Iterator[str]:
    yield (
        f"{'case':12}{'stage':12}{'fault':26}{'trials':>7}{'died':>7}{'refused':>8}{'done':>6}"
        f"{'same bytes':>12}  errors"
    )
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        stage, fault = row.first.stage, row.fault
        if row.afterwards:
            stage, fault = _AFTERWARDS, row.afterwards
            stage = _OVERWRITTEN if fault in OVERWRITTEN else stage
        groups.setdefault((row.case, stage, fault), []).append(row)
    order = [*STAGES, "end", _AFTERWARDS, _OVERWRITTEN]
    for (case, stage, fault), group in sorted(
        groups.items(), key=lambda entry: (entry[0][0], order.index(entry[0][1]), entry[0][2])
    ):
        ends = [row.again if row.afterwards else row.first for row in group]
        how = Counter(end.how for end in ends)
        errors = Counter(end.error for end in ends if end.error)
        named = ", ".join(f"{name} {count}" for name, count in sorted(errors.items()))
        good = sum(not row.problems for row in group)
        row = (
            f"{case:12}{stage:12}{fault:26}{len(group):7}{how['died']:7}{how['refused']:8}"
            f"{how['succeeded']:6}{good:12}  {named}"
        )
        yield row.rstrip()
    bad = [row for row in rows if row.problems]
    points = {(row.case, row.number) for row in rows}
    yield ""
    yield (
        f"{len(rows)} trials at {len(points)} operations, {len(rows) - len(bad)} as promised, "
        f"{len(bad)} not, {seconds:.0f} s"
    )
    for row in bad:
        yield ""
        hit = f"operation {row.number}, {row.first.operation}"
        then = f", then {row.afterwards}: {row.ended}" if row.afterwards else ""
        yield f"{row.case}, {row.first.stage}, {hit}: {row.fault}{then}"
        yield from (f"    {problem}" for problem in row.problems)


if __name__ == "__main__":
    program()
