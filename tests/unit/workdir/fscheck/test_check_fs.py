"""What a file system promises, where it does not, and what two hosts see of each other."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.support.errors import IncompleteError, StorageError
from leconvert.support.file_calls import Mount
from leconvert.workdir import fscheck
from leconvert.workdir.fs import LOCAL, FileSystem
from leconvert.workdir.fscheck import (
    CheckReport,
    Finding,
    Fitness,
    Need,
    Promise,
    fitness_of,
    follow,
    lead,
    probe_folder,
)


def test_an_ordinary_disk_keeps_what_is_needed_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    findings = probe_folder(tmp_path)
    broken = [finding for finding in findings if not finding.holds]
    assert all(finding.promise.need is Need.COMFORT for finding in broken), broken
    assert fitness_of(findings) is Fitness.SEVERAL_HOSTS
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((StorageError, FileNotFoundError)):
        probe_folder(tmp_path / "none")


@pytest.mark.parametrize(
    ("operation", "promise"),
    [
        ("link", Promise.LINK),
        ("exchange", Promise.EXCHANGE),
        ("rename_no_replace", Promise.NO_REPLACE),
        ("make_dir", Promise.FOLDER),
        ("sync_file", Promise.SYNC_FILE),
    ],
)
def test_what_a_file_system_lacks_is_named(
    tmp_path: Path, operation: str, promise: Promise
) -> None:
    found = {each.promise: each for each in probe_folder(tmp_path, fs=lacking(operation))}
    assert not found[promise].holds
    assert found[promise].note == "EPERM"
    assert found[promise].as_record()["instead"]
    assert list(tmp_path.iterdir()) == []


def lacking(*operations: str, code: int = errno.EPERM) -> FaultyFileSystem:
    """Return a file system that has these operations not."""
    fs = FaultyFileSystem()
    for operation in operations:
        fs.fail(operation, code, times=None)
    return fs


def test_without_hard_links_one_host_may_work_and_without_exchange_several(tmp_path: Path) -> None:
    no_flags = lacking("exchange", "rename_no_replace", code=errno.EINVAL)
    assert fitness_of(probe_folder(tmp_path, fs=lacking("link"))) is Fitness.ONE_HOST
    assert fitness_of(probe_folder(tmp_path, fs=no_flags)) is Fitness.SEVERAL_HOSTS
    for link, lock in product((False, True), repeat=2):
        findings = [Finding(Promise.LINK, link), Finding(Promise.LOCK, lock)]
        assert (fitness_of(findings) is Fitness.NONE) == (not link and not lock)


class Careless(FileSystem):
    """A file system on which a name can be given twice: the later link replaces the earlier."""

    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        os.link(source, target)


class Copying(FileSystem):
    """A file system whose links are copies, as some bridges to object stores make them."""

    def link(self, source: Path, target: Path) -> None:
        self.write_new(target, source.read_bytes(), sync=False)


@pytest.mark.parametrize(
    ("fs", "note"), [(Careless(), "succeeded twice"), (Copying(), "different inodes")]
)
def test_a_link_that_is_none_is_found_out(tmp_path: Path, fs: FileSystem, note: str) -> None:
    found = {finding.promise: finding for finding in probe_folder(tmp_path, fs=fs)}
    assert note in found[Promise.LINK].note
    assert found[Promise.CREATE].holds


def test_every_promise_says_what_happens_without_it() -> None:
    for promise in Promise:
        assert promise.otherwise
        alone = fitness_of([Finding(promise, False)])
        expected = {
            Need.ALWAYS: Fitness.NONE,
            Need.SEVERAL_HOSTS: Fitness.ONE_HOST,
            Need.COMFORT: Fitness.SEVERAL_HOSTS,
        }
        assert alone is expected[promise.need]


def alone(folder: Path) -> CheckReport:
    return CheckReport(str(folder), Mount(str(folder)), ())


def play(
    folder: Path, *, leader_fs: FileSystem = LOCAL, peer_fs: FileSystem = LOCAL
) -> tuple[dict[Promise, Finding], Any]:
    """Let both sides play, each in a thread of its own, each with its own view of the disk."""
    ready = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        peer = pool.submit(follow, folder, wait_seconds=30, on_ready=ready.set, fs=peer_fs)
        assert ready.wait(10)
        report = lead(alone(folder), wait_seconds=30, fs=leader_fs)
        assert report.same_host
        outcome = peer.result(30)
    return {finding.promise: finding for finding in report.findings}, outcome


def test_two_sides_find_each_other_play_and_leave_nothing(tmp_path: Path) -> None:
    found, outcome = play(tmp_path)
    assert all(finding.holds for finding in found.values()), found
    assert set(found) == {
        Promise.RACE, Promise.CREATE_RACE, Promise.LISTING, Promise.NEWS, Promise.STAT,
        Promise.HOST_LOCK,
    }  # fmt: skip
    assert outcome["findings"] == [finding.as_record() for finding in found.values()]
    assert list(tmp_path.iterdir()) == []


class Late(FileSystem):
    """A host that sees a replaced file as it was, for ever."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: dict[Path, bytes] = {}

    def read_bytes(self, path: Path) -> bytes:
        content = super().read_bytes(path)
        return self._kept.setdefault(path, content) if path.name == self._name else content


