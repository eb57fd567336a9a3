"""What a fleet asks of the disk grows with its datasets, and not with their square."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.watched_disk import WatchedDisk
from tests.plans import draft_plan

from leconvert import fleet
from leconvert.run.conversion import Conversion, WorkerOptions
from leconvert.support.errors import UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

FEW = 4
ONE = WorkerOptions(max_workers=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest that there is; without cameras its conversion does little else."""
    return make_dataset(tmp_path_factory.mktemp("one") / "one", DatasetSpec(episodes=1, frames=3))


def counted(folder: Path, patch: pytest.MonkeyPatch, work: Callable[[], Any]) -> Counter[str]:
    """Return how often each operation was done below a folder, and how many names were listed.

    Names are counted by the depth of their folder: the many below would hide a square above. The
    fleet's own records are not counted, since they are listed by the clock.
    """
    found: Counter[str] = Counter()

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            at = folder.parent if isinstance(path, int) else Path(path)  # a removal has descriptors
            if at.is_relative_to(folder) and not at.is_relative_to(folder / "work/runs"):
                top, *below = at.relative_to(folder).parts or [""]
                found[f"listings and names, {top} {len(below)}"] += 1 + len(listdir(path))
            return real(path)

        return call

    listdir = os.listdir
    # Which of the two `Path.iterdir` takes depends on the version of Python.
    listings = {name: counting(getattr(os, name)) for name in ("listdir", "scandir")}
    with patch.context() as context, WatchedDisk(folder, really_sync=False) as disk:
        for name, call in listings.items():
            context.setattr(os, name, call)
        work()
    return found + Counter(operation.name for operation in disk.operations)


def test_no_step_of_a_fleet_grows_with_the_square_of_its_datasets(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the first run, nor the same command again, nor its removal."""
    found: dict[str, list[Counter[str]]] = {"first": [], "again": [], "clean": []}
    for number in (FEW, 2 * FEW):
        folder = tmp_path / str(number)
        for name in range(number):
            shutil.copytree(dataset, folder / f"in/{name:03}")

        def work(folder: Path = folder, number: int = number) -> None:
            done = fleet.run(
                [str(folder / "in/*")], output_dir=folder / "out", work_dir=folder / "work",
                conversion=Conversion(workers=ONE),
            )  # fmt: skip
            assert len(done.datasets) == number
            assert done.is_settled
            assert not done.set_aside

        def clean(folder: Path = folder) -> None:
            fleet.clean_fleet(folder / "work")

        for step, counts in found.items():
            counts.append(counted(folder, monkeypatch, clean if step == "clean" else work))
    for step, (few, many) in found.items():
        assert sum(few.values()) > (1 if step == "clean" else 20) * FEW
        for counted_as in {*few, *many}:
            # Waiting threads look at some files more or less often.
            assert many[counted_as] <= 2.2 * few[counted_as] + 20, (step, counted_as)


def test_planning_asks_the_disk_in_proportion_to_the_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for episodes in (40, 80):
        folder = tmp_path / str(episodes)
        spec = DatasetSpec(episodes=episodes, frames=3, cameras=(CameraSpec(width=32, height=32),))
        make_dataset(folder / "in", spec)

        def work(folder: Path = folder) -> None:
            draft_plan(folder / "in", folder / "out", folder / "work")

        found.append(counted(folder, monkeypatch, work))
    few, many = found
    assert few["open"] >= 40
    for name in {*few, *many}:
        assert many[name] <= 2.1 * few[name] + 4, name


def test_a_text_is_not_taken_letter_by_letter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="datasets takes several values"):
        fleet.run("a text", output_dir=tmp_path / "out", work_dir=tmp_path / "work")
    assert not (tmp_path / "work").exists()
