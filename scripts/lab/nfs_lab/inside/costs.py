"""Measure the cost of leases for one worker on this host's NFS mount; print JSON.

    costs.py FOLDER BATCHES

Requests are counted by the kernel, for the whole mount (``/proc/self/mountstats``).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity
from leconvert.workdir.records import WorkDir

RUN_ID = "costs"
_TIMES = 200
_OPERATION = re.compile(r"\s*[A-Z_0-9]+: (\d+) ")


def requests(mount: str) -> int:
    """Return how many requests the mount has sent, retransmissions left out."""
    count, here = 0, False
    for line in Path("/proc/self/mountstats").read_text().splitlines():
        if line.startswith("device "):
            here = f" mounted on {mount} " in line
        elif here and (found := _OPERATION.match(line)):
            count += int(found[1])
    return count


def measure(mount: str, count: int, action: Callable[[], None]) -> dict[str, float]:
    """Run an action that does something ``count`` times; return the cost of each time."""
    before, began = requests(mount), time.monotonic()
    action()
    seconds = time.monotonic() - began
    return {
        "milliseconds": seconds / count * 1000,
        "requests": (requests(mount) - before) / count,
    }


def main() -> None:
    folder, batches = Path(sys.argv[1]), int(sys.argv[2])
    mount = str(folder.parent)
    while not os.path.ismount(mount):
        mount = str(Path(mount).parent)
    run = WorkDir(folder).run(RUN_ID)
    run.ensure()
    store = LeaseStore(run, WorkerIdentity.of_this_process(), lease_seconds=3600)
    board = Board(store, batches)
    leases = []

    def claim_all() -> None:
        while (lease := board.next_fresh()) is not None:
            leases.append(lease)

    times = min(_TIMES, batches)

    def beat() -> None:
        for _ in range(times):
            leases[0].heartbeat()

    def publish() -> None:
        for lease in leases[:times]:
            lease.publish_done({"shards": []})

    report = {"claim": measure(mount, batches, claim_all)}
    if len(leases) != batches:
        raise SystemExit(f"{len(leases)} of {batches} batches were claimed")
    report["heartbeat"] = measure(mount, times, beat)
    report["publication"] = measure(mount, times, publish)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
