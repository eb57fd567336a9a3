"""What a file system promises: tried by one host, and by two that share a folder.

What one host can see by itself is tried by the real operations in a folder of its own. What only a
second host can see (links, locks, names, delays) is tried by two that follow one script: the leader
says what to do, the peer does it and tells. What leconvert does where a promise does not hold is
decided here too, from plain values.

**How two hosts talk** that share nothing but the folder in question: a message is a file,
``<role>-<number>.json``, made under another name and renamed. The receiver lists the folder, which
no file system answers wrongly for long, and then opens the file; it never looks a name up before it
was listed. Nothing here needs what is being probed: no link, no lock.

**No two clocks are compared.** A delay is measured by the peer alone: from the moment that it read
the leader's word that something was done until it sees it done.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from leconvert.support.errors import IncompleteError, StorageError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    FileSystem,
    Mount,
    can_clone,
    publish_exclusively,
    remove_tree,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import lock_excludes, new_lock

__all__ = [
    "CheckReport",
    "Finding",
    "Fitness",
    "Need",
    "Promise",
    "fitness_of",
    "follow",
    "lead",
    "probe_folder",
]


class Need(StrEnum):
    """What is lost where a promise does not hold."""

    ALWAYS = "always"
    """Nothing works without it."""
    SEVERAL_HOSTS = "several hosts"
    """One host may work; more would do damage or wait for ever."""
    COMFORT = "comfort"
    """Everything works; something is slower or less smooth."""


class Promise(StrEnum):
    """One thing that a file system may promise. The value is what a user reads."""

    WRITE = "files can be made, and read back"
    CREATE = "O_EXCL makes a file once"
    LINK = "link(2) gives a name once"
    FOLDER = "mkdir makes a folder once"
    REPLACE = "rename replaces a file in one step"
    MOVE = "a folder can be renamed"
    LOCK = "flock excludes another process"
    SYNC_FILE = "fsync of files"
    SYNC_FOLDER = "fsync of folders"
    NO_REPLACE = "renameat2(RENAME_NOREPLACE)"
    EXCHANGE = "renameat2(RENAME_EXCHANGE)"
    REFLINK = "files can share extents"
    RACE = "of two hosts one wins a link(2)"
    CREATE_RACE = "of two hosts one wins an O_EXCL"
    LISTING = "another host lists and opens a new name"
    NEWS = "another host reads a replaced file anew"
    STAT = "stat sees a new name after a vain look"
    HOST_LOCK = "flock excludes another host"

    @property
    def need(self) -> Need:
        """What hangs on it."""
        return _NEEDS.get(self, Need.COMFORT)

    @property
    def otherwise(self) -> str:
        """What leconvert does where it does not hold."""
        return _OTHERWISE[self]


_NEEDS = {
    Promise.WRITE: Need.ALWAYS,
    Promise.CREATE: Need.ALWAYS,
    Promise.LINK: Need.SEVERAL_HOSTS,
    Promise.FOLDER: Need.ALWAYS,
    Promise.REPLACE: Need.ALWAYS,
    Promise.MOVE: Need.ALWAYS,
    Promise.SYNC_FILE: Need.ALWAYS,
    Promise.RACE: Need.SEVERAL_HOSTS,
    Promise.CREATE_RACE: Need.SEVERAL_HOSTS,
    Promise.LISTING: Need.SEVERAL_HOSTS,
    Promise.NEWS: Need.SEVERAL_HOSTS,
}
_CANNOT = "cannot work here: put the work dir elsewhere"
# Of these one is enough for one host: see `leconvert.workdir.exclusion`.
_EXCLUSIVE = frozenset({Promise.LINK, Promise.LOCK})
_ALONE = "one host only: start no worker on a second one"
_OTHERWISE = {
    Promise.WRITE: _CANNOT,
    Promise.CREATE: _CANNOT,
    Promise.LINK: "one host only, whose processes take turns under a lock",
    Promise.FOLDER: _CANNOT,
    Promise.REPLACE: _CANNOT,
    Promise.MOVE: "cannot put a result in place here",
    Promise.LOCK: "locks on this host alone; a second packer is fenced",
    Promise.SYNC_FILE: "refuses: what it wrote might not survive a power loss",
    Promise.SYNC_FOLDER: "goes on; names are as safe as the server makes them",
    Promise.NO_REPLACE: "looks first, then renames",
    Promise.EXCHANGE: "swaps by two renames and a journal",
    Promise.REFLINK: "copies the bytes",
    Promise.RACE: _ALONE,
    Promise.CREATE_RACE: _ALONE,
    Promise.LISTING: _ALONE,
    Promise.NEWS: _ALONE,
    Promise.STAT: "lists a folder before it believes a name absent",
    Promise.HOST_LOCK: "locks on one host; a second packer is fenced",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found.

    Attributes:
        promise: What was probed.
        holds: Whether it holds.
        note: What was seen, such as an error's name or a delay.
    """

    promise: Promise
    holds: bool
    note: str = ""

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping, with what follows from it."""
        return {
            "promise": self.promise.name.lower(),
            "says": self.promise.value,
            "need": self.promise.need.value,
            "holds": self.holds,
            "note": self.note,
            "instead": None if self.holds else self.promise.otherwise,
        }


class Fitness(StrEnum):
    """What a file system is good for."""

    SEVERAL_HOSTS = "several hosts may work here"
    ONE_HOST = "one host may work here"
    NONE = "leconvert cannot work here"


def fitness_of(findings: Iterable[Finding]) -> Fitness:
    """Return what may be done, given what holds; what was not probed does not count."""
    missing = {finding.promise for finding in findings if not finding.holds}
    broken = {promise.need for promise in missing}
    if Need.ALWAYS in broken or missing >= _EXCLUSIVE:
        return Fitness.NONE
    return Fitness.ONE_HOST if Need.SEVERAL_HOSTS in broken else Fitness.SEVERAL_HOSTS


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The whole check."""

    folder: str  # what was probed
    mount: Mount  # where it is mounted, and how
    findings: tuple[Finding, ...]  # every promise that was probed
    peer: str | None = None  # the other host, or None where there was none
    # Whether the peer ran on this very host, so that no delay between hosts was seen.
    same_host: bool = False

    @property
    def fitness(self) -> Fitness:
        """What the file system is good for."""
        return fitness_of(self.findings)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "folder": self.folder,
            "mount": asdict(self.mount),
            "fitness": self.fitness.name.lower(),
            "peer": self.peer,
            "same_host": self.same_host,
            "tested_between_hosts": self.peer is not None and not self.same_host,
            "findings": [finding.as_record() for finding in self.findings],
        }


