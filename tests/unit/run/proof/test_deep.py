"""``--deep`` with a stand-in for LeRobot: what counts as the sample that the source demands.

`tests/conformance/test_verify_deep.py` asks LeRobot itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.pictures import CAMERA, DATA, IMAGE

from leconvert import media
from leconvert.dataset.formats import v3
from leconvert.run.proof import Difference, Sampling, VerificationReport, verify_pair

TOP = f"videos/{CAMERA}/chunk-000/file-000.mp4"

Change = Callable[[int, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Tensor:
    """As much of a tensor as is asked for."""

    values: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def numpy(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return self.values

    __array__ = numpy


def samples_of(root: Path) -> list[dict[str, Any]]:
    """Return all samples as LeRobot gives them: frames in bytes, images as numbers up to 1."""
    rows = pq.read_table(root / DATA).to_pylist()
    frames = dict(media.decode_shown(root / TOP, range(len(rows)), is_depth=False))
    tasks = dict(v3.read_tasks(root))
    samples = []
    for number, row in enumerate(rows):
        image = media.decode_image(row.pop(IMAGE)["bytes"], is_depth=False)
        sample: dict[str, Any] = {
            name: Tensor(np.asarray(value, _PRECISION.get(type(value))))
            for name, value in row.items()
        }
        sample[CAMERA] = Tensor(np.moveaxis(frames[number], -1, 0))
        sample[IMAGE] = Tensor(np.moveaxis(image, -1, 0).astype(np.float32) / np.float32(255))
        sample["task"] = tasks[row["task_index"]]
        samples.append(sample)
    return samples


_PRECISION = {float: np.float32, list: np.float32}


@pytest.fixture(scope="module")
def samples(picture_result: Path) -> list[dict[str, Any]]:
    return samples_of(picture_result)


@pytest.fixture
def load(
    picture_result: Path,
    picture_source: Path,
    samples: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Change | Exception], VerificationReport]:
    """Verify with a LeRobot whose samples are changed, or that does not load the dataset."""

    def verify(change: Change | Exception) -> VerificationReport:
        class LeRobotDataset:
            def __init__(self, repo_id: str, *, root: str, return_uint8: bool) -> None:
                assert (repo_id, root) == ("local/out", str(picture_result))
                assert return_uint8
                if isinstance(change, Exception):
                    raise change

            def __getitem__(self, number: int) -> dict[str, Any]:
                assert not isinstance(change, Exception)
                return change(number, dict(samples[number]))

        module = ModuleType("lerobot.datasets.lerobot_dataset")
        module.LeRobotDataset = LeRobotDataset  # type: ignore[attr-defined]
        for name in ("lerobot", "lerobot.datasets"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return verify_pair(picture_result, picture_source, sampling=Sampling(deep=1000))

    return verify


def only(number: int, **changes: object) -> Change:
    """Change one sample; None takes a key away."""

    def change(at: int, sample: dict[str, Any]) -> dict[str, Any]:
        if at != number:
            return sample
        return {name: it for name, it in {**sample, **changes}.items() if it is not None}

    return change


def found_in(report: VerificationReport) -> tuple[str, int | None, str, str]:
    (found,) = report.differences
    assert found.path == DATA
    return found.what, found.episode, found.expected, found.found


def test_samples_of_the_source_are_no_difference_and_one_that_does_not_load_is_told(
    load: Any,
) -> None:
    report = load(lambda _, sample: sample)
    assert report.differences == ()
    assert report.samples == 28

    def change(number: int, sample: dict[str, Any]) -> dict[str, Any]:
        if number == 9:
            raise AssertionError("frame beyond the tolerance")
        return sample

    report = load(change)
    assert found_in(report) == (
        "sample 9 in LeRobot", 1, "a sample", "frame beyond the tolerance",
    )  # fmt: skip
    assert report.samples == 28


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("\nno such column\nand much more"), "no such column"), (KeyError(), "KeyError")],
)
def test_a_dataset_that_fails_to_load_is_one(load: Any, error: Exception, said: str) -> None:
    report = load(error)
    assert report.differences == (Difference("loads in LeRobot", "meta/", "a dataset", said),)
    assert report.samples == 0


OTHER = Tensor(np.full((3, 48, 64), 7, np.uint8))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (CAMERA, OTHER, "3x48x64, mean 7"),
        (IMAGE, Tensor(np.zeros((3, 32, 32), np.float32)), "3x32x32, mean 0"),
        ("frame_index", Tensor(np.array(2.5)), None),
        ("timestamp", Tensor(np.array(0)), None),  # a whole number of seconds is another time
        ("timestamp", Tensor(np.array(np.nan, np.float32)), None),
        ("task", "Dance.", "Dance."),
    ],
)
def test_another_value_is_told(load: Any, column: str, value: object, said: str | None) -> None:
    what, episode, expected, found = found_in(load(only(2, **{column: value})))
    assert (what, episode) == (f"{column!r} of sample 2 in LeRobot", 0)
    assert expected != found
    assert said in (None, found)
    if column == CAMERA:
        assert expected.startswith("3x48x64, mean ")
