"""Aggregated statistics equal those of LeRobot's own ``aggregate_stats``, but for quantiles."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets import aggregate_stats
from lerobot.datasets.io_utils import cast_stats_to_numpy, load_stats
from lerobot.datasets.io_utils import write_stats as reference_write_stats

from leconvert.dataset.formats.v3 import StatsAggregator, write_stats

Stats = list[dict[str, Any]]
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "observation.state": ((7,), "float"),
    "observation.images.top": ((3, 1, 1), "image"),
    "observation.images.depth": ((1, 1, 1), "image"),
    "grid": ((2, 3), "float"),
    "timestamp": ((1,), "float"),
    "frame_index": ((1,), "int"),
    "next.done": ((1,), "bool"),
}


def random_stats(seed: int, episodes: int, *, quantiles: bool = False) -> Stats:
    """Statistics as episodes_stats.jsonl has them: floats, integers, booleans and images."""
    rng = np.random.default_rng(seed)

    def feature(shape: tuple[int, ...], kind: str, count: int) -> dict[str, Any]:
        low, high = rng.normal(-5, 1, shape), rng.normal(5, 1, shape)
        if kind in ("int", "bool"):
            low, high = (each.astype(np.int64) for each in (low, high))
        if kind == "bool":
            low, high = low > 0, high > 0
        values = {
            "min": low.tolist(),
            "max": high.tolist(),
            "mean": rng.normal(0, 1, shape).tolist(),
            "std": rng.random(shape).tolist(),
            "count": [min(count, 100) if kind == "image" else count],
        }
        if quantiles:
            values |= {f"q{q:02d}": rng.normal(0, 1, shape).tolist() for q in (1, 10, 50, 90, 99)}
        return values

    counts = rng.integers(1, 500, episodes).tolist()
    return [{name: feature(*how, count) for name, how in SHAPES.items()} for count in counts]


def aggregated(stats: Stats, **options: int) -> dict[str, Any]:
    aggregator = StatsAggregator(**options)
    for episode in stats:
        aggregator.update(copy.deepcopy(episode))
    return aggregator.result()


def reference_of(stats: Stats) -> dict[str, Any]:
    """LeRobot's aggregate, with quantiles as it has them since 0.6.1: bounds instead of a mean."""
    cast = [cast_stats_to_numpy(episode) for episode in stats]
    reference: dict[str, Any] = aggregate_stats(cast)
    for name, values in reference.items():
        for key in values.keys() & {"q01", "q10", "q50", "q90", "q99"}:
            every = np.stack([episode[name][key] for episode in cast if name in episode])
            values[key] = every.min(axis=0) if int(key[1:]) <= 50 else every.max(axis=0)
    return reference


def assert_same(ours: dict[str, Any], reference: dict[str, Any], *, rounding: float = 0) -> None:
    assert ours.keys() == reference.keys()
    for name, expected in reference.items():
        assert ours[name].keys() == expected.keys(), name
        for key, value in expected.items():
            got = ours[name][key]
            assert (got.dtype, got.shape) == (value.dtype, value.shape), (name, key)
            may_round = rounding if key not in ("min", "max", "count") else 0
            np.testing.assert_allclose(
                got, value, rtol=may_round, atol=may_round, err_msg=f"{name}/{key}"
            )


def lack_quantiles(stats: Stats) -> None:
    del stats[150]["observation.state"]["q01"]
    del stats[0]["timestamp"]["q99"]


def lack_features(stats: Stats) -> None:
    for episode in stats[::2]:
        del episode["grid"]
    stats[100]["late"] = stats[100]["timestamp"]


def be_of_several_kinds(stats: Stats) -> None:
    for episode in stats[100:]:
        episode["frame_index"]["max"] = [3.5]
        episode["next.done"]["min"] = [2]


def be_scalars(stats: Stats) -> None:
    for episode in stats:
        episode["timestamp"] = {key: value[0] for key, value in episode["timestamp"].items()}


@pytest.mark.parametrize(
    ("episodes", "quantiles", "change"),
    [
        (1, True, list), (63, True, list), (64, False, list), (65, True, list),
        (200, True, lack_quantiles), (130, False, lack_features),
        (200, False, be_of_several_kinds), (3, False, be_scalars),
    ],
)  # fmt: skip
def test_one_block_is_equal_to_the_last_bit(
    episodes: int, quantiles: bool, change: Callable[[Stats], object]
) -> None:
    stats = random_stats(episodes, episodes, quantiles=quantiles)
    change(stats)
    assert_same(aggregated(stats), reference_of(stats))


def test_merged_blocks_agree_with_one_block_to_rounding() -> None:
    stats = random_stats(7, 500, quantiles=True)
    assert_same(aggregated(stats, block_episodes=64), reference_of(stats), rounding=1e-12)


def test_the_file_reads_back_as_the_references_does(tmp_path: Path) -> None:
    stats = random_stats(8, 50, quantiles=True)
    (tmp_path / "ours").mkdir()
    write_stats(tmp_path / "ours", aggregated(stats))
    reference_write_stats(reference_of(stats), tmp_path / "reference")
    first, second = load_stats(tmp_path / "ours"), load_stats(tmp_path / "reference")
    assert first is not None
    assert second is not None
    assert_same(first, second)
