"""Whatever `convert` ends with success, LeRobot opens and reads: generated oddities of columns.

Each dataset has some columns of random types, shapes, storage and declarations. It is converted as
a user would: once, and once more by the first remedy of each error. What comes of it is loaded.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from lerobot.datasets import LeRobotDataset
from tests.conformance import as_told
from torch.utils.data import default_collate

import leconvert
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.testing import DatasetSpec, edit_info, edit_table, make_dataset, with_column

LENGTHS = (3, 1, 4)
COLUMNS_A_DATASET = 4
ELEMENTS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.timestamp("us"),
    pa.date32(), pa.duration("s"), pa.null(), pa.struct([("a", pa.int64())]),
    pa.dictionary(pa.int32(), pa.string()),
]  # fmt: skip
DTYPES = [
    "bool", "int8", "int64", "uint64", "float16", "float32", "float64", "string", "large_string",
    "binary", "image", "language", "timestamp[us]", "float", "double", "int", "str", "object",
]  # fmt: skip
SHAPES: list[Any] = [[1], [2], [3], [1, 1], [2, 3], [3, 2], [1, 2, 2], [], [0], None, "3", [2.0]]
LISTS = [(), (), (1,), (2,), (3,), (1, 1), (2, 3), (1, 2, 2), (2, 1, 1, 2, 1), (1,) * 6]


def a_value(kind: pa.DataType, dice: random.Random) -> Any:
    if pa.types.is_dictionary(kind):
        return dice.choice(["red", "green"])
    if pa.types.is_boolean(kind):
        return dice.random() < 0.5
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return dice.choice([0, 1, 7, int(limits.max), int(limits.min)])
    if pa.types.is_floating(kind):
        value = dice.choice([0.0, 0.5, -3.25, 1e4, float("nan"), float("inf")])
        return np.float16(value) if pa.types.is_float16(kind) else value
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {"a": dice.randrange(9)}
    if "string" in str(kind):
        return dice.choice(["", "1", "red", "é"])
    if "binary" in str(kind):
        return dice.choice([b"", b"\0\1"])
    return dice.randrange(9)


class OddColumn:
    """One column: how it is stored in each episode, and how it is declared."""

    def __init__(self, dice: random.Random) -> None:
        self.element = dice.choice(ELEMENTS)
        self.lengths = dice.choice(LISTS)
        self.how = dice.choice(["list", "fixed", "large"])
        self.has_empty_rows = dice.random() < 0.1
        self.has_empty_values = dice.random() < 0.07
        self.is_ragged = bool(self.lengths) and self.how != "fixed" and dice.random() < 0.15
        self.other_in = dice.randrange(3) if dice.random() < 0.1 else None
        truly = {"halffloat": "float16", "float": "float32", "double": "float64"}
        name = truly.get(str(self.element), str(self.element))
        dtype = name if dice.random() < 0.5 else dice.choice(DTYPES)
        shape = list(self.lengths) or [1]
        self.declared = {
            "dtype": dtype,
            "shape": shape if dice.random() < 0.5 else dice.choice(SHAPES),
            "names": None,
        }
        self._dice = dice

    def rows(self, episode: int) -> pa.Array:
        """Return the rows of an episode."""
        kind, lengths = self.element, list(self.lengths)
        if episode == self.other_in and lengths and self.how != "fixed":
            lengths[-1] += 1
        for length in reversed(lengths):
            kind = {
                "list": pa.list_(kind),
                "fixed": pa.list_(kind, length),
                "large": pa.large_list(kind),
            }[self.how]
        rows = [self._row(lengths) for _ in range(LENGTHS[episode])]
        return pa.array(rows, kind)

    def _row(self, lengths: Sequence[int]) -> Any:
        if self.has_empty_rows and self._dice.random() < 0.3:
            return None
        return self._nested(lengths)

    def _nested(self, lengths: Sequence[int]) -> Any:
        if not lengths:
            if self.has_empty_values and self._dice.random() < 0.2:
                return None
            return a_value(self.element, self._dice)
        length = lengths[0]
        if self.is_ragged and self._dice.random() < 0.3:
            length += self._dice.choice([-1, 1])
        return [self._nested(lengths[1:]) for _ in range(length)]

    def __repr__(self) -> str:
        odd = [
            name
            for name in ("has_empty_rows", "has_empty_values", "is_ragged", "other_in")
            if getattr(self, name) not in (False, None)
        ]
        return f"{self.element} {self.lengths} {self.how} {odd} as {self.declared}"


def try_dataset(pristine: Path, folder: Path, seed: int, counts: Counter[str]) -> None:
    """Make, convert and load one dataset, whose seed is its name."""
    dice = random.Random(seed)
    root, out = folder / "source", folder / "out"
    shutil.copytree(pristine, root)
    columns = {f"x{number}": OddColumn(dice) for number in range(COLUMNS_A_DATASET)}
    for name, column in columns.items():
        for episode in range(len(LENGTHS)):
            rows = column.rows(episode)
            edit_table(root, episode, lambda table, n=name, r=rows: with_column(table, n, r))
    declared = {name: column.declared for name, column in columns.items()}
    edit_info(root, lambda info: info["features"].update(declared))
    counts["datasets"] += 1
    counts["columns"] += len(columns)
    said = f"seed {seed}: {columns}"
    ended = as_told.convert_as_told(root, out)
    assert ended.trouble is None, (said, ended)
    if ended.code:
        counts["datasets refused"] += 1
        return
    dropped = [flag for flag in ended.flags if flag.startswith("--drop-feature ")]
    assert {*ended.flags} - {*dropped} <= {
        "--unwrap-scalars", "--fill-stats", "--on-bad-episode drop", "--retime", "--reindex",
    }, (said, ended)  # fmt: skip
    assert ended.tries <= 2, (said, ended)
    counts[f"datasets in {ended.tries} tries"] += 1
    counts["columns left out"] += len(dropped)
    counts["columns loaded"] += len(columns) - len(dropped)
    try:
        dataset = LeRobotDataset("test/dataset", root=out)
        default_collate([dataset[place] for place in range(len(dataset))])  # as a training does
        counts["items loaded"] += len(dataset)
        errors = [f for f in check_dataset(out).findings if f.severity == "error"]
    except Exception as error:
        raise AssertionError(f"{said}: {error!r} {error.__cause__!r}") from error
    assert not errors, (said, errors)


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=())
    return make_dataset(tmp_path / "pristine", spec)


def run(pristine: Path, folder: Path, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for seed in seeds:
        try_dataset(pristine, folder / "one", seed, counts)
        shutil.rmtree(folder / "one")
        for files in Path(datasets.config.HF_DATASETS_CACHE).glob("parquet/*"):
            shutil.rmtree(files)
    counts["seconds"] = round(time.monotonic() - started)
    return counts


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


def test_whatever_is_converted_loads(pristine: Path, tmp_path: Path) -> None:
    counts = run(pristine, tmp_path, range(6))
    assert counts["columns loaded"] > 5
    assert counts["columns left out"] > 5


@pytest.mark.slow
def test_whatever_of_thousands_is_converted_loads(pristine: Path, tmp_path: Path) -> None:
    counts = run(pristine, tmp_path, range(1000, 2000))
    print(dict(counts))
    assert counts["columns"] == 4000
