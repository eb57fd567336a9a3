"""What workers say of themselves, for people to look at."""

from __future__ import annotations

import errno

from tests.faults.faulty_files import FaultyFileSystem

from leconvert.workdir.activity import WorkerReporter, read_workers
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import RunPaths


def test_workers_are_listed_by_token_and_damaged_records_left_out(run: RunPaths) -> None:
    now = [0.0]
    for name in ("b", "a"):
        reporter = WorkerReporter(run, "r1", WorkerIdentity(name, name, 1), clock=lambda: now[0])
        reporter.update(batch_id=3)
        now[0] += 0.5
        reporter.update(batch_id=None, add_bytes=100, add_frames=10)
        assert reporter.record.batches == 1
    run.worker("torn").write_bytes(b"")
    run.worker("later").write_bytes(b'{"format": "leconvert/worker", "version": 9}\n')
    run.worker("odd").write_bytes(
        run.worker("a")
        .read_bytes()
        .replace(b'"token": "a"', b'"token": "odd"')
        .replace(b'"pid": 1', b'"pid": "x"')
    )
    first, second = read_workers(run, "r1")
    assert (first.token, second.token) == ("a", "b")
    assert first.state == "working", "at most one report a second reaches the disk"
    now[0] += 9.5
    reporter.end()
    ended = read_workers(run, "r1")[0]
    assert (ended.state, ended.written_bytes, ended.bytes_per_second) == ("ended", 100, 10.0)


def test_a_report_that_cannot_be_written_stops_nobody(run: RunPaths) -> None:
    fs = FaultyFileSystem()
    fs.fail("write_new", errno.ENOSPC, times=None)
    reporter = WorkerReporter(run, "r1", WorkerIdentity("a", "a", 1), fs=fs)
    reporter.update(batch_id=3)
    assert read_workers(run, "r1") == []
