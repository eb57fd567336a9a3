"""leconvert on real kernels over a real NFS server: what disturbs hosts, and what must hold."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lab_kit import Rows, demand
from nfs_conversion import Conversion, Ground, Observed
from nfs_hosts import EXPORT, MOUNT, NFS_LEASE_SECONDS, NfsLab

from leconvert.support.errors import BusyError

_CONTESTS, _BRIEF_CONTESTS = 200, 40
_RESTART_AFTER = 20
_CHANGED, _NO_RUN = 4, 7  # exit codes
_NEEDED = ("link", "race", "create_race", "listing", "news", "host_lock")
"""The promises that hold between the hosts of an NFS server."""

# A worker's second shard: its first is written, the batch is not done.
_MID_BATCH = "leconvert.run.worker:ShardWriter.write#2"
_MID_PACK = "leconvert.run.packer.assembly:Assembly.add_file#2"
_BEFORE_PUBLISHING = "leconvert.run.leasing.leases:Lease.publish_done#1"
_BEFORE_SWAP = "leconvert.run.packer.run:swap_into_place#1"
_BEFORE_RENAME = "leconvert.workdir.swap:_rename#1"
_BETWEEN_RENAMES = "leconvert.workdir.swap:_rename#2"


# --- what the file system promises ---


def promises(ground: Ground) -> Rows:
    """Two hosts try what leasing and the swap rely on, by `check-fs` and `check-fs --peer`."""
    first, second, *_ = ground.all_on()
    folder = f"{MOUNT}/promises"
    first.shell(f"mkdir -p {folder}")
    command = [sys.executable, "-m", "leconvert", "check-fs", folder, "--wait", "120"]
    peer = first.start(*command, "--peer")
    done = second.run(*command, "--json")
    ended = (done.returncode, peer.wait().returncode)
    demand(ended == (0, 0), f"`check-fs` and its peer ended with {ended}: {done.stderr[-600:]}")
    found = {finding["promise"]: finding for finding in json.loads(done.stdout)["findings"]}
    broken = [name for name in _NEEDED if not found[name]["holds"]]
    demand(not broken, f"These promises do not hold: {broken}")
    missing = [finding["says"] for finding in found.values() if not finding["holds"]]
    seen = "; ".join(
        f"{found[name]['says']}: {found[name]['note']}" for name in ("listing", "stat")
    )
    yield f"{len(found) - len(missing)} of {len(found)} hold, not: {', '.join(missing)}; {seen}"


# --- several hosts want the same thing at the same moment ---


def brief(ground: Ground) -> Rows:
    """Race for claims, then convert with the loss of a host in mid-batch: the lab in a minute."""
    claims = ground.race("brief", "claims", _BRIEF_CONTESTS, ground.all_on()[:2])
    yield f"each batch claimed once; shares {_shares_won_once(claims, _BRIEF_CONTESTS)}"
    yield _lose_a_worker(ground, lease_seconds=3.0)


def races(ground: Ground) -> Rows:
    """All hosts claim the same batches in the same moments, then hold and publish them so."""
    hosts = ground.all_on()
    claims = ground.race("claims", "claims", _CONTESTS, hosts)
    yield f"{_CONTESTS} batches, each claimed once; shares {_shares_won_once(claims, _CONTESTS)}"
    published = ground.race("published", "publications", _CONTESTS, hosts)
    shares = _shares_won_once(published, _CONTESTS)
    # A record in a line of its own.
    folder = f"{EXPORT}/published/runs/races/done"
    records = ground.lab.server.shell(
        f"cd {folder} && for record in *.json; do tr -d '\\n' <$record; echo; done"
    )
    winners = Counter(json.loads(record)["token"] for record in records.splitlines())
    demand(
        winners == Counter({one["token"]: len(one["won"]) for one in published if one["won"]}),
        "The records of `done` do not name those who were told that they won.",
    )
    yield f"{_CONTESTS} batches, each published once, 0 double; shares {shares}"


def _shares_won_once(reports: list[dict[str, Any]], contests: int) -> str:
    won = Counter(batch for report in reports for batch in report["won"])
    bad = [batch for batch in range(contests) if won[batch] != 1]
    demand(not bad and len(won) == contests, f"Batches won by none or by several: {bad}")
    return " : ".join(str(len(report["won"])) for report in reports)


def late_names(ground: Ground) -> Rows:
    """Hosts look for a plan, shards and a result in vain, and again once another made them."""
    first, second, *_ = ground.all_on()
    conversion = Conversion(ground, "late")
    second.shell(f"mkdir -p {conversion.work_dir}")
    conversion.leconvert(second, "work", conversion.work_dir, codes=(_NO_RUN,))
    second.shell(f"! test -e {conversion.target}")
    conversion.plan(first)
    attempts = f"{conversion.work_dir}/runs/*/attempts"
    for batch_id in range(conversion.batches):
        first.shell(f"! test -e $(echo {attempts})/{batch_id:06d}")
    conversion.work(second).finish()
    conversion.check_published_once()
    conversion.pack(first).finish()
    conversion.leconvert(second, "verify", conversion.target, "--source", conversion.source)
    yield "the worker finds the plan at once, the packer the shards, `verify` the result"


def changed_source(ground: Ground) -> Rows:
    """A clip changes on another host between the proof and the swap of `pack --delete-source`."""
    for name, how, change in (
        (
            "over",
            "overwritten in place, as long",
            "printf x | dd of={} bs=1 seek=99 conv=notrunc",
        ),
        ("aside", "moved aside, and another one put there", "mv {0} {0}.mine && cp {0}.mine {0}"),
    ):
        first, second, *_ = ground.all_on()
        conversion = Conversion(ground, f"changed-{name}", in_place=True)
        conversion.plan(first)
        conversion.work(second).finish()
        packer = conversion.pack(first, "--delete-source", halt=_BEFORE_SWAP)
        packer.wait_for("halted")
        clips = second.shell(f"find {conversion.source}/videos -name episode_000003.mp4").split()
        second.shell(change.format(clips[0]))
        packer.go_on()
        packer.finish(_CHANGED)
        names = sorted(second.shell(f"ls -A {conversion.source}/meta").split())
        demand("episodes.jsonl" in names, f"The source is not in its place: {names}")
        yield f"{how}: the swap is refused (exit {_CHANGED}), the source stays"


# --- a host is lost, for good or for a while; its locks stay on the server for a while ---


def worker_power_loss(ground: Ground) -> Rows:
    """A worker's host loses power in mid-batch, at two lengths of the lease."""
    for lease_seconds in (4.0, 15.0):
        yield _lose_a_worker(ground, lease_seconds)


