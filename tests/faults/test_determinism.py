"""One tree, whoever wrote it: workers, batches, threads and processes leave no trace in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tests.trees import digest_of

import leconvert
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import WorkerOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

LIMITS = LayoutOptions(data_file_size_in_mb=0.008, video_file_size_in_mb=0.012)


@pytest.fixture(scope="session")
def rolling_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen episodes that fill several files a stream under the limits above."""
    cameras = (
        CameraSpec(key="observation.images.top", width=48, height=48),
        CameraSpec(key="observation.images.wrist", width=32, height=32, codec="mpeg4"),
    )
    spec = DatasetSpec(
        episodes=16, frames=[5, 9, 1, 7] * 4, cameras=cameras, extra_files={"README.md": "# x\n"}
    )
    return make_dataset(tmp_path_factory.mktemp("rolling") / "source", spec)


@pytest.fixture(scope="session")
def expected_digest(rolling_source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one thread's work on whole files."""
    out = tmp_path_factory.mktemp("expected") / "out"
    leconvert.convert(
        rolling_source, output=out, layout=LIMITS, workers=WorkerOptions(max_workers=1)
    )
    assert len(list(out.rglob("file-001.*"))) == 3  # every stream rolled over
    return digest_of(out)


# In CI each number once, and once the processes that a worker of many episodes starts.
IN_CI = {(False, 1, 1), (False, 2, None), (False, 4, 7), (True, 2, 7)}
COMBINATIONS = [
    pytest.param(*each, marks=() if each in IN_CI else pytest.mark.slow)
    for each in product((False, True), (1, 2, 4), (1, 7, None))
]


@pytest.mark.parametrize(("orchestrate", "workers", "episodes_per_batch"), COMBINATIONS)
def test_trees_are_identical_for_any_workers_and_batches(
    rolling_source: Path,
    expected_digest: str,
    tmp_path: Path,
    orchestrate: bool,
    workers: int,
    episodes_per_batch: int | None,
) -> None:
    layout = replace(LIMITS, episodes_per_batch=episodes_per_batch)
    number = {"num_workers" if orchestrate else "max_workers": workers}
    options = WorkerOptions(orchestrate=orchestrate, **number)
    leconvert.convert(rolling_source, output=tmp_path / "out", layout=layout, workers=options)
    assert digest_of(tmp_path / "out") == expected_digest
