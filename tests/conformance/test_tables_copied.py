"""Data files of copied row groups, as pandas and `datasets` read them."""

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.tables import RowRange, join_tables, output_schema

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
        sources.append(RowRange(str(path), part.num_rows))
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
