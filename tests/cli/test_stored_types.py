"""Columns stored otherwise than LeRobot stores them: what a result holds, and its proof."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.cli.main import main
from leconvert.testing import DatasetSpec, edit_info, edit_table, make_dataset, with_column
from tests.trees import snapshot

LENGTHS = (5, 4, 6)
INDICES = ("frame_index", "episode_index", "index", "task_index")
VERSIONS = ("v3.0", "v2.1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=(), tasks=("Pick.", "Place."))
    return make_dataset(tmp_path / "source", spec)


def run(command: str, *words: object) -> int:
    return main([command, *map(str, words)])


def tables_of(root: Path) -> list[Path]:
    return sorted(root.glob("data/*/*.parquet"))


def rows_of(root: Path) -> pa.Table:
    tables = []
    for path in tables_of(root):  # Arrow would add up tables whose columns differ
        with pq.ParquetFile(path) as file:
            tables.append(file.read())
    return pa.concat_tables(tables)


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    with pq.ParquetFile(path) as file:
        table = change(file.read())
    pq.write_table(table, path, row_group_size=max(LENGTHS), **options)


def with_floats(kind: pa.DataType, columns: Sequence[str] = INDICES) -> Callable[..., pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        for name in columns:
            table = with_column(table, name, table[name].cast(kind))
        return table

    return change


# --- whole numbers that are stored as floating-point numbers --------------------------------------


@pytest.mark.parametrize("kind", [pa.float64(), pa.float16()])
def test_indices_of_floats_are_whole_numbers_in_the_result(
    source: Path, tmp_path: Path, kind: pa.DataType, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = rows_of(source).select(INDICES)
    assert run("convert", source, tmp_path / "v30", "--quiet") == 0
    # v2.1 and v3.0, where all rows are in one file
    for stored in (source, tmp_path / "v30"):
        for path in tables_of(stored):
            rewrite(path, with_floats(kind))
        for to in VERSIONS if kind == pa.float64() else VERSIONS[:1]:
            out = tmp_path / f"{stored.name} as {to}"
            assert run("convert", stored, out, "--to", to, "--verify", "bytes") == 0
            said = " ".join(capsys.readouterr().err.split())
            assert "index is stored as floating-point numbers. The result stores int64" in said
            assert rows_of(out).select(INDICES).equals(expected)
            record = json.loads((out / "meta/repairs.json").read_bytes())
            assert (record["version"], record["cast_columns"]) == (6, list(INDICES))
            assert run("verify", out, "--source", stored, "--bytes") == 0
            tasks = pa.array([1] * len(pq.read_table(tables_of(out)[0])))
            rewrite(tables_of(out)[0], lambda table, t=tasks: with_column(table, "task_index", t))
            assert run("verify", out, "--source", stored, "--bytes") == 10


def test_a_table_of_floats_among_tables_of_whole_numbers_is_no_other(
    source: Path, tmp_path: Path
) -> None:
    expected = rows_of(source).select(INDICES)
    edit_table(source, 1, with_floats(pa.float64()))
    for number in (0, 2):
        edit_table(source, number, with_floats(pa.int32(), ["frame_index", "index"]))
    for name, flags in {"copied": [], "counted": ["--reindex"]}.items():
        out = tmp_path / name
        assert run("convert", source, out, "--verify", "bytes", "--quiet", *flags) == 0
        assert rows_of(out).select(INDICES).cast(expected.schema).equals(expected)


@pytest.mark.parametrize(
    ("column", "values"),
    [("frame_index", [0.0, float("nan"), 2.0, 3.0]), ("episode_index", [1.0, 1.0, 1.5, 1.0])],
)
def test_floats_that_are_no_whole_numbers_are_refused_before_any_work(
    source: Path, tmp_path: Path, column: str, values: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run("convert", source, tmp_path / "v30", "--quiet") == 0
    floats = pa.array(values, pa.float64())
    for number in range(len(LENGTHS)):
        edit_table(source, number, with_floats(pa.float64(), [column]))
    edit_table(source, 1, lambda table: with_column(table, column, floats))

    def in_one_file(table: pa.Table) -> pa.Table:
        stored = table[column].cast(pa.float64()).combine_chunks()
        first, stop = LENGTHS[0], sum(LENGTHS[:2])
        parts = [stored[:first], floats, stored[stop:]]
        return with_column(table, column, pa.concat_arrays(parts))

    rewrite(tables_of(tmp_path / "v30")[0], in_one_file)
    for stored in (source, tmp_path / "v30"):
        out = tmp_path / f"{stored.name} out"
        # What may be wrong in whole numbers may not be in what has to become whole numbers.
        assert run("convert", stored, out, "--accept", "frame-index") == 3
        assert "--reindex: keeps everything" in capsys.readouterr().err
        assert not out.exists()
        assert run("convert", stored, out, "--reindex", "--verify", "bytes", "--quiet") == 0


# --- lists whose elements have another name -------------------------------------------------------


def name_elements(root: Path, name: str, *, is_fixed: bool) -> None:
    """Write the tables as pyarrow writes them with ``use_compliant_nested_type=False``."""
    element = pa.field(name, pa.float32())
    kind = pa.list_(element, 6) if is_fixed else pa.list_(element)

    def change(table: pa.Table) -> pa.Table:
        for column in ("action", "observation.state"):
            values = pa.array(table[column].to_pylist(), kind)
            table = with_column(table, column, values)
        return table

    for path in tables_of(root):
        rewrite(path, change, use_compliant_nested_type=False)
        stored = pq.read_metadata(path).schema
        assert f"action.list.{name}" in {stored.column(n).path for n in range(len(stored))}


@pytest.mark.parametrize("is_fixed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_elements_of_lists_may_have_another_name(
    source: Path, tmp_path: Path, is_fixed: bool
) -> None:
    usual = Path(shutil.copytree(source, tmp_path / "usual"))
    expected = rows_of(usual)["action"].to_pylist()
    name_elements(source, "item", is_fixed=is_fixed)
    for out, flags in {
        "v30": [],
        "v21": ["--to", "v2.1"],
        "kept": ["--layout", "episode-files"],
        "encoded": ["--quantiles"],
    }.items():
        words = [source, tmp_path / out, "--verify", "bytes", "--quiet", *flags]
        assert run("convert", *words) == 0
        assert rows_of(tmp_path / out)["action"].to_pylist() == expected
    assert rows_of(tmp_path / "v30").schema.field("action").type.value_field.name == "element"
    back = tmp_path / "back"
    assert run("convert", tmp_path / "v30", back, "--to", "v2.1", "--verify", "bytes") == 0
    for first, second in ((source, usual), (usual, source)):
        out = tmp_path / f"{first.name} and {second.name}"
        assert run("merge", first, second, "--output", out, "--verify", "bytes", "--quiet") == 0
        assert rows_of(out)["action"].to_pylist() == 2 * expected


def test_a_repair_leaves_elements_of_lists_their_name(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "v30"
    assert run("convert", source, root, "--quiet") == 0
    name_elements(root, "item", is_fixed=True)
    wrong = pa.array(range(7, 7 + sum(LENGTHS)), pa.int64())
    rewrite(
        tables_of(root)[0],
        lambda table: with_column(table, "index", wrong),
        use_compliant_nested_type=False,
    )
    before = snapshot(root)
    assert run("repair", root) == 0
    repaired = rows_of(root)
    assert repaired["index"].to_pylist() == list(range(sum(LENGTHS)))
    assert repaired.schema.field("action").type.value_field.name == "item"
    assert run("undo", root) == 0
    assert snapshot(root) == before


# --- floating-point numbers of every width --------------------------------------------------------


WIDTHS = {
    "half": ("float16", ()),
    "half_vector": ("float16", (3,)),
    "half_matrix": ("float16", (2, 3)),
    "single": ("float32", ()),
    "double_vector": ("float64", (3,)),
}


def test_computed_statistics_of_floats_are_proven_in_every_width(
    source: Path, tmp_path: Path
) -> None:
    dice = np.random.default_rng(0)
    for name, (width, shape) in WIDTHS.items():
        for number, length in enumerate(LENGTHS):
            # Sums of these are beyond what float16 holds.
            values = dice.uniform(-6e4, 6e4, (length, *shape)).astype(width)
            values.flat[1] = np.nan if number == 2 else -0.0
            column: pa.Array = pa.array(values.ravel())
            for size in reversed(shape):
                column = pa.FixedSizeListArray.from_arrays(column, size)
            edit_table(source, number, lambda table, n=name, c=column: with_column(table, n, c))
        declared = {"dtype": width, "shape": list(shape) or [1], "names": None}
        edit_info(source, lambda info, n=name, d=declared: info["features"].update({n: d}))
    out, back = tmp_path / "out", tmp_path / "back"
    command = ["--output", out, "--verify", "bytes", "--quiet", "--quantiles"]
    assert run("convert", source, *command) == 0
    assert run("verify", out, "--source", source, "--bytes") == 0
    assert run("convert", out, "--output", back, "--to", "v2.1", "--verify", "bytes") == 0
    assert run("verify", back, "--source", out, "--bytes") == 0


def test_a_footer_that_is_too_narrow_for_float16_is_found(source: Path, tmp_path: Path) -> None:
    def with_x(low: float, high: float, rows: int) -> Callable[[pa.Table], pa.Table]:
        values = np.linspace(low, high, rows).astype(np.float16)
        return lambda table: with_column(table, "x", pa.array(values))

    for number, length in enumerate(LENGTHS):
        edit_table(source, number, with_x(-1, 1, length))
    feature = {"dtype": "float16", "shape": [1], "names": None}
    edit_info(source, lambda info: info["features"].update(x=feature))
    out = tmp_path / "out"
    assert run("convert", source, out, "--recompute-stats", "--quiet") == 0
    (path,) = tables_of(out)
    raw = path.read_bytes()
    least, most = (np.float16(number).tobytes() for number in (-1, 1))
    # min_value and max_value of a footer's statistics, two bytes each
    stated = b"\x28\x02" + most + b"\x18\x02" + least
    assert raw.count(stated) == 2 * len(LENGTHS)  # pages have them, too
    narrow = b"\x28\x02" + np.float16(0.5).tobytes() + b"\x18\x02" + least
    path.write_bytes(raw.replace(stated, narrow))
    assert run("verify", out, "--source", source, "--bytes") == 10
