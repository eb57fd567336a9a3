"""What leases write: the fields and the order that docs/formats promises, and no word too many."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lease_fakes import MakeStore, TurnedClock, claim, taken_over
from tests.faults.faulty_files import CrashError, FaultyFileSystem

from leconvert.run.leasing import (
    Lease,
    LeaseLostError,
    WorkerIdentity,
    list_batches,
    read_failed,
    release_failed,
    void_done,
)
from leconvert.run.leasing import leases as lease_module
from leconvert.run.leasing.leases import LeaseLogFiles
from leconvert.run.leasing.state import Generation, Outcome
from leconvert.support.errors import LeconvertError, StorageError
from leconvert.workdir.fs import OutcomeUnknownError
from leconvert.workdir.records import RunPaths

HEADER = ["format", "version", "run_id"]
TIMES = ["began", "ended", "seconds"]


def keys_and_values(path: Path) -> tuple[list[str], dict[str, Any]]:
    record = json.loads(path.read_bytes())
    assert [record[name] for name in HEADER[1:]] == [1, "r1"]
    return list(record), record


def changes(fs: FaultyFileSystem) -> list[tuple[str, str]]:
    """What was changed: operations, and where to or in which folder."""
    looking = {"list_names", "read_bytes", "identity"}
    return [(name, path.name) for name, path in fs.operations if name not in looking]


def test_a_heartbeat_holds_a_nonce_and_two_times(make_store: MakeStore, run: RunPaths) -> None:
    lease = claim(make_store("a"))
    nonces = set()
    for _ in range(3):
        lease.heartbeat()
        keys, record = keys_and_values(run.heartbeat(7, 1))
        assert keys == [*HEADER, "nonce", "began", "beat"]
        assert record["format"] == "leconvert/heartbeat"
        assert re.fullmatch("[0-9a-f]{16}", record["nonce"])
        nonces.add(record["nonce"])
    assert len(nonces) == 3


def test_a_done_record_says_what_was_done_by_whom_and_where_it_is(
    make_store: MakeStore, run: RunPaths
) -> None:
    lease = claim(make_store("a"))
    assert lease.publish_done({"shards": []}) == "won"
    keys, record = keys_and_values(run.done(7))
    assert keys == [
        *HEADER, "batch_id", "generation", "attempt", "token", "host", "pid", *TIMES, "shards",
    ]  # fmt: skip
    assert record["format"] == "leconvert/done"
    assert (record["batch_id"], record["generation"], record["pid"]) == (7, 1, 1)
    assert record["attempt"] == "attempts/000007/0001-a-1-00000000"
    assert (run.root / record["attempt"] / "done.json").samefile(run.done(7))


def test_ends_say_how_and_why(make_store: MakeStore, run: RunPaths) -> None:
    store = make_store("a", max_attempts=1)
    claim(store, 1).hand_back("SIGTERM")
    claim(store, 2).fail(LeconvertError("clip 3 is torn."))
    claim(store, 3).publish_done({})
    assert void_done(run, 3, "a shard is missing")
    keys, record = keys_and_values(run.lease_end(1, 1))
    assert keys == [*HEADER, "outcome", "reason", *TIMES]
    assert (record["outcome"], record["reason"]) == ("handed-back", "SIGTERM")
    keys, record = keys_and_values(run.lease_end(2, 1))
    assert keys == [*HEADER, "outcome", "error", "traceback", *TIMES]
    assert (record["outcome"], record["traceback"]) == ("error", "")
    assert record["error"]["message"] == "clip 3 is torn."
    keys, record = keys_and_values(run.lease_end(3, 1))
    assert keys == [*HEADER, "outcome", "reason"]
    assert (record["outcome"], record["reason"]) == ("void", "a shard is missing")
    assert all(
        keys_and_values(run.lease_end(batch, 1))[1]["format"] == "leconvert/lease-end"
        for batch in (1, 2, 3)
    )


def test_a_failed_record_counts_attempts_and_a_reset_says_why(
    make_store: MakeStore, run: RunPaths
) -> None:
    claim(make_store("a", max_attempts=1)).fail(LeconvertError("broken."), "Traceback")
    keys, record = keys_and_values(run.failed(7))
    identity = ["token", "host", "pid", "lock"]
    counts = ["generation", "errors", "losses"]
    assert keys == [*HEADER, "batch_id", *identity, *counts, "error", "traceback"]
    assert record["format"] == "leconvert/failed"
    assert [record[name] for name in ("batch_id", "token", *counts)] == [
        7, "a-1-00000000", 1, 1, 0,
    ]  # fmt: skip
    assert release_failed(run, 7, "the disk has room again")
    keys, record = keys_and_values(run.lease_reset(7, 1))
    assert (keys, record["format"]) == ([*HEADER, "reason"], "leconvert/lease-reset")
    assert record["reason"] == "the disk has room again"


END_ORDER = [("write_new", ".end"), ("replace", ".end"), ("sync_dir", "000007")]


def short(done: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave random parts of names out."""
    parts = re.compile(r"\.(?:0001)?(\.end|\.reset|\.000007\.[^.]*)\.[0-9a-f]{12}\.tmp")
    return [(name, parts.sub(r"\1", path)) for name, path in done]


