"""Runs leconvert as its command line does, reports what its leases do, and halts where it is told.

    observed_leconvert.py --events FOLDER --name NAME [--halt MODULE:NAME#N] -- work WORK_DIR …

Appends to ``FOLDER/NAME.jsonl``, one event a line: ``claimed`` and ``published`` with the batch,
its generation and the outcome; ``halted`` just before call N of the function MODULE:NAME. It then
waits for ``FOLDER/NAME.go``, with its other threads (the heartbeat) running.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 0.02

type Tell = Callable[..., None]


def journal(path: Path) -> Tell:
    """Return what appends an event, whole, to a file that the lab reads."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def tell(event: str, **fields: object) -> None:
        os.write(descriptor, json.dumps({"event": event, **fields}).encode() + b"\n")

    return tell


def around(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by a wrapper around it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def report_leases(tell: Tell) -> None:
    """Tell of every claim and every publication."""
    from leconvert.run.leasing.leases import Lease, LeaseStore

    def claiming(original: Callable[..., Any]) -> Callable[..., Any]:
        def claim(self: LeaseStore, batch_id: int, generation: int) -> Lease | None:
            lease: Lease | None = original(self, batch_id, generation)
            tell("claimed", batch=batch_id, generation=generation, won=lease is not None)
            return lease

        return claim

    def publishing(original: Callable[..., Any]) -> Callable[..., Any]:
        def publish(self: Lease, fields: dict[str, Any]) -> str:
            outcome: str = original(self, fields)
            tell("published", batch=self.batch_id, generation=self.generation, outcome=outcome)
            return outcome

        return publish

    around(LeaseStore, "_claim_generation", claiming)
    around(Lease, "publish_done", publishing)


def halt_at(place: str, tell: Tell, go: Path) -> None:
    """Halt before the given call of a function: ``module:Class.method#2``, ``module:name#1``."""
    dotted, _, number = place.partition("#")
    module, _, name = dotted.partition(":")
    *owners, function = name.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    calls = itertools.count(1)

    def halting(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == int(number):
                tell("halted")
                while go.name not in os.listdir(go.parent):  # noqa: PTH208
                    time.sleep(_LOOK_SECONDS)  # the file is made outside this kernel
            return original(*arguments, **options)

        return called

    around(owner, function, halting)


def main() -> int:
    from leconvert.cli import main as leconvert

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--halt")
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    tell = journal(options.events / f"{options.name}.jsonl")
    report_leases(tell)
    if options.halt:
        halt_at(options.halt, tell, options.events / f"{options.name}.go")
    return leconvert(options.arguments)


if __name__ == "__main__":
    sys.exit(main())
