"""Tests of a file system's promises: by one host, and by two hosts that share a folder.

One host tests by itself, with the real operations in a folder of its own. For the promises between
hosts (links, locks, names, delays), two hosts follow one script: the leader gives tasks, the peer
performs and answers them. This module also decides, from plain values, how leconvert behaves if a
promise does not hold.

**Communication** between two hosts that share only the folder in question: a message is a file,
``<role>-<number>.json``, made under another name and renamed. The receiver lists the folder, for
which no file system gives a wrong answer for long, and then opens the file; it never looks up a
name before it was listed. Messages need none of the tested operations: no link, no lock.

**No two clocks are compared.** The peer alone measures a delay: from the moment when it reads the
leader's message that something was done until it sees the effect.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from leconvert.support.errors import IncompleteError, StorageError
from leconvert.support.file_calls import Mount, mount_of
from leconvert.support.machine import boot_id
from leconvert.support.storage_errors import storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    FileSystem,
    can_clone,
    publish_exclusively,
    remove_tree,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import BrokenPromiseError, linked_probe, lock_excludes, new_lock


class Need(StrEnum):
    """The loss if a promise does not hold."""

    ALWAYS = "always"
    """leconvert cannot work without it."""
    SEVERAL_HOSTS = "several hosts"
    """One host may work; several would do damage or wait for ever."""
    COMFORT = "comfort"
    """leconvert works, but slower or less smoothly."""


_CANNOT = "leconvert cannot work here: put the work dir on another file system"
_ALONE = "only one host may work: start no worker on a second host"


class Promise(Enum):
    """One promise of a file system.

    A member holds the text for the user, the loss if the promise does not hold, and how leconvert
    behaves then.
    """

    WRITE = "files can be written and read back", Need.ALWAYS, _CANNOT
    CREATE = "O_EXCL makes a file only once", Need.ALWAYS, _CANNOT
    LINK = (
        "link(2) gives a name only once",
        Need.SEVERAL_HOSTS,
        "only one host may work; its processes take turns with a lock",
    )
    FOLDER = "mkdir makes a folder only once", Need.ALWAYS, _CANNOT
    REPLACE = "rename replaces a file in one step", Need.ALWAYS, _CANNOT
    MOVE = "a folder can be renamed", Need.ALWAYS, "results cannot be put in place here"
    LOCK = (
        "flock excludes another process",
        Need.COMFORT,
        "locks work only on this host; a second packer is refused",
    )
    SYNC_FILE = (
        "fsync of files",
        Need.ALWAYS,
        "leconvert refuses to work: written data might not survive a power loss",
    )
    SYNC_FOLDER = (
        "fsync of folders",
        Need.COMFORT,
        "leconvert works all the same; the server decides how safe new names are",
    )
    NO_REPLACE = (
        "a rename that replaces nothing",
        Need.COMFORT,
        ("leconvert looks first, then renames"),
    )
    EXCHANGE = (
        "two names change places in one step",
        Need.COMFORT,
        "leconvert swaps with two renames and a journal",
    )
    REFLINK = "files can share extents", Need.COMFORT, "leconvert copies the bytes"
    RACE = "only one of two hosts wins a link(2)", Need.SEVERAL_HOSTS, _ALONE
    CREATE_RACE = "only one of two hosts wins an O_EXCL", Need.SEVERAL_HOSTS, _ALONE
    LISTING = "another host sees and opens a new name", Need.SEVERAL_HOSTS, _ALONE
    NEWS = "another host reads the new content of a replaced file", Need.SEVERAL_HOSTS, _ALONE
    STAT = (
        "stat finds a new name after it was looked up too early",
        Need.COMFORT,
        "leconvert lists the folder before it takes a name for missing",
    )
    HOST_LOCK = (
        "flock excludes another host",
        Need.COMFORT,
        "locks work only on one host; a second packer is refused",
    )

    def __init__(self, says: str, need: Need, otherwise: str) -> None:
        self.says = says
        self.need = need
        self.otherwise = otherwise


# One of these is enough for one host: see `leconvert.workdir.locks`.
_EXCLUSIVE = frozenset({Promise.LINK, Promise.LOCK})


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a test.

    Attributes:
        promise: The promise that was tested.
        holds: Whether it holds.
        note: The observation, such as an error's name or a delay.
    """

    promise: Promise
    holds: bool
    note: str = ""

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping, with the consequence."""
        return {
            "promise": self.promise.name.lower(),
            "says": self.promise.says,
            "need": self.promise.need.value,
            "holds": self.holds,
            "note": self.note,
            "instead": None if self.holds else self.promise.otherwise,
        }


class Fitness(StrEnum):
    """The uses that a file system is fit for."""

    SEVERAL_HOSTS = "several hosts may work here"
    ONE_HOST = "one host may work here"
    NONE = "leconvert cannot work here"


def fitness_of(findings: Iterable[Finding]) -> Fitness:
    """Return the fitness that results from findings; promises that were not tested do not count."""
    missing = {finding.promise for finding in findings if not finding.holds}
    broken = {promise.need for promise in missing}
    if Need.ALWAYS in broken or missing >= _EXCLUSIVE:
        return Fitness.NONE
    return Fitness.ONE_HOST if Need.SEVERAL_HOSTS in broken else Fitness.SEVERAL_HOSTS


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The whole check."""

    folder: str  # the tested folder
    mount: Mount  # its mount
    findings: tuple[Finding, ...]  # every promise that was tested
    peer: str | None = None  # the other host, or None if there was none
    # Whether the peer ran on this very host, so that no delay between hosts was observed.
    same_host: bool = False

    @property
    def fitness(self) -> Fitness:
        """The uses that the file system is fit for."""
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


