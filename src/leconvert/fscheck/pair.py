"""The script that two hosts play: the leader says what to do, the peer does it and tells.

No two clocks are compared. A delay is measured by the peer alone: from the moment that it read the
leader's word that something was done until it sees it done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert.errors import IncompleteError, StorageError
from leconvert.fscheck.channel import Channel, checked, open_sessions, session_dir
from leconvert.fscheck.probes import BrokenPromiseError
from leconvert.fscheck.promises import Finding, Promise
from leconvert.fscheck.tasks import LATE_SECONDS, host_lock, perform, race, try_names
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.trees import remove_tree
from leconvert.workdir.trouble import storage_errors

__all__ = ["Peer", "follow", "lead"]

_PINGS = 10
_REPLACES = 5
_NAMES = 200
_MEET_SECONDS = 10.0
_SHORTEST_WORDS = 0.0005
_LATE_STAT_SECONDS = 1.0
# Publishing tells an OSError as a StorageError; NotImplementedError is what the lock library raises
# where the file system knows no flock.
_CANNOT_DO = (OSError, StorageError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side.

    Attributes:
        host: Its name.
        same_host: Whether it runs on this very host.
    """

    host: str
    same_host: bool


def lead(
    folder: Path,
    *,
    wait_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    fs: FileSystem = LOCAL,
) -> tuple[Peer, list[Finding], Channel] | None:
    """Find a peer and play the script with it.

    Args:
        folder: The folder in question, as this host sees it.
        wait_seconds: How long to wait for a peer to appear.
        clock: A monotonic clock in seconds.
        pause: Waits so many seconds.
        fs: File operations.

    Returns:
        The peer, what was found, and the channel, on which the caller sends the outcome; None
        where there is no peer.

    Raises:
        IncompleteError: The peer stopped answering.
        StorageError: The folder cannot be used.
    """
    me = WorkerIdentity.of_this_process()
    until = clock() + wait_seconds
    asked: set[Path] = set()
    while True:
        with storage_errors(folder):
            sessions = [place for place in open_sessions(folder, fs=fs) if place not in asked]
        for place in sessions:
            asked.add(place)
            channel = Channel(
                place, "leader", "peer", timeout_seconds=2 * LATE_SECONDS,
                clock=clock, pause=pause, fs=fs,
            )  # fmt: skip
            peer = _meet(channel, me)
            if peer is not None:
                return peer, _play(channel), channel
        if clock() >= until:
            return None
        pause(min(0.1, max(0.0, until - clock())))


def follow(
    folder: Path,
    *,
    wait_seconds: float = 600.0,
    on_ready: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    fs: FileSystem = LOCAL,
) -> Mapping[str, Any]:
    """Wait for a leader, do what it says, and return the outcome that it sends at the end.

    Args:
        folder: The folder in question, as this host sees it.
        wait_seconds: How long to wait for a leader.
        on_ready: Called once a leader can find this peer.
        clock: A monotonic clock in seconds.
        pause: Waits so many seconds.
        fs: File operations.

    Raises:
        IncompleteError: No leader came, or it stopped talking.
        StorageError: The folder cannot be used.
    """
    me = WorkerIdentity.of_this_process()
    place = session_dir(folder, me.token)
    with storage_errors(folder):
        fs.make_dir(place)
    try:
        channel = Channel(
            place, "peer", "leader", timeout_seconds=2 * LATE_SECONDS,
            clock=clock, pause=pause, fs=fs,
        )  # fmt: skip
        on_ready()
        met = channel.receive(timeout_seconds=wait_seconds)
        channel.send(leader=met.get("token"), host=me.host, boot=me.boot)
        while True:
            task = channel.receive()
            if task["do"] == "end":
                outcome: Mapping[str, Any] = task["outcome"]
                return outcome
            try:
                answer = perform(task, channel)
            except _CANNOT_DO as error:
                answer = {"error": f"the other host: {error}"}
            channel.send(**answer)
    finally:
        with suppress(OSError, StorageError):
            remove_tree(place)


def _meet(channel: Channel, me: WorkerIdentity) -> Peer | None:
    """Return the peer if it takes this leader; from then on its silence is an error."""
    # What a dead peer left does not answer, and a busy one has its leader already.
    with suppress(OSError, IncompleteError):
        channel.send(token=me.token)
        met = channel.receive(timeout_seconds=_MEET_SECONDS)
        if met.get("leader") == me.token:
            return Peer(str(met["host"]), _boot(met.get("boot")) == _boot(me.boot))
    return None


def _boot(identity: Any) -> str:
    return str(identity or "").partition("/")[0] or "?"


