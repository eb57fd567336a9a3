"""Names that are given once without hard links: who wins, what a crash leaves, what is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from one_host_fakes import FaultyOneHost, without_links
from tests.faults.faulty_files import CrashError, FaultyFileSystem

from leconvert.support.errors import StorageError
from leconvert.workdir.fs import AlreadyPublishedError, FileSystem, publish_exclusively
from leconvert.workdir.locks import OneHostFileSystem, why_no_links

MakeFileSystem = Callable[..., FaultyOneHost]
Probe = Callable[[FileSystem], str]


@pytest.fixture
def make_fs(tmp_path: Path) -> MakeFileSystem:
    """Make the view of one more process of the run."""

    def make(*, crash_at: int | None = None, wait_seconds: float = 20.0) -> FaultyOneHost:
        lock = tmp_path / "naming.lock"
        return FaultyOneHost(lock, crash_at=crash_at, wait_seconds=wait_seconds)

    return make


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return record(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return record(tmp_path, "theirs")


@pytest.fixture
def done(tmp_path: Path) -> Path:
    (tmp_path / "done").mkdir()
    return tmp_path / "done" / "000000.json"


def record(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(f"record of {name}\n".encode())
    return path


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_one_that_comes_in_between_writing_and_naming_wins(
    make_fs: MakeFileSystem, ours: Path, theirs: Path, done: Path
) -> None:
    fs = make_fs()
    fs.before("write_new", lambda: publish_exclusively(theirs, done, fs=make_fs()))
    with pytest.raises(AlreadyPublishedError):
        publish_exclusively(ours, done, fs=fs)
    assert done.read_bytes() == b"record of theirs\n"


def test_between_a_look_and_its_rename_nobody_else_gets_the_lock(
    ours: Path, theirs: Path, done: Path, tmp_path: Path
) -> None:
    refused: list[StorageError] = []

    def come_in_between() -> None:
        other = FaultyOneHost(tmp_path / "naming.lock", wait_seconds=0.0)
        with pytest.raises(StorageError) as caught:
            publish_exclusively(theirs, done, fs=other)
        refused.append(caught.value)

    fs = FaultyOneHost(tmp_path / "naming.lock")
    fs.before("replace", come_in_between)
    publish_exclusively(ours, done, fs=fs)
    assert done.read_bytes() == b"record of ours\n"
    assert refused[0].exit_code == 11
    assert "A stopped process has held the lock" in refused[0].message
    assert "`ps`" in str(refused[0].next_step)
    assert names_in(done.parent) == [done.name]


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_naming_that_happened_and_reported_an_error_counts(
    make_fs: MakeFileSystem, ours: Path, done: Path, code: int
) -> None:
    fs = make_fs()
    fs.fail("replace", code, happens=True)
    publish_exclusively(ours, done, fs=fs)
    assert done.read_bytes() == b"record of ours\n"
    assert names_in(done.parent) == [done.name]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", ["write_new", "replace"])
def test_a_naming_that_failed_is_a_storage_error_and_leaves_no_name(
    make_fs: MakeFileSystem, ours: Path, done: Path, step: str, code: int
) -> None:
    fs = make_fs()
    fs.fail(step, code)
    with pytest.raises(StorageError):
        publish_exclusively(ours, done, fs=fs)
    assert names_in(done.parent) == []


def test_a_death_at_any_operation_leaves_a_whole_record_or_none_and_blocks_nobody(
    make_fs: MakeFileSystem, ours: Path, theirs: Path, done: Path
) -> None:
    outcomes = set()
    crash_at = 0
    while True:
        dying = make_fs(crash_at=crash_at)
        try:
            publish_exclusively(ours, done, fs=dying)
        except CrashError:
            crashed = True
        else:
            crashed = False
        before = done.read_bytes() if done.exists() else None
        assert before in {None, b"record of ours\n"}
        with suppress(AlreadyPublishedError):
            publish_exclusively(theirs, done, fs=make_fs())
        assert done.read_bytes() == (before or b"record of theirs\n")
        outcomes.add(before)
        for left in done.parent.iterdir():
            assert left == done or left.name.startswith(".")
            left.unlink()
        if not crashed:
            break
        crash_at += 1
    assert outcomes == {None, b"record of ours\n"}
    assert crash_at > 6


HOLDER = """
import os, sys
from pathlib import Path
from leconvert.workdir.locks import OneHostFileSystem