_PREFIX = ".leconvert-check-"


class BrokenPromiseError(Exception):
    """An operation went well and did the wrong thing; the message says what was seen."""


def probe_folder(folder: Path, *, fs: FileSystem = LOCAL) -> list[Finding]:
    """Probe a folder; what is made there is removed again."""
    with storage_errors(folder):
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        return [finding_of(promise, probe, place, fs) for promise, probe in _PROBES.items()]
    finally:
        with suppress(OSError, StorageError):
            remove_tree(place)


def finding_of(
    promise: Promise, probe: Callable[[Path, FileSystem], str], place: Path, fs: FileSystem
) -> Finding:
    """Run one probe, and turn what went wrong into a finding."""
    try:
        return Finding(promise, True, probe(place, fs))
    except BrokenPromiseError as broken:
        return Finding(promise, False, str(broken))
    except OSError as error:
        return Finding(promise, False, errno.errorcode.get(error.errno or 0, str(error)))
    except NotImplementedError as error:  # what filelock says where there is no flock
        return Finding(promise, False, str(error))


def _write(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "plain", b"content", sync=False)
    if (seen := fs.read_bytes(place / "plain")) != b"content":
        raise BrokenPromiseError(f"wrote 7 bytes, read {len(seen)} others")
    return ""


def _must_exist(call: Callable[[], None], what: str) -> None:
    try:
        call()
    except FileExistsError:
        return
    raise BrokenPromiseError(f"{what} succeeded twice")


def _create(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "once", b"1", sync=False)
    _must_exist(lambda: fs.write_new(place / "once", b"2", sync=False), "making one file")
    return ""


def _link(place: Path, fs: FileSystem) -> str:
    for name in ("first", "second"):
        fs.write_new(place / name, name.encode(), sync=False)
    # Across folders, as records are published: some file systems link within one alone.
    fs.make_dir(place / "names")
    target = place / "names" / "won"
    fs.link(place / "first", target)
    _must_exist(lambda: fs.link(place / "second", target), "linking one name")
    if fs.read_bytes(target) != b"first":
        raise BrokenPromiseError("the name holds the loser's content")
    if fs.identity(target) != fs.identity(place / "first"):
        raise BrokenPromiseError("two names of one file have different inodes")
    fs.remove_file(place / "first")
    if fs.read_bytes(target) != b"first":
        raise BrokenPromiseError("removing one name took the other's content along")
    return ""


def _folder(place: Path, fs: FileSystem) -> str:
    fs.make_dir(place / "folder")
    _must_exist(lambda: fs.make_dir(place / "folder"), "making one folder")
    return ""


def _replace(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "target", b"old", sync=False)
    fs.write_new(place / "source", b"new", sync=False)
    fs.replace(place / "source", place / "target")
    if fs.read_bytes(place / "target") != b"new" or "source" in fs.list_names(place):
        raise BrokenPromiseError("the old content or the old name is still there")
    return ""


