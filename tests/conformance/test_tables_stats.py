"""Aggregated statistics equal those of LeRobot's own ``aggregate_stats``, but for quantiles."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets import aggregate_stats
from lerobot.datasets.io_utils import cast_stats_to_numpy, load_stats
from lerobot.datasets.io_utils import write_stats as reference_write_stats

from leconvert.dataset.formats.v3 import StatsAggregator, write_stats
from leconvert.support.errors import SourceError


def random_stats(seed: int, episodes: int, *, quantiles: bool) -> list[dict[str, Any]]:
    """Statistics as episodes_stats.jsonl has them: floats, integers, booleans and images."""
    rng = np.random.default_rng(seed)

    def feature(shape: tuple[int, ...], count: int, kind: str = "float") -> dict[str, Any]:
        low, high = rng.normal(-5, 1, shape), rng.normal(5, 1, shape)
        if kind == "int":
            low, high = low.astype(np.int64), high.astype(np.int64)
        if kind == "bool":
            low, high = low > 0, high > 0
        values = {
            "min": low.tolist(),
            "max": high.tolist(),
            "mean": rng.normal(0, 1, shape).tolist(),
            "std": rng.random(shape).tolist(),
            "count": [count],
        }
        if quantiles:
            values |= {f"q{q:02d}": rng.normal(0, 1, shape).tolist() for q in (1, 10, 50, 90, 99)}
        return values

    result = []
    for _ in range(episodes):
        count = int(rng.integers(1, 500))
        result.append(
            {
                "observation.state": feature((7,), count),
                "observation.images.top": feature((3, 1, 1), min(count, 100)),
                "observation.images.depth": feature((1, 1, 1), min(count, 100)),
                "grid": feature((2, 3), count),
                "timestamp": feature((1,), count),
                "frame_index": feature((1,), count, "int"),
                "next.done": feature((1,), count, "bool"),
            }
        )
    return result


def assert_identical(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    assert ours.keys() == reference.keys()
    for name, expected in reference.items():
        assert ours[name].keys() == expected.keys(), name
        for key, value in expected.items():
            got = ours[name][key]
            assert got.dtype == value.dtype, (name, key)
            assert got.shape == value.shape, (name, key)
            np.testing.assert_array_equal(got, value, err_msg=f"{name}/{key}")


def both(stats: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    aggregator = StatsAggregator()
    for episode in stats:
        aggregator.update(copy.deepcopy(episode))
    return aggregator.result(), reference_of(stats)


def reference_of(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """LeRobot's aggregate, with quantiles as it has them since 0.6.1: bounds instead of a mean."""
    cast = [cast_stats_to_numpy(episode) for episode in stats]
    reference: dict[str, Any] = aggregate_stats(cast)
    for name, values in reference.items():
        for key in values.keys() & {"q01", "q10", "q50", "q90", "q99"}:
            every = np.stack([episode[name][key] for episode in cast if name in episode])
            values[key] = every.min(axis=0) if int(key[1:]) <= 50 else every.max(axis=0)
    return reference


@pytest.mark.parametrize(
    ("episodes", "quantiles"),
    [(1, True), (2, False), (63, True), (64, False), (65, True), (300, False)],
)
def test_one_block_is_equal_to_the_last_bit(episodes: int, quantiles: bool) -> None:
    assert_identical(*both(random_stats(episodes, episodes, quantiles=quantiles)))


def test_quantiles_that_one_episode_lacks_are_left_out_as_in_the_reference() -> None:
    stats = random_stats(3, 200, quantiles=True)
    del stats[150]["observation.state"]["q01"]
    del stats[0]["timestamp"]["q99"]
    ours, reference = both(stats)
    assert_identical(ours, reference)
    assert "q01" not in ours["observation.state"]
    assert "q10" in ours["observation.state"]


def test_features_that_only_some_episodes_have_are_aggregated_over_those() -> None:
    stats = random_stats(4, 130, quantiles=False)
    for episode in stats[::2]:
        del episode["grid"]
    stats[100]["late"] = stats[100]["timestamp"]
    assert_identical(*both(stats))


def test_numbers_of_several_kinds_promote_as_in_the_reference() -> None:
    stats = random_stats(5, 200, quantiles=False)
    for episode in stats[100:]:
        episode["frame_index"]["max"] = [3.5]
        episode["next.done"]["min"] = [2]
    assert_identical(*both(stats))


def test_scalars_count_as_arrays_of_one() -> None:
    stats = random_stats(6, 3, quantiles=False)
    for episode in stats:
        episode["timestamp"] = {key: value[0] for key, value in episode["timestamp"].items()}
    assert_identical(*both(stats))


def test_no_episode_has_fewer_than_no_frames() -> None:
    aggregator = StatsAggregator()
    for episode, stats in enumerate(random_stats(8, 3, quantiles=False)):
        if episode == 1:
            stats["timestamp"]["count"] = [-9]
        aggregator.update(stats)
    with pytest.raises(SourceError, match="count is negative or not a number"):
        aggregator.result()


def test_merged_blocks_agree_with_one_block_to_rounding() -> None:
    stats = random_stats(7, 500, quantiles=True)
    aggregator = StatsAggregator(block_episodes=64)
    for episode in stats:
        aggregator.update(episode)
    reference = reference_of(stats)
    ours = aggregator.result()
    assert ours.keys() == reference.keys()
    for name, expected in reference.items():
        assert ours[name].keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(ours[name][key], value, rtol=1e-12, atol=1e-12)
            if key in ("min", "max", "count"):
                np.testing.assert_array_equal(ours[name][key], value)
                assert ours[name][key].dtype == value.dtype


def test_the_file_reads_back_as_the_references_does(tmp_path: Path) -> None:
    ours, reference = both(random_stats(8, 50, quantiles=True))
    (tmp_path / "ours").mkdir()
    write_stats(tmp_path / "ours", ours)
    reference_write_stats(reference, tmp_path / "reference")
    first, second = load_stats(tmp_path / "ours"), load_stats(tmp_path / "reference")
    assert first is not None
    assert second is not None
    assert_identical(first, second)
