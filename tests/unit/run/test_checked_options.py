"""Options as a program gives them: NumPy's numbers, texts for several values, other types."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection, FrameInterval
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Control, LeaseOptions, WorkerOptions
from leconvert.support.errors import UsageError
from leconvert.transfer.options import ScratchOptions

NUMPY: Any = np  # its numbers are none to type checkers
TEXT: Any = "observation.state"


def test_numbers_may_be_numpys_and_tuples_may_be_lists(small_source: Path, tmp_path: Path) -> None:
    layout = LayoutOptions(
        data_file_size_in_mb=NUMPY.float32(2.5), video_file_size_in_mb=NUMPY.int64(3),
        episodes_per_batch=NUMPY.int32(2),
    )  # fmt: skip
    frames = (FrameInterval(NUMPY.int64(0), NUMPY.int64(0), NUMPY.int64(4)),)
    report = leconvert.convert(
        small_source, output=tmp_path / "out", layout=layout,
        leases=LeaseOptions(lease_seconds=NUMPY.float32(30)),
        workers=WorkerOptions(max_workers=NUMPY.int64(1)),
        selection=EpisodeSelection(frames=frames),
    )  # fmt: skip
    assert report.episodes == 5
    assert RepairOptions(retime=NUMPY.bool_(True)).flags() == ("--retime",)
    names: Any = ["b", "a"]
    assert RepairOptions(drop_features=names) == RepairOptions(drop_features=("b", "a"))
    assert RepairOptions(drop_features=names).flags() == ("--drop-feature b", "--drop-feature a")
    assert EpisodeSelection(exclude_tasks=names) == EpisodeSelection(exclude_tasks=("b", "a"))


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("drop_features takes several", lambda: RepairOptions(drop_features=TEXT)),
        ("accept takes several values", lambda: RepairOptions(accept=TEXT)),
        ("exclude_tasks takes several", lambda: EpisodeSelection(exclude_tasks=TEXT)),
        ("num_workers must be a whole number, not 1.5", lambda: WorkerOptions(num_workers=1.5)),  # type: ignore[arg-type]
        ("max_workers must be a whole number, not 'x'", lambda: WorkerOptions(max_workers="x")),  # type: ignore[arg-type]
        ("max_attempts must be a whole number", lambda: LeaseOptions(max_attempts=math.inf)),  # type: ignore[arg-type]
        # The heartbeat's thread ended at its first wait, so nothing renewed the lease.
        ("lease_seconds is too large", lambda: LeaseOptions(lease_seconds=math.inf)),
        ("lease_seconds is too large", lambda: LeaseOptions(lease_seconds=1e12)),
    ],
)
def test_no_text_is_taken_letter_by_letter_nor_a_number_out_of_range(
    said: str, make: Callable[[], object]
) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_frames_are_whole_numbers(small_source: Path) -> None:
    frames: Any = {0: (1.5, 4)}
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        leconvert.trim(small_source, frames=frames, output=small_source.parent / "none")


@pytest.mark.parametrize("wrong", [True, print])
def test_a_stop_or_progress_of_another_kind_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"stop must be a threading\.Event, not"):
        Control(stop=wrong)
    with pytest.raises(TypeError, match="progress must be a Progress, not"):
        Control(progress=wrong)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_a_measurement_without_time_is_refused_before_any_work(
    small_source: Path, tmp_path: Path, seconds: float
) -> None:
    with pytest.raises(UsageError, match="a number of seconds above 0, not"):
        leconvert.convert(small_source, output=tmp_path / "out", probe_seconds=seconds)
    assert not list(tmp_path.iterdir())


def test_a_relative_scratch_folder_is_the_same_for_workers_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folder: Any = "fetched"
    options = ScratchOptions(folder=folder)
    monkeypatch.chdir("/")
    assert options.place("run") == tmp_path / "fetched/run"
    assert options.as_arguments() == [f"--scratch-dir={tmp_path}/fetched"]