def _tree(place: Path, name: str, fs: FileSystem) -> Path:
    tree = place / name
    fs.make_dir(tree)
    fs.write_new(tree / name, name.encode(), sync=False)
    return tree


def _move(place: Path, fs: FileSystem) -> str:
    tree, target = _tree(place, "moving", fs), place / "moved"
    fs.replace(tree, target)
    if fs.list_names(target) != ["moving"] or "moving" in fs.list_names(place):
        raise BrokenPromiseError("the folder did not move as a whole")
    return ""


def _no_replace(place: Path, fs: FileSystem) -> str:
    one, other = _tree(place, "one", fs), _tree(place, "other", fs)
    _must_exist(lambda: fs.rename_no_replace(one, other), "renaming onto a folder")
    fs.rename_no_replace(one, place / "free")
    return ""


def _exchange(place: Path, fs: FileSystem) -> str:
    left, right = _tree(place, "left", fs), _tree(place, "right", fs)
    fs.exchange(left, right)
    if (fs.list_names(left), fs.list_names(right)) != (["right"], ["left"]):
        raise BrokenPromiseError("the two folders did not change places")
    return ""


def _lock(place: Path, _fs: FileSystem) -> str:
    if not lock_excludes(place / "lock"):
        raise BrokenPromiseError("two descriptors held it at once")
    return ""


def _sync_file(place: Path, fs: FileSystem) -> str:
    fs.write_new(place / "synced", b"content", sync=True)
    fs.sync_file(place / "synced")
    return ""


def _sync_folder(place: Path, _fs: FileSystem) -> str:
    # Not through `fs`, which bears file systems that have no such call.
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _reflink(place: Path, _fs: FileSystem) -> str:
    if not can_clone(place, place):
        raise BrokenPromiseError("FICLONE is refused")
    return ""


_PROBES: dict[Promise, Callable[[Path, FileSystem], str]] = {
    Promise.WRITE: _write,
    Promise.CREATE: _create,
    Promise.LINK: _link,
    Promise.FOLDER: _folder,
    Promise.REPLACE: _replace,
    Promise.MOVE: _move,
    Promise.LOCK: _lock,
    Promise.SYNC_FILE: _sync_file,
    Promise.SYNC_FOLDER: _sync_folder,
    Promise.NO_REPLACE: _no_replace,
    Promise.EXCHANGE: _exchange,
    Promise.REFLINK: _reflink,
}


_POLL_SECONDS = 0.002
_SESSION = re.compile(r"\.leconvert-check-peer-[A-Za-z0-9_-]+\Z")


def session_dir(folder: Path, token: str) -> Path:
    """Return the folder in which a peer and a leader meet."""
    return folder / f".leconvert-check-peer-{token}"


def open_sessions(folder: Path, *, fs: FileSystem = LOCAL) -> list[Path]:
    """Return the folders of peers that wait, or waited once, below ``folder``."""
    return [folder / name for name in fs.list_names(folder) if _SESSION.match(name)]


def checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer."""
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


class Channel:
    """Messages between ``leader`` and ``peer``, in order."""

    def __init__(
        self,
        place: Path,
        mine: str,
        other: str,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        fs: FileSystem = LOCAL,
    ) -> None:
        self.place = place
        self.clock = clock
        self.pause = pause
        self.fs = fs
        self._mine = mine
        self._other = other
        self._timeout_seconds = timeout_seconds
        self._sent = 0
        self._received = 0

    def send(self, **fields: Any) -> None:
        """Send a message."""
        self._sent += 1
        path = self.place / f"{self._mine}-{self._sent:04d}.json"
        temporary = path.with_name(f".{path.name}")
        self.fs.write_new(temporary, json.dumps(fields).encode(), sync=False)
        self.fs.replace(temporary, path)

    def receive(self, *, timeout_seconds: float | None = None) -> Mapping[str, Any]:
        """Wait for the other's next message."""
        path = self.place / f"{self._other}-{self._received + 1:04d}.json"
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        until = self.clock() + limit
        while True:
            message = self._read(path)
            if message is not None:
                self._received += 1
                return message
            if self.clock() >= until:
                raise IncompleteError(
                    f"The {self._other} in {self.place.parent} did not answer for {limit:.0f} s.",
                    path=str(self.place),
                    next_step="Check that it still runs; then run both commands again.",
                )
            self.pause(_POLL_SECONDS)

    def ask(self, **fields: Any) -> Mapping[str, Any]:
        """Send a message and return the answer."""
        self.send(**fields)
        return checked(self.receive())

    def _read(self, path: Path) -> Mapping[str, Any] | None:
        try:
            if path.name not in self.fs.list_names(path.parent):
                return None
            found = json.loads(self.fs.read_bytes(path))
        except (OSError, ValueError):
            return None  # not quite there yet: the next look will tell
        return found if isinstance(found, dict) else None


