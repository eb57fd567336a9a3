"""What leconvert needs of a file system, and what it does where a promise does not hold; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from leconvert.workdir.mounts import Mount

__all__ = ["CheckReport", "Finding", "Fitness", "Need", "Promise", "fitness_of"]


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
_EXCLUSIVE = frozenset({Promise.LINK, Promise.NO_REPLACE, Promise.LOCK})
_ALONE = "one host only: start no worker on a second one"
_OTHERWISE = {
    Promise.WRITE: _CANNOT,
    Promise.CREATE: _CANNOT,
    Promise.LINK: "one host only; its renames decide, or a lock",
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

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Finding:
        """Return the finding that another host sent."""
        return cls(Promise[str(record["promise"]).upper()], bool(record["holds"]), record["note"])


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
    """The whole check.

    Attributes:
        folder: What was probed.
        mount: Where it is mounted, and how.
        findings: Every promise that was probed.
        peer: The other host, or None where there was none.
        same_host: Whether the peer ran on this very host, so that no delay between hosts was seen.
    """

    folder: str
    mount: Mount
    findings: tuple[Finding, ...]
    peer: str | None = None
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
