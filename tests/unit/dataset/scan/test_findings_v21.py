"""What LeRobot 0.3.3 would not load of a v2.1 result is a finding, and only with that target."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.dataset.scan import scan_source
from leconvert.dataset.scan.file_checks import uneven_steps
from leconvert.model.repairs import RepairOptions
from leconvert.testing import DatasetSpec, make_dataset


@pytest.mark.parametrize("fps", [10, 29.97, 30, 50])
def test_the_rule_for_times_is_that_of_lerobot_033(fps: float) -> None:
    """Compare with ``check_timestamps_sync`` as it stands there, for one episode."""
    generator = np.random.default_rng(int(fps))
    for offset in (0.0, 900.0, 1100.0):
        times = (offset + np.arange(300) / fps + generator.uniform(-6e-5, 6e-5, 300)).astype(
            np.float32
        )
        within = np.abs(np.diff(times) - (1.0 / fps)) <= 1e-4
        found = uneven_steps(times, Fraction(repr(fps)))
        assert found.tolist() == np.flatnonzero(~within).tolist()


def with_times(root: Path, fps: int, times: list[float]) -> Path:
    source = make_dataset(root, DatasetSpec(episodes=2, frames=len(times), fps=fps, cameras=()))
    path = source / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("timestamp")
    column = pa.array(times, pa.float32())
    pq.write_table(table.set_column(at, table.schema.field(at), column), path)
    return source


def test_steps_that_are_too_long_are_an_error_of_the_episode(tmp_path: Path) -> None:
    source = with_times(tmp_path / "source", 10, [0.0, 0.09992, 0.20008, 0.3])
    codes = [finding.code for finding in scan_source(source).findings]
    assert "uneven-times" not in codes
    (found,) = (f for f in scan_source(source, to="v2.1").findings if f.code == "uneven-times")
    assert (found.severity, found.episode, found.remedy) == ("error", 1, "--retime")
    assert "not 1 / fps after the timestamp" in found.message
    mended = scan_source(source, RepairOptions(retime=True), to="v2.1").findings
    assert [f.severity for f in mended if f.code == "uneven-times"] == ["repaired"]


def test_an_episode_that_is_too_long_for_exact_times_can_only_be_left_out(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=2, frames=[3200, 3], fps=1.5, cameras=())
    source = make_dataset(tmp_path / "source", spec)
    (found,) = (f for f in scan_source(source, to="v2.1").findings if f.code == "uneven-times")
    assert (found.episode, found.remedy) == (0, "--on-bad-episode drop")
    assert "the episode is so long that float32 timestamps" in found.message
    assert [remedy.flag for remedy in found.remedies] == ["--on-bad-episode drop"]
    retimed = scan_source(source, RepairOptions(retime=True), to="v2.1").findings
    assert [f.severity for f in retimed if f.code == "uneven-times"] == ["error"]
    left = scan_source(source, RepairOptions(on_bad_episode="drop"), to="v2.1")
    assert left.length.tolist() == [3]
