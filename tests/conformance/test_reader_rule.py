"""The rule of what LeRobot's reader accepts, against LeRobot's reader."""

from __future__ import annotations

import datetime
import decimal
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.datasets.io_utils import hf_transform_to_torch, load_nested_dataset

from leconvert.tables.schemas import declaration_of, dtype_name, read_by_lerobot
from leconvert.testing.dataset import encode_png

NUMBERS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
]  # fmt: skip
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
OTHERS = [
    pa.binary(), pa.large_binary(), pa.timestamp("us"), pa.date32(), pa.time32("s"),
    pa.duration("s"), pa.decimal128(5, 2), pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.float64()), pa.struct([("a", pa.int64())]), pa.null(),
]  # fmt: skip
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "float", "double", "bool_", "string", "large_string", "string_view",
    "utf8", "binary", "large_binary", "timestamp[us]", "date32", "decimal128(5, 2)", "halffloat",
    "int", "str", "object", "json", "language", "",
]  # fmt: skip
# Two types, and their dtypes. Only the slow test tries the others with each other.
FEW = {"int64": pa.int64(), "string": pa.string()}
# Other names of dtypes that are listed, tried with two types.
ALIASES = {"float", "double", "bool_", "utf8", "halffloat", "int", "str", "object", "json"}
FEW_SHAPES = [(1,), (3,), (2, 3), (1, 2, 3), ()]
FEW_NESTINGS = [((), ""), ((1,), "fixed"), ((3,), "large"), ((2, 3), "list"), ((1, 2, 3), "fixed")]
SHAPES: list[tuple[int, ...]] = [
    (1,), (2,), (3,), (6,), (1, 1), (2, 3), (3, 2), (6, 1), (2, 2), (1, 2, 3), (1, 1, 1, 1),
    (1, 2, 1, 3, 1), (1, 1, 1, 1, 1, 1), (), (0,), (-2,),
]  # fmt: skip
# How values are nested: the lengths of their lists, and whether the types say these.
NESTINGS: list[tuple[tuple[int, ...], str]] = [
    ((), ""), ((1,), "list"), ((1,), "fixed"), ((1,), "large"), ((2,), "list"), ((2,), "fixed"),
    ((3,), "large"), ((3,), "fixed"), ((2, 3), "list"), ((2, 3), "fixed"), ((2, 3), "large"),
    ((1, 1), "fixed"), ((1, 2, 3), "list"), ((1, 2, 3), "fixed"), ((1, 1, 1, 1), "list"),
    ((1, 2, 1, 3, 1), "fixed"), ((1, 1, 1, 1, 1, 1), "list"),
]  # fmt: skip
# LeRobot opens these although the rule says no, and nobody will miss them: numbers that become text
# by way of a dictionary, and (below) columns without any value.
NOT_SAID = {(str(pa.dictionary(pa.int32(), pa.float64())), "string_view")}