def check_folder(folder: Path, *, wait_seconds: float | None = None) -> CheckReport:
    """Test a folder, and if another host waits there, the promises between two hosts.

    Args:
        folder: The folder.
        wait_seconds: How long to wait for the other host; None to look for none.
    """
    report = CheckReport(str(folder), mount_of(folder), tuple(probe_folder(folder)))
    return report if wait_seconds is None else lead(report, wait_seconds=wait_seconds)


def probe_folder(folder: Path, *, fs: FileSystem = LOCAL) -> list[Finding]:
    """Test a folder; files that are made there are removed again."""
    with storage_errors(folder):
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        return [_finding(promise, partial(probe, place, fs)) for promise, probe in _PROBES.items()]
    finally:
        with suppress(OSError, StorageError):
            remove_tree(place)


# Publishing turns an OSError into a StorageError; the lock library raises NotImplementedError if
# the file system has no flock.
_CANNOT_DO = (OSError, StorageError, NotImplementedError)


def _finding(promise: Promise, probe: Callable[[], str | None]) -> Finding:
    """Run one test, and turn its error into a finding."""
    try:
        return Finding(promise, True, probe() or "")
    except BrokenPromiseError as broken:
        return Finding(promise, False, str(broken))
    except _CANNOT_DO as error:
        number = getattr(error, "errno", None) or 0
        return Finding(promise, False, errno.errorcode.get(number, str(error)))


def _write(place: Path, fs: FileSystem) -> None:
    fs.write_new(place / "plain", b"content", sync=False)
    if (seen := fs.read_bytes(place / "plain")) != b"content":
        raise BrokenPromiseError(f"7 bytes were written, but {len(seen)} different bytes were read")


def _must_exist(call: Callable[[], None], what: str) -> None:
    try:
        call()
    except FileExistsError:
        return
    raise BrokenPromiseError(f"{what} succeeded twice")


def _create(place: Path, fs: FileSystem) -> None:
    fs.write_new(place / "once", b"1", sync=False)
    _must_exist(lambda: fs.write_new(place / "once", b"2", sync=False), "making one file")


def _link(place: Path, fs: FileSystem) -> None:
    # Across folders, as records are published: some file systems link within one folder only.
    fs.make_dir(place / "names")
    with linked_probe(place, place / "names", fs) as (first, given):
        content = fs.read_bytes(first)
        if fs.read_bytes(given) != content:
            raise BrokenPromiseError(
                "a link to an existing name failed but changed the content of that name"
            )
        if fs.identity(given) != fs.identity(first):
            raise BrokenPromiseError("two names of one file have different inodes")
        fs.remove_file(first)
        if fs.read_bytes(given) != content:
            raise BrokenPromiseError(
                "after one of two hard links was removed, the other had another content"
            )


def _folder(place: Path, fs: FileSystem) -> None:
    fs.make_dir(place / "folder")
    _must_exist(lambda: fs.make_dir(place / "folder"), "making one folder")


def _replace(place: Path, fs: FileSystem) -> None:
    fs.write_new(place / "target", b"old", sync=False)
    fs.write_new(place / "source", b"new", sync=False)
    fs.replace(place / "source", place / "target")
    if fs.read_bytes(place / "target") != b"new" or "source" in fs.list_names(place):
        raise BrokenPromiseError("the old content or the old name is still there")


