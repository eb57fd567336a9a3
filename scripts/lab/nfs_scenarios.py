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
from nfs_hosts import EXPORT, INSIDE, MOUNT, NFS_LEASE_SECONDS, NfsLab

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
    """Let two hosts try together what leasing and the swap rely on."""
    first, second, *_ = ground.all_on()
    folder = f"{MOUNT}/promises"
    first.shell(f"mkdir -p {folder}")
    command = [sys.executable, "-m", "leconvert", "check-fs", folder, "--wait", "120"]
    peer = first.start(*command, "--peer")
    done = second.run(*command, "--json")
    demand(done.code == 0, f"`check-fs` ended with {done.code}: {done.err[-600:]}")
    demand(peer.wait().code == 0, "`check-fs --peer` failed.")
    found = {finding["promise"]: finding for finding in json.loads(done.out)["findings"]}
    broken = [name for name in _NEEDED if not found[name]["holds"]]
    demand(not broken, f"These promises do not hold: {broken}")
    missing = [finding["says"] for finding in found.values() if not finding["holds"]]
    seen = "; ".join(
        f"{found[name]['says']}: {found[name]['note']}" for name in ("listing", "stat")
    )
    yield (
        "two hosts run `check-fs --peer` and `check-fs` in one folder",
        f"{len(found) - len(missing)} of {len(found)} hold, not: {', '.join(missing)}; {seen}",
    )


# --- several hosts want the same thing at the same moment ---


def brief(ground: Ground) -> Rows:
    """Race for claims, then convert with the loss of a host in mid-batch: the lab in a minute."""
    first, second, *_ = ground.all_on()
    claims = ground.race("claims", _BRIEF_CONTESTS, [first, second])
    yield (
        f"2 hosts claim the same {_BRIEF_CONTESTS} batches in the same moments",
        f"each claimed once; shares {_shares_won_once(claims, _BRIEF_CONTESTS)}",
    )
    yield _lose_a_worker(ground, lease_seconds=3.0)


def races(ground: Ground) -> Rows:
    """Race for claims, and for publications."""
    hosts = ground.all_on()
    claims = ground.race("claims", _CONTESTS, hosts)
    yield (
        f"{len(hosts)} hosts claim the same {_CONTESTS} batches in the same moments",
        f"each claimed once; shares {_shares_won_once(claims, _CONTESTS)}",
    )
    published = ground.race("publications", _CONTESTS, hosts)
    shares = _shares_won_once(published, _CONTESTS)
    # A record in a line of its own.
    folder = f"{EXPORT}/race-publications-{_CONTESTS}/runs/races/done"
    records = ground.lab.server.shell(
        f"cd {folder} && for record in *.json; do tr -d '\\n' <$record; echo; done"
    )
    winners = Counter(json.loads(record)["token"] for record in records.splitlines())
    demand(
        winners == Counter({one["token"]: len(one["won"]) for one in published if one["won"]}),
        "The records of `done` do not name those who were told that they won.",
    )
    yield (
        f"{len(hosts)} hosts hold the same {_CONTESTS} batches and publish them in the same "
        "moments",
        f"each published once, 0 double; shares {shares}",
    )


def _shares_won_once(reports: list[dict[str, Any]], contests: int) -> str:
    won = Counter(batch for report in reports for batch in report["won"])
    bad = [batch for batch in range(contests) if won[batch] != 1]
    demand(not bad and len(won) == contests, f"Batches won by none or by several: {bad}")
    return " : ".join(str(len(report["won"])) for report in reports)


def late_names(ground: Ground) -> Rows:
    """Look for a plan and a result in vain, and again as soon as another host has made them."""
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
    yield (
        "a worker starts before there is a plan and again at once after; the packer's host looked "
        "for the workers' folders in vain; `verify` on a host that looked for the result in vain",
        "the worker finds the plan at once, the packer what the workers wrote, `verify` the result",
    )


def changed_source(ground: Ground) -> Rows:
    """Change a file of the source on another host after the proof, right before the swap."""
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
        yield (
            f"a clip is {how}, on another host, between the proof and the swap of "
            "`pack --delete-source`",
            f"the swap is refused (exit {_CHANGED}), the source stays",
        )


# --- a host is lost, for good or for a while; its locks stay on the server for a while ---


def worker_power_loss(ground: Ground) -> Rows:
    """Lose a worker's host in mid-batch, at two lengths of the lease."""
    for lease_seconds in (4.0, 15.0):
        yield _lose_a_worker(ground, lease_seconds)


def clock_skew(ground: Ground) -> Rows:
    """Lose a host whose clock is ahead; its successor's is behind, and jumps meanwhile."""
    case, outcome = _lose_a_worker(ground, 4.0, clocks=(5, -7, 72))
    yield (
        "the holder's clock is 5 h ahead, the successor's 7 h behind and jumps 79 h forward; "
        + case,
        f"{outcome}; not earlier for the jump",
    )


