"""A repair, or its undo, dies before an operation on a disk; then the same command runs.

Run as a program: it forks, so it must have no threads, and whatever uses a dataset runs in a child.
It prints what went wrong, one line each, and how often each state was found, as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.trials import CASES, Case, Place, in_a_process
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk
from tests.trees import digest_of

from leconvert.repairing import repair_dataset
from leconvert.upkeep import undo_conversion

Act = Callable[[WatchedDisk], None]


def on_disk(act: Callable[[Path], object], root: Path, told: Path | None = None) -> Act:
    """Return what does it on the disk of a trial, and tells which operations change the disk."""

    def do(disk: WatchedDisk) -> None:
        with disk:
            act(root)
        if told is not None:
            rows = [
                (number, any(Path(path).parent == root.parent for path in done.paths))
                for number, done in enumerate(disk.operations)
                if done.changes
            ]
            told.write_text(json.dumps([*rows, (len(disk.operations), True)]))

    return do


def prepared(case: Case, template: Path, root: Path, *, undo: bool) -> Place:
    """Return a drifted dataset, repaired in place where the trial is of an undo."""
    place = Place(case, template, root)
    if undo:
        made = in_a_process(place, None, on_disk(repair_dataset, place.target))
        assert made.how == "succeeded", made
    return place


def trials(
    case: Case, template: Path, scratch: Path, *, undo: bool, step: int, seen: Counter[str]
) -> Iterator[str]:
    """Yield what is wrong after a death and after the command that follows it."""
    act: Callable[[Path], object] = undo_conversion if undo else repair_dataset
    quiet = prepared(case, template, scratch / "quiet", undo=undo)
    target = quiet.target
    beside = f"{target.name}_repaired" if undo else f"{target.name}_old"
    before = digest_of(target)
    outcome = in_a_process(quiet, None, on_disk(act, target, scratch / "operations.json"))
    if outcome.how != "succeeded":
        yield f"without a fault: {outcome}"
        return
    after = digest_of(target)
    kept = digest_of(target.with_name(beside))
    if kept != before:
        yield "what was replaced is not kept as it was"
    operations = json.loads((scratch / "operations.json").read_text())
    numbers = [number for at, (number, names) in enumerate(operations) if names or at % step == 0]
    for number in numbers:
        place = prepared(case, template, scratch / f"{number}", undo=undo)
        died = in_a_process(place, Fault(number, FaultKind.DIE), on_disk(act, place.target))
        if died.how not in {"died", "succeeded"}:
            yield f"{number}: {died}"
        found = digest_of(place.target) if place.target.exists() else "nothing"
        # Besides the new tree, the same with its mark still in it.
        seen[{before: "before", after: "after", "nothing": "nothing"}.get(found, "marked")] += 1
        if found == "nothing" and case.can_exchange:
            yield f"{number}: there is no dataset"
        again = in_a_process(place, None, on_disk(act, place.target))
        if again.how != "succeeded":
            yield f"{number}, again: {again}"
        elif digest_of(place.target) != after:
            yield f"{number}: another dataset than without a fault"
        elif digest_of(place.target.with_name(beside)) != before:
            yield f"{number}: what was replaced is not kept as it was"
        names = sorted(path.name for path in place.target.parent.iterdir())
        if names != sorted([place.target.name, beside]):
            yield f"{number}: {names} are left"
        shutil.rmtree(place.root)


def main() -> None:
    """Try one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("template", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--undo", action="store_true")
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    problems = list(
        trials(
            CASES[options.case],
            options.template,
            options.scratch,
            undo=options.undo,
            step=options.step,
            seen=seen,
        )
    )
    json.dump({"problems": problems, "seen": seen}, sys.stdout)


if __name__ == "__main__":
    main()
