"""A host loses power: no goodbye, no flush, and its locks stay on the server for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lab_kit import Row, demand

from nfs_lab.conversion import Conversion, Observed
from nfs_lab.guest import Guest
from nfs_lab.scenarios.ground import Ground

__all__ = ["check_same", "lose_a_worker", "packer_power_loss", "take_over", "worker_power_loss"]

MID_BATCH = "leconvert.run.worker:ShardWriter.write#2"
"""A worker's second shard: its first is written, the batch is not done."""

_MID_PACK = "leconvert.run.packer.assembly:Assembly.add_file#2"
_BETWEEN_RENAMES = "leconvert.workdir.swap:_rename#2"


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
    conversion.check_published_once()
    conversion.pack(second).finish()
    check_same(ground, conversion, second)
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
        check_same(ground, conversion, second, target, source)
        conversion.clean(second)
        yield Row(
            "packer power loss",
            f"the packer's host loses power {case}; `pack` on another host before and after",
            f"before: refused after {refused:.1f} s, as the packer lives; after: {waited} (lease of"
            f" the server {ground.lab.options.nfs_lease_seconds} s), same digest; `clean` leaves "
            "nothing of the run",
        )
        conversion.remove()


def check_same(
    ground: Ground,
    conversion: Conversion,
    guest: Guest,
    target: str | None = None,
    source: str | None = None,
) -> None:
    """Demand that the result is the quiet run's, byte for byte.

    Raises:
        ScenarioFailedError: It is not.
    """
    demand(
        conversion.digest(guest, target) == ground.digest_of(source or conversion.source),
        "The result differs from that of a quiet conversion.",
    )
