"""What a type checker sees of the public Python API. Checked by mypy, never run.

An ignored error must be one: mypy is strict about ignores that nothing needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import torch

import leconvert
import leconvert.loading
from leconvert.api import ConversionReport, Submission, run_worker, submit_run
from leconvert.loading import EpisodeStream, MixedStream, Resampled, StreamLoader, resample
from leconvert.report.status import RunStatus, run_status
from leconvert.run.conversion import LeaseOptions, WorkerOptions
from leconvert.run.engines import Engine, LocalEngine, SlurmEngine, SlurmOptions
from leconvert.run.worker import WorkerSummary
from leconvert.support.errors import FindingsError, LeconvertError


def converting() -> None:
    report = leconvert.convert(
        "my_dataset", output=Path("my_dataset_v30"), workers=WorkerOptions(num_workers=4)
    )
    assert_type(report, ConversionReport)
    assert_type(report.output, Path)
    assert_type(report.kept_source, Path | None)
    assert_type(report.seconds, float)
    assert_type(report.as_record(), dict[str, Any])
    assert_type(leconvert.__version__, str)
    leconvert.convert("my_dataset", "my_dataset_v30")  # type: ignore[call-arg, arg-type]
    leconvert.convert("my_dataset", outptu="my_dataset_v30")  # type: ignore[call-arg]
    leconvert.convert("my_dataset", workers=WorkerOptions(num_workers="four"))  # type: ignore[arg-type]
    assert_type(leconvert.merge(["one", "two"], output="both", stop=None), ConversionReport)
    leconvert.merge(["one", "two"], output="both", selection="0-3")  # type: ignore[call-arg]
    leconvert.trim("my_dataset", frames={0: (1, 2)}, layout="streaming")  # type: ignore[arg-type]


def misspelt_names() -> None:
    leconvert.convrt("my_dataset")  # type: ignore[attr-defined]
    leconvert.loading.EpisodesStream("my_dataset")  # type: ignore[attr-defined]


def engines() -> None:
    engine: Engine = LocalEngine(workers=2)
    assert_type(engine.workers, int | None)
    leconvert.convert(
        "my_dataset", workers=WorkerOptions(engine=SlurmEngine(SlurmOptions(nodes=8)))
    )
    leconvert.convert("my_dataset", workers=WorkerOptions(engine=SlurmOptions()))  # type: ignore[arg-type]


def a_run_of_many_hosts(work_dir: Path) -> None:
    assert_type(run_worker(work_dir, leases=LeaseOptions(lease_seconds=60)), WorkerSummary)
    assert_type(submit_run(work_dir, dry_run=True), Submission)
    assert_type(run_status(work_dir), RunStatus)


def proving_and_pushing() -> None:
    proof = leconvert.verify_pair(Path("result"), Path("source"), depth="bytes")
    leconvert.verify_pair("result", ["source", Path("other")])
    assert_type(proof, leconvert.VerificationReport)
    assert_type(proof.ok, bool)
    how = leconvert.PushOptions(repo_id="me/result", dry_run=True)
    pushed = leconvert.push(Path("result"), how)
    assert_type(pushed, leconvert.PushReport)
    assert_type(leconvert.convert("source", push=how).push, leconvert.PushReport | None)


def loading() -> None:
    stream = EpisodeStream("my_dataset", delta_timestamps={"action": [0.0, 0.1]})
    assert_type(iter(stream), Iterator[dict[str, Any]])
    assert_type(StreamLoader(stream, batch_size=64, num_workers=4), StreamLoader)
    mixed = MixedStream([(stream, 0.7), ("other_dataset", 0.3)], shuffle=False)
    assert_type(StreamLoader(mixed, batch_size=64), StreamLoader)
    times = torch.zeros(2, 10, dtype=torch.float64)
    assert_type(resample(times, {"action": torch.zeros(2, 10, 7)}, hz=50.0), Resampled)
    resample(times, {"action": times}, methods={"action": "cubic"})  # type: ignore[dict-item]


def failing(error: LeconvertError) -> None:
    assert_type(error.exit_code, int)
    assert_type(error.next_step, str | None)
    assert_type(error.details, tuple[str, ...])
    if isinstance(error, FindingsError):
        assert_type(error.as_record(), dict[str, Any])
