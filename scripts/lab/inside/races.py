"""One host's part in races for claims and publications; prints what it won as JSON.

    races.py claims FOLDER BATCHES START        every batch in the same order as the other hosts
    races.py publications FOLDER BATCHES START  all hosts hold every batch and publish it at once
    races.py costs FOLDER BATCHES 0             no race: what claiming a batch costs this host

START is a time of day, seconds since 1970 on the clock of the machine that the guests run on; each
guest finds out how far its own is off. Each contest has a moment of its own, so that a host that
was late meets the others again at the next, and chance moves each host by a few milliseconds, so
that not always the same one is first.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from pathlib import Path

from leconvert.run.leasing import Board, Lease, LeaseStore, WorkerIdentity
from leconvert.workdir.records import WorkDir

RUN_ID = "races"
_BETWEEN_SECONDS = 0.04
_CHANCE_SECONDS = 0.003
_EVENTS = Path("/mnt/lab/events")


def clock_offset() -> float:
    """Return by how many seconds this guest's clock is ahead of the machine's.

    A file made in the mailbox gets the machine's time, cut to whole seconds: the offset shows when
    a second begins there.
    """
    probe = _EVENTS / f"clock-{os.getpid()}"
    seen: float | None = None
    while True:
        probe.write_bytes(b"")
        second, here = probe.stat().st_mtime, time.time()
        probe.unlink()
        if seen is not None and second > seen:
            return here - second
        seen = second


def wait_for(moment: float) -> None:
    """Sleep until just before a time of day on this guest's clock, then spin."""
    time.sleep(max(0.0, moment - time.time() - 0.002))
    while time.time() < moment:
        pass


def race_for_claims(store: LeaseStore, batches: int, start: float) -> list[int]:
    """Try to claim each batch at the same moment as the others; return those that were won."""
    won = []
    for batch in range(batches):
        wait_for(start + batch * _BETWEEN_SECONDS + random.uniform(0, _CHANCE_SECONDS))
        if store.claim(batch) is not None:
            won.append(batch)
    return won


def race_to_publish(store: LeaseStore, batches: int, start: float) -> list[int]:
    """Hold each batch, as others do after it expired, and publish at the same moment as they."""
    leases: list[Lease] = []
    for batch in range(batches):
        lease = None
        while lease is None:
            lease = store.claim(batch)
        leases.append(lease)
    claimed = time.time()
    if claimed > start:
        raise SystemExit(f"claiming took {claimed - start:.1f} s too long for the start")
    won = []
    for lease in leases:
        chance = random.uniform(0, _CHANCE_SECONDS)
        wait_for(start + lease.batch_id * _BETWEEN_SECONDS + chance)
        if lease.publish_done({"shards": []}) == "won":
            won.append(lease.batch_id)
    return won


def requests() -> int:
    """Return how many requests NFS mounts have sent, retransmissions left out."""
    text = Path("/proc/self/mountstats").read_text()
    return sum(map(int, re.findall(r"^\s*[A-Z_0-9]+: (\d+) ", text, re.MULTILINE)))


def cost_of_claims(store: LeaseStore, batches: int) -> dict[str, float]:
    """Claim all batches as a worker does; return time and requests of the kernel for each."""
    board = Board(store, batches)
    before, began = requests(), time.monotonic()
    claimed = sum(1 for _ in iter(board.next_fresh, None))
    seconds, sent = time.monotonic() - began, requests() - before
    if claimed != batches:
        raise SystemExit(f"{claimed} of {batches} batches were claimed")
    return {"milliseconds": seconds / batches * 1000, "requests": sent / batches}


def main() -> None:
    kind, folder, batches, start = sys.argv[1:]
    run = WorkDir(Path(folder)).run(RUN_ID)
    run.ensure()
    # Everybody holds what is published: there leases expire at once.
    lease_seconds = 1e-6 if kind == "publications" else 3600
    store = LeaseStore(run, WorkerIdentity.of_this_process(), lease_seconds=lease_seconds)
    if kind == "costs":
        print(json.dumps(cost_of_claims(store, int(batches))))
        return
    race = race_for_claims if kind == "claims" else race_to_publish
    won = race(store, int(batches), float(start) + clock_offset())
    print(json.dumps({"token": store.worker.token, "won": won}))


if __name__ == "__main__":
    main()