class Forgetful(FileSystem):
    """A host that never lists a new name in one of the folders."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def list_names(self, path: Path) -> list[str]:
        return [] if path.name == self._folder else super().list_names(path)


class Torn(FileSystem):
    """A host that once reads half of a replaced file."""

    def __init__(self) -> None:
        self._torn = False

    def read_bytes(self, path: Path) -> bytes:
        content = super().read_bytes(path)
        if content == b"beat 3" and not self._torn:
            self._torn = True
            return b"bea"
        return content


def stale() -> FaultyFileSystem:
    """A host whose handle goes stale once, and which reads again."""
    fs = FaultyFileSystem()
    fs.fail("read_bytes", errno.ESTALE, match="/beat", skip=2)
    return fs


@pytest.mark.parametrize(
    ("make_leader", "make_peer", "promise", "note", "is_broken"),
    [
        (Careless, Careless, Promise.RACE, "both hosts made", True),
        (partial(lacking, "link"), partial(lacking, "link"), Promise.RACE, "hard links", True),
        (FileSystem, partial(Late, "beat"), Promise.NEWS, "", True),
        (FileSystem, partial(Forgetful, "listing"), Promise.LISTING, "", True),
        (FileSystem, Torn, Promise.NEWS, "b'bea'", True),
        (FileSystem, stale, Promise.NEWS, "ESTALE", False),
    ],
    ids=["won twice", "no links", "old news", "names that never come", "torn", "stale"],
)
def test_what_two_hosts_see_otherwise_leaves_room_for_one_host_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_leader: Callable[[], FileSystem],
    make_peer: Callable[[], FileSystem],
    promise: Promise,
    note: str,
    is_broken: bool,
) -> None:
    if not note:
        monkeypatch.setattr(fscheck, "LATE_SECONDS", 0.2)
    found, _ = play(tmp_path, leader_fs=make_leader(), peer_fs=make_peer())
    assert [p for p, finding in found.items() if not finding.holds] == [promise] * is_broken
    assert note in found[promise].note
    assert (fitness_of(found.values()) is Fitness.ONE_HOST) == is_broken


def test_a_lock_that_excludes_nobody_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fscheck, "_take_lock", lambda _path: True)
    found, _ = play(tmp_path)
    assert found[Promise.HOST_LOCK].note == "both hosts had the same lock at the same time"
    assert fitness_of(found.values()) is Fitness.SEVERAL_HOSTS


def test_a_peer_that_falls_silent_in_the_middle_is_an_error_and_not_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fscheck, "LATE_SECONDS", 0.2)

    def dies(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(fscheck, "perform", dies)
    ready = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        peer = pool.submit(follow, tmp_path, wait_seconds=30, on_ready=ready.set)
        assert ready.wait(10)
        with pytest.raises(IncompleteError, match="has not answered"):
            lead(alone(tmp_path), wait_seconds=30)
        assert isinstance(peer.exception(30), SystemExit)


def test_nobody_to_meet_is_no_error_for_the_leader_and_what_a_dead_peer_left_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lead(alone(tmp_path)) == alone(tmp_path)
    with pytest.raises(IncompleteError, match="has not answered"):
        follow(tmp_path, wait_seconds=0.05)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(fscheck, "_MEET_SECONDS", 0.2)
    (tmp_path / ".leconvert-check-peer-dead").mkdir()
    assert lead(alone(tmp_path)) == alone(tmp_path)
    assert play(tmp_path)[0][Promise.RACE].holds