def clock_skew(ground: Ground) -> Rows:
    """The same; the lost host's clock is 5 h ahead, the other's 7 h behind, and jumps by 79 h."""
    yield f"{_lose_a_worker(ground, 4.0, clocks=(5, -7, 72))}; not earlier for the jump"


def _lose_a_worker(
    ground: Ground, lease_seconds: float, clocks: tuple[int, int, int] | None = None
) -> str:
    """Lose a worker's host in mid-batch; the other one takes over within two leases, and packs.

    ``clocks`` are the hours of the two hosts' clocks, and those to which the second one's jumps.
    """
    first, second, *_ = ground.all_on()
    name = f"worker-{lease_seconds:.0f}{'-clocks' if clocks else ''}"
    conversion = Conversion(ground, name, lease_seconds=lease_seconds)
    if clocks:
        first.set_clock(clocks[0])
        second.set_clock(clocks[1])
    conversion.plan(first)
    holder = conversion.work(first, halt=_MID_BATCH)
    holder.wait_for("halted")
    successor = conversion.work(second)
    successor.wait_for("published", conversion.batches - 1, outcome="won")
    if clocks:
        second.set_clock(clocks[2])
    first.power_off()
    dark = time.monotonic()
    successor.wait_for("claimed", generation=2, won=True)
    seconds = time.monotonic() - dark
    # The last heartbeat was up to a quarter of the lease before the loss, more on a busy machine.
    demand(
        0.5 <= seconds / lease_seconds <= 2,
        f"The take-over came after {seconds:.1f} s with a lease of {lease_seconds} s.",
    )
    successor.finish()
    conversion.pack_and_check(second)
    if clocks:
        second.set_clock(0)
    leases = f"{seconds / lease_seconds:.2f} leases of {lease_seconds:.0f} s"
    return f"taken over after {seconds:.1f} s ({leases}), same digest"


def packer_power_loss(ground: Ground) -> Rows:
    """The packer's host loses power; `pack` runs on another host before and after."""
    for name, case, halt in (
        ("mid", "in mid-pack", _MID_PACK),
        ("swap", "between the two renames of the swap", _BETWEEN_RENAMES),
    ):
        first, second, *_ = ground.all_on()
        conversion = Conversion(ground, f"packer-{name}", in_place=name == "swap")
        conversion.plan(first)
        conversion.work(second).finish()
        conversion.pack(first, halt=halt).wait_for("halted")
        refused = conversion.pack_beside_a_living_packer(second)
        first.power_off()
        if name == "swap":
            names = second.shell(f"ls -A {conversion.folder}").split()
            is_between = "dataset" not in names and "dataset_old" in names
            demand(is_between, f"The power was not lost between the renames: {names}")
        waited = conversion.pack_after_silence(second)
        conversion.check_same(second)
        conversion.clean(second)
        yield (
            f"{case}; before: refused after {refused:.1f} s, as the packer lives; after: {waited} "
            f"(lease of the server {NFS_LEASE_SECONDS} s), same digest; `clean` leaves nothing of "
            "the run"
        )


