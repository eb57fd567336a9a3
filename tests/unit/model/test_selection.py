"""Which episodes of a source are converted: parsed, refused, recorded, and proven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import open_or_plan

import leconvert
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.selection import EpisodeRanges, EpisodeSelection
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.packer import reason_to_keep
from leconvert.run.proof import verify_pair
from leconvert.support.errors import PlanMismatchError, UsageError


def kept(selection: EpisodeSelection, *index: int, tasks: list[list[str]] | None = None) -> object:
    found = selection.keeps(np.array(index), lambda: tasks or [])
    return [episode for episode, is_kept in zip(index, found.tolist(), strict=True) if is_kept]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1))
def test_ranges_hold_what_they_were_made_of(spans: list[tuple[int, int]]) -> None:
    ranges = EpisodeRanges.of((first, first + more) for first, more in spans)
    members = {number for first, more in spans for number in range(first, first + more + 1)}
    assert {number for number in range(40) if number in ranges} == members
    assert np.flatnonzero(ranges.holds(np.arange(40))).tolist() == sorted(members)
    assert EpisodeRanges.of_episodes(np.array(sorted(members))) == ranges
    assert all(b + 1 < c for (_, b), (c, _) in zip(ranges.ranges, ranges.ranges[1:], strict=False))


def test_episodes_are_taken_or_left_in_the_order_of_the_source() -> None:
    assert kept(EpisodeSelection(episodes="9, 2-4,3"), *range(10)) == [2, 3, 4, 9]
    assert kept(EpisodeSelection(exclude_episodes="0,5-8"), *range(10)) == [1, 2, 3, 4, 9]
    # Only the ends of a range need be there.
    assert kept(EpisodeSelection(episodes="1-9"), 1, 4, 9, 12) == [1, 4, 9]
    tasks = [["a"], ["b"], ["a", "b"], ["c"]]
    chosen = EpisodeSelection(episodes="0-2", exclude_tasks=("b",))
    assert kept(chosen, 0, 1, 2, 3, tasks=tasks) == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"episodes": "3,7-9,8"}, "The dataset has no episodes 7, 8, 9 (--episodes)."),
        ({"exclude_episodes": "5"}, "The dataset has no episode 5 (--exclude-episodes)."),
        ({"exclude_episodes": "0-4"}, "The selection contains no episode."),
        ({"episodes": "2", "exclude_tasks": ("c",)}, "The selection contains no episode."),
        ({"exclude_tasks": ("d",)}, "No episode has the task d (--exclude-task)."),
    ],
)
def test_what_the_source_lacks_is_refused(options: dict[str, object], said: str) -> None:
    selection = EpisodeSelection(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        kept(selection, *range(5), tasks=[["a"], ["b"], ["c"], ["a"], ["b"]])
    assert caught.value.message == said
    assert caught.value.next_step


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-2", "1,,2", "1;2", "0x1", "1.0"])
def test_lists_that_are_none_are_refused(text: str) -> None:
    for flag in ("episodes", "exclude_episodes"):
        with pytest.raises(UsageError, match="takes episode numbers and ranges"):
            EpisodeSelection(**{flag: text})  # type: ignore[arg-type]


def test_both_lists_are_a_contradiction() -> None:
    with pytest.raises(UsageError, match="--episodes and --exclude-episodes exclude each other"):
        EpisodeSelection(episodes="1", exclude_episodes="2")


def test_equal_selections_have_equal_records() -> None:
    assert EpisodeSelection().as_record() == {}
    written = [
        EpisodeSelection(episodes=text).as_record() for text in ("0-2,5", "5,2,1,0", "0,1-2,5-5")
    ]
    assert written == [{"episodes": "0-2,5"}] * 3
    tasks = EpisodeSelection(exclude_tasks=("b", "a", "b"), exclude_episodes="4")
    assert tasks.as_record() == {"exclude_episodes": "4", "exclude_tasks": ["a", "b"]}


def test_repairs_with_a_selection_are_read_again() -> None:
    ranges = EpisodeRanges(((0, 2), (5, 5)))
    repairs = Repairs(selected_episodes=ranges)
    assert Repairs.from_record(repairs.as_record()) == repairs
    assert repairs.keeps(np.arange(7)).tolist() == [True, True, True, False, False, True, False]
    assert "selected_episodes" not in Repairs(quantiles=True).as_record()
    for wrong in ([], [[3, 1]], [[0, 1], [2, 3]], [[4, 5], [0, 1]]):
        with pytest.raises(ValueError, match="selected_episodes"):
            Repairs.from_record(repairs.as_record() | {"selected_episodes": wrong})


def test_a_part_is_converted_and_proven(small_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    selection = EpisodeSelection(episodes="1,3-4")
    report = leconvert.convert(small_source, output=out, selection=selection)
    assert (report.episodes, report.frames) == (3, 7 + 9 + 15)
    rows = pq.read_table(out / "data")
    assert rows["index"].to_pylist() == list(range(31))
    assert rows["episode_index"].to_pylist() == [0] * 7 + [1] * 9 + [2] * 15
    info = json.loads((out / "meta/info.json").read_bytes())
    assert (info["total_episodes"], info["total_frames"]) == (3, 31)
    repairs = read_repairs(out)
    assert repairs.selected_episodes == EpisodeRanges(((1, 1), (3, 4)))
    assert json.loads((out / "meta/repairs.json").read_bytes())["version"] == 3
    assert verify_pair(out, small_source).ok
    assert reason_to_keep(out, small_source, repairs) == "the result has only its episodes 1,3-4"


def test_a_result_that_says_another_selection_is_not_proven(
    small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    leconvert.convert(small_source, output=out, selection=EpisodeSelection(episodes="1,3-4"))
    path = out / "meta/repairs.json"
    record = json.loads(path.read_bytes())
    for ranges in ([[1, 1], [3, 3]], [[1, 1], [3, 5]], [[0, 0], [3, 4]]):
        path.write_text(json.dumps(record | {"selected_episodes": ranges}))
        assert not verify_pair(out, small_source).ok, ranges


def test_the_first_episodes_are_copied_as_they_are(small_source: Path, tmp_path: Path) -> None:
    scan = scan_source(small_source, selection=EpisodeSelection(episodes="0-2"))
    assert scan.repairs == Repairs(selected_episodes=EpisodeRanges(((0, 2),)))
    assert not scan.repairs.change_rows
    everything = scan_source(small_source, selection=EpisodeSelection(episodes="0-4"))
    assert everything.findings == scan_source(small_source).findings


def test_what_is_wrong_with_other_episodes_is_neither_read_nor_told(
    source_copy: Path, tmp_path: Path
) -> None:
    for path in source_copy.rglob("episode_000002.*"):
        path.write_bytes(b"damaged")
    lines = (source_copy / "meta/episodes_stats.jsonl").read_text().splitlines()
    (source_copy / "meta/episodes_stats.jsonl").write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    selection = EpisodeSelection(exclude_episodes="2")
    before = scan_source(source_copy, RepairOptions(on_bad_episode="drop", fill_stats=True))
    assert {finding.episode for finding in before.findings} >= {2}
    scan = scan_source(source_copy, selection=selection)
    assert [f for f in scan.findings if f.severity in ("error", "warning")] == []
    leconvert.convert(source_copy, output=tmp_path / "out", selection=selection)
    assert verify_pair(tmp_path / "out", source_copy).ok


def test_damaged_episodes_among_the_selected_are_dropped_as_well(
    source_copy: Path, tmp_path: Path
) -> None:
    shutil.rmtree(source_copy / "videos/chunk-000/observation.images.wrist")
    leconvert.convert(
        source_copy,
        output=tmp_path / "out",
        selection=EpisodeSelection(episodes="1-3"),
        repairs=RepairOptions(drop_features=("observation.images.wrist",)),
    )
    (source_copy / "data/chunk-000/episode_000003.parquet").unlink()
    leconvert.convert(
        source_copy,
        output=tmp_path / "less",
        selection=EpisodeSelection(episodes="1-3"),
        repairs=RepairOptions(on_bad_episode="drop", drop_features=("observation.images.wrist",)),
    )
    assert verify_pair(tmp_path / "less", source_copy).ok
    info = json.loads((tmp_path / "less/meta/info.json").read_bytes())
    assert info["total_episodes"] == 2


def test_a_run_is_resumed_by_the_same_selection_alone(small_source: Path, tmp_path: Path) -> None:
    places = small_source, tmp_path / "out", tmp_path / "work"
    run = open_or_plan(*places, Conversion(selection=EpisodeSelection(episodes="0,2-3")))
    same = open_or_plan(*places, Conversion(selection=EpisodeSelection(episodes="3,2,0")))
    assert same.paths.run_id == run.paths.run_id
    for other in (
        EpisodeSelection(),
        EpisodeSelection(episodes="0,2"),
        EpisodeSelection(exclude_episodes="1,4"),
    ):
        with pytest.raises(PlanMismatchError) as caught:
            open_or_plan(*places, Conversion(selection=other))
        assert any("episodes: 0,2-3 in the plan" in line for line in caught.value.details)
    again = open_or_plan(*places, Conversion(plan=PlanOptions(restart=True)))
    assert again.manifest.num_episodes == 5
