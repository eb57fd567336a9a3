"""`leconvert check-fs` played by two real hosts, and how late one sees what the other did."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from lab_kit import Row, demand

from nfs_lab.lab import MOUNT
from nfs_lab.scenarios.ground import Ground

__all__ = ["promises"]

_MEET_SECONDS = "120"
_NEEDED = ("link", "race", "create_race", "listing", "news", "host_lock")
"""What has to hold between the hosts of an NFS server."""


def promises(ground: Ground) -> Iterator[Row]:
    """Let two hosts try together what leasing and the swap rely on."""
    first, second, *_ = ground.all_on()
    folder = f"{MOUNT}/promises"
    first.shell(f"mkdir -p {folder}")
    command = [sys.executable, "-m", "leconvert", "check-fs", folder, "--wait", _MEET_SECONDS]
    environment = ground.lab.environment()
    peer = first.start([*command, "--peer"], environment=environment)
    done = second.run([*command, "--json"], environment=environment)
    demand(done.code == 0, f"`check-fs` ended with {done.code}: {done.err[-600:]}")
    demand(peer.wait().code == 0, "`check-fs --peer` failed.")
    found = {finding["promise"]: finding for finding in json.loads(done.out)["findings"]}
    broken = [name for name in _NEEDED if not found[name]["holds"]]
    demand(not broken, f"These promises do not hold: {broken}")
    missing = [finding["says"] for finding in found.values() if not finding["holds"]]
    seen = "; ".join(
        f"{found[name]['says']}: {found[name]['note']}" for name in ("listing", "stat")
    )
    yield Row(
        "promises",
        "two hosts run `check-fs --peer` and `check-fs` in one folder",
        f"{len(found) - len(missing)} of {len(found)} hold, not: {', '.join(missing)}; {seen}",
    )