def frozen_hosts(ground: Ground) -> Rows:
    """A host freezes with a worker or a packer, and comes back when another took over."""
    for scene in (_in_mid_batch, _before_publishing, _while_the_successor_works, _frozen_packer):
        yield scene(ground)


def _frozen(ground: Ground, name: str, halt: str) -> tuple[Conversion, Observed]:
    """Return a conversion, planned by the second host, and the first host's worker, frozen."""
    first, second, *_ = ground.all_on()
    conversion = Conversion(ground, name)
    conversion.plan(second)
    zombie = conversion.work(first, halt=halt)
    zombie.wait_for("halted")
    first.freeze()
    return conversion, zombie


def _thaw(zombie: Observed) -> None:
    zombie.go_on()
    zombie.guest.thaw()


def _in_mid_batch(ground: Ground) -> str:
    conversion, zombie = _frozen(ground, "frozen-mid", _MID_BATCH)
    second = ground.lab.clients[1]
    conversion.work(second).finish()
    _thaw(zombie)
    summary = json.loads(zombie.finish().stdout)
    demand(summary["batches_lost"] == 1, f"The zombie did not learn of its loss: {summary}")
    conversion.pack_and_check(second)
    return (
        "in mid-batch, until everything is done: it notices that its batch went to another, drops "
        "it; 0 double publications, same digest"
    )


def _before_publishing(ground: Ground) -> str:
    conversion, zombie = _frozen(ground, "frozen-publish", _BEFORE_PUBLISHING)
    second = ground.lab.clients[1]
    conversion.work(second).finish()
    conversion.pack(second).finish()
    _thaw(zombie)
    # Its attempt went with the others when the packer was done: it loses, or finds them gone.
    done = zombie.finish(0, 7, 11)
    demand(not zombie.told("published", outcome="won"), "The zombie's publication was accepted.")
    demand(len(conversion.won()) == conversion.batches, "A batch was not published.")
    conversion.check_same(second)
    return (
        "before it publishes, until the dataset is packed: its publication counts for nothing "
        f"(exit {done.returncode}), same digest"
    )


def _while_the_successor_works(ground: Ground) -> str:
    conversion, zombie = _frozen(ground, "frozen-both", _BEFORE_PUBLISHING)
    second = ground.lab.clients[1]
    shards = 3 * (conversion.batches - 1)
    successor = conversion.work(second, halt=f"leconvert.run.worker:ShardWriter.write#{shards + 2}")
    successor.wait_for("halted")
    _thaw(zombie)
    zombie.wait_for("published")
    successor.go_on()
    zombie.finish()
    summary = json.loads(successor.finish().stdout)
    is_first = bool(zombie.told("published", outcome="won")) and summary["batches_lost"] == 1
    demand(is_first, "The first to publish was not the winner.")
    conversion.pack_and_check(second)
    return (
        "before it publishes, until its successor is in mid-batch: it publishes first and wins, "
        "its successor drops its own attempt; same digest"
    )


def _frozen_packer(ground: Ground) -> str:
    first, second, *_ = ground.all_on()
    conversion = Conversion(ground, "frozen-packer", in_place=True)
    conversion.plan(second)
    conversion.work(second).finish()
    zombie = conversion.pack(first, halt=_BEFORE_RENAME)
    zombie.wait_for("halted")
    first.freeze()
    waited = conversion.pack_after_silence(second)
    conversion.check_same(second)
    _thaw(zombie)
    done = zombie.finish(0, 5, 7, BusyError.exit_code, 11)
    conversion.check_same(second)
    names = sorted(second.shell(f"ls -A {conversion.folder}").split())
    demand(names == ["dataset", "dataset_old", "work"], f"Something was left behind: {names}")
    return (
        f"the packer before the first rename of the swap, until another packed, which {waited}; "
        f"the zombie moves nothing (exit {done.returncode}), same digest"
    )


# --- a slow network, a restart ---


