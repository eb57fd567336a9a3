"""A trajectory is checked when it is made, and columns get their methods."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.loading.trajectories import methods_of, trajectory

from leconvert.loading.resampling import PackMemory, even_targets, pack, resample_packed
from leconvert.loading.trajectories import check_alike, choose_methods
from leconvert.support.errors import SourceError, UsageError

FLOAT, INTEGER = np.dtype(np.float32), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("times", "x", "message"),
    [
        ([], [], "one has no samples: its times must be one row of seconds."),
        ([0.0, np.nan], [1.0, 2.0], "one has a time that is not finite (sample 1)."),
        ([0.0, 2.0, 1.0], [1.0, 2.0, 3.0], "one is not in the order of time (sample 2)."),
        ([0.0, 1.0], [1.0], "one has 2 times, but x is of shape [1]."),
        ([0.0, 1.0], [1.0, np.inf], "one has a value in x that is not finite (sample 1)."),
        ([0.0, 1.0], ["a", "b"], "one has x of type <U1, which cannot be resampled."),
    ],
)  # fmt: skip
def test_what_is_no_trajectory_says_why(times: list[float], x: list[object], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        trajectory(times, x=x)

    assert caught.value.message == message
    assert caught.value.next_step


def test_trajectories_of_a_batch_have_the_same_columns() -> None:
    one = trajectory([0.0], "a", x=np.float32([1]))

    with pytest.raises(SourceError, match="b and a differ in their columns: x float64"):
        check_alike([one, trajectory([0.0], "b", x=[1.0])])
    with pytest.raises(SourceError, match="There are no trajectories"):
        check_alike([])


def test_methods_follow_from_types_and_names_and_choices() -> None:
    columns = {"action": (FLOAT, 8), "mode": (INTEGER, 1)}
    names = {"action": [*"abcdef", "left_Gripper.pos", "h"]}

    assert choose_methods(columns, None, names) == {
        "action": ((0, 6, "linear"), (6, 7, "previous"), (7, 8, "linear")),
        "mode": ((0, 1, "previous"),),
    }
    assert choose_methods(columns, {"action": "nearest", "action[4:8]": "slerp"}, names)[
        "action"
    ] == ((0, 4, "nearest"), (4, 8, "slerp"))
    two = choose_methods(columns, {"action[0:4]": "slerp", "action[4:8]": "slerp"})["action"]
    assert two == ((0, 4, "slerp"), (4, 8, "slerp"))


def test_choices_that_name_nothing_or_a_part_of_a_quaternion_are_refused() -> None:
    columns = {"action": (FLOAT, 7)}

    for text in ("acton", "action[7]", "action[3:3]", "action[5:9]", "action[-1]"):
        with pytest.raises(UsageError, match="The column"):
            choose_methods(columns, {text: "nearest"})
    with pytest.raises(UsageError, match=r"a column of the quaternion at action\[0\]"):
        choose_methods(columns, {"action[0:4]": "slerp", "action[2]": "linear"})
    with pytest.raises(UsageError, match="a column of the quaternion"):
        choose_methods(
            {"x": (np.dtype("f4"), 8)},
            {"x[0:4]": "slerp", "x[4:8]": "slerp", "x[0:2]": "previous", "x[6:8]": "previous"},
        )


def test_packing_shares_memory_and_choices_copy_nothing() -> None:
    first = [trajectory([7.0, 7.5, 8.0], x=np.float32([[1], [2], [3]])), trajectory([0.0, 1.0])]
    memory = PackMemory()

    packed = pack(first, memory)
    chosen = packed.select([1])

    assert packed.times.tolist() == [0.0, 0.5, 1.0, 0.0, 1.0]
    assert packed.durations_s.tolist() == [1.0, 1.0]
    assert chosen.rows["x"] is packed.rows["x"]
    got = resample_packed(chosen, methods_of(first[0]), even_targets(chosen, 2))
    assert got.values["x"].flatten().tolist() == [0, 0.5, 1]
    again = pack(list(reversed(first)), memory)
    assert again.times.data_ptr() == packed.times.data_ptr()
    assert again.times.tolist() == [0.0, 1.0, 0.0, 0.5, 1.0]


def test_the_last_sample_is_a_target_though_rounding_puts_it_short() -> None:
    assert len(trajectory([5.0, 5.0 + 0.1 * 3 - 1e-12]).targets(10)) == 4
    assert len(trajectory([5.0, 5.29]).targets(10)) == 3


@pytest.mark.parametrize("kind", ["uint16", "uint32", ">i4", ">u2", ">f8"])
def test_types_that_torch_lacks_are_resampled_in_wider_ones(kind: str) -> None:
    largest = 2 ** (8 * np.dtype(kind).itemsize) - 1 if "u" in kind else 7
    one = trajectory([0.0, 0.5, 1.0], x=np.array([largest, 1, 2], kind))
    methods = methods_of(one)
    values = resample_packed(packed := pack([one]), methods, even_targets(packed, 2)).values["x"]
    assert values[0].flatten().tolist() == [largest, 1, 2]


@pytest.mark.parametrize("kind", ["uint64", "longdouble"])
def test_types_that_no_other_type_holds_are_refused(kind: str) -> None:
    with pytest.raises(SourceError, match="cannot be resampled"):
        trajectory([0.0, 1.0], x=np.array([1, 2], kind))
