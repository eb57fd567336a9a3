"""Quantiles of a whole dataset are those of its rows and of its sampled pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import leconvert
from leconvert import LayoutOptions, ProofOptions, RepairOptions, verify_pair
from leconvert.dataset.statistics import (
    QUANTILES,
    ImageStats,
    QuantileCheck,
    QuantileSearch,
    column_stats,
    rank_of,
)
from leconvert.model.selection import EpisodeSelection
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

BYTES = ProofOptions(verify="bytes")
KEPT = RepairOptions(quantiles=True)
TYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64"]


def arrow(rows: Any) -> pa.Array:
    values = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return values if rows.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, rows.shape[1])


def searched(tables: list[pa.Array], shape: tuple[int, ...]) -> dict[str, Any]:
    search = QuantileSearch(shape)
    while not search.is_done:
        for table in tables:
            search.add(table)
        search.end_pass()
    return search.result()


@given(
    st.sampled_from(TYPES).flatmap(
        lambda kind: hnp.arrays(
            kind, st.tuples(st.integers(1, 30), st.integers(1, 3)), fill=st.nothing()
        )
    ),
    st.integers(1, 4),
)
def test_the_quantiles_of_many_tables_are_those_of_one(rows: Any, parts: int) -> None:
    tables = [arrow(part) for part in np.array_split(rows, parts) if len(part)]
    expected = column_stats(arrow(rows), quantiles=True)
    assert expected is not None
    found = searched(tables, rows.shape[1:])
    for name in QUANTILES:
        np.testing.assert_array_equal(found[name], expected[name])
    check = QuantileCheck(found)
    for table in tables:
        check.add(table)
    assert check.wrong() == []


def test_numbers_that_begin_alike_take_two_passes_and_little_memory() -> None:
    search, passes = QuantileSearch((1,)), 0
    while not search.is_done:
        for first in range(0, 300_000, 50_000):
            search.add(pa.array(range(first, first + 50_000)))
        search.end_pass()
        passes += 1
    assert search.result()["q90"] == [rank_of(0.9, 300_000)]
    assert passes == 2


@pytest.mark.parametrize("quantile", QUANTILES)
def test_the_check_finds_the_next_value(quantile: str) -> None:
    rows = np.arange(1000, dtype=np.int64)
    found = searched([arrow(rows)], (1,))
    for step in (-1, 1):
        check = QuantileCheck({**found, quantile: [found[quantile][0] + step]})
        check.add(arrow(rows))
        assert check.wrong() == [quantile]


FRAMES = (12, 7, 30, 9)
SPEC = DatasetSpec(
    episodes=4,
    frames=FRAMES,
    cameras=(CameraSpec(key="observation.images.top", width=64, height=48),),
    image_keys=("observation.images.still",),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("quantiles") / "source", SPEC)


@pytest.fixture(scope="module")
def computed(source: Path) -> Path:
    """The result with quantiles; do not change it."""
    out = source.with_name("v30")
    return leconvert.convert(source, output=out, repairs=KEPT, proof=BYTES).output


def test_quantiles_of_a_result_are_those_of_all_rows_and_pictures(
    source: Path, computed: Path
) -> None:
    stats = stats_of(computed)
    assert_quantiles_are_of_rows(computed, stats)
    # Of pictures those of all that were sampled: another way to count them.
    for key in ("observation.images.still", "observation.images.top"):
        total = ImageStats(quantiles=True)
        for levels in levels_of(source, key):
            total.add_levels(levels)
        assert {name: stats[key][name] for name in QUANTILES} == {
            name: total.result()[name] for name in QUANTILES
        }


@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_without_computing_pictures_have_bounds_and_that_is_told(
    computed: Path, tmp_path: Path, to: str
) -> None:
    stats = stats_of(computed)
    layout = LayoutOptions(to=to)
    again = leconvert.convert(
        computed,
        output=tmp_path / "again",
        layout=layout,
        selection=EpisodeSelection(episodes="0-3"),
        proof=BYTES,
    )
    assert {finding.code for finding in again.findings} == {"quantile-bounds"}
    bounded = stats_of(again.output)
    assert_quantiles_are_of_rows(again.output, bounded)
    for key in ("observation.images.still", "observation.images.top"):
        assert np.all(np.array(bounded[key]["q01"]) <= np.array(stats[key]["q01"]))
        assert np.all(np.array(bounded[key]["q99"]) >= np.array(stats[key]["q99"]))


def levels_of(source: Path, key: str) -> Any:
    from leconvert.dataset.statistics import clip_stats, table_stats

    for episode, length in enumerate(FRAMES):
        if key == "observation.images.still":
            table = pq.read_table(source / f"data/chunk-000/episode_{episode:06d}.parquet")
            found: dict[str, Any] = {}
            feature = {key: {"dtype": "image"}}
            table_stats(table, feature, names=[key], quantiles=True, levels=found)
            yield found[key]
        else:
            path = source / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"
            each: list[Any] = []
            list(clip_stats(path, [(0, length)], quantiles=True, levels=each))
            yield from each


def assert_quantiles_are_of_rows(root: Path, stats: dict[str, Any]) -> None:
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet")))
    for key in ("observation.state", "action", "timestamp", "index", "episode_index"):
        expected = column_stats(rows.column(key), quantiles=True)
        assert expected is not None
        assert {name: stats[key][name] for name in QUANTILES} == {
            name: expected[name] for name in QUANTILES
        }


@pytest.mark.parametrize("key", ["action", "observation.images.top"])
def test_a_proof_finds_quantiles_that_are_none(
    source: Path, computed: Path, tmp_path: Path, key: str
) -> None:
    out = Path(shutil.copytree(computed, tmp_path / "out"))
    stats = stats_of(out)
    stats[key]["q90"] = stats[key]["max"]
    (out / "meta/stats.json").write_text(json.dumps(stats))
    (difference,) = verify_pair(out, source, depth="bytes").differences
    assert difference.what == f"aggregate q90 of {key!r}"


def stats_of(root: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((root / "meta/stats.json").read_text())
    return stats
