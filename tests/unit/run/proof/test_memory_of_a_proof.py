"""A proof of a million episodes fits into memory: each further episode adds little to it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import leconvert
from leconvert.run.proof import verify_pair
from leconvert.support.parallel import Spread
from leconvert.testing import DatasetSpec, make_dataset


def converted(root: Path, episodes: int) -> tuple[Path, Path]:
    source, result = root / f"source-{episodes}", root / f"result-{episodes}"
    make_dataset(source, DatasetSpec(episodes=episodes, frames=10, distinct_clips=1))
    leconvert.convert(source, output=result)
    return result, source


def test_an_episode_adds_less_than_a_kilobyte_to_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The footers of this test are small, and so are the pieces in which they are read.
    monkeypatch.setattr("leconvert.tables.footers._PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr("leconvert.tables.footers._MOST_PART_BYTES", 8 * 1024)
    few, many, peaks = 50, 200, dict[int, int]()
    for episodes in (few, many):
        result, source = converted(tmp_path, episodes)
        for _ in range(2):  # the first proof learns what is common to all files
            tracemalloc.start()
            report = verify_pair(result, source, spread=Spread())
            _, peaks[episodes] = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert (report.ok, report.files) == (True, 2), "all episodes are in one file a stream"
    assert (peaks[many] - peaks[few]) / (many - few) < 1000
