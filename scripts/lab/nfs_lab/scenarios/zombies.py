"""A host freezes, is given up, and comes back in the middle of what others finished since."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lab_kit import Row, demand

from nfs_lab.conversion import BUSY
from nfs_lab.scenarios.ground import Ground
from nfs_lab.scenarios.power import MID_BATCH, check_same

__all__ = ["frozen_hosts"]

_BEFORE_PUBLISHING = "leconvert.run.leasing.leases:Lease.publish_done#1"
_BEFORE_RENAME = "leconvert.workdir.swap:_rename#1"


def frozen_hosts(ground: Ground) -> Iterator[Row]:
    """Freeze workers at two places and a packer at one; thaw them when others took over."""
    yield _frozen_in_mid_batch(ground)
    yield _frozen_before_publishing(ground)
    yield _back_while_the_successor_works(ground)
    yield _frozen_packer(ground)


def _frozen_in_mid_batch(ground: Ground) -> Row:
    first, second, *_ = ground.all_on()
    conversion = ground.conversion("frozen-mid", ground.small())
    conversion.plan(second)
    zombie = conversion.work(first, halt=MID_BATCH)
    zombie.wait_for("halted")
    first.freeze()
    conversion.work(second).finish()
    zombie.go_on()
    first.thaw()
    summary = json.loads(zombie.finish().out)
    demand(summary["batches_lost"] == 1, f"The zombie did not learn of its loss: {summary}")
    conversion.check_published_once()
    conversion.pack(second).finish()
    check_same(ground, conversion, second)
    conversion.remove()
    return Row(
        "frozen host",
        "freezes in mid-batch, comes back after everything is done",
        "notices that its batch went to another, drops it; 0 double publications, same digest",
    )


def _frozen_before_publishing(ground: Ground) -> Row:
    first, second, *_ = ground.all_on()
    conversion = ground.conversion("frozen-publish", ground.small())
    conversion.plan(second)
    zombie = conversion.work(first, halt=_BEFORE_PUBLISHING)
    zombie.wait_for("halted")
    first.freeze()
    conversion.work(second).finish()
    conversion.pack(second).finish()
    zombie.go_on()
    first.thaw()
    # Its attempt went with the others when the packer was done: it loses, or finds them gone.
    done = zombie.finish(0, 7, 11)
    demand(not zombie.told("published", outcome="won"), "The zombie's publication was accepted.")
    demand(len(conversion.won()) == conversion.batches, "A batch was not published.")
    check_same(ground, conversion, second)
    conversion.remove()
    return Row(
        "frozen host",
        "freezes before it publishes, comes back after the dataset is packed",
        f"its publication counts for nothing (exit {done.code}), same digest",
    )


def _back_while_the_successor_works(ground: Ground) -> Row:
    first, second, *_ = ground.all_on()
    conversion = ground.conversion("frozen-both", ground.small())
    conversion.plan(second)
    zombie = conversion.work(first, halt=_BEFORE_PUBLISHING)
    zombie.wait_for("halted")
    first.freeze()
    shards = 3 * (conversion.batches - 1)
    successor = conversion.work(second, halt=f"leconvert.run.worker:ShardWriter.write#{shards + 2}")
    successor.wait_for("halted")
    zombie.go_on()
    first.thaw()
    zombie.wait_for("published")
    successor.go_on()
    zombie.finish()
    summary = json.loads(successor.finish().out)
    demand(
        bool(zombie.told("published", outcome="won")) and summary["batches_lost"] == 1,
        "The first to publish was not the winner.",
    )
    conversion.check_published_once()
    conversion.pack(second).finish()
    check_same(ground, conversion, second)
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
    check_same(ground, conversion, second, target, source)
    zombie.go_on()
    first.thaw()
    done = zombie.finish(0, 5, 7, BUSY, 11)
    check_same(ground, conversion, second, target, source)
    names = sorted(second.shell(f"ls -A {conversion.folder}").split())
    demand(names == ["dataset", "dataset_old", "work"], f"Something was left behind: {names}")
    conversion.remove()
    return Row(
        "frozen host",
        "the packer freezes before the first rename of the swap, comes back after another packed",
        f"the next one {waited}; the zombie moves nothing (exit {done.code}), same digest",
    )
