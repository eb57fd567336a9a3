"""A host is lost: for good, or it comes back in the middle of what others finished since.

A host that loses power says no goodbye and flushes nothing, and its locks stay on the server for a
while. One that freezes is given up, and comes back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from lab_kit import Row, demand

from nfs_lab.conversion import BUSY, Conversion, Observed
from nfs_lab.lab import NFS_LEASE_SECONDS
from nfs_lab.scenarios.ground import Ground

MID_BATCH = "leconvert.run.worker:ShardWriter.write#2"
"""A worker's second shard: its first is written, the batch is not done."""

_MID_PACK = "leconvert.run.packer.assembly:Assembly.add_file#2"
_BETWEEN_RENAMES = "leconvert.workdir.swap:_rename#2"
_BEFORE_PUBLISHING = "leconvert.run.leasing.leases:Lease.publish_done#1"
_BEFORE_RENAME = "leconvert.workdir.swap:_rename#1"


def take_over(conversion: Conversion, holder: Observed, successor: Observed) -> float:
    """Take the power from a holder whose batch is all that is left.

    Returns:
        Seconds from the loss to the successor's claim.

    Raises:
        ScenarioFailedError: Nobody takes over within two leases, or somebody too early.
    """
    successor.wait_for("published", conversion.batches - 1, outcome="won")
    holder.guest.power_off()
    dark = time.monotonic()
    successor.wait_for("claimed", generation=2, won=True)
    seconds = time.monotonic() - dark
    # The last heartbeat was up to a quarter of the lease before the loss, more on a busy machine.
    demand(
        0.5 <= seconds / conversion.lease_seconds <= 2,
        f"The take-over came after {seconds:.1f} s with a lease of {conversion.lease_seconds} s.",
    )
    return seconds


def worker_power_loss(ground: Ground) -> Iterator[Row]:
    """Lose a worker's host in mid-batch, at two lengths of the lease."""
    for lease_seconds in (4.0, 15.0):
        yield lose_a_worker(ground, lease_seconds)


def lose_a_worker(ground: Ground, lease_seconds: float) -> Row:
    """Lose a worker's host in mid-batch; the other one finishes and packs."""
    first, second, *_ = ground.all_on()
    conversion = ground.conversion(f"worker-{lease_seconds:.0f}", ground.small(), lease_seconds)
    conversion.plan(first)
    holder = conversion.work(first, halt=MID_BATCH)
    holder.wait_for("halted")
    successor = conversion.work(second)
    seconds = take_over(conversion, holder, successor)
    successor.finish()
    ground.pack_and_check(conversion, second)
    conversion.remove()
    return Row(
        "worker power loss",
        f"a host loses power in mid-batch; lease {lease_seconds:.0f} s",
        f"taken over after {seconds:.1f} s ({seconds / lease_seconds:.2f} leases), same digest",
    )


def packer_power_loss(ground: Ground) -> Iterator[Row]:
    """Lose the packer's host while it assembles, and between the two renames of a swap."""
    source = ground.small()
    for case, place, in_place in (
        ("in mid-pack", _MID_PACK, False),
        ("between the two renames of the swap", _BETWEEN_RENAMES, True),
    ):
        first, second, *_ = ground.all_on()
        conversion = ground.conversion(f"packer-{'swap' if in_place else 'mid'}", source)
        conversion.plan(first, in_place=in_place)
        conversion.work(second).finish()
        packer = conversion.pack(first, halt=place)
        packer.wait_for("halted")
        refused = conversion.pack_beside_a_living_packer(second)
        first.power_off()
        target = conversion.target(in_place=in_place)
        if in_place:
            names = second.shell(f"ls -A {conversion.folder}").split()
            demand(
                "dataset" not in names and "dataset_old" in names,
                f"The power was not lost between the renames: {names}",
            )
        waited = conversion.pack_after_silence(second)
        ground.check_same(conversion, second, target, source)
        conversion.clean(second)
        yield Row(
            "packer power loss",
            f"the packer's host loses power {case}; `pack` on another host before and after",
            f"before: refused after {refused:.1f} s, as the packer lives; after: {waited} (lease of"
            f" the server {NFS_LEASE_SECONDS} s), same digest; `clean` leaves "
            "nothing of the run",
        )
        conversion.remove()


