"""Which source files can be taken as they are: decided from numbers alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from leconvert.dataset.scan.scan import data_misfits
from leconvert.media import ClipIndex
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import IntArray, Misfit
from leconvert.run.planner import misfit_counts

NTSC = Fraction(30000, 1001)


def clip(
    shown: range | IntArray,
    *,
    duration: int | None = None,
    timescale: int = 15360,
    tracks: tuple[str, ...] = (),
) -> ClipIndex:
    count = len(shown)
    return ClipIndex(
        path="",
        file_size_bytes=count,
        timescale=timescale,
        sizes=np.ones(count, np.int64),
        num_bytes=count,
        unindexed_bytes=0,
        places=0,
        step=0,
        shown=shown,
        keyframes=np.ones(count, np.bool_),
        sample_entry=b"",
        config_key="",
        other_tracks=tracks,
        geometry=b"",
        duration=count * 512 if duration is None else duration,
    )


def test_frames_at_their_exact_times_are_fit_in_any_order_of_decoding() -> None:
    assert clip(range(0, 5 * 512, 512)).misfit(Fraction(30)) == Misfit(0)
    assert clip(np.array([0, 1024, 512, 1536])).misfit(Fraction(30)) == Misfit(0)
    assert clip(range(0, 512, 512)).misfit(Fraction(30)) == Misfit(0)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (clip(range(512, 6 * 512, 512)), Misfit.LATE_START),
        (clip(np.array([0, 512, 1536, 2048])), Misfit.UNEVEN_TIMES),
        # The last frame lasts longer: 30 frames would be fewer than 30 a second.
        (clip(range(0, 30 * 512, 512), duration=31 * 512), Misfit.UNEVEN_TIMES),
        (clip(range(0, 5 * 640, 640), duration=5 * 640), Misfit.OTHER_RATE),
        (clip(range(0, 5 * 512, 512), tracks=("soun",)), Misfit.OTHER_TRACKS),
    ],
)
def test_a_clip_is_unfit_for_one_reason(index: ClipIndex, reason: Misfit) -> None:
    assert index.misfit(Fraction(30)) == reason


def test_a_rate_that_is_nearly_the_declared_one_is_fit_until_its_last_frame_is_too_far() -> None:
    def ntsc(frames: int) -> ClipIndex:
        times = range(0, frames * 1001, 1001)
        return clip(times, duration=frames * 1001, timescale=30000)

    assert ntsc(100_000).misfit(NTSC) == Misfit(0)
    assert ntsc(1000).misfit(Fraction("29.97")) == Misfit(0)
    assert ntsc(3000).misfit(Fraction("29.97")) == Misfit.OTHER_RATE
    assert ntsc(10).misfit(Fraction(30)) == Misfit.OTHER_RATE


LENGTH = np.array([3, 4, 5])
BEGINS = np.array([0, 3, 7])


def misfits_of(
    repairs: Repairs = NO_REPAIRS,
    *,
    first: IntArray = BEGINS,
    episodes: tuple[int, ...] = (0, 1, 2),
    others: tuple[bool, ...] = (False, False, False),
) -> list[int]:
    found = data_misfits(
        np.array([0, 0, int(Misfit.SHARED)]),
        has_other_columns=np.array(others),
        first_index=first,
        episode_index=np.array(episodes),
        length=LENGTH,
        repairs=repairs,
    )
    return found.tolist()


def test_rows_are_fit_where_they_count_on_and_no_repair_changes_them() -> None:
    shared = int(Misfit.SHARED)
    assert misfits_of() == [0, 0, shared]
    assert misfits_of(others=(True, False, False)) == [Misfit.OTHER_COLUMNS, 0, shared]
    numbers = Misfit.OTHER_NUMBERS
    assert misfits_of(episodes=(0, 1, 3)) == [0, 0, numbers | shared]
    assert misfits_of(first=np.array([0, 4, 7])) == [0, numbers, shared]
    renumbered = Repairs(computed_columns=("episode_index", "index"))
    assert misfits_of(renumbered)[:2] == [0, 0]
    changed = Misfit.CHANGED_ROWS
    for repairs in (
        Repairs(computed_columns=("timestamp",)),
        Repairs(task_map={0: 0}),
        Repairs(tasks_from="episodes"),
    ):
        assert misfits_of(repairs)[:2] == [changed, changed]


def test_each_reason_is_counted_with_its_first_file() -> None:
    misfits = np.array([0, Misfit.LATE_START, Misfit.LATE_START | Misfit.OTHER_TRACKS])
    assert misfit_counts(misfits) == [(Misfit.LATE_START, 2, 1), (Misfit.OTHER_TRACKS, 1, 2)]
    assert all(reason.said for reason in Misfit)