def _tree(place: Path, name: str, fs: FileSystem) -> Path:
    tree = place / name
    fs.make_dir(tree)
    fs.write_new(tree / name, name.encode(), sync=False)
    return tree


def _move(place: Path, fs: FileSystem) -> None:
    tree, target = _tree(place, "moving", fs), place / "moved"
    fs.replace(tree, target)
    if fs.list_names(target) != ["moving"] or "moving" in fs.list_names(place):
        raise BrokenPromiseError("the folder did not move as a whole")


def _no_replace(place: Path, fs: FileSystem) -> None:
    one, other = _tree(place, "one", fs), _tree(place, "other", fs)
    _must_exist(lambda: fs.rename_no_replace(one, other), "renaming onto a folder")
    fs.rename_no_replace(one, place / "free")


def _exchange(place: Path, fs: FileSystem) -> None:
    left, right = _tree(place, "left", fs), _tree(place, "right", fs)
    fs.exchange(left, right)
    if (fs.list_names(left), fs.list_names(right)) != (["right"], ["left"]):
        raise BrokenPromiseError("the two folders did not change places")


def _lock(place: Path, _fs: FileSystem) -> None:
    if not lock_excludes(place / "lock"):
        raise BrokenPromiseError("the same lock was taken twice at the same time")


def _sync_file(place: Path, fs: FileSystem) -> None:
    fs.write_new(place / "synced", b"content", sync=True)
    fs.sync_file(place / "synced")


def _sync_folder(place: Path, _fs: FileSystem) -> None:
    # Not through `fs`, which tolerates file systems without this call.
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reflink(place: Path, _fs: FileSystem) -> None:
    if not can_clone(place, place):
        raise BrokenPromiseError("no blocks were shared")