def latency(ground: Ground) -> Rows:
    """Two hosts convert and claim with 25 ms to the server, and without for comparison."""
    for milliseconds in (0, 25):
        hosts = ground.all_on()[:2]
        for guest in hosts:
            guest.set_latency(milliseconds)
        conversion = Conversion(ground, f"latency-{milliseconds}", lease_seconds=10)
        conversion.plan(hosts[0])
        began = time.monotonic()
        for worker in [conversion.work(guest) for guest in hosts]:
            worker.finish()
        work_seconds = time.monotonic() - began
        conversion.check_published_once()
        began = time.monotonic()
        conversion.pack(hosts[1]).finish()
        pack_seconds = time.monotonic() - began
        conversion.check_same(hosts[0])
        (claim,) = ground.race(f"costs-{milliseconds}", "costs", 40, hosts[:1])
        for guest in hosts:
            guest.set_latency(0)
        yield (
            f"{milliseconds} ms, {conversion.batches} batches: work {work_seconds:.1f} s, pack "
            f"{pack_seconds:.1f} s, a claim {claim['milliseconds']:.0f} ms in "
            f"{claim['requests']:.1f} requests; same digest"
        )


def server_restart(ground: Ground) -> Rows:
    """The server loses power while workers write, and comes back.

    With the longer lease it is back before anything can expire, with the shorter one it is not.
    """
    for lease_seconds in (30.0, 3.0):
        hosts = ground.all_on()
        conversion = Conversion(ground, f"server-{lease_seconds:.0f}", "many", lease_seconds)
        conversion.plan(hosts[0])
        workers = conversion.work_together(hosts)
        conversion.wait_for_published(_RESTART_AFTER)
        dark = time.monotonic()
        ground.lab.server.power_off()
        before = conversion.won().total()
        demand(before < conversion.batches, "All was done before the server lost its power.")
        ground.lab.server.boot()
        away = time.monotonic() - dark
        for worker in workers:
            worker.finish()
        seconds = time.monotonic() - dark
        taken = sum(entry["generation"] > 1 for w in workers for entry in w.told("claimed"))
        conversion.pack_and_check(hosts[0])
        yield (
            f"{before} of {conversion.batches} batches done, back after {away:.1f} s, lease "
            f"{lease_seconds:.0f} s: no worker fails; all done {seconds:.1f} s after the loss; "
            f"{taken} batches taken over; each published once, same digest"
        )


def whole_conversion(ground: Ground) -> Rows:
    """Plan 38 MB, work on every host, pack with `--verify bytes`, verify once more elsewhere."""
    hosts = ground.all_on()
    conversion = Conversion(ground, "whole", "large", 10)
    # On the share, as users have it: there a file system that shares extents can do so.
    conversion.copy_source(hosts[0], "source")
    began = time.monotonic()
    conversion.plan(hosts[0])
    workers = conversion.work_together(hosts)
    packer = conversion.pack(hosts[0], "--verify", "bytes")
    summaries = [json.loads(worker.finish().stdout) for worker in workers]
    report = json.loads(packer.finish().stdout)
    seconds = time.monotonic() - began
    conversion.check_published_once()
    demand(report["verified"] == "bytes", f"The packer verified {report['verified']}.")
    verify = ("verify", conversion.target, "--source", conversion.source, "--bytes")
    conversion.leconvert(hosts[-1], *verify)
    conversion.check_same(hosts[-1])
    shares = " : ".join(str(summary["batches_done"]) for summary in summaries)
    yield (
        f"{conversion.batches} batches, {ground.lab.file_system}: {seconds:.1f} s from plan to "
        f"swap; batches a host {shares}; "
        f"{report['cloned_bytes'] / 2**20:.0f} MiB shared, {report['copied_bytes'] / 2**20:.0f} MiB"
        " copied by workers; `verify --bytes` on another host passes; same digest as without NFS"
    )


SCENARIOS: Mapping[str, Callable[[Ground], Rows]] = {
    "promises": promises,
    "races": races,
    "late-names": late_names,
    "changed-source": changed_source,
    "worker-power-loss": worker_power_loss,
    "packer-power-loss": packer_power_loss,
    "frozen-host": frozen_hosts,
    "clock-skew": clock_skew,
    "latency": latency,
    "server-restart": server_restart,
    "whole-conversion": whole_conversion,
}
"""Every scenario by name, in the order in which they run."""


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a lab of three hosts for the length of a ``with`` block."""
    with NfsLab(options.folder).running() as lab:
        yield (
            f"Linux {lab.kernel} on every host, {len(lab.clients)} hosts and a server with "
            f"{lab.file_system}, mount options by default, server's lease {NFS_LEASE_SECONDS} s",
            Ground(lab),
        )
