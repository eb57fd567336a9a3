"""What a leader may ask of its peer, and what both do in a race."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leconvert.fscheck.channel import Channel
from leconvert.fscheck.probes import BrokenPromiseError
from leconvert.workdir.durable import AlreadyPublishedError, publish_exclusively

__all__ = ["LATE_SECONDS", "host_lock", "perform", "race", "try_names"]

LATE_SECONDS = 45.0
"""Longer than any cache of NFS at its default options (30 s) keeps an old answer."""

_POLL_SECONDS = 0.001


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
    """Hold a lock while the peer tries, then let go; for the leader.

    Raises:
        BrokenPromiseError: The peer got what was held, or could not get what was free.
    """
    from filelock import FileLock

    lock = FileLock(channel.place / "lock", timeout=0, fallback_to_soft=False, is_singleton=False)
    with lock:
        if channel.ask(do="lock")["got"]:
            raise BrokenPromiseError("both hosts held it at once")
    if not channel.ask(do="lock")["got"]:
        raise BrokenPromiseError("it could not be taken after it was released")
    return ""


def _take_lock(path: Path) -> bool:
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, fallback_to_soft=False, is_singleton=False)
    try:
        lock.acquire()
    except Timeout:
        return False
    lock.release()
    return True


def _until(channel: Channel, holds: Callable[[], bool]) -> float | None:
    began = channel.clock()
    while not holds():
        if channel.clock() - began >= LATE_SECONDS:
            return None
        channel.pause(_POLL_SECONDS)
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
