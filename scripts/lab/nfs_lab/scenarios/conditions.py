"""The site: what its file system promises, clocks that disagree, a slow network, a restart."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lab_kit import Row, demand

from nfs_lab.guest import INSIDE, Guest
from nfs_lab.lab import MOUNT
from nfs_lab.scenarios.ground import Ground
from nfs_lab.scenarios.losses import MID_BATCH, take_over

_HOUR = 3600
_LATENCY_MS = 25
_CLAIMS = 40
_RESTART_AFTER = 20
_MEET_SECONDS = "120"
_NEEDED = ("link", "race", "create_race", "listing", "news", "host_lock")
"""The promises that hold between the hosts of an NFS server."""


def set_clock(guest: Guest, hours: float) -> None:
    """Set a host's clock so many hours before (negative) or after this machine's."""
    guest.shell(f"date -s @{time.time() + hours * _HOUR:.3f}")


def set_latency(guest: Guest, milliseconds: float) -> None:
    """Delay every packet that a host sends; 0 takes the delay away."""
    guest.shell("tc qdisc del dev eth0 root 2>/dev/null || true")
    if milliseconds:
        guest.shell(f"tc qdisc add dev eth0 root netem delay {milliseconds}ms")


def clock_skew(ground: Ground) -> Iterator[Row]:
    """Lose a host whose clock is ahead; its successor's is behind, and jumps meanwhile."""
    first, second, *_ = ground.all_on()
    set_clock(first, 5)
    set_clock(second, -7)
    conversion = ground.conversion("clocks", ground.small())
    conversion.plan(first)
    holder = conversion.work(first, halt=MID_BATCH)
    holder.wait_for("halted")
    successor = conversion.work(second)
    successor.wait_for("published", conversion.batches - 1, outcome="won")
    set_clock(second, 72)
    seconds = take_over(conversion, holder, successor)
    successor.finish()
    ground.pack_and_check(conversion, second)
    set_clock(second, 0)
    conversion.remove()
    yield Row(
        "clock skew",
        "the holder's clock is 5 h ahead, the successor's 7 h behind and jumps 79 h forward; the "
        f"holder loses power; lease {conversion.lease_seconds:.0f} s",
        f"taken over after {seconds:.1f} s, not earlier for the jump; same digest",
    )


def latency(ground: Ground) -> Iterator[Row]:
    """Convert and claim with 25 ms to the server, and without for comparison."""
    figures = []
    for milliseconds in (0, _LATENCY_MS):
        hosts = ground.all_on()[:2]
        for guest in hosts:
            set_latency(guest, milliseconds)
        conversion = ground.conversion(f"latency-{milliseconds}", ground.small(), 10)
        conversion.plan(hosts[0])
        began = time.monotonic()
        for worker in [conversion.work(guest) for guest in hosts]:
            worker.finish()
        work_seconds = time.monotonic() - began
        conversion.check_published_once()
        began = time.monotonic()
        conversion.pack(hosts[1]).finish()
        pack_seconds = time.monotonic() - began
        ground.check_same(conversion, hosts[0])
        command = ground.lab.python(INSIDE / "costs.py", f"{MOUNT}/costs-{milliseconds}", _CLAIMS)
        done = hosts[0].run(command, environment=ground.lab.environment())
        demand(done.code == 0, f"costs.py failed: {done.err[-600:]}")
        costs = json.loads(done.out)
        figures.append(
            f"{milliseconds} ms: work {work_seconds:.1f} s, pack {pack_seconds:.1f} s, a claim "
            f"{costs['claim']['milliseconds']:.0f} ms in {costs['claim']['requests']:.1f} requests,"
            f" a heartbeat {costs['heartbeat']['milliseconds']:.0f} ms, a publication "
            f"{costs['publication']['milliseconds']:.0f} ms"
        )
        for guest in hosts:
            set_latency(guest, 0)
        conversion.remove()
    yield Row(
        "latency",
        f"{_LATENCY_MS} ms between two hosts and the server; {conversion.batches} batches",
        "; ".join(figures) + "; same digest",
    )


def server_restart(ground: Ground) -> Iterator[Row]:
    """Take the server's power away while workers write, and give it back.

    With the longer lease it is back before anything can expire, with the shorter one it is not.
    """
    for lease_seconds in (30.0, 3.0):
        hosts = ground.all_on()
        conversion = ground.conversion(f"server-{lease_seconds:.0f}", ground.many(), lease_seconds)
        conversion.plan(hosts[0])
        workers = conversion.work_together(hosts)
        conversion.wait_for_published(_RESTART_AFTER)
        dark = time.monotonic()
        ground.lab.server.power_off()
        before = conversion.won().total()
        demand(before < conversion.batches, "All was done before the server lost its power.")
        ground.lab.boot_server()
        away = time.monotonic() - dark
        for worker in workers:
            worker.finish()
        seconds = time.monotonic() - dark
        taken = sum(entry["generation"] > 1 for w in workers for entry in w.told("claimed"))
        ground.pack_and_check(conversion, hosts[0])
        conversion.remove()
        yield Row(
            "server restart",
            f"the server loses power under {len(workers)} workers, {before} of "
            f"{conversion.batches} batches done, and is back after {away:.1f} s; lease "
            f"{lease_seconds:.0f} s",
            f"no worker fails; all done {seconds:.1f} s after the loss; {taken} batches taken over;"
            " each published once, same digest",
        )


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


def whole_conversion(ground: Ground) -> Iterator[Row]:
    """Plan, work on every host, pack with ``--verify bytes``, verify once more elsewhere."""
    hosts = ground.all_on()
    original = ground.large()
    conversion = ground.conversion("whole", original, 10)
    # On the share, as users have it: there a file system that shares extents can do so.
    source = conversion.source = f"{conversion.folder}/source"
    hosts[0].shell(f"mkdir -p {conversion.folder} && cp -r {original} {source}")
    began = time.monotonic()
    conversion.plan(hosts[0])
    workers = conversion.work_together(hosts)
    packer = conversion.pack(hosts[0], "--verify", "bytes")
    summaries = [json.loads(worker.finish().out) for worker in workers]
    report = json.loads(packer.finish().out)
    seconds = time.monotonic() - began
    conversion.check_published_once()
    demand(report["verified"] == "bytes", f"The packer verified {report['verified']}.")
    conversion.leconvert(hosts[-1], "verify", conversion.target(), "--source", source, "--bytes")
    ground.check_same(conversion, hosts[-1], source=original)
    shares = " : ".join(str(summary["batches_done"]) for summary in summaries)
    cloned = report["cloned_bytes"] / 2**20
    yield Row(
        "whole conversion",
        f"{Path(original).name}, {conversion.batches} batches, {len(hosts)} hosts, "
        f"{ground.lab.options.file_system}",
        f"{seconds:.1f} s from plan to swap; batches a host {shares}; {cloned:.0f} MiB shared, "
        f"{report['copied_bytes'] / 2**20:.0f} MiB copied by workers; `verify --bytes` on another "
        "host passes; same digest as without NFS",
    )
    conversion.remove()
