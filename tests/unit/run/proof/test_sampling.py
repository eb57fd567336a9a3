"""Random choices are the same for a seed, and stay within what there is."""

from __future__ import annotations

import numpy as np
import pytest

from leconvert.run.proof import Sampling
from leconvert.run.proof.pair import Place, chosen
from leconvert.support.errors import UsageError


def test_equal_seeds_choose_the_same() -> None:
    assert chosen(1000, 5, 7).tolist() == [154, 331, 404, 666, 970]
    assert chosen(1000, 5, 8).tolist() != chosen(1000, 5, 7).tolist()


def test_where_there_are_fewer_all_are_chosen() -> None:
    assert chosen(3, 10, 0).tolist() == [0, 1, 2]
    assert chosen(0, 10, 0).tolist() == []


@pytest.mark.parametrize(("share", "episodes", "count"), [(0.5, 10, 5), (0.001, 10, 1), (1, 4, 4)])
def test_a_share_is_rounded_and_never_nothing(share: float, episodes: int, count: int) -> None:
    is_chosen = Sampling(share=share).episodes(episodes)
    assert (episodes if is_chosen is None else int(is_chosen.sum())) == count


def test_frames_are_found_in_their_episodes() -> None:
    lengths = np.array([3, 0, 2])
    everything = Sampling().frames(99, lengths, ["top", "wrist"])
    assert everything == [
        (camera, Place(*place))
        for camera in ("top", "wrist")
        for place in [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    ]
    assert Sampling().frames(2, np.zeros(3, np.int64)) == []
    assert Sampling().frames(2, lengths, []) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "sample must be above 0 and at most 1, not 0."),
        ({"share": 1.5}, "not 1.5"),
        ({"share": float("nan")}, "not nan"),
        ({"decode": -1}, "--decode takes 0 or more, not -1."),
        ({"deep": -2}, "--deep takes 0 or more, not -2."),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**options)  # type: ignore[arg-type]