def _play(channel: Channel) -> list[Finding]:
    steps: tuple[tuple[Promise, Callable[[], str]], ...] = (
        (Promise.RACE, lambda: _race(channel, "link")),
        (Promise.CREATE_RACE, lambda: _race(channel, "create")),
        (Promise.LISTING, lambda: _listing(channel)),
        (Promise.NEWS, lambda: _news(channel)),
        (Promise.STAT, lambda: _stat(channel)),
        (Promise.HOST_LOCK, lambda: host_lock(channel)),
    )
    findings = []
    for promise, step in steps:
        try:
            findings.append(Finding(promise, True, step()))
        except BrokenPromiseError as broken:
            findings.append(Finding(promise, False, str(broken)))
        except _CANNOT_DO as error:
            findings.append(Finding(promise, False, str(error)))
    return findings


def _listing(channel: Channel) -> str:
    trips = []
    for _ in range(_PINGS):
        began = channel.clock()
        channel.ask(do="ping")
        trips.append(channel.clock() - began)
    folder = channel.place / "listing"
    channel.fs.make_dir(folder)
    channel.ask(do="see-folder", name=folder.name)
    channel.ask(do="look", name="listing/new")  # in vain: a client may remember that
    channel.fs.write_new(folder / "new", b"content", sync=False)
    seen = channel.ask(do="await-listed", name="listing/new", content="content")
    late = _seconds(seen, "was not listed, or could not be opened,")
    trip = sorted(trips)[len(trips) // 2]
    return f"round trip {_words(trip)}; after a vain look {_words(late)}"


def _news(channel: Channel) -> str:
    path = channel.place / "beat"
    channel.fs.write_new(path, b"beat 0", sync=False)
    channel.ask(do="await-content", name="beat", content="beat 0", before="beat 0")
    slowest = 0.0
    odd: set[str] = set()
    for number in range(1, _REPLACES + 1):
        channel.fs.write_new(channel.place / ".beat", f"beat {number}".encode(), sync=False)
        channel.fs.replace(channel.place / ".beat", path)
        seen = channel.ask(
            do="await-content", name="beat", content=f"beat {number}", before=f"beat {number - 1}"
        )
        slowest = max(slowest, _seconds(seen, "was not read"))
        odd.update(seen["odd"])
    note = f"at most {_words(slowest)} late"
    # A name that is missing for a moment, or a stale handle, is read again; torn content is not.
    if torn := sorted(what for what in odd if what.startswith("content")):
        raise BrokenPromiseError(f"another host read {torn[0]}")
    return f"{note}; meanwhile {', '.join(sorted(odd))}" if odd else note


def _stat(channel: Channel) -> str:
    # Two folders deep: messages make the peer list the session's folder again and again, and over
    # NFS a list also brings news of the folders in it.
    folder = channel.place / "stat" / "deep"
    for made in (folder.parent, folder):
        channel.fs.make_dir(made)
    for name in ("stat", "stat/deep"):
        channel.ask(do="see-folder", name=name)
    channel.ask(do="look", name="stat/deep/new")
    channel.fs.write_new(folder / "new", b"", sync=False)
    late = _seconds(channel.ask(do="await-stat", name="stat/deep/new"), "was not seen by stat")
    if late > _LATE_STAT_SECONDS:
        raise BrokenPromiseError(f"{_words(late)} late")
    return f"at most {_words(late)} late"


def _race(channel: Channel, kind: str) -> str:
    folder = channel.place / f"race-{kind}"
    channel.fs.make_dir(folder)
    channel.ask(do="see-folder", name=folder.name)
    names = try_names(_NAMES)
    channel.send(do="race", kind=kind, names=names)
    try:
        mine = race(channel, "leader", kind, names)
    finally:
        # Also where this host could not race: the next question must not get this answer.
        answer = channel.receive()
    theirs = set(checked(answer)["won"])
    if both := mine & theirs:
        raise BrokenPromiseError(f"both hosts won {len(both)} of {len(names)} names")
    if none := set(names) - mine - theirs:
        raise BrokenPromiseError(f"nobody won {len(none)} of {len(names)} names")
    for name in sorted(mine):
        if channel.fs.read_bytes(folder / name) != b"leader":
            raise BrokenPromiseError("a name that this host won holds the other's content")
    return f"of {len(names)} names {len(mine)} here, {len(theirs)} there"


def _seconds(seen: Mapping[str, Any], what: str) -> float:
    seconds = seen.get("seconds")
    if seconds is None:
        raise BrokenPromiseError(
            f"what one host did {what} on the other within {LATE_SECONDS:.0f} s"
        )
    return float(seconds)


def _words(seconds: float) -> str:
    if seconds < _SHORTEST_WORDS:
        return "under 1 ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
