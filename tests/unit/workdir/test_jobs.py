"""Records of submissions, which are for people to look at."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.support.errors import StorageError
from leconvert.workdir.activity import JobRecord, read_jobs, write_job
from leconvert.workdir.records import RunPaths

LATE = JobRecord("slurm-2", "slurm", "42", "workers", 6, "2026-01-02T04:00:00+00:00")
EARLY = JobRecord("slurm-9", "slurm", "41", "packer", 1, "2026-01-02T03:00:00+00:00")


def test_submissions_are_read_as_they_were_written_oldest_first(run: RunPaths) -> None:
    assert read_jobs(run, "r1") == [], "nothing was submitted"
    twin = replace(EARLY, token="slurm-1", job_id="40")
    for record in (LATE, EARLY, twin):
        write_job(run, "r1", record)
    assert read_jobs(run, "r1") == [twin, EARLY, LATE]
    assert read_jobs(run, "another-run") == []


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"format": "leconvert/job", "version": 1, "run_id": "r1", "token": "x"}']
)
def test_a_record_that_is_no_submission_is_left_out(run: RunPaths, raw: bytes) -> None:
    write_job(run, "r1", EARLY)
    run.job("torn").write_bytes(raw)
    (run.jobs_dir / ".slurm-9.json.ab.tmp").write_bytes(b"{")
    (run.jobs_dir / "notes.txt").write_bytes(b"{")
    assert read_jobs(run, "r1") == [EARLY]


def test_a_disk_that_fails_is_told_with_its_path(run: RunPaths) -> None:
    fs = FaultyFileSystem()
    fs.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="no space left") as caught:
        write_job(run, "r1", EARLY, fs=fs)
    assert caught.value.path == str(run.job("slurm-9"))
    fs.fail("list_names", errno.EIO)
    with pytest.raises(StorageError) as caught:
        read_jobs(run, "r1", fs=fs)
    assert caught.value.path == str(run.jobs_dir)
