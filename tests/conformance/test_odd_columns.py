"""LeRobot's own columns in other types, or not declared: the result loads as in a training."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance import as_told

import leconvert
from leconvert.cli import main
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.testing import DatasetSpec, edit_info, edit_table, make_dataset

LENGTHS = (3, 1, 4)


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=())
    return make_dataset(tmp_path / "pristine", spec)


_OTHER_TYPES = {
    "timestamp": (pa.float64(), pa.string()), "frame_index": (pa.uint8(),),
    "episode_index": (pa.string(),), "index": (pa.float64(),), "task_index": (pa.string(),),
}  # fmt: skip


@pytest.mark.parametrize("kinds", ["few", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("column", list(DEFAULT_COLUMNS))
def test_lerobots_own_columns_may_be_of_other_types(
    pristine: Path, tmp_path: Path, column: str, kinds: str
) -> None:
    every = (pa.float64(), pa.uint8(), pa.string())
    for kind in _OTHER_TYPES[column] if kinds == "few" else every:
        if column == "timestamp" and pa.types.is_integer(kind):
            continue
        source, result = tmp_path / f"{kind}", tmp_path / f"{kind}_v30"
        shutil.copytree(pristine, source)
        for episode in range(len(LENGTHS)):
            edit_table(source, episode, partial(_cast, column, kind))
        ended = as_told.convert_as_told(source, result)
        assert ended.trouble is None
        # Only tasks cannot be computed anew.
        assert (ended.code != 0) == (column == "task_index" and kind == pa.string())
        if not ended.code:
            assert as_told.why_it_does_not_load(result, len(LENGTHS)) is None


@pytest.mark.parametrize("column", list(DEFAULT_COLUMNS))
def test_lerobots_own_columns_may_be_undeclared_and_computed_anew(
    pristine: Path, tmp_path: Path, column: str
) -> None:
    leconvert.convert(pristine, output=tmp_path / "v30")
    anew = ["--retime"] if column == "timestamp" else ["--reindex"]
    as_it_is = column == "task_index"
    for source, flags in (
        (pristine, [] if as_it_is else ["--retime", "--reindex"]),
        (tmp_path / "v30", anew),
    ):
        edit_info(source, lambda info: info["features"].pop(column))
        out = tmp_path / f"{source.name} out"
        words = [str(source), str(out), "--declare-features", *flags, "--verify", "bytes"]
        assert main(["convert", *words]) == 0
        assert as_told.why_it_does_not_load(out, len(LENGTHS)) is None


def _cast(column: str, kind: pa.DataType, table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, table[column].cast(kind))