def a_value(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_dictionary(kind):
        return a_value(kind.value_type, number)
    if pa.types.is_boolean(kind):
        return bool(number)
    if pa.types.is_float16(kind):
        return np.float16(number)
    if pa.types.is_floating(kind):
        return float(number)
    if pa.types.is_integer(kind):
        return number
    if kind in TEXTS:
        return str(number)
    if kind in (pa.binary(), pa.large_binary()):
        return str(number).encode()
    if pa.types.is_struct(kind):
        return {"a": number}
    return {
        "timestamp[us]": datetime.datetime(2020, 1, 1 + number),
        "date32[day]": datetime.date(2020, 1, 1 + number),
        "time32[s]": datetime.time(1, number),
        "duration[s]": datetime.timedelta(number),
        "decimal128(5, 2)": decimal.Decimal(number),
        "null": None,
    }[str(kind)]


def a_column(element: pa.DataType, lengths: Sequence[int], how: str) -> pa.Array:
    """Two rows of values that every type can be cast to, if to any: 0 and 1."""
    kind = element
    for length in reversed(lengths):
        kind = {
            "list": pa.list_(kind),
            "large": pa.large_list(kind),
            "fixed": pa.list_(kind, length),
        }[how]
    count = itertools.cycle((0, 1))

    def nested(sizes: Sequence[int]) -> Any:
        if not sizes:
            return a_value(element, next(count))
        return [nested(sizes[1:]) for _ in range(sizes[0])]

    return pa.array([nested(lengths) for _ in range(2)], kind)


class Reader:
    """LeRobot's reader, a column at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = itertools.count()

    def reads(self, dtype: object, shape: tuple[int, ...], column: pa.Array, name: str) -> str:
        """Return why LeRobot does not read a column; nothing where it does."""
        root = self._folder / str(next(self._count))
        (root / "chunk-000").mkdir(parents=True)
        pq.write_table(pa.table({name: column}), root / "chunk-000" / "file-000.parquet")
        try:
            features = get_hf_features_from_features({name: {"dtype": dtype, "shape": shape}})
            dataset = load_nested_dataset(root, features=features)
            dataset.set_transform(hf_transform_to_torch)
            for row in range(len(column)):
                dataset[row]
        except Exception as error:  # noqa: BLE001 - whatever it raises, it refuses
            return f"{type(error).__name__}: {error.__cause__ or error}"[:300]
        finally:
            shutil.rmtree(root)
        return ""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    yield Reader(tmp_path)
    for files in Path(datasets.config.HF_DATASETS_CACHE).glob("parquet/*"):
        shutil.rmtree(files)
    datasets.logging.set_verbosity_warning()


def lengths_of(column: pa.Array) -> list[int]:
    lengths, row = [], column[0].as_py()
    while isinstance(row, list):
        lengths.append(len(row))
        row = row[0]
    return lengths


def compare(reader: Reader, cases: Iterator[tuple[str, tuple[int, ...], pa.Array]]) -> int:
    """Hold verdicts against LeRobot; return how many columns it reads."""
    read, wrong = 0, []
    for dtype, shape, column in cases:
        kind = column.type
        feature = {"dtype": dtype, "shape": shape}
        verdict, reason = read_by_lerobot("x", feature, kind, lengths_of(column))
        refusal = reader.reads(dtype, shape, column, "x")
        read += not refusal
        has_no_value = pa.types.is_null(kind) and verdict == "refused"
        is_known = has_no_value or (str(kind), dtype) in NOT_SAID
        if (verdict == "refused") != bool(refusal) and not is_known:
            wrong.append(f"{dtype} {shape} as {kind}: {verdict} {reason}; LeRobot: {refusal}")
        assert bool(reason) == (verdict == "refused")
    assert not wrong, "\n".join(wrong)
    return read


def test_every_dtype_with_every_type(reader: Reader) -> None:
    read = compare(
        reader,
        (
            (dtype, (1,), a_column(element, (), ""))
            for dtype in DTYPES
            for element in [*NUMBERS, *TEXTS, *OTHERS]
            if (
                element in (pa.float32(), pa.string())
                if dtype in ALIASES
                else dtype in ("float32", dtype_name(element)) or element in FEW.values()
            )
        ),
    )
    assert read > 60


def test_lists_and_arrays_of_every_type(reader: Reader) -> None:
    read = compare(
        reader,
        (
            (dtype, lengths, a_column(element, lengths, "list"))
            for lengths in ((2,), (2, 3))
            for element in [*NUMBERS, *TEXTS, *OTHERS]
            for dtype in {dtype_name(element), *(["string"] if lengths == (2,) else ["float32"])}
        ),
    )
    assert read > 40


def test_every_shape_with_every_nesting(reader: Reader) -> None:
    read = compare(
        reader,
        (
            ("float32", shape, a_column(pa.float32(), lengths, how))
            for shape in SHAPES
            for lengths, how in NESTINGS
            if (shape in FEW_SHAPES and (lengths, how) in FEW_NESTINGS)
            or shape in ((1,), (2, 3), lengths)
            or lengths == (1, 2, 3)
        ),
    )
    assert read >= 10


def extremes(kind: pa.DataType) -> list[Any]:
    if pa.types.is_floating(kind):
        return [np.finfo(kind.to_pandas_dtype()).max, float("nan"), float("-inf"), 0.1]
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return [int(limits.min), int(limits.max)]
    return [True, False] if pa.types.is_boolean(kind) else ["", "é\0", "1" * 100]


@pytest.mark.parametrize("kind", [*NUMBERS, *TEXTS], ids=str)
def test_what_is_declared_as_it_is_stored_is_read_whatever_its_values_are(
    reader: Reader, kind: pa.DataType
) -> None:
    values = extremes(kind)
    columns = [pa.array(values, kind)]
    if kind not in TEXTS:
        columns += [
            pa.array([[value] * 2 for value in values], pa.list_(kind)),
            pa.array([[[value], [value]] for value in values], pa.list_(pa.list_(kind, 1))),
        ]
    for column in columns:
        lengths = lengths_of(column)
        declared = declaration_of("x", column.type, lengths)
        assert declared is not None
        assert read_by_lerobot("x", declared, column.type, lengths).verdict == "exact"
        refusal = reader.reads(declared["dtype"], tuple(declared["shape"]), column, "x")
        if kind == pa.uint64():
            assert "Overflow" in refusal or "out of bounds" in refusal, refusal
        else:
            assert not refusal


def test_images_are_files_paths_or_pixels(reader: Reader, tmp_path: Path) -> None:
    picture = encode_png(np.zeros((16, 16, 3), np.uint8))
    path = tmp_path / "picture.png"
    path.write_bytes(picture)
    whole = {"bytes": picture, "path": "x.png"}
    pixels = np.zeros((4, 4, 3), np.uint8).tolist()
    columns = [
        pa.array([whole]),
        pa.array([{"path": None, "bytes": picture}]),
        pa.array([{"bytes": picture}]),
        pa.array([{"path": str(path)}]),
        pa.array([whole | {"more": 1}]),
        pa.array([{"a": 1}]),
        pa.array([picture]),
        pa.array([picture], pa.large_binary()),
        pa.array([picture], pa.binary_view()),
        pa.array([str(path)]),
        pa.array([str(path)], pa.large_string()),
        pa.array([str(path)], pa.string_view()),
        pa.array([pixels], pa.list_(pa.list_(pa.list_(pa.uint8())))),
        pa.array([pixels], pa.large_list(pa.list_(pa.list_(pa.uint8())))),
        pa.array([pixels], pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 4), 4)),
        pa.array([["a"]]),
        pa.array([None]),
        pa.array([1.0]),
    ]
    for column in columns:
        verdict, reason = read_by_lerobot("x", {"dtype": "image"}, column.type)
        refusal = reader.reads("image", (4, 4, 3), column, "x")
        assert (verdict == "refused") == bool(refusal), (column.type, reason, refusal)


def test_annotations_are_read_by_their_name(reader: Reader) -> None:
    row = {"role": "user", "content": "x", "style": "plan", "timestamp": 0.0, "camera": None}
    columns = [
        pa.array([[row], []]),
        pa.array([[row | {"more": 1}], []]),
        pa.array([row, row]),
        pa.array(["text", "text"]),
        pa.array([[1.0], [2.0]]),
    ]
    for column in columns:
        name = "language_persistent"
        verdict, reason = read_by_lerobot(name, {"dtype": "language", "shape": [1]}, column.type)
        refusal = reader.reads("language", (1,), column, name)
        assert (verdict == "refused") == bool(refusal), (column.type, reason, refusal)