LATE_SECONDS = 45.0
"""Longer than any cache of NFS at its default options (30 s) keeps an old answer."""

_TASK_POLL_SECONDS = 0.001


def perform(task: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Do what the leader asks, and return what to answer."""
    path = channel.place / str(task.get("name", ""))
    match task["do"]:
        case "ping":
            return {}
        case "look":
            return {"seen": path.exists()}
        case "see-folder":
            # Known and listed, so that what is looked up in it next is missing for the server.
            seen = _until(channel, lambda: path.name in _names(channel, path.parent))
            return {"seconds": seen, "names": _names(channel, path)}
        case "await-stat":
            return {"seconds": _until(channel, path.exists)}
        case "await-listed":
            wanted = str(task["content"]).encode()

            def listed() -> bool:
                return path.name in _names(channel, path.parent) and _read(channel, path) == wanted

            return {"seconds": _until(channel, listed)}
        case "await-content":
            wanted, before = (str(task[name]).encode() for name in ("content", "before"))
            return _await_content(channel, path, wanted, before)
        case "race":
            # Half side by side, half from the other end: there the two meet whoever began first.
            names = list(task["names"])
            half = len(names) // 2
            names[half:] = reversed(names[half:])
            return {"won": sorted(race(channel, "peer", str(task["kind"]), names))}
        case "lock":
            return {"got": _take_lock(channel.place / "lock")}
        case unknown:
            return {"error": f"the other host knows no task {unknown!r}: use one version on both"}


def try_names(count: int) -> list[str]:
    """Return the names of a race."""
    return [f"{number:04d}" for number in range(count)]


def race(channel: Channel, role: str, kind: str, names: Sequence[str]) -> set[str]:
    """Try to win every name once the other side is ready, and return those that this side won.

    By a link it is asked as leasing asks: an answer that was lost is settled by what is there.
    """
    folder = channel.place / f"race-{kind}"
    source, other = (
        channel.place / f"{who}-racer-{kind}"
        for who in (role, "peer" if role == "leader" else "leader")
    )
    channel.fs.write_new(source, role.encode(), sync=False)
    # Without a pause between two looks: what matters is to begin at the same time.
    until = channel.clock() + LATE_SECONDS
    while other.name not in _names(channel, channel.place) and channel.clock() < until:
        pass
    won = set()
    for name in names:
        try:
            if kind == "link":
                publish_exclusively(source, folder / name, sync=False, fs=channel.fs)
            else:
                channel.fs.write_new(folder / name, role.encode(), sync=False)
        except (AlreadyPublishedError, FileExistsError):
            continue
        won.add(name)
    return won


def host_lock(channel: Channel) -> str:
    """Hold a lock while the peer tries, then let go; for the leader."""
    with new_lock(channel.place / "lock"):
        if channel.ask(do="lock")["got"]:
            raise BrokenPromiseError("both hosts held it at once")
    if not channel.ask(do="lock")["got"]:
        raise BrokenPromiseError("it could not be taken after it was released")
    return ""


def _take_lock(path: Path) -> bool:
    from filelock import Timeout

    with suppress(Timeout), new_lock(path):
        return True
    return False


def _until(channel: Channel, holds: Callable[[], bool]) -> float | None:
    began = channel.clock()
    while not holds():
        if channel.clock() - began >= LATE_SECONDS:
            return None
        channel.pause(_TASK_POLL_SECONDS)
    return channel.clock() - began


def _await_content(channel: Channel, path: Path, wanted: bytes, before: bytes) -> dict[str, Any]:
    odd: set[str] = set()

    def holds() -> bool:
        try:
            seen = channel.fs.read_bytes(path)
        except OSError as error:
            odd.add(errno.errorcode.get(error.errno or 0, "an error"))
            return False
        if seen not in {wanted, before}:
            odd.add(f"content {seen[:20]!r}")
        return seen == wanted

    return {"seconds": _until(channel, holds), "odd": sorted(odd)}


def _names(channel: Channel, folder: Path) -> list[str]:
    try:
        return channel.fs.list_names(folder)
    except OSError:
        return []


def _read(channel: Channel, path: Path) -> bytes | None:
    try:
        return channel.fs.read_bytes(path)
    except OSError:
        return None


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
    """The other side."""

    host: str  # its name
    same_host: bool  # whether it runs on this very host


def lead(
    folder: Path,
    *,
    wait_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    fs: FileSystem = LOCAL,
) -> tuple[Peer, list[Finding], Channel] | None:
    """Find a peer and play the script with it.

    Returns:
        The peer, what was found, and the channel, on which the caller sends the outcome; None
        where there is no peer.
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
    """Wait for a leader, do what it says, and return the outcome that it sends at the end."""
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
