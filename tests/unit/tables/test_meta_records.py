"""Statistics that cannot be used, and what becomes of info.json."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leconvert.dataset.formats import Totals
from leconvert.dataset.formats.dataset import fps_number
from leconvert.dataset.formats.v3 import (
    StatsAggregator,
    converted_info,
    kept_splits,
    write_info,
    write_stats,
)
from leconvert.support.errors import SourceError


def feature(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "min": [0.0, 1.0],
        "max": [2.0, 3.0],
        "mean": [1.0, 2.0],
        "std": [0.5, 0.5],
        "count": [4],
    }
    return values | changes


def test_mean_and_variance_are_those_of_all_frames() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 2)) for n in (3, 50, 7, 200)]
    aggregator = StatsAggregator(block_episodes=3)
    for part in parts:
        aggregator.update(
            {
                "a": feature(
                    min=part.min(0),
                    max=part.max(0),
                    mean=part.mean(0),
                    std=part.std(0),
                    count=[len(part)],
                )
            }
        )
    everything = np.concatenate(parts)
    result = aggregator.result()["a"]
    np.testing.assert_allclose(result["mean"], everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result["std"], everything.std(0), rtol=1e-12)
    np.testing.assert_array_equal(result["min"], everything.min(0))
    assert result["count"].tolist() == [260]


@pytest.mark.parametrize(
    "bad",
    [
        {"min": ["low", "high"]},
        {"mean": [[1.0], [2.0, 3.0]]},
        {"std": [1.0, 2.0, 3.0]},
        {"max": [None, 1.0]},
        {"count": [4, 4]},
        {"count": "4"},
        {"max": "text"},
    ],
)
@pytest.mark.parametrize("position", [0, 5, 70])
def test_malformed_statistics_name_episode_and_feature(bad: dict[str, Any], position: int) -> None:
    aggregator = StatsAggregator()

    def feed() -> None:
        for index in range(100):
            aggregator.update({"a": feature(**(bad if index == position else {}))})
        aggregator.result()

    with pytest.raises(SourceError) as caught:
        feed()
    assert "statistics of a in episode" in caught.value.message
    assert caught.value.next_step
    # In the first episode a lone odd shape is seen when the second one differs, or beside another
    # statistic; everything else names the very episode.
    if position:
        block = range(64, 100) if position >= 64 else range(64)
        named = int(caught.value.message.split("in episode ")[1].split(" ")[0])
        assert named == position or (named in block and "shape" in caught.value.message)


@pytest.mark.parametrize("episodes", [63, 64, 65, 128])
def test_the_result_does_not_depend_on_how_many_are_packed_at_once(episodes: int) -> None:
    aggregator = StatsAggregator()
    for number in range(episodes):
        aggregator.update({"a": feature(min=[-float(number), 0.0], count=[number + 1])})
    result = aggregator.result()["a"]
    assert result["min"].tolist() == [1.0 - episodes, 0.0]
    assert result["count"].tolist() == [episodes * (episodes + 1) // 2]
    assert result["mean"].tolist() == [1.0, 2.0]


def test_a_feature_that_only_some_episodes_have_counts_those(
    recwarn: pytest.WarningsRecorder,
) -> None:
    aggregator = StatsAggregator(block_episodes=2)
    for number in range(7):
        aggregator.update({"a": feature()} if number > 1 else {"a": feature(), "b": feature()})
    result = aggregator.result()
    assert (result["a"]["count"].tolist(), result["b"]["count"].tolist()) == ([28], [8])
    assert not recwarn.list


@pytest.mark.parametrize("lacking", [0, 5, 70])
@pytest.mark.parametrize("block_episodes", [4096, 30])
def test_a_quantile_that_one_episode_lacks_is_dropped_and_the_others_are_kept(
    lacking: int, block_episodes: int
) -> None:
    aggregator = StatsAggregator(block_episodes=block_episodes)
    quantiles = {"q01": [0.25, 1.0], "q99": [1.5, 2.5]}
    for number in range(100):
        values = feature(**quantiles)
        if number == lacking:
            del values["q01"]
        aggregator.update({"a": values})
    result = aggregator.result()["a"]
    assert list(result) == ["min", "max", "mean", "std", "count", "q99"]
    np.testing.assert_allclose(result["q99"], quantiles["q99"], rtol=1e-12)


def test_statistics_of_one_episode_that_have_two_shapes_are_refused() -> None:
    aggregator = StatsAggregator()
    aggregator.update({"a": feature(max=[2.0, 3.0, 4.0])}, episode_index=9)
    with pytest.raises(
        SourceError, match=r"in episode 9 .*max has shape \(3,\), but others have \(2,\)"
    ):
        aggregator.result()


def test_one_number_is_a_list_of_one() -> None:
    single = {"min": 0.0, "max": 2.0, "mean": 1.0, "std": 0.5, "count": 4}
    aggregator = StatsAggregator()
    aggregator.update({"a": single})
    aggregator.update({"a": {key: [value] for key, value in single.items()}})
    result = aggregator.result()["a"]
    assert {key: value.shape for key, value in result.items()} == dict.fromkeys(single, (1,))
    assert result["count"].tolist() == [8]


@pytest.mark.parametrize("key", ["min", "max", "mean", "std", "count"])
def test_a_missing_statistic_is_named_with_its_episode(key: str) -> None:
    broken = feature()
    del broken[key]
    aggregator = StatsAggregator()
    aggregator.update({"a": feature()}, episode_index=40)
    aggregator.update({"a": broken}, episode_index=41)
    with pytest.raises(SourceError, match=rf"of a in episode 41 .*{key} is missing"):
        aggregator.result()


def test_images_have_one_value_a_channel() -> None:
    features = {"observation.top": {"dtype": "video"}, "image_quality": {"dtype": "float32"}}
    aggregator = StatsAggregator(features)
    aggregator.update({"image_quality": feature()})
    assert aggregator.result()["image_quality"]["mean"].shape == (2,)
    aggregator.update({"observation.top": feature()})
    with pytest.raises(SourceError, match=r"\(3, 1, 1\)"):
        aggregator.result()


def test_deeper_mappings_are_features_with_a_slash_in_their_name() -> None:
    aggregator = StatsAggregator()
    assert aggregator.result() == {}
    aggregator.update({"a": {"b": feature(), "c": {"d": feature()}}})
    assert list(aggregator.result()) == ["a/b", "a/c/d"]
    aggregator = StatsAggregator()
    aggregator.update({"a": [1, 2]})
    with pytest.raises(SourceError, match="not a mapping"):
        aggregator.result()


def test_zero_frames_give_nan_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    aggregator = StatsAggregator()
    aggregator.update({"a": feature(count=[0])})
    assert math.isnan(aggregator.result()["a"]["mean"][0])
    assert not recwarn.list


def test_stats_are_written_sorted_with_numbers_of_their_kind(tmp_path: Path) -> None:
    aggregator = StatsAggregator()
    aggregator.update({"b": feature(min=[1, 2], max=[True, False]), "a": feature()})
    write_stats(tmp_path, aggregator.result())
    text = (tmp_path / "meta/stats.json").read_text()
    assert text.endswith("}\n")
    stats = json.loads(text)
    assert list(stats) == ["a", "b"]
    assert list(stats["b"]) == sorted(stats["b"])
    assert stats["b"]["min"] == [1, 2]
    assert '"max": [\n            true,' in text
    assert stats["a"]["count"] == [4]
    assert isinstance(stats["b"]["min"][0], int)


INFO = {
    "codebase_version": "v2.1",
    "robot_type": None,
    "curator": {"name": "ä"},
    "total_episodes": 99,
    "total_frames": 99,
    "total_tasks": 99,
    "total_videos": 99,
    "total_chunks": 1,
    "fps": 29.97,
    "splits": {"train": "0:99"},
    "data_path": "old",
    "video_path": "old",
    "features": {
        "state": {"dtype": "float32", "shape": [2], "names": None},
        "still": {"dtype": "image", "shape": [2, 2, 3], "names": None},
        "top": {"dtype": "video", "shape": [2, 2, 3], "info": {"video.fps": 29.97}},
    },
}


def convert(
    info: dict[str, Any] = INFO, *, has_videos: bool = True, **changes: Any
) -> dict[str, Any]:
    totals = Totals(fps=Fraction(2997, 100), episodes=2, frames=20, tasks=1)
    return converted_info(
        info,
        replace(totals, **changes),
        data_file_size_in_mb=100,
        video_file_size_in_mb=200,
        has_videos=has_videos,
    )


def test_fractional_rates_and_unknown_keys_survive() -> None:
    info = convert()
    assert info["fps"] == 29.97
    assert info["features"]["state"]["fps"] == info["features"]["still"]["fps"] == 29.97
    assert info["features"]["top"] == INFO["features"]["top"]
    assert info["curator"] == {"name": "ä"}
    assert list(info)[-1] == "curator"
    assert "total_videos" not in info
    assert "total_chunks" not in info
    assert "fps" not in INFO["features"]["state"]


def test_totals_come_from_the_result_and_splits_only_where_given() -> None:
    info = convert()
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (2, 20, 1)
    assert info["splits"] == {"train": "0:99"}
    assert convert(splits={"train": "0:2"})["splits"] == {"train": "0:2"}
    bare = {"features": {}, "fps": 30}
    assert convert(bare)["splits"] == {}
    assert convert(bare)["chunks_size"] == 1000
    assert convert(has_videos=False)["video_path"] is None
    assert convert()["video_path"] == (
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    )
    assert "tools" not in convert({**bare, "tools": None})


@pytest.mark.parametrize("splits", [["train"], "train", 5, None, []])
def test_splits_that_name_no_episodes_are_none(splits: Any) -> None:
    assert convert({**INFO, "splits": splits})["splits"] == {}
    assert kept_splits(splits, np.arange(3)) == {}


def test_splits_are_told_by_the_numbers_of_the_episodes_that_are_kept() -> None:
    splits = {"train": "0:4", "val": "4:6", "all": "0:99", "none": "1:2", "odd": "²:3", 1: "0:3"}
    others = {"open": "3:", "list": [0, 1], "nothing": None, "long": "0:" + "9" * 5000}
    assert kept_splits({**splits, **others}, np.array([0, 2, 3, 5])) == {
        "train": "0:3",
        "val": "3:4",
        "all": "0:4",
        "none": "1:1",
        "odd": "²:3",
        "1": "0:2",
        **others,
    }


def test_what_v2_0_told_of_a_video_is_where_readers_of_v3_0_look() -> None:
    old = {"dtype": "video", "shape": [2, 2, 3], "video_info": {"video.fps": 5.0}, "names": None}
    both = {**old, "info": {"video.codec": "av1"}}
    features = convert({**INFO, "features": {"old": old, "both": both}})["features"]
    assert list(features["old"]) == ["dtype", "shape", "info", "names"]
    assert features["old"]["info"] == {"video.fps": 5.0}
    assert features["both"] == both
    assert "info" not in old


def test_tools_are_kept_before_what_is_not_known() -> None:
    tools = {"gripper": ["left"]}
    info = convert({"more": 1, **INFO, "tools": tools})
    assert list(info)[-3:] == ["tools", "more", "curator"]
    assert info["tools"] == tools
    assert info["tools"] is not tools


def test_a_statistic_of_no_number_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be of type set"):
        write_stats(tmp_path, {"a": {"min": {1}}})
    assert not (tmp_path / "meta/stats.json").exists()


def test_whole_rates_are_integers() -> None:
    assert repr(fps_number(Fraction("30.0"))) == "30"
    assert repr(fps_number(Fraction("29.97"))) == "29.97"


def test_info_is_indented_and_keeps_letters(tmp_path: Path) -> None:
    write_info(tmp_path, convert())
    text = (tmp_path / "meta/info.json").read_text(encoding="utf-8")
    assert text.startswith('{\n    "codebase_version": "v3.0",\n    "fps": 29.97,\n')
    assert '"name": "ä"' in text
    assert json.loads(text) == convert()


def test_no_conversion_edit_or_proof_imports_pandas_or_compute_functions(
    small_source: Path, tmp_path: Path
) -> None:
    """The first takes longer than to merge a hundred episodes, the others a tenth of a second."""
    program = """
import sys
from pathlib import Path
import leconvert
from leconvert.dataset.check import check_dataset
from leconvert.run.proof import verify_pair
from leconvert.model.selection import EpisodeSelection
from leconvert.run.conversion import WorkerOptions
source, out = map(Path, sys.argv[1:])
one = WorkerOptions(max_workers=1)
leconvert.convert(source, output=out / "v30", workers=one)
check_dataset(out / "v30")
to = leconvert.LayoutOptions(to="v2.1")
leconvert.convert(out / "v30", output=out / "v21", layout=to, workers=one)
assert "pyarrow.compute" not in sys.modules
leconvert.merge([source, out / "v30"], output=out / "merged", workers=one)
verify_pair(out / "merged", [source, out / "v30"], depth="bytes", max_workers=1)
some = EpisodeSelection(episodes="1-2")
leconvert.convert(out / "v30", output=out / "some", selection=some, workers=one)
leconvert.trim(out / "v30", output=out / "trimmed", frames={0: (2, 6)}, workers=one)
assert "pandas" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(small_source), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
