"""Measure what claiming a batch costs on this host's NFS mount; print JSON.

    costs.py FOLDER BATCHES

Requests are counted by the kernel, for the whole mount (``/proc/self/mountstats``).
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity
from leconvert.workdir.records import WorkDir

RUN_ID = "costs"


def requests() -> int:
    """Return how many requests NFS mounts have sent, retransmissions left out."""
    text = Path("/proc/self/mountstats").read_text()
    return sum(map(int, re.findall(r"^\s*[A-Z_0-9]+: (\d+) ", text, re.MULTILINE)))


def main() -> None:
    folder, batches = Path(sys.argv[1]), int(sys.argv[2])
    run = WorkDir(folder).run(RUN_ID)
    run.ensure()
    store = LeaseStore(run, WorkerIdentity.of_this_process(), lease_seconds=3600)
    board = Board(store, batches)
    before, began = requests(), time.monotonic()
    claimed = sum(1 for _ in iter(board.next_fresh, None))
    seconds, sent = time.monotonic() - began, requests() - before
    if claimed != batches:
        raise SystemExit(f"{claimed} of {batches} batches were claimed")
    print(json.dumps({"milliseconds": seconds / batches * 1000, "requests": sent / batches}))


if __name__ == "__main__":
    main()
