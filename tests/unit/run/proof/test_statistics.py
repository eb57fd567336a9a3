"""Statistics that are compared by blocks and by rows: with the same differences."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutation import EPISODES as EPISODES_PATH
from mutation import break_page

import leconvert
from leconvert.dataset.formats import v2
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import statistics, verify_pair
from leconvert.testing import CameraSpec, DatasetSpec, edit_lines, make_dataset

EPISODES = 7


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "BLOCK_EPISODES", 3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several blocks; do not change it."""
    camera = CameraSpec(key="observation.images.top", width=64, height=64)
    spec = DatasetSpec(episodes=EPISODES, frames=12, cameras=(camera,))
    return make_dataset(tmp_path_factory.mktemp("statistics") / "source", spec)


@pytest.fixture(scope="module")
def as_v21(source: Path) -> Path:
    """That dataset converted to v2.1; do not change it."""
    layout = LayoutOptions(to="v2.1")
    return leconvert.convert(source, output=source.with_name("v21"), layout=layout).output


def differences(result: Path, source: Path, *, by_rows: bool) -> tuple[list[Any], int]:
    """Return the differences, and how many blocks were found equal."""
    equal = 0
    same_columns = statistics._same_columns

    def is_same(*arguments: Any) -> bool:
        nonlocal equal
        is_equal = not by_rows and same_columns(*arguments)
        equal += is_equal
        return is_equal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_same_columns", is_same)
        return list(verify_pair(result, source, depth="bytes").differences), equal


@pytest.mark.parametrize(("to", "selection"), [("v3.0", None), ("v2.1", "1,3-5")])
def test_equal_statistics_are_equal_by_blocks_and_by_rows(
    source: Path, tmp_path: Path, to: str, selection: str | None
) -> None:
    chosen = EpisodeSelection(episodes=selection)
    out = tmp_path / "out"
    leconvert.convert(source, output=out, layout=LayoutOptions(to=to), selection=chosen)
    found, equal = differences(out, source, by_rows=False)
    assert not found
    # Of some episodes the numbers of the rows change, whose statistics are computed.
    assert (equal > 0) is (selection is None)
    assert differences(out, source, by_rows=True) == ([], 0)


@pytest.mark.parametrize(
    ("place", "value"), [(0, 0.25), (EPISODES - 1, float("nan")), (0, None), (EPISODES - 1, [1.0])]
)
def test_a_statistic_of_one_episode_that_differs_is_found_by_blocks_and_by_rows(
    source: Path, as_v21: Path, tmp_path: Path, place: int, value: Any
) -> None:
    out = Path(shutil.copytree(as_v21, tmp_path / "out"))
    set_first(out, place, "mean", value)
    found, _ = differences(out, source, by_rows=False)
    assert [(each.what, each.episode) for each in found] == [("stats/action/mean", place)]
    assert list(map(str, differences(out, source, by_rows=True)[0])) == list(map(str, found))


def set_first(root: Path, episode: int, kind: str, value: Any) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[episode]["stats"]["action"][kind][0] = value

    edit_lines(root, "episodes_stats", change)


def test_statistics_that_are_no_numbers_equal_themselves(source: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(source, tmp_path / "source"))
    set_first(source, 4, "std", float("nan"))
    out = tmp_path / "out"
    with np.errstate(all="ignore"):
        leconvert.convert(source, output=out, layout=LayoutOptions(to="v2.1"))
        assert not differences(out, source, by_rows=False)[0]


@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_computed_statistics_that_cannot_be_read_are_a_difference(
    source: Path, tmp_path: Path, to: str
) -> None:
    out = leconvert.convert(
        source,
        output=tmp_path / "out",
        layout=LayoutOptions(to=to),
        repairs=RepairOptions(recompute_stats=True),
    ).output
    if to == "v2.1":
        path = out / "meta/episodes_stats.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"mean":', b"\xff" * 7, 1))
    else:
        path = out / EPISODES_PATH
        break_page(path, "stats/action/mean")
    found = verify_pair(out, source, depth="bytes").differences
    assert str(path.relative_to(out)) in {each.path for each in found}
