"""Windows of frames around a frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.loading.metadata import make_windows
from leconvert.support.errors import UsageError

FEATURES = {"action": {}, "state": {}}


def windows_of(seconds: list[float], fps: float = 30):
    found = make_windows({"action": seconds}, fps=fps, tolerance_s=1e-4, features=FEATURES)
    return found["action"]


@given(
    length=st.integers(1, 20),
    offsets=st.lists(st.integers(-40, 40), min_size=1, max_size=8),
    fps=st.sampled_from([10, 30, 29.97, 50.0]),
)
def test_frames_stay_inside_and_pads_say_which_did_not(
    length: int, offsets: list[int], fps: float
) -> None:
    window = windows_of([offset / fps for offset in offsets], fps)
    assert window.offsets.tolist() == offsets
    for frame in range(length):
        found = window.frames(np.array([frame]), np.array([length]))[0].tolist()
        pads = window.is_pad(np.array([frame]), np.array([length]))[0].tolist()
        wanted = [frame + offset for offset in offsets]
        assert found == [min(max(step, 0), length - 1) for step in wanted]
        assert pads == [not 0 <= step < length for step in wanted]


def test_what_repeats_in_a_window_is_one_frame() -> None:
    window = windows_of([0.0, 0.1, 0.2, 0.3])
    # 0 3 6 9; then, at the end of ten frames, 5 8 9 9, where 9 is one; then 9 four times.
    assert window.distinct_frames(np.array([0]), np.array([10])) == 4
    assert window.distinct_frames(np.array([5]), np.array([10])) == 3
    assert window.distinct_frames(np.array([9]), np.array([10])) == 1
    assert window.distinct_frames(np.array([0, 5, 9]), np.array([10, 10, 10])) == 8
    # Padded, and yet nothing repeats: the second step is the last frame, the first one is not.
    assert windows_of([0.0, 0.1]).distinct_frames(np.array([8]), np.array([10])) == 2


def test_a_time_within_the_tolerance_is_taken_and_one_between_two_frames_is_refused() -> None:
    assert windows_of([1 / 30 + 9e-5]).offsets.tolist() == [1]
    with pytest.raises(UsageError, match=r"0\.05 s") as error:
        windows_of([0.05])
    assert "0.066667" in str(error.value.next_step)


def test_unknown_features_and_empty_windows_are_refused_and_none_are_none() -> None:
    with pytest.raises(UsageError, match="'none'"):
        make_windows({"none": [0.0]}, fps=30, tolerance_s=1e-4, features=FEATURES)
    with pytest.raises(UsageError, match="an empty list for 'action'"):
        windows_of([])
    for seconds in (0.1, ["soon"], [float("nan")], [1e300], None):
        with pytest.raises(UsageError, match="which is not a list of seconds"):
            windows_of(seconds)  # type: ignore[arg-type]
    assert make_windows(None, fps=30, tolerance_s=1e-4, features=FEATURES) == {}
