"""A dataset split into several: which episodes each part has, what is refused, and resumption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import open_or_plan
from tests.trees import digest_of

import leconvert
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeRanges, parse_parts, split_episodes
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import UsageError
from leconvert.workdir.swap import work_dir_beside

BYTES = ProofOptions(verify="bytes")


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.sets(st.integers(0, 500), min_size=40, max_size=80),
    st.integers(0, 5),
)
def test_each_episode_is_in_one_part(weights: list[int], episodes: set[int], seed: int) -> None:
    index = np.array(sorted(episodes))
    into: dict[str, float | str] = {
        f"part{number}": weight / sum(weights) for number, weight in enumerate(weights)
    }
    if min(weights) / sum(weights) * len(index) < 1:
        return  # the share of a part may be no episode
    parts = split_episodes(into, index, seed=seed)
    assert list(parts) == list(into)
    held = np.array([ranges.holds(index) for ranges in parts.values()])
    assert (held.sum(axis=0) == 1).all()
    for share, count in zip(into.values(), held.sum(axis=1).tolist(), strict=True):
        assert abs(float(share) * len(index) - count) < 1
    assert split_episodes(into, index, seed=seed) == parts


def test_the_same_seed_gives_the_same_parts_and_lists_their_episodes() -> None:
    index, into = np.arange(10), {"train": 0.8, "val": 0.2}
    assert {name: str(found) for name, found in split_episodes(into, index).items()} == {
        "train": "0,2-4,6-9",
        "val": "1,5",
    }
    assert split_episodes(into, index, seed=1) != split_episodes(into, index)
    parts = split_episodes({"a": "0-2,9", "b": "4-7"}, np.array([0, 2, 4, 5, 7, 9]))
    assert parts == {
        "a": EpisodeRanges(((0, 0), (2, 2), (9, 9))),
        "b": EpisodeRanges(((4, 5), (7, 7))),
    }


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ({}, "No parts are given."),
        ({"a/b": 1.0}, "a/b cannot be the name of a part"),
        ({"..": 1.0}, ".. cannot be the name of a part"),
        ({"": 1.0}, " cannot be the name of a part"),
        ({"a": 0.5, "b": 0.4}, "The shares of --into add up to 0.9, not to 1."),
        ({"a": 0.9, "b": 0.4}, "The shares of --into add up to 1.3, not to 1."),
        ({"a": 1.0, "b": 0.0}, "A share of --into must be above 0 and at most 1, not 0."),
        ({"a": 1.5, "b": -0.5}, "A share of --into must be above 0 and at most 1, not 1.5."),
        ({"a": float("nan")}, "A share of --into must be above 0 and at most 1, not nan."),
        (
            {"a": 0.99, "b": 0.01},
            ("b would get no episode: its share 0.01 of 5 episodes is less than one (--into)."),
        ),
        (
            {"a": 0.9, "b": "4"},
            (
                "--into mixes shares and episode numbers: the part 'b' has episode "
                "numbers, but another part has a share."
            ),
        ),
        ({"a": "0-3", "b": "3-4"}, "--into puts episode 3 into two parts: a and b."),
        ({"a": "0-1", "b": "4"}, "2 episodes are in no part of --into: episodes 2-3."),
        ({"a": "0-5"}, "The dataset has no episode 5 (--into a)."),
        ({"a": "0:3"}, "--into a takes episode numbers and ranges such as 0-99,120, not 0:3."),
    ],
)
def test_parts_that_are_none_are_refused(into: dict[str, float | str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_episodes(into, np.arange(5))
    assert said in caught.value.message


def test_parts_are_read_from_words_and_episodes_without_one_are_named() -> None:
    assert parse_parts(["train=0.9,val=0.1"]) == {"train": 0.9, "val": 0.1}
    assert parse_parts(["train=0-9,12,val=10-11", "more=13"]) == {
        "train": "0-9,12",
        "val": "10-11",
        "more": "13",
    }
    assert parse_parts(["a=.5", "b=1.", "c=1"]) == {"a": 0.5, "b": 1.0, "c": "1"}
    for words, said in ((["0.9"], "has no name for a part"), (["a=1", "a=2"], "the part a twice")):
        with pytest.raises(UsageError, match=said):
            parse_parts(words)
    with pytest.raises(UsageError) as caught:
        split_episodes(parse_parts(["a=0-1,rest=4"]), np.arange(7))
    assert "--into rest2=2-3,5-6" in str(caught.value.next_step)
    parts = split_episodes(parse_parts(["a=0-1,rest=4", "rest2=2-3,5-6"]), np.arange(7))
    assert str(parts["rest2"]) == "2-3,5-6"


def test_a_dataset_is_split_and_every_part_is_proven(
    small_source: Path, small_result: Path, tmp_path: Path
) -> None:
    before, folder = digest_of(small_source), tmp_path / "parts"
    into, to = {"train": 0.6, "val": 0.4}, LayoutOptions(to="v2.1")
    parts = leconvert.split(small_source, output_dir=folder, into=into, layout=to, proof=BYTES)
    assert digest_of(small_source) == before
    assert [part.name for part in parts] == ["train", "val"]
    assert sorted(path.name for path in folder.iterdir()) == ["train", "val"]
    frames = 0
    for part in parts:
        assert part.report is not None
        assert str(read_repairs(part.output).selected_episodes) == part.episodes
        assert verify_pair(part.output, small_source, depth="bytes").ok
        rows = pq.read_table(part.output / "data")
        assert rows["index"].to_pylist() == list(range(len(rows)))
        info = json.loads((part.output / "meta/info.json").read_bytes())
        assert info["total_frames"] == len(rows)
        frames += len(rows)
    assert frames == 12 + 7 + 1 + 9 + 15
    for part in leconvert.split(small_result, output_dir=tmp_path, into={"a": "0,3", "b": "1-2,4"}):
        assert verify_pair(part.output, small_result, depth="bytes").ok


def test_the_finished_is_left_and_the_interrupted_resumed(
    small_source: Path, tmp_path: Path
) -> None:
    into = {"a": "0-1", "b": "2-3", "c": "4"}
    repairs = RepairOptions(quantiles=True)
    (first, *_) = leconvert.split(small_source, output_dir=tmp_path, into=into, repairs=repairs)
    kept = digest_of(first.output)
    for path in (tmp_path / "b", tmp_path / "c"):
        path.rename(path.with_name(f"{path.name}_before"))
    # Part b was planned, and killed then; part c never began.
    open_or_plan(
        small_source, tmp_path / "b", work_dir_beside(tmp_path / "b"),
        Conversion(repairs=repairs, selection=leconvert.EpisodeSelection(episodes="2-3")),
    )  # fmt: skip
    again = leconvert.split(small_source, output_dir=tmp_path, into=into, repairs=repairs)
    assert [part.report is None for part in again] == [True, False, False]
    assert digest_of(first.output) == kept
    for name in "bc":
        assert digest_of(tmp_path / name) == digest_of(tmp_path / f"{name}_before")
    assert not list(tmp_path.glob(".*"))
