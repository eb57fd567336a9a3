"""Rows as an explicit repair wants them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert import tables
from leconvert.dataset.formats import v3
from leconvert.model.repairs import DroppedEpisode, RepairOptions, Repairs
from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.join import frame_times

THIRTY = Fraction(30)


def rows(**columns: pa.Array) -> pa.Table:
    return pa.table(
        {
            "action": pa.array([1.0, 2.0, 3.0], pa.float32()),
            "timestamp": pa.array([7.0, 8.0, 9.5], pa.float32()),
            "episode_index": pa.array([4, 4, 4]),
            "index": pa.array([40, 41, 42]),
            "task_index": pa.array([5, 2, 5]),
            **columns,
        }
    )


def repaired(table: pa.Table, repairs: Repairs, fps: Fraction = THIRTY) -> pa.Table:
    return tables.RowRepair(repairs, fps, position=1, first_index=17)(table, path="episode.parquet")


def test_nothing_changes_without_a_repair() -> None:
    assert repaired(rows(), Repairs()).equals(rows())


def test_columns_are_computed_from_the_place_in_the_result() -> None:
    repairs = Repairs(computed_columns=("timestamp", "episode_index", "index"))
    found = repaired(rows(), repairs)
    assert found.column_names == rows().column_names
    assert found["episode_index"].to_pylist() == [1, 1, 1]
    assert found["index"].to_pylist() == [17, 18, 19]
    assert found["timestamp"].to_pylist() == np.array([0, 1 / 30, 2 / 30], np.float32).tolist()
    assert found["action"].equals(rows()["action"])
    assert found["task_index"].equals(rows()["task_index"])


def test_columns_that_the_source_lacks_come_last_with_lerobots_types() -> None:
    repairs = Repairs(computed_columns=("frame_index",), added_columns=("frame_index",))
    found = repaired(rows(), repairs)
    assert found.column_names == [*rows().column_names, "frame_index"]
    assert found["frame_index"].to_pylist() == [0, 1, 2]
    assert tables.repaired_schema(rows().schema, repairs).equals(found.schema)


def test_a_dropped_feature_leaves_rows_and_schema() -> None:
    repairs = Repairs(dropped_features=("action", "observation.images.phantom"))
    found = repaired(rows(), repairs)
    assert "action" not in found.column_names
    assert tables.repaired_schema(rows().schema, repairs).equals(found.schema)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_tasks_are_mapped_and_keep_their_type(kind: pa.DataType) -> None:
    found = repaired(
        rows(task_index=pa.array([5, 2, 5], kind)), Repairs(task_map={2: 0, 5: 1, 9: 0})
    )
    assert found["task_index"].to_pylist() == [1, 0, 1]
    assert found.schema.field("task_index").type == kind


def test_a_task_that_no_table_lists_is_named() -> None:
    with pytest.raises(UnreadableSourceError, match=r"episode\.parquet has rows with task_index 5"):
        repaired(rows(), Repairs(task_map={2: 0}))


@pytest.mark.parametrize(
    "stored", [pa.array(["a", "b", "c"]), pa.array([0.5, 1.5, 2.5], pa.float16())]
)
def test_a_column_that_cannot_hold_the_repair_gets_lerobots_type(stored: pa.Array) -> None:
    repairs = Repairs(computed_columns=("timestamp",))
    found = repaired(rows(timestamp=stored), repairs)
    assert found.schema.field("timestamp").type == pa.float32()
    assert found.column_names == rows().column_names
    assert tables.repaired_schema(rows(timestamp=stored).schema, repairs).equals(found.schema)


@given(
    st.integers(1, 2000),
    st.sampled_from([Fraction(30), Fraction(2997, 100), Fraction(10), Fraction("23.976")]),
)
def test_times_are_the_exact_quotient_rounded_once(length: int, fps: Fraction) -> None:
    exact = [float(frame / fps) for frame in map(Fraction, range(length))]
    assert frame_times(length, fps, pa.float64()).to_pylist() == exact
    rounded = np.array(exact).astype(np.float32).tolist()
    assert frame_times(length, fps, pa.float32()).to_pylist() == rounded


def test_repaired_rows_are_encoded_and_shown_as_they_are_in_the_result(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "source.parquet")
    repairs = Repairs(computed_columns=("index",))
    seen: list[pa.Table] = []
    joined = tables.join_tables(
        [Slice(str(tmp_path / "source.parquet"), frames=3)] * 2,
        tmp_path / "joined.parquet",
        schema=rows().schema,
        repair=lambda position: tables.RowRepair(repairs, THIRTY, position, 3 * position),
        on_table=seen.append,
    )
    assert (joined.copied_row_groups, joined.row_groups) == (0, 2)
    written = pq.read_table(tmp_path / "joined.parquet")
    assert written["index"].to_pylist() == list(range(6))
    assert pa.concat_tables(seen).equals(written)


def test_copied_rows_are_shown_too(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "source.parquet")
    seen: list[pa.Table] = []
    joined = tables.join_tables(
        [Slice(str(tmp_path / "source.parquet"), frames=3)],
        tmp_path / "joined.parquet",
        schema=rows().schema,
        on_table=seen.append,
    )
    assert joined.copied_row_groups == 1
    assert [table.equals(rows()) for table in seen] == [True]


def test_a_record_of_repairs_comes_back_as_it_was(tmp_path: Path) -> None:
    repairs = Repairs(
        dropped_episodes=(DroppedEpisode(3, "frame-count"),),
        dropped_features=("a",),
        computed_columns=("timestamp", "index"),
        added_columns=("frame_index",),
        task_map={7: 0, 9: 1},
        computed_stats=("action",),
        quantiles=True,
    )
    (tmp_path / "meta").mkdir()
    v3.write_repairs(tmp_path, repairs)
    assert v3.read_repairs(tmp_path) == repairs


def test_a_dataset_without_a_record_was_not_repaired(tmp_path: Path) -> None:
    assert not v3.read_repairs(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "leconvert/repairs", "version": 2}',
        '{"format": 3, "version": 1}',
    ],
)
def test_a_record_that_nobody_understands_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / v3.REPAIRS_PATH).write_text(text)
    with pytest.raises(UnreadableSourceError, match=r"meta/repairs\.json cannot be used"):
        v3.read_repairs(tmp_path)


def test_only_what_is_not_the_default_is_part_of_a_plan() -> None:
    assert RepairOptions().as_record() == {}
    options = RepairOptions(retime=True, drop_features=("b", "a"))
    assert options.as_record() == {"retime": True, "drop_features": ["a", "b"]}
    assert RepairOptions().flags() == ()
    assert RepairOptions.of_flags(options.flags()) == options
    dropping = RepairOptions(on_bad_episode="drop", drop_features=("a b",))
    assert dropping.flags() == ("--on-bad-episode drop", "--drop-feature 'a b'")
    assert RepairOptions.of_flags(dropping.flags()) == dropping