def frozen_hosts(ground: Ground) -> Iterator[Row]:
    """Freeze workers at two places and a packer at one; thaw them when others took over."""
    yield _frozen_in_mid_batch(ground)
    yield _frozen_before_publishing(ground)
    yield _back_while_the_successor_works(ground)
    yield _frozen_packer(ground)


def _frozen(ground: Ground, name: str, halt: str) -> tuple[Conversion, Observed]:
    """Return a conversion, planned by the second host, and the first host's worker, frozen."""
    first, second, *_ = ground.all_on()
    conversion = ground.conversion(name, ground.small())
    conversion.plan(second)
    zombie = conversion.work(first, halt=halt)
    zombie.wait_for("halted")
    first.freeze()
    return conversion, zombie


def _thaw(zombie: Observed) -> None:
    zombie.go_on()
    zombie.guest.thaw()


def _frozen_in_mid_batch(ground: Ground) -> Row:
    conversion, zombie = _frozen(ground, "frozen-mid", MID_BATCH)
    second = ground.hosts[1]
    conversion.work(second).finish()
    _thaw(zombie)
    summary = json.loads(zombie.finish().out)
    demand(summary["batches_lost"] == 1, f"The zombie did not learn of its loss: {summary}")
    ground.pack_and_check(conversion, second)
    conversion.remove()
    return Row(
        "frozen host",
        "freezes in mid-batch, comes back after everything is done",
        "notices that its batch went to another, drops it; 0 double publications, same digest",
    )


def _frozen_before_publishing(ground: Ground) -> Row:
    conversion, zombie = _frozen(ground, "frozen-publish", _BEFORE_PUBLISHING)
    second = ground.hosts[1]
    conversion.work(second).finish()
    conversion.pack(second).finish()
    _thaw(zombie)
    # Its attempt went with the others when the packer was done: it loses, or finds them gone.
    done = zombie.finish(0, 7, 11)
    demand(not zombie.told("published", outcome="won"), "The zombie's publication was accepted.")
    demand(len(conversion.won()) == conversion.batches, "A batch was not published.")
    ground.check_same(conversion, second)
    conversion.remove()
    return Row(
        "frozen host",
        "freezes before it publishes, comes back after the dataset is packed",
        f"its publication counts for nothing (exit {done.code}), same digest",
    )


def _back_while_the_successor_works(ground: Ground) -> Row:
    conversion, zombie = _frozen(ground, "frozen-both", _BEFORE_PUBLISHING)
    second = ground.hosts[1]
    shards = 3 * (conversion.batches - 1)
    successor = conversion.work(second, halt=f"leconvert.run.worker:ShardWriter.write#{shards + 2}")
    successor.wait_for("halted")
    _thaw(zombie)
    zombie.wait_for("published")
    successor.go_on()
    zombie.finish()
    summary = json.loads(successor.finish().out)
    demand(
        bool(zombie.told("published", outcome="won")) and summary["batches_lost"] == 1,
        "The first to publish was not the winner.",
    )
    ground.pack_and_check(conversion, second)
    conversion.remove()
    return Row(
        "frozen host",
        "freezes before it publishes, comes back while its successor is in mid-batch",
        "it publishes first and wins, its successor drops its own attempt; same digest",
    )


def _frozen_packer(ground: Ground) -> Row:
    first, second, *_ = ground.all_on()
    source = ground.small()
    conversion = ground.conversion("frozen-packer", source)
    conversion.plan(second, in_place=True)
    conversion.work(second).finish()
    zombie = conversion.pack(first, halt=_BEFORE_RENAME)
    zombie.wait_for("halted")
    first.freeze()
    waited = conversion.pack_after_silence(second)
    target = conversion.target(in_place=True)
    ground.check_same(conversion, second, target, source)
    _thaw(zombie)
    done = zombie.finish(0, 5, 7, BUSY, 11)
    ground.check_same(conversion, second, target, source)
    names = sorted(second.shell(f"ls -A {conversion.folder}").split())
    demand(names == ["dataset", "dataset_old", "work"], f"Something was left behind: {names}")
    conversion.remove()
    return Row(
        "frozen host",
        "the packer freezes before the first rename of the swap, comes back after another packed",
        f"the next one {waited}; the zombie moves nothing (exit {done.code}), same digest",
    )