def test_an_error_is_recorded_before_the_batch_is_set_aside(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs, max_attempts=1))
    del fs.operations[:]
    assert lease.fail(LeconvertError("broken."))
    source = ".000007.a-1-00000000"
    assert short(changes(fs)) == [
        *END_ORDER,
        ("write_new", source), ("replace", source), ("sync_dir", "failed"),
        ("link", source), ("sync_dir", "failed"), ("remove_file", source),
    ]  # fmt: skip
    del fs.operations[:]
    assert release_failed(run.using(fs), 7, "mended")
    assert fs.operations[0] == ("list_names", run.failed_dir)
    assert ("list_names", run.lease_dir(7)) in fs.operations
    assert short(changes(fs)) == [
        ("write_new", ".reset"), ("replace", ".reset"), ("sync_dir", "000007"),
        ("replace", "000007.json"), ("sync_dir", "failed"),
    ]  # fmt: skip


def test_a_void_is_recorded_before_the_record_is_moved(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    claim(make_store("a")).publish_done({})
    assert void_done(run.using(fs), 7, "short")
    assert ("read_bytes", run.done(7)) in fs.operations
    assert ("list_names", run.lease_dir(7)) in fs.operations
    assert short(changes(fs)) == [*END_ORDER, ("replace", "000007.json"), ("sync_dir", "done")]


@pytest.mark.parametrize("generation", [0, -1, 2, True, "1", None])
def test_a_done_that_names_no_claim_is_voided_without_an_end(
    make_store: MakeStore, run: RunPaths, generation: object
) -> None:
    claim(make_store("a")).publish_done({})
    record = json.loads(run.done(7).read_bytes())
    run.done(7).write_text(json.dumps(record | {"generation": generation}))
    assert void_done(run, 7, "foreign")
    assert sorted(path.name for path in run.lease_dir(7).iterdir()) == ["0001"]


def test_a_done_of_another_run_is_voided_as_a_torn_one_is(
    make_store: MakeStore, run: RunPaths
) -> None:
    lease = claim(make_store("a"))
    record = {"format": "leconvert/done", "version": 1, "run_id": "r2", "generation": 1}
    run.done(7).write_text(json.dumps(record))
    assert lease.publish_done({}) == "lost"
    assert lease.attempt_dir.is_dir(), "the other run's record names no attempt of this one"
    assert void_done(run, 7, "foreign")
    assert not run.lease_end(7, 1).exists()


def won(lease: Lease) -> None:
    assert lease.publish_done({}) == "won"


ENDS: dict[str, Callable[[Lease], object]] = {
    "handed back": lambda lease: lease.hand_back("SIGTERM"),
    "failed": lambda lease: lease.fail(LeconvertError("broken.")),
    "won": won,
    "abandoned": lambda lease: lease.abandon(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_lease_that_ended_writes_nothing_more(make_store: MakeStore, end: str) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    ENDS[end](lease)
    del fs.operations[:]
    lease.hand_back("again")
    assert lease.fail(LeconvertError("again.")) is False
    assert fs.operations == []


def test_a_loser_that_was_told_so_writes_nothing_more(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    fs = FaultyFileSystem()
    lease, b = claim(make_store("a", fs=fs)), make_store("b")
    won(taken_over(b, clock))
    assert lease.publish_done({}) == "lost"
    del fs.operations[:]
    lease.hand_back("again")
    assert fs.operations == []


def test_a_hand_back_that_failed_is_told_and_can_be_repeated(make_store: MakeStore) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("write_new", errno.ENOSPC, match=".end")
    with pytest.raises(StorageError, match="no space"):
        lease.hand_back("SIGTERM")
    assert lease.attempt_dir.is_dir()
    lease.hand_back("SIGTERM")
    assert not lease.attempt_dir.exists()
    assert claim(make_store("b")).generation == 2


def test_publishing_again_what_was_won_unknowingly_changes_nothing(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("link", errno.EIO, match="done", happens=True)
    fs.fail("list_names", errno.EIO, match="done", times=3)
    with pytest.raises(OutcomeUnknownError):
        lease.publish_done({"round": 1})
    assert lease.publish_done({"round": 2}) == "won"
    assert keys_and_values(run.done(7))[1]["round"] == 1
    assert lease.attempt_dir.is_dir()


def test_tidying_up_never_raises_whatever_the_disk_does(
    make_store: MakeStore, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = FaultyFileSystem()
    lease, b = claim(make_store("a", fs=fs)), make_store("b")
    won(taken_over(b, clock))
    fs.fail("link", errno.EIO, match="done")
    fs.fail("list_names", errno.EIO, match="done", times=3)
    with pytest.raises(OutcomeUnknownError):
        lease.publish_done({})
    for code in (errno.EIO, errno.ENOENT):
        fs.fail("list_names", code, match="done")
        lease.abandon()
        assert lease.attempt_dir.is_dir()

    for error in (StorageError("read-only."), OSError(errno.ENOTDIR, "Not a directory")):

        def remove_tree(*_: object, error: Exception = error, **__: object) -> bool:
            raise error

        monkeypatch.setattr(lease_module, "remove_tree", remove_tree)
        lease.abandon()
        other = claim(make_store("c"), 8)
        other.hand_back("SIGTERM")
        assert other.attempt_dir.is_dir(), "the packer removes it"


def test_a_lost_lease_says_where_to_look_and_what_to_do(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, tmp_path: Path
) -> None:
    lease, b = claim(make_store("a")), make_store("b")
    taken_over(b, clock)
    with pytest.raises(LeaseLostError) as caught:
        lease.heartbeat()
    assert caught.value.message == "Another worker took over batch 7 (claim 2)."
    assert caught.value.path == str(run.lease(7, 2))
    assert caught.value.next_step == "There is nothing to do: the other worker does the batch."
    run.leases_dir.rename(tmp_path / "gone")
    with pytest.raises(LeaseLostError, match="run was removed") as caught:
        lease.heartbeat()
    assert caught.value.path == str(run.lease_dir(7))
    assert caught.value.next_step == "Start the worker again on the work dir's current run."


def test_folders_that_cannot_be_listed_are_named(make_store: MakeStore, run: RunPaths) -> None:
    lease = claim(make_store("a"))
    looks: list[tuple[Path, Callable[[FaultyFileSystem], object]]] = [
        (run.leases_dir, lambda fs: list_batches(run.leases_dir, fs=fs)),
        (run.lease_dir(7), lambda fs: LeaseLogFiles(run.using(fs)).read(7)),
        (run.lease_dir(7), lambda fs: LeaseLogFiles(run.using(fs)).newest_claim(7)),
    ]
    for folder, look in looks:
        fs = FaultyFileSystem()
        fs.fail("list_names", errno.EIO)
        with pytest.raises(StorageError) as caught:
            look(fs)
        assert caught.value.path == str(folder)
    fs = FaultyFileSystem()
    fs.fail("read_bytes", errno.EIO)
    with pytest.raises(StorageError) as caught:
        read_failed(run.using(fs), 7)
    assert caught.value.path == str(run.failed(7))
    won(lease)
    fs = FaultyFileSystem()
    fs.fail("replace", errno.EROFS, match=".void-1")
    with pytest.raises(StorageError) as caught:
        void_done(run.using(fs), 7, "short")
    assert caught.value.path == str(run.done(7))


def test_one_log_tells_batches_and_generations_apart(make_store: MakeStore, run: RunPaths) -> None:
    a, b = make_store("a"), make_store("b")
    claim(a, 1).hand_back("SIGTERM")
    claim(b, 1)
    claim(b, 2).fail(LeconvertError("broken."))
    log = LeaseLogFiles(run)
    for _ in range(2):  # from the disk, and from what is remembered
        assert log.read(1).generations == (Generation(1, Outcome.HANDED_BACK), Generation(2))
        assert log.read(2).generations == (Generation(1, Outcome.ERROR),)
        assert [log.holder(1, number)["host"] for number in (1, 2)] == ["a", "b"]
        assert log.holder(2, 1)["host"] == "b"
    assert log.read(3).generations == ()
    another = LeaseLogFiles(RunPaths(run.root.rename(run.root.with_name("r2"))))
    assert another.holder(1, 1) == {}, "another run's"
    assert another.read(1).generations == (Generation(1), Generation(2))


def test_what_is_not_there_is_nothing_and_not_an_error(run: RunPaths) -> None:
    log = LeaseLogFiles(run)
    run.lease_dir(7).mkdir()
    assert log.newest_claim(7) == 0
    assert log.read_nonce(7, 1) == b""
    assert log.holder(7, 1) == {}
    assert log.end_record(7, 1) is None


def test_of_those_that_set_a_batch_aside_one_is_told_that_it_did(run: RunPaths) -> None:
    fs = FaultyFileSystem()
    log = LeaseLogFiles(run.using(fs))
    workers = [WorkerIdentity(f"{name}-1-00000000", name, 1) for name in "ab"]
    fs.fail("remove_file", errno.EIO)  # what is left there has a dot before its name
    assert [log.publish_failed(7, worker, {}) for worker in workers] == [True, False]
    assert list_batches(run.failed_dir) == {7}


@pytest.mark.parametrize("fails", [False, True])
def test_a_crash_while_a_lease_ends_leaves_its_batch_open_or_set_aside(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, fails: bool
) -> None:
    for point in range(100):
        store = make_store(f"a{point}", fs=FaultyFileSystem(point), max_attempts=1)
        try:
            lease = claim(store, point)
            if fails:
                assert lease.fail(LeconvertError("broken.")) is True
            else:
                lease.hand_back("SIGTERM")
        except CrashError:
            pass
        else:
            assert point > 15
            return
        watcher = make_store("watcher", max_attempts=1)
        successor = watcher.claim(point)
        if successor is None:
            clock.advance(60)
            successor = watcher.claim(point)
        # An error that was not recorded counts as a loss: the batch is tried again.
        recorded = fails and run.lease_end(point, 1).exists()
        assert (successor is None) == recorded
        assert (point in list_batches(run.failed_dir)) == recorded
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("released", [False, True])
def test_a_crash_while_a_batch_is_opened_again_is_put_right_by_repeating_it(
    make_store: MakeStore, run: RunPaths, released: bool
) -> None:
    def open_again(batch_id: int, fs: FaultyFileSystem) -> bool:
        act = release_failed if released else void_done
        return act(run.using(fs), batch_id, "mended")

    for point in range(100):
        lease = claim(make_store(f"a{point}", max_attempts=1), point)
        if released:
            assert lease.fail(LeconvertError("broken.")) is True
        else:
            won(lease)
        folder = run.failed_dir if released else run.done_dir
        crashed = False
        try:
            assert open_again(point, FaultyFileSystem(point))
        except CrashError:
            crashed = True
            still_settled = point in list_batches(folder)
            assert open_again(point, FaultyFileSystem()) == still_settled
        assert claim(make_store("b", max_attempts=1), point).generation == 2
        left = [path.name for path in folder.glob(f"{point:06d}*")]
        assert left == [f"{point:06d}.{'released' if released else 'void'}-1"], "moved once"
        if not crashed:
            assert point > 12
            return
    pytest.fail("it never came to its end")
