"""The public function: what it gives, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.loading.trajectories import padded, trajectory

from leconvert.loading import ResampledDataset, resample
from leconvert.support.errors import UsageError

TIMES = torch.tensor([[0.0, 0.1, 0.2, 0.3]], dtype=torch.float64)
X = torch.tensor([[0.0, 1.0, 2.0, 3.0]])


def refused(match: str, *arguments: object, **options: object) -> None:
    with pytest.raises(UsageError, match=match):
        resample(*arguments, **options)  # type: ignore[arg-type]


def test_trajectories_of_unequal_length_and_rate_come_to_one() -> None:
    times, values, lengths = padded(
        [trajectory([5.0, 5.1, 5.2], x=np.float32([0, 1, 2])),
         trajectory([0.0, 1.0], x=np.float32([4, 14]))]
    )  # fmt: skip

    got = resample(times, values, lengths, hz=5)

    assert got.lengths.tolist() == [2, 6]
    assert got.mask.tolist() == [[True] * 2 + [False] * 4, [True] * 6]
    assert got.values["x"].tolist()[0] == pytest.approx([0, 2, 0, 0, 0, 0])
    assert got.values["x"].tolist()[1] == pytest.approx([4, 6, 8, 10, 12, 14])
    assert got.times[1].tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_what_is_switched_is_never_a_fraction() -> None:
    values = {
        "done": torch.tensor([[False, True, True, False]]),
        "mode": torch.tensor([[1, 5, 9, 2]]),
        "hand": torch.tensor([[[0.0, 7.0], [1.0, 8.0], [0.0, 9.0], [1.0, 10.0]]]),
    }
    targets = torch.tensor([[0.0, 0.05, 0.099, 0.1, 0.16, 0.3]], dtype=torch.float64)

    got = resample(
        TIMES, values, targets=targets, methods={"mode": "nearest", "hand[0]": "previous"}
    ).values

    assert got["done"].tolist() == [[False, False, False, True, True, False]]
    assert got["mode"].tolist() == [[1, 1, 5, 5, 9, 2]]  # half way the earlier one
    assert got["hand"][0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert got["hand"][0, :, 1].tolist() == pytest.approx([7, 7.5, 7.99, 8, 8.6, 10])


def test_a_target_outside_is_an_error_unless_it_is_to_be_held() -> None:
    targets = torch.tensor([[-0.1, 0.15, 0.4]], dtype=torch.float64)

    refused("is 0.3 s long, but a target is -0.1 s after its first sample", TIMES, {"x": X},
            targets=targets)  # fmt: skip
    got = resample(TIMES, {"x": X}, targets=targets, outside="clamp")

    assert got.values["x"].tolist() == [[0, 1.5, 3]]


def test_tensors_that_ask_for_gradients_are_resampled_without() -> None:
    got = resample(
        TIMES.clone().requires_grad_(),
        {"x": X.clone().requires_grad_()},
        targets=torch.tensor([[0.15]], dtype=torch.float64, requires_grad=True),
    )

    assert got.values["x"].tolist() == [[1.5]]
    assert not got.values["x"].requires_grad


def test_bfloat16_is_mixed_in_float32_and_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 90, 5, generator=generator).bfloat16()
    times = torch.arange(90, dtype=torch.float64).expand(2, -1) / 73

    got = resample(times, {"x": x}, hz=50).values["x"]

    assert got.dtype == torch.bfloat16
    exact = resample(times, {"x": x.float()}, hz=50).values["x"]
    assert torch.equal(got, exact.bfloat16())
    assert resample(times, {"x": x.float()}, hz=50, dtype=torch.bfloat16).values["x"].equal(got)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([[0.0, 0.2, 0.1, 0.3]], "not in the order of time at sample 2"),
        ([[0.0, float("nan"), 0.2, 0.3]], "a time that is not finite at sample 1"),
        ([[0.0, 0.1, 0.2, float("inf")]], "a time that is not finite at sample 3"),
    ],
)
def test_times_that_are_no_clock_are_refused(bad: list[list[float]], match: str) -> None:
    refused(match, torch.tensor(bad, dtype=torch.float64), {"x": X}, hz=50)


def test_what_does_not_fit_is_refused() -> None:
    refused("seconds need float64", TIMES.float(), {"x": X}, hz=50)
    refused("which must begin with the shape of times", TIMES, {"x": X[:, :3]}, hz=50)
    refused("has no samples", TIMES, {"x": X}, [0], hz=50)
    refused("cannot have 5 of 4", TIMES, {"x": X}, [5], hz=50)
    refused("x is of type torch.complex64", TIMES, {"x": X.to(torch.complex64)}, hz=50)
    refused("x is of type torch.float16", TIMES, {"x": X.half()}, hz=50)
    refused("either hz or targets", TIMES, {"x": X})
    refused("hz must be a number above 0", TIMES, {"x": X}, hz=0)
    refused("x that is not finite at sample 2", TIMES,
            {"x": torch.tensor([[0, 1, float("nan"), 3]])}, hz=50)  # fmt: skip
    refused(
        "would produce values of another type",
        TIMES,
        {"x": X.long()},
        hz=50,
        methods={"x": "linear"},
    )
    refused("The column", TIMES, {"x": X}, hz=50, methods={"y": "nearest"})
    refused("There is no method cubic", TIMES, {"x": X}, hz=50, methods={"x": "cubic"})
    refused("a quaternion has 4", TIMES, {"x": X}, hz=50, methods={"x": "slerp"})
    refused("the quaternion 0 in q", TIMES, {"q": torch.zeros(1, 4, 4)}, hz=50,
            methods={"q": "slerp"})  # fmt: skip


def test_the_function_is_found_without_importing_torch_first() -> None:
    import subprocess
    import sys

    program = (
        "import sys, leconvert.loading as p; assert 'torch' not in sys.modules; "
        "assert 'resample' in dir(p)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_what_the_cpu_gives(dtype: torch.dtype) -> None:
    times = torch.sort(torch.rand(8, 70, dtype=torch.float64), dim=1).values
    values = {"x": torch.randn(8, 70, 4), "n": torch.randint(0, 9, (8, 70))}
    options = {"hz": 50, "methods": {"x": "slerp"}, "dtype": dtype}

    here = resample(times, values, **options)  # type: ignore[arg-type]
    there = resample(times.cuda(), {k: v.cuda() for k, v in values.items()}, **options)  # type: ignore[arg-type]

    assert torch.equal(here.values["n"], there.values["n"].cpu())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(here.values["x"].float(), there.values["x"].cpu().float(), atol=tolerance)


def test_arrays_texts_and_numbers_too_large_for_the_type_are_refused() -> None:
    times, values = torch.arange(4.0, dtype=torch.float64)[None], {"a": torch.zeros(1, 4)}
    calls: list[tuple[Any, Any, dict[str, Any]]] = [
        (times.numpy(), values, {"hz": 1}),
        (times, {"a": values["a"].numpy()}, {"hz": 1}),
        (times, values, {"targets": times.numpy()}),
    ]
    for of_times, of_values, options in calls:
        with pytest.raises(UsageError, match="must be a tensor, not ndarray"):
            resample(of_times, of_values, **options)
    with pytest.raises(UsageError, match="columns takes several values"):
        ResampledDataset("nowhere", hz=10, columns="action")
    values = torch.tensor([[1e300, 1.0, 2.0]], dtype=torch.float64)
    times = torch.arange(3).double()[None]
    with pytest.raises(UsageError, match=r"not finite as torch\.float32"):
        resample(times, {"x": values}, hz=2, dtype=torch.float32)
    assert resample(times, {"x": values}, hz=2).values["x"][0, 0] == 1e300


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e24])
def test_a_quaternion_may_be_of_any_length(size: float) -> None:
    pose = size * torch.tensor([[[1.0, 0, 0, 0], [0, 1.0, 0, 0]]])
    got = resample(torch.arange(2).double()[None], {"q": pose}, hz=2, methods={"q": "slerp"})
    half = 0.5**0.5
    expected = torch.tensor([[1.0, 0, 0, 0], [half, half, 0, 0], [0, 1.0, 0, 0]])
    assert torch.allclose(got.values["q"][0], expected, atol=1e-6)


@pytest.mark.parametrize("hz", [1e13, 1e300])
def test_more_targets_than_memory_holds_are_refused(hz: float) -> None:
    refused("of memory are free", TIMES, {"x": X}, hz=hz)
    with pytest.raises(UsageError, match="of memory are free"):
        trajectory([0.0, 3.0], x=[1.0, 2.0]).targets(hz)
