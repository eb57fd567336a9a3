"""Breaks one operation of a conversion after the other, and runs the same conversion again.

    python -m tests.faults.campaign --case output --kinds die,tear

`tests.faults.trials` says what is tried and what must hold. It prints a JSON line for each case,
stage and fault, and one for each trial that did not end as promised.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.faults.afterwards import (
    AFTERWARDS,
    CASES_AFTERWARDS,
    CHANGES,
    Datasets,
    after_trial,
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

_AFTERWARDS = "afterwards"
SYNCS = frozenset({"fsync", "fdatasync"})
CODES = (errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS)


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
    parser.add_argument("--kinds", default="die,tear,short,fail,last,lie,power")
    parser.add_argument("--stages", default=",".join((*STAGES, "end", _AFTERWARDS)))
    parser.add_argument("--every", type=int, default=1, help="only each Nth fault")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--scratch", type=Path, default=None, help="an empty folder's parent")
    parser.add_argument("--source", type=Path, help="what `make_source` made; default: makes it")
    parser.add_argument("--rows", type=Path, help="write every row here, a JSON line each")
    options = parser.parse_args()
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
    if options.rows:
        options.rows.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for row in rows:
        stage, fault = row.first.stage, row.fault
        if row.afterwards:
            stage, fault = _AFTERWARDS, row.afterwards
        how = row.again.how if row.afterwards else row.first.how
        ends = "as promised" if not row.problems else "not as promised"
        counts.setdefault((row.case, stage, fault), Counter()).update([how, ends])
    for (case, stage, fault), ends in sorted(counts.items()):
        print(json.dumps({"case": case, "stage": stage, "fault": fault, **ends}))
    for row in rows:
        if row.problems:
            print(json.dumps(asdict(row)))
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


if __name__ == "__main__":
    program()
