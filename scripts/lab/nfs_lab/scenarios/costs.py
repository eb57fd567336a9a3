"""What leases cost on NFS: claims a second, requests, and the share of a heartbeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lab_kit import Row, demand

from nfs_lab.guest import INSIDE
from nfs_lab.lab import MOUNT
from nfs_lab.scenarios.ground import Ground

__all__ = ["costs"]

_BATCHES = 2000
_LEAST_CLAIMS_A_SECOND = 50
_DEFAULT_LEASE_SECONDS = 60.0
_BEATS_PER_LEASE = 4
_LARGEST_SHARE = 0.01


def costs(ground: Ground) -> Iterator[Row]:
    """Claim 2,000 batches alone and on all hosts; count requests; weigh the heartbeat."""
    hosts = ground.all_on()
    command = ground.lab.python(INSIDE / "costs.py", f"{MOUNT}/costs", _BATCHES)
    done = hosts[0].run(command, environment=ground.lab.environment())
    demand(done.code == 0, f"costs.py failed: {done.err[-600:]}")
    report = json.loads(done.out)
    rate = 1000 / report["claim"]["milliseconds"]
    demand(rate >= _LEAST_CLAIMS_A_SECOND, f"Only {rate:.0f} claims a second.")
    yield Row("costs", f"one worker claims {_BATCHES} batches", f"{rate:.0f} claims a second")

    reports = ground.race("share", _BATCHES, hosts)
    won = sorted(batch for one in reports for batch in one["won"])
    demand(won == list(range(_BATCHES)), "A batch was claimed by none or by several.")
    rate = _BATCHES / max(one["seconds"] for one in reports)  # they began together
    demand(rate >= _LEAST_CLAIMS_A_SECOND, f"Only {rate:.0f} claims a second.")
    yield Row(
        "costs",
        f"one worker on each of {len(hosts)} hosts, the same {_BATCHES} batches",
        f"{rate:.0f} claims a second in all; shares "
        + " : ".join(str(len(one["won"])) for one in reports),
    )

    for name, what in (
        ("claim", "a claim"),
        ("heartbeat", "a heartbeat"),
        ("publication", "a publication of `done`"),
    ):
        yield Row("costs", f"requests of {what}", _requests(report[name]))

    beat = report["heartbeat"]
    share = beat["milliseconds"] / 1000 / (_DEFAULT_LEASE_SECONDS / _BEATS_PER_LEASE)
    short = beat["milliseconds"] / 1000 / (4.0 / _BEATS_PER_LEASE)
    demand(share < _LARGEST_SHARE, f"A heartbeat takes {share:.2%} of a worker's time.")
    yield Row(
        "costs",
        "a heartbeat's share of a worker's time, if the worker waited for it",
        f"{share:.3%} with the default lease of 60 s ({short:.2%} with 4 s)",
    )


def _requests(cost: dict[str, Any]) -> str:
    kinds = ", ".join(f"{name} {number:g}" for name, number in cost["kinds"].items())
    return (
        f"{cost['requests']:.1f} ({kinds}); {cost['milliseconds']:.1f} ms, of them "
        f"{cost['processor_milliseconds']:.1f} ms of the processor"
    )
