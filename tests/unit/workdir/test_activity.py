"""Processes record their activity for people: without secrets, and never at a run's cost."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.support.errors import StorageError
from leconvert.support.text import without_secrets, without_secrets_in
from leconvert.workdir.activity import (
    JobRecord,
    WorkerReporter,
    read_invocations,
    read_jobs,
    read_probe,
    read_workers,
    record_invocation,
    record_probe,
    write_job,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import RunPaths

RUN_ID = "20260102T030405-abcdef"
TOKEN = "hf_" + "abcDEF123456789"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path / RUN_ID)
    run.workers_dir.mkdir(parents=True)
    return run


def of_another(run: RunPaths) -> RunPaths:
    """Return the same folders under the name of another run."""
    return RunPaths(run.root.rename(run.root.with_name("another-run")))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--token", "abc", "--root", "x"], ["--token", "***", "--root", "x"]),
        (["--token=abc"], ["--token=***"]),
        (["--hub_token=abc", "--api-key", "k"], ["--hub_token=***", "--api-key", "***"]),
        (["--token", "--root", "x"], ["--token", "--root", "x"]),
        (["--root", f"/data/{TOKEN}/set"], ["--root", "/data/***/set"]),
        (["https://me:pass@example.org/x"], ["https://***@example.org/x"]),
        (["ftp://me:p@ss@host/x@1?y=2"], ["ftp://***@host/x@1?y=2"]),
        (["ftp:/me:pass@host/x"], ["ftp:/***@host/x"]),
        (["hf://datasets/a/b@v2.1"], ["hf://datasets/a/b@v2.1"]),
        (
            ["https://h/x?a=1&X-Amz-Signature=abc&token=d", "https://h/x?sig=e#f"],
            ["https://h/x?a=1&X-Amz-Signature=***&token=***", "https://h/x?sig=***#f"],
        ),
        (["--note", "my-own-secret!"], ["--note", "***"]),
        (["--root", "tokens", "passwords"], ["--root", "tokens", "passwords"]),
    ],
)
def test_secrets_are_taken_out_of_a_command(given: list[str], shown: list[str]) -> None:
    environment = {"HF_TOKEN": "my-own-secret!", "GIT_ASKPASS": "1", "HOME": "/home/me"}
    assert without_secrets(given, environment) == shown


def test_secrets_are_taken_out_of_a_message() -> None:
    said = f"401 for https://u:p@host with {TOKEN} and s3cr3t-value"
    assert without_secrets_in(said, {"MY_SECRET": "s3cr3t-value"}) == (
        "401 for https://***@host with *** and ***"
    )


def test_a_call_is_recorded_with_host_versions_and_the_difference_of_clocks(run: RunPaths) -> None:
    late = datetime.now(UTC) - timedelta(seconds=50)
    record_invocation(run, "work", ["leconvert", "work", "--token", "x"], now=lambda: late)
    [found] = read_invocations(run)
    assert (found.called, found.command) == ("work", ["leconvert", "work", "--token", "***"])
    assert (found.host, found.pid) == (os.uname().nodename, os.getpid())
    assert set(found.versions) == {"python", "leconvert", "av", "numpy", "pyarrow"}
    assert found.cpus >= 1
    assert found.folder == str(Path.cwd())
    assert found.at == late.isoformat(timespec="milliseconds")
    assert found.file_system_ahead_seconds == pytest.approx(50, abs=5)
    assert read_invocations(of_another(run)) == []


def test_a_call_from_a_folder_that_was_removed_has_none(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    record_invocation(run, "work", None)
    assert [entry.folder for entry in read_invocations(run)] == [""]


LATE = JobRecord("slurm-2", "slurm", "42", "workers", 6, "2026-01-02T04:00:00+00:00")
EARLY = JobRecord("slurm-9", "slurm", "41", "packer", 1, "2026-01-02T03:00:00+00:00")


def test_a_worker_reports_once_a_second_and_at_its_end(run: RunPaths) -> None:
    now = [0.0]
    for name in ("b", "a"):
        worker = WorkerIdentity(name, name, 1)
        reporter = WorkerReporter(run, worker, clock=lambda: now[0])
        reporter.update(batch_id=3)
        now[0] += 0.5
        reporter.update(batch_id=None, add_bytes=100, add_frames=10)
        assert reporter.record.batches == 1
    first, second = read_workers(run)
    assert (first.token, second.token) == ("a", "b")
    assert first.state == "working", "at most one report a second reaches the disk"
    now[0] += 9.5
    reporter.end()
    ended = read_workers(run)[0]
    assert (ended.state, ended.written_bytes, ended.bytes_per_second) == ("ended", 100, 10.0)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "leconvert/another"},
        {"version": 9},
        {"run_id": "another-run"},
        {"token": "another"},
        {"host": 5},
        {"pid": "x"},
        {"command": "rm"},
        {"versions": 5},
        None,
    ],
    ids=str,
)
def test_what_is_no_record_is_left_out(run: RunPaths, change: dict[str, object] | None) -> None:
    record_invocation(run, "convert", None)
    [sound] = run.invocations_dir.iterdir()
    record = json.loads(sound.read_bytes()) | {"token": "x"} | (change or {})
    damaged = json.dumps(record) if change else ""  # a power loss leaves it empty
    (run.invocations_dir / "x.json").write_text(damaged)
    (run.invocations_dir / ".y.json.ab.tmp").write_bytes(b"{")
    (run.invocations_dir / "notes.txt").write_bytes(b"{")
    assert [entry.called for entry in read_invocations(run)] == ["convert"]


@pytest.mark.parametrize("operation", ["make_dir", "write_new", "replace"])
def test_a_disk_that_fails_costs_the_record_and_nothing_else(run: RunPaths, operation: str) -> None:
    fs = FaultyFileSystem()
    fs.fail(operation, errno.ENOSPC, times=None)
    record_invocation(run.using(fs), "work", None)
    assert read_invocations(run) == []
    if operation != "make_dir":
        WorkerReporter(run.using(fs), WorkerIdentity("a", "a", 1)).update(batch_id=3)
        with pytest.raises(StorageError, match="no space left") as caught:
            write_job(run.using(fs), EARLY)
        assert caught.value.path == str(run.job("slurm-9"))
    assert not [path for path in run.root.rglob("*") if path.is_file()]


def test_what_the_probe_said_and_what_was_submitted_is_kept_with_the_run(run: RunPaths) -> None:
    assert read_probe(run) is None
    record_probe(run, {"samples_per_s": 12.5})
    assert read_probe(run) == {"samples_per_s": 12.5}
    record_probe(run, {"samples_per_s": float("nan")})  # no JSON: the last one stays
    assert read_probe(run) == {"samples_per_s": 12.5}
    run.probe_result.write_text("{")
    assert read_probe(run) is None
    fs = FaultyFileSystem()
    fs.fail("list_names", errno.EIO)
    with pytest.raises(StorageError) as caught:
        read_jobs(run.using(fs))
    assert caught.value.path == str(run.jobs_dir)
    assert read_jobs(run) == [], "nothing was submitted"
    twin = replace(EARLY, token="slurm-1", job_id="40")
    for record in (LATE, EARLY, twin):
        write_job(run, record)
    assert read_jobs(run) == [twin, EARLY, LATE]
    assert read_jobs(of_another(run)) == []