class Stopping(OneHostFileSystem):
    def replace(self, source, target):
        print("inside", flush=True)
        sys.stdin.read()

folder = Path(sys.argv[1])
fs = Stopping(folder / "naming.lock")
fs.give_name(folder / "theirs", folder / "done" / "000000.json")
"""


def test_a_process_killed_between_its_look_and_its_rename_gives_the_lock_back(
    ours: Path, theirs: Path, done: Path, tmp_path: Path
) -> None:
    fs = OneHostFileSystem(tmp_path / "naming.lock", wait_seconds=0.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(theirs.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "inside\n"
        with pytest.raises(StorageError, match="A stopped process has held the lock"):
            publish_exclusively(ours, done, fs=fs)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    publish_exclusively(ours, done, fs=fs)
    assert done.read_bytes() == b"record of ours\n"


RACER = """
import sys
from pathlib import Path
from leconvert.workdir.fs import AlreadyPublishedError, publish_exclusively
from leconvert.workdir.locks import OneHostFileSystem

folder, name, names = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fs = OneHostFileSystem(folder / "naming.lock")
source = folder / name
source.write_text(name)
print("ready", flush=True)
sys.stdin.readline()
for number in range(names):
    try:
        publish_exclusively(source, folder / "done" / str(number), sync=False, fs=fs)
    except AlreadyPublishedError:
        continue
    print(number, flush=True)
"""


def test_of_two_processes_that_race_for_names_each_name_has_one_winner(tmp_path: Path) -> None:
    names = 300
    (tmp_path / "done").mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), name, str(names)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    left, right = (set(map(int, racer.communicate(timeout=60)[0].split())) for racer in racers)
    assert left & right == set()
    assert left | right == set(range(names))
    for number in range(names):
        winner = "left" if number in left else "right"
        assert (tmp_path / "done" / str(number)).read_text() == winner


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    folders = [tmp_path / name for name in ("attempts", "done")]
    for folder in folders:
        folder.mkdir()

    def run(fs: FileSystem) -> str:
        try:
            return why_no_links(*folders, tmp_path / "naming.lock", fs=fs)
        finally:
            assert [list(folder.iterdir()) for folder in folders] == [[], []]

    return run


def test_where_there_are_hard_links_they_decide(probe: Probe) -> None:
    assert probe(FileSystem()) == ""
    fs = FaultyFileSystem()
    fs.fail("link", errno.EEXIST, happens=True)
    assert probe(fs) == "", "the answer to a link was lost"


@pytest.mark.parametrize("name", ["EPERM", "ENOTSUP", "ENOSYS", "EXDEV"])
def test_without_hard_links_the_reason_is_said(probe: Probe, name: str) -> None:
    assert probe(without_links(code=getattr(errno, name))) == name


class Careless(FileSystem):
    """A file system on which the later link replaces the earlier."""

    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        os.link(source, target)


def test_links_that_give_a_name_twice_decide_nothing(probe: Probe) -> None:
    assert probe(Careless()) == "linking one name succeeded twice"


def test_a_full_disk_is_not_taken_for_one_without_links(probe: Probe) -> None:
    for operation in ("write_new", "link"):
        fs = FaultyFileSystem()
        fs.fail(operation, errno.ENOSPC)
        with pytest.raises(StorageError, match="no space left"):
            probe(fs)


def not_there(_descriptor: int, _operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def given_to_everybody(_descriptor: int, _operation: int) -> None:
    return None


@pytest.mark.parametrize("flock", [not_there, given_to_everybody])
def test_where_nothing_decides_one_sentence_says_so(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match="neither hard links \\(EPERM\\) nor") as caught:
        probe(without_links())
    assert "another file system" in str(caught.value.next_step)