_PROBES: dict[Promise, Callable[[Path, FileSystem], None]] = {
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


# The folder is all that two hosts share, and no host is notified of the other's actions. The test
# measures how late a look finds them.
_POLL_SECONDS = 0.001
_SESSION = ".leconvert-check-peer-"


class Channel:
    """Messages between ``leader`` and ``peer``, in order, as files in the folder of a session."""

    def __init__(self, place: Path, mine: str, other: str, fs: FileSystem) -> None:
        self.place = place
        self.fs = fs
        self._mine = mine
        self._other = other
        self._sent = 0
        self._received = 0

    def send(self, **fields: Any) -> None:
        """Send a message."""
        self._sent += 1
        path = self.place / f"{self._mine}-{self._sent:04d}.json"
        temporary = path.with_name(f".{path.name}")
        self.fs.write_new(temporary, json.dumps(fields).encode(), sync=False)
        self.fs.replace(temporary, path)

    def receive(self, timeout_seconds: float | None = None) -> Mapping[str, Any]:
        """Wait for the other's next message, by default twice as long as news may take.

        Raises:
            IncompleteError: No message came in time.
        """
        path = self.place / f"{self._other}-{self._received + 1:04d}.json"
        limit = 2 * LATE_SECONDS if timeout_seconds is None else timeout_seconds
        found: list[Mapping[str, Any]] = []

        def arrived() -> bool:
            found.extend(self._read(path))
            return bool(found)

        if _until(arrived, limit) is None:
            raise IncompleteError(
                f"The {self._other} in {self.place.parent} has not answered for {limit:.0f} s.",
                path=str(self.place),
                next_step="Check that the command on the other host still runs, then run "
                "both commands again.",
            )
        self._received += 1
        return found[0]

    def ask(self, **fields: Any) -> Mapping[str, Any]:
        """Send a message and return the answer."""
        self.send(**fields)
        return _checked(self.receive())

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder; empty if it cannot be listed yet."""
        try:
            return self.fs.list_names(folder)
        except OSError:
            return []

    def _read(self, path: Path) -> list[Mapping[str, Any]]:
        """Return the message in a file; none if it is not there, or not complete yet."""
        if path.name in self.names(path.parent):
            with suppress(OSError, ValueError):
                return [json.loads(self.fs.read_bytes(path))]
        return []


def _checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


LATE_SECONDS = 45.0
"""Longer than any cache of NFS at its default options (30 s) keeps an old answer."""


def perform(task: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Perform the leader's task, and return the answer."""
    path = channel.place / str(task.get("name", ""))
    match task["do"]:
        case "ping":
            return {}
        case "look":
            return {"seen": path.exists()}
        case "see-folder":
            # The folder is known and listed, so a name that is looked up next is missing for the
            # server.
            seen = _until(lambda: path.name in channel.names(path.parent), LATE_SECONDS)
            return {"seconds": seen, "names": channel.names(path)}
        case "await-stat":
            return {"seconds": _until(path.exists, LATE_SECONDS)}
        case "await-content":
            wanted, before = (str(task[name]).encode() for name in ("content", "before"))
            return _await_content(channel, path, wanted, before, listed=task.get("listed", False))
        case "race":
            # One half in the same order, the other from the other end: there the two meet,
            # whichever began first.
            names = list(task["names"])
            half = len(names) // 2
            names[half:] = reversed(names[half:])
            return {"won": sorted(race(channel, "peer", str(task["kind"]), names))}
        case "lock":
            return {"got": _take_lock(channel.place / "lock")}
        case unknown:
            return {
                "error": f"the other host does not know the task {unknown!r}: install the "
                "same version of leconvert on both hosts"
            }


def race(channel: Channel, role: str, kind: str, names: Sequence[str]) -> set[str]:
    """Try to win every name once the other side is ready, and return the names won.

    A link is tried as leasing does it: if an answer was lost, the existing record decides.
    """
    folder = channel.place / f"race-{kind}"
    source, other = (
        channel.place / f"{who}-racer-{kind}"
        for who in (role, "peer" if role == "leader" else "leader")
    )
    channel.fs.write_new(source, role.encode(), sync=False)
    # No pause between two looks: both sides must begin at the same time.
    _until(lambda: other.name in channel.names(channel.place), LATE_SECONDS, poll_seconds=0.0)
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


def _take_lock(path: Path) -> bool:
    from filelock import Timeout

    with suppress(Timeout), new_lock(path):
        return True
    return False


def _until(
    holds: Callable[[], bool], limit_seconds: float, *, poll_seconds: float = _POLL_SECONDS
) -> float | None:
    """Return the seconds until a condition held; None if it never did."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began >= limit_seconds:
            return None
        time.sleep(poll_seconds)  # the other host writes over NFS, which reports no change
    return time.monotonic() - began


def _await_content(
    channel: Channel, path: Path, wanted: bytes, before: bytes, *, listed: bool
) -> dict[str, Any]:
    """Wait until a file (listed, if asked) has the content; also return other observations."""
    odd: set[str] = set()

    def holds() -> bool:
        if listed and path.name not in channel.names(path.parent):
            return False
        try:
            seen = channel.fs.read_bytes(path)
        except OSError as error:
            odd.add(errno.errorcode.get(error.errno or 0, "an error"))
            return False
        if seen not in {wanted, before}:
            odd.add(f"content {seen[:20]!r}")
        return seen == wanted

    return {"seconds": _until(holds, LATE_SECONDS), "odd": sorted(odd)}


_PINGS = 10
_REPLACES = 5
_NAMES = 200
_MEET_SECONDS = 10.0
_SHORTEST_WORDS = 0.0005
_LATE_STAT_SECONDS = 1.0


def lead(alone: CheckReport, *, wait_seconds: float = 0.0, fs: FileSystem = LOCAL) -> CheckReport:
    """Find a peer and run the script with it.

    Args:
        alone: The report of this host about the folder.
        wait_seconds: How long to wait for a peer.
        fs: The file operations.

    Returns:
        The report with the peer's part; ``alone`` if there is no peer.
    """
    folder, me = Path(alone.folder), WorkerIdentity.of_this_process()
    until = time.monotonic() + wait_seconds
    asked: set[str] = set()
    while True:
        with storage_errors(folder):
            names = fs.list_names(folder)
        for name in names:
            if not name.startswith(_SESSION) or name in asked:
                continue
            asked.add(name)
            channel = Channel(folder / name, "leader", "peer", fs)
            met = _meet(channel, me)
            if met.get("leader") != me.token:
                continue  # a busy peer already has a leader
            # From now on the peer's silence is an error.
            more = [_finding(promise, partial(step, channel)) for promise, step in _SCRIPT.items()]
            report = replace(
                alone,
                findings=(*alone.findings, *more),
                peer=str(met["host"]),
                same_host=met.get("boot") == boot_id(),
            )
            channel.send(do="end", outcome=report.as_record())
            return report
        if time.monotonic() >= until:
            return alone
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))


def follow(
    folder: Path,
    *,
    wait_seconds: float = 600.0,
    on_ready: Callable[[], None] = lambda: None,
    fs: FileSystem = LOCAL,
) -> Mapping[str, Any]:
    """Wait for a leader, perform its tasks, and return the outcome that it sends at the end.

    Args:
        folder: The folder.
        wait_seconds: How long to wait for a leader.
        on_ready: Called once a leader can find this peer.
        fs: The file operations.

    Raises:
        IncompleteError: No leader came, or it went silent.
    """
    me = WorkerIdentity.of_this_process()
    place = folder / f"{_SESSION}{me.token}"
    with storage_errors(folder):
        fs.make_dir(place)
    try:
        channel = Channel(place, "peer", "leader", fs)
        on_ready()
        met = channel.receive(wait_seconds)
        channel.send(leader=met.get("token"), host=me.host, boot=boot_id())
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


def _meet(channel: Channel, me: WorkerIdentity) -> Mapping[str, Any]:
    """Return a peer's answer; nothing if it is dead and left its session."""
    with suppress(OSError, IncompleteError):
        channel.send(token=me.token)
        return channel.receive(_MEET_SECONDS)
    return {}


def _listing(channel: Channel) -> str:
    trips = []
    for _ in range(_PINGS):
        began = time.monotonic()
        channel.ask(do="ping")
        trips.append(time.monotonic() - began)
    folder = channel.place / "listing"
    channel.fs.make_dir(folder)
    channel.ask(do="see-folder", name=folder.name)
    channel.ask(do="look", name="listing/new")  # missing at this look: a client may remember that
    channel.fs.write_new(folder / "new", b"content", sync=False)
    seen = channel.ask(
        do="await-content", name="listing/new", content="content", before="", listed=True
    )
    late = _seconds(seen, "was not listed, or could not be opened,")
    trip = sorted(trips)[len(trips) // 2]
    return f"round trip {_words(trip)}; after a look that came too early {_words(late)}"


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
    # A name that is missing for a moment, or a stale handle, is read again; torn content is a
    # failure.
    if torn := sorted(what for what in odd if what.startswith("content")):
        raise BrokenPromiseError(f"another host read {torn[0]}")
    return f"{note}; meanwhile {', '.join(sorted(odd))}" if odd else note


def _stat(channel: Channel) -> str:
    # Two folders deep: for messages the peer lists the session's folder again and again, and over
    # NFS a listing also refreshes the folders in it.
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
    names = [f"{number:04d}" for number in range(_NAMES)]
    channel.send(do="race", kind=kind, names=names)
    try:
        mine = race(channel, "leader", kind, names)
    finally:
        # Even if this host could not race: the next task must not get this answer.
        answer = channel.receive()
    theirs = set(_checked(answer)["won"])
    if both := mine & theirs:
        raise BrokenPromiseError(
            f"both hosts made {len(both)} of {len(names)} names that only one host may make"
        )
    if none := set(names) - mine - theirs:
        raise BrokenPromiseError(f"neither host could make {len(none)} of {len(names)} names")
    for name in sorted(mine):
        if channel.fs.read_bytes(folder / name) != b"leader":
            raise BrokenPromiseError(
                "this host made a file, but the file has the content of the other host"
            )
    return f"of {len(names)} names {len(mine)} here, {len(theirs)} there"


def _host_lock(channel: Channel) -> None:
    """Hold a lock while the peer tries to take it, then release it."""
    with new_lock(channel.place / "lock"):
        if channel.ask(do="lock")["got"]:
            raise BrokenPromiseError("both hosts had the same lock at the same time")
    if not channel.ask(do="lock")["got"]:
        raise BrokenPromiseError(
            "the other host could not take the lock after this host released it"
        )


_SCRIPT: dict[Promise, Callable[[Channel], str | None]] = {
    Promise.RACE: partial(_race, kind="link"),
    Promise.CREATE_RACE: partial(_race, kind="create"),
    Promise.LISTING: _listing,
    Promise.NEWS: _news,
    Promise.STAT: _stat,
    Promise.HOST_LOCK: _host_lock,
}


def _seconds(seen: Mapping[str, Any], what: str) -> float:
    seconds = seen.get("seconds")
    if seconds is None:
        raise BrokenPromiseError(
            f"a change on one host {what} on the other host within {LATE_SECONDS:.0f} s"
        )
    return float(seconds)


def _words(seconds: float) -> str:
    if seconds < _SHORTEST_WORDS:
        return "under 1 ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
