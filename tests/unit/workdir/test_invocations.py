"""How processes were called is recorded, without secrets, and never at a run's cost."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.support.text import without_secrets, without_secrets_in
from leconvert.workdir.activity import read_invocations, read_probe, record_invocation, record_probe
from leconvert.workdir.records import RunPaths

RUN_ID = "20260102T030405-abcdef"
TOKEN = "hf_" + "abcDEF123456789"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


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
    record_invocation(run, RUN_ID, "work", ["leconvert", "work", "--token", "x"], now=lambda: late)
    [found] = read_invocations(run, RUN_ID)
    assert (found.called, found.command) == ("work", ["leconvert", "work", "--token", "***"])
    assert (found.host, found.pid) == (os.uname().nodename, os.getpid())
    assert set(found.versions) == {"python", "leconvert", "av", "numpy", "pyarrow"}
    assert found.cpus >= 1
    assert found.folder == str(Path.cwd())
    assert found.at == late.isoformat(timespec="milliseconds")
    assert found.file_system_ahead_seconds == pytest.approx(50, abs=5)
    assert read_invocations(run, "another-run") == []


def test_a_call_from_python_has_no_command(run: RunPaths) -> None:
    record_invocation(run, RUN_ID, "convert", None)
    assert [entry.command for entry in read_invocations(run, RUN_ID)] == [None]


def test_a_call_from_a_folder_that_was_removed_has_none(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    record_invocation(run, RUN_ID, "work", None)
    assert [entry.folder for entry in read_invocations(run, RUN_ID)] == [""]


@pytest.mark.parametrize("operation", ["make_dir", "write_new", "replace"])
def test_a_disk_that_fails_costs_the_record_and_nothing_else(run: RunPaths, operation: str) -> None:
    fs = FaultyFileSystem()
    fs.fail(operation, errno.ENOSPC)
    record_invocation(run, RUN_ID, "work", None, fs=fs)
    assert read_invocations(run, RUN_ID) == []
    assert not [path for path in run.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"format": "leconvert/invocation", "version": 2, "run_id": "20260102T030405-abcdef"}',
        json.dumps(
            {
                "format": "leconvert/invocation", "version": 1, "run_id": RUN_ID, "called": "x",
                "command": "rm", "token": "t", "host": "h", "pid": 1, "at": "", "versions": {},
            }
        ).encode(),
        json.dumps(
            {
                "format": "leconvert/invocation", "version": 1, "run_id": RUN_ID, "called": "x",
                "command": None, "token": "t", "host": "h", "pid": 1, "at": "", "versions": 5,
            }
        ).encode(),
    ],
)  # fmt: skip
def test_a_record_that_is_no_record_is_left_out(run: RunPaths, raw: bytes) -> None:
    record_invocation(run, RUN_ID, "convert", None)
    (run.invocations_dir / "x.json").write_bytes(raw)
    (run.invocations_dir / ".y.json.ab.tmp").write_bytes(b"{")
    assert [entry.called for entry in read_invocations(run, RUN_ID)] == ["convert"]


def test_what_the_probe_said_is_kept_with_the_run(run: RunPaths) -> None:
    assert read_probe(run, RUN_ID) is None
    record_probe(run, RUN_ID, {"samples_per_s": 12.5})
    assert read_probe(run, RUN_ID) == {"samples_per_s": 12.5}
    record_probe(run, RUN_ID, {"samples_per_s": float("nan")})  # no JSON: the last one stays
    assert read_probe(run, RUN_ID) == {"samples_per_s": 12.5}
    run.probe_result.write_text("{")
    assert read_probe(run, RUN_ID) is None
