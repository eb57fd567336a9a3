"""Data files of copied row groups, as pandas and `datasets` read them."""

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.tables import join_tables, output_schema

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
# One white pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c63f80f00010101001bb6ee560000000049454e44ae426082"
)


def rows_of(seed: int, rows: int) -> pa.Table:
    state = np.random.default_rng(seed).random((rows, 2), dtype=np.float32)
    return pa.table(
        {
            "state": pa.array(state.tolist(), pa.list_(pa.float32(), 2)),
            "image": pa.array([{"bytes": PNG, "path": None}] * rows, IMAGE),
            "index": pa.array(range(rows), pa.int64()),
        }
    )


def test_other_readers_see_the_rows_of_copied_row_groups(tmp_path: Path) -> None:
    parts = [rows_of(seed, rows) for seed, rows in enumerate([5, 40, 1])]
    sources = []
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(part, path)
        sources.append(Slice(str(path), frames=part.num_rows))
    target = tmp_path / "joined.parquet"
    features = {"image": {"dtype": "image", "shape": [1, 1, 3]}}
    result = join_tables(sources, target, schema=output_schema(parts[0].schema, features))
    assert result.copied_row_groups == 3

    expected = pa.concat_tables(parts)
    frame = pd.read_parquet(target)
    assert frame["index"].tolist() == expected.column("index").to_pylist()
    assert np.stack(list(frame["state"])).tolist() == expected.column("state").to_pylist()

    loaded = datasets.Dataset.from_parquet(str(target), cache_dir=str(tmp_path / "cache"))
    assert isinstance(loaded.features["image"], datasets.Image)
    assert loaded["state"][:] == expected.column("state").to_pylist()
    assert loaded[44]["image"].size == (1, 1)

    streamed = datasets.load_dataset(
        "parquet", data_files=str(target), split="train", streaming=True
    )
    assert [row["index"] for row in streamed] == expected.column("index").to_pylist()


@pytest.mark.parametrize("nested", [False, True])
def test_datasets_opens_every_type_of_column_that_it_can_open_in_the_source(nested: bool) -> None:
    kinds = [
        *(pa.type_for_alias(name) for name in ("null", "bool", "int8", "uint64", "float16")),
        *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("us")),
        *(pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("s", "+01:00")),
        *(pa.decimal128(9, 2), pa.decimal256(50, 2), pa.string(), pa.large_string()),
        *(pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())),
        *(pa.string_view(), pa.binary_view(), pa.binary(3), pa.month_day_nano_interval()),
        *(pa.list_(pa.int8(), 2), pa.large_list(pa.int8()), pa.map_(pa.string(), pa.int8())),
        *(pa.struct([("a", pa.date32())]), pa.uuid(), pa.list_(pa.list_(pa.bool_()))),
    ]
    opened = 0
    for kind in kinds:
        source = pa.schema([("x", pa.list_(kind) if nested else kind), ("y", pa.int64())])
        try:
            expected = datasets.Features.from_arrow_schema(source)
        except ValueError:
            continue
        assert datasets.Features.from_arrow_schema(output_schema(source, {})) == expected, kind
        opened += 1
    assert opened >= 24
