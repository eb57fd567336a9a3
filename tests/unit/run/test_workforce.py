"""`--num-workers auto`: what bounds the number of workers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.plans import open_or_plan

from leconvert.model.repairs import RepairOptions
from leconvert.model.values import MEBIBYTE
from leconvert.run.conversion import Conversion
from leconvert.run.worker_pool import auto_workers, handling_seconds, moving_seconds, worker_bytes
from leconvert.support.machine import Machine
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.activity import read_workers
from leconvert.workdir.run import OpenedRun

GIB = 2**30


def room(cores: int = 64, memory: int = 1024 * GIB) -> Any:
    """A machine of any size."""
    return Mock(Machine, **{"cores.return_value": cores, "free_memory.return_value": memory})


def of_size(run: OpenedRun, *, episodes: int, source_bytes: int) -> OpenedRun:
    manifest = replace(run.manifest, num_episodes=episodes, source_bytes=source_bytes)
    return replace(run, manifest=manifest)


@pytest.fixture
def many_files(planned: OpenedRun) -> OpenedRun:
    """A million short episodes: files to handle."""
    run = of_size(planned, episodes=1_000_000, source_bytes=100 * GIB)
    assert handling_seconds(run.manifest) > moving_seconds(run.manifest)
    return run


def test_a_worker_a_core_handles_files_and_half_of_the_memory_is_left(
    many_files: OpenedRun,
) -> None:
    for cores, workers in ((1, 1), (6, 6), (16, 16), (17, 16), (64, 16)):
        assert auto_workers(many_files, room(cores)) == workers
    each = worker_bytes(many_files)
    for memory, workers in ((0, 1), (4 * each, 2), (6 * each, 3), (6 * each - 2, 2)):
        assert auto_workers(many_files, room(memory=memory)) == workers


def test_four_workers_move_bytes_none_a_short_recording_and_tables_need_memory(
    planned: OpenedRun,
) -> None:
    run = of_size(planned, episodes=1000, source_bytes=1000 * GIB)
    assert [auto_workers(run, room(cores)) for cores in (1, 3, 64)] == [1, 3, 4]
    (source,) = planned.manifest.sources
    repairs = replace(source.repairs, computed_stats=("observation.images.top",))
    decoded = replace(planned.manifest, sources=(replace(source, repairs=repairs),))
    assert handling_seconds(replace(decoded, num_frames=400)) < 0.5
    assert handling_seconds(replace(decoded, num_frames=40_000)) > 5
    data, _ = planned.scan.stream("data")
    largest = max(int(data.size_bytes.max()), int(data.roll_bytes.max()))
    assert worker_bytes(planned) == 256 * MEBIBYTE + 6 * largest


IMAGES = DatasetSpec(
    episodes=2, frames=150, cameras=(), image_keys=("observation.images.top",),
    image_size=(240, 320), image_noise_amplitude=60,
)  # fmt: skip
LONG = DatasetSpec(episodes=1, frames=200_000, cameras=(), state_dim=14, action_dim=14)
SHORT = DatasetSpec(episodes=400, frames=3, cameras=(), state_dim=14, action_dim=14)
PICTURES = DatasetSpec(episodes=1, frames=16, cameras=(CameraSpec(width=1280, height=720),))
ANEW = RepairOptions(retime=True)
STATS = RepairOptions(recompute_stats=True, quantiles=True)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels count memory in other ways")
@pytest.mark.parametrize(
    ("spec", "repairs"),
    [
        pytest.param(SHORT, ANEW, id="many tables in a file, written anew", marks=pytest.mark.slow),
        pytest.param(IMAGES, ANEW, id="images, written anew"),
        pytest.param(LONG, ANEW, id="a long table, written anew", marks=pytest.mark.slow),
        pytest.param(PICTURES, STATS, id="statistics of large pictures"),
    ],
)
def test_a_worker_needs_no_more_memory_than_it_gets(
    tmp_path: Path, spec: DatasetSpec, repairs: RepairOptions
) -> None:
    source, work = make_dataset(tmp_path / "source", spec), tmp_path / "work"
    run = open_or_plan(source, tmp_path / "out", work, Conversion(repairs=repairs))
    # No rlimit: RLIMIT_DATA counts what threads reserve as well, three times what is resident.
    worked = subprocess.run(
        [sys.executable, "-m", "leconvert", "work", str(work)], timeout=120, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert worked.returncode == 0, worked.stderr
    assert "no failed attempts" in worked.stdout, worked.stdout + worked.stderr
    (worker,) = read_workers(run.paths)
    assert worker.batches == run.manifest.num_batches
    assert 0 < worker.peak_memory_bytes < worker_bytes(run)