def _lose_a_worker(
    ground: Ground, lease_seconds: float, clocks: tuple[int, int, int] | None = None
) -> tuple[str, str]:
    """Lose a worker's host in mid-batch; the other one finishes and packs.

    Args:
        ground: The lab and its datasets.
        lease_seconds: The lease time of both.
        clocks: The hours of the two hosts' clocks, and those to which the second one's jumps.

    Raises:
        LabError: Nobody takes over within two leases, or somebody too early.
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
    return (
        f"a host loses power in mid-batch; lease {lease_seconds:.0f} s",
        f"taken over after {seconds:.1f} s ({seconds / lease_seconds:.2f} leases), same digest",
    )


def packer_power_loss(ground: Ground) -> Rows:
    """Lose the packer's host while it assembles, and between the two renames of a swap."""
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
            f"the packer's host loses power {case}; `pack` on another host before and after",
            f"before: refused after {refused:.1f} s, as the packer lives; after: {waited} (lease of"
            f" the server {NFS_LEASE_SECONDS} s), same digest; `clean` leaves nothing of the run",
        )


def frozen_hosts(ground: Ground) -> Rows:
    """Freeze workers at two places and a packer at one; thaw them when others took over."""
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


def _in_mid_batch(ground: Ground) -> tuple[str, str]:
    conversion, zombie = _frozen(ground, "frozen-mid", _MID_BATCH)
    second = ground.lab.clients[1]
    conversion.work(second).finish()
    _thaw(zombie)
    summary = json.loads(zombie.finish().out)
    demand(summary["batches_lost"] == 1, f"The zombie did not learn of its loss: {summary}")
    conversion.pack_and_check(second)
    return (
        "freezes in mid-batch, comes back after everything is done",
        "notices that its batch went to another, drops it; 0 double publications, same digest",
    )


def _before_publishing(ground: Ground) -> tuple[str, str]:
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
        "freezes before it publishes, comes back after the dataset is packed",
        f"its publication counts for nothing (exit {done.code}), same digest",
    )


def _while_the_successor_works(ground: Ground) -> tuple[str, str]:
    conversion, zombie = _frozen(ground, "frozen-both", _BEFORE_PUBLISHING)
    second = ground.lab.clients[1]
    shards = 3 * (conversion.batches - 1)
    successor = conversion.work(second, halt=f"leconvert.run.worker:ShardWriter.write#{shards + 2}")
    successor.wait_for("halted")
    _thaw(zombie)
    zombie.wait_for("published")
    successor.go_on()
    zombie.finish()
    summary = json.loads(successor.finish().out)
    is_first = bool(zombie.told("published", outcome="won")) and summary["batches_lost"] == 1
    demand(is_first, "The first to publish was not the winner.")
    conversion.pack_and_check(second)
    return (
        "freezes before it publishes, comes back while its successor is in mid-batch",
        "it publishes first and wins, its successor drops its own attempt; same digest",
    )


def _frozen_packer(ground: Ground) -> tuple[str, str]:
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
        "the packer freezes before the first rename of the swap, comes back after another packed",
        f"the next one {waited}; the zombie moves nothing (exit {done.code}), same digest",
    )


# --- a slow network, a restart ---


def latency(ground: Ground) -> Rows:
    """Convert and claim with 25 ms to the server, and without for comparison."""
    figures = []
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
        done = hosts[0].run(
            sys.executable, INSIDE / "costs.py", f"{MOUNT}/costs-{milliseconds}", 40
        )
        demand(done.code == 0, f"costs.py failed: {done.err[-600:]}")
        claim = json.loads(done.out)
        figures.append(
            f"{milliseconds} ms: work {work_seconds:.1f} s, pack {pack_seconds:.1f} s, a claim "
            f"{claim['milliseconds']:.0f} ms in {claim['requests']:.1f} requests"
        )
        for guest in hosts:
            guest.set_latency(0)
    yield (
        f"25 ms between two hosts and the server; {conversion.batches} batches",
        "; ".join(figures) + "; same digest",
    )


def server_restart(ground: Ground) -> Rows:
    """Take the server's power away while workers write, and give it back.

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
            f"the server loses power under {len(workers)} workers, {before} of "
            f"{conversion.batches} batches done, and is back after {away:.1f} s; lease "
            f"{lease_seconds:.0f} s",
            f"no worker fails; all done {seconds:.1f} s after the loss; {taken} batches taken over;"
            " each published once, same digest",
        )


def whole_conversion(ground: Ground) -> Rows:
    """Plan, work on every host, pack with ``--verify bytes``, verify once more elsewhere."""
    hosts = ground.all_on()
    conversion = Conversion(ground, "whole", "large", 10)
    # On the share, as users have it: there a file system that shares extents can do so.
    conversion.copy_source(hosts[0], "source")
    began = time.monotonic()
    conversion.plan(hosts[0])
    workers = conversion.work_together(hosts)
    packer = conversion.pack(hosts[0], "--verify", "bytes")
    summaries = [json.loads(worker.finish().out) for worker in workers]
    report = json.loads(packer.finish().out)
    seconds = time.monotonic() - began
    conversion.check_published_once()
    demand(report["verified"] == "bytes", f"The packer verified {report['verified']}.")
    verify = ("verify", conversion.target, "--source", conversion.source, "--bytes")
    conversion.leconvert(hosts[-1], *verify)
    conversion.check_same(hosts[-1])
    shares = " : ".join(str(summary["batches_done"]) for summary in summaries)
    yield (
        f"38 MB, {conversion.batches} batches, {len(hosts)} hosts, {ground.lab.file_system}",
        f"{seconds:.1f} s from plan to swap; batches a host {shares}; "
        f"{report['cloned_bytes'] / 2**20:.0f} MiB shared, {report['copied_bytes'] / 2**20:.0f} MiB"
        " copied by workers; `verify --bytes` on another host passes; same digest as without NFS",
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
