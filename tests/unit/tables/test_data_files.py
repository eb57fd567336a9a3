"""Data files: footers, schemas, and joining rows."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.support.errors import InterruptedRunError, TargetError, UnreadableSourceError
from leconvert.tables import (
    DataFile,
    TableCopier,
    deserialize_schema,
    join_tables,
    output_schema,
    read_data_schema,
    serialize_schema,
)

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PLAIN = pa.schema(
    [
        pa.field("observation.state", pa.list_(pa.float32(), 3)),
        pa.field("next.done", pa.bool_()),
        pa.field("subtask", pa.string()),
        pa.field("image", IMAGE),
        pa.field("index", pa.int64()),
    ]
)


def episode_rows(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = [
        rng.random((rows, 3), dtype=np.float32).tolist(),
        (rng.random(rows) > 0.5).tolist(),
        [f"step {i % 3}" if i % 4 else None for i in range(rows)],
        [{"bytes": rng.bytes(200), "path": None} for _ in range(rows)],
        list(range(seed * 1000, seed * 1000 + rows)),
    ]
    return pa.table(columns, schema=PLAIN)


def write_episodes(folder: Path, lengths: list[int], **options: Any) -> list[Slice]:
    ranges = []
    for seed, rows in enumerate(lengths):
        path = folder / f"episode_{seed:06d}.parquet"
        pq.write_table(episode_rows(seed, rows), path, **options)
        ranges.append(Slice(str(path), frames=rows))
    return ranges


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_that_are_missing_torn_or_of_another_kind_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    pq.write_table(episode_rows(0, 10), whole)
    torn, other, empty = (tmp_path / name for name in ("torn", "other", "empty"))
    torn.write_bytes(whole.read_bytes()[:-10])
    other.write_text("no parquet\n" * 20)
    empty.write_bytes(b"")
    for path in (torn, other, empty, tmp_path / "missing", tmp_path):
        for read in (DataFile, read_data_schema):
            with pytest.raises(UnreadableSourceError) as caught:
                read(str(path))
            assert str(path) in caught.value.message
            assert caught.value.path == str(path)
            assert caught.value.next_step


def test_rows_are_joined_in_order_with_a_row_group_an_episode(tmp_path: Path) -> None:
    ranges = write_episodes(tmp_path, [5, 1, 7])
    target = tmp_path / "joined.parquet"
    result = join_tables(ranges, target, schema=output_schema(PLAIN, {}))

    metadata = pq.read_metadata(target)
    assert [metadata.row_group(i).num_rows for i in range(3)] == [5, 1, 7]
    expected = pa.concat_tables([episode_rows(i, n) for i, n in enumerate([5, 1, 7])])
    assert pq.read_table(target).equals(expected)
    for group in range(3):
        for column in range(metadata.num_columns):
            assert metadata.row_group(group).column(column).compression == "SNAPPY"
            assert metadata.row_group(group).column(column).is_stats_set
    assert (result.rows, result.row_groups) == (13, 3)
    assert result.size_bytes == target.stat().st_size


def test_how_a_source_was_stored_does_not_show_in_what_is_encoded_again(tmp_path: Path) -> None:
    schema = output_schema(PLAIN, {})
    digests = set()
    for name, (options, reason) in {
        "groups": ({"row_group_size": 7}, "row groups"),
        "zstd": (
            {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0"},
            "Snappy",
        ),
        "bare": ({"write_statistics": False, "data_page_size": 256}, "statistics"),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        ranges = write_episodes(folder, [50, 3000], **options)
        result = join_tables(ranges, folder / "joined", schema=schema)
        assert result.copied_row_groups == 0
        for episode in ranges:
            assert reason in str(
                TableCopier(schema).reason_against(episode.path, episode.frames or 0)
            )
        digests.add(digest(folder / "joined"))
    assert len(digests) == 1


def test_an_episode_of_more_than_two_to_the_twenty_rows_is_one_row_group(tmp_path: Path) -> None:
    rows = 2**20 + 5
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table({"index": np.zeros(rows, np.int8)}), path)
    target = tmp_path / "joined.parquet"
    join_tables([Slice(str(path), frames=rows)], target, schema=read_data_schema(path))
    assert pq.read_metadata(target).num_row_groups == 1


def test_empty_values_are_refused_in_a_column_that_has_none(tmp_path: Path) -> None:
    path, target = tmp_path / "source.parquet", tmp_path / "joined.parquet"
    pq.write_table(pa.table({"x": [1, None]}), path)
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(UnreadableSourceError, match="x"):
        join_tables([Slice(str(path), frames=2)], target, schema=schema)


def test_missing_and_superfluous_columns_are_named(tmp_path: Path) -> None:
    path, target = tmp_path / "source.parquet", tmp_path / "joined.parquet"
    pq.write_table(pa.table({"a": [1], "stray": [1]}), path)
    schema = pa.schema([("a", pa.int64()), ("action", pa.int64())])
    with pytest.raises(UnreadableSourceError, match=r"missing: action; not expected: stray"):
        join_tables([Slice(str(path), frames=1)], target, schema=schema)


def test_a_wrong_number_of_rows_or_first_row_is_refused(tmp_path: Path) -> None:
    (episode,) = write_episodes(tmp_path, [5])
    schema = output_schema(PLAIN, {})
    for wrong in (
        Slice(episode.path, frames=6),
        Slice(episode.path, frames=4),
        Slice(episode.path, 1, 5),
        Slice(episode.path, 5, 1),
        Slice(episode.path, -1, 1),
    ):
        with pytest.raises(UnreadableSourceError, match=r"row"):
            join_tables([wrong], tmp_path / "joined", schema=schema)
        assert not (tmp_path / "joined").exists()


def test_a_damaged_page_is_an_unreadable_source(tmp_path: Path) -> None:
    (episode,) = write_episodes(tmp_path, [500])
    path = Path(episode.path)
    raw = bytearray(path.read_bytes())
    raw[4:400] = bytes(396)
    path.write_bytes(raw)
    with pytest.raises(UnreadableSourceError, match="episode_000000"):
        join_tables([episode], tmp_path / "joined", schema=output_schema(PLAIN, {}))
    assert not (tmp_path / "joined").exists()


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    ranges = write_episodes(tmp_path, [5])
    target = tmp_path / "joined.parquet"
    target.write_text("precious")
    with pytest.raises(TargetError):
        join_tables(ranges, target, schema=output_schema(PLAIN, {}))
    assert target.read_text() == "precious"


def test_stopping_leaves_no_half_file(tmp_path: Path) -> None:
    ranges = write_episodes(tmp_path, [5, 6, 7])
    target = tmp_path / "joined.parquet"
    answers = iter([False, False, True])
    with pytest.raises(InterruptedRunError):
        join_tables(
            ranges, target, schema=output_schema(PLAIN, {}), should_stop=lambda: next(answers)
        )
    assert next(answers, None) is None, "it is asked before each episode"
    assert not target.exists()


@pytest.mark.parametrize("told", ["not json", "[" * 100_000])
def test_the_output_schema_keeps_types_and_drops_what_pandas_said(told: str) -> None:
    source = PLAIN.with_metadata({"pandas": "{}", "huggingface": told, "other": "x"})
    schema = output_schema(source, {"image": {"dtype": "image"}})
    assert schema.equals(PLAIN, check_metadata=False)
    assert list(schema.metadata) == [b"huggingface"]
    entries = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(entries) == PLAIN.names
    assert entries["image"] == {"_type": "Image"}
    assert entries["observation.state"]["length"] == 3


def test_entries_of_the_source_are_kept_and_completed() -> None:
    entry = {"names": ["a", "b"], "_type": "ClassLabel"}
    stored = {"info": {"features": {"index": entry, "gone": entry}}, "fingerprint": "f"}
    source = PLAIN.with_metadata({"huggingface": json.dumps(stored)})
    schema = output_schema(source, {"image": {"dtype": "image"}})
    written = json.loads(schema.metadata[b"huggingface"])
    # The fingerprint names another table.
    assert list(written) == ["info"]
    assert written["info"]["features"]["index"] == entry
    assert sorted(written["info"]["features"]) == sorted(PLAIN.names)


def test_entries_follow_the_column_where_info_contradicts_it() -> None:
    source = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.float32())), ("c", pa.int64())])
    features = {
        "a": {"dtype": "float32", "shape": [1]},
        "b": {"dtype": "float32", "shape": [2, 2]},
        "c": {"dtype": "int64", "shape": "1"},
    }
    schema = output_schema(source, features)
    entries = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert entries == {
        "a": {"dtype": "float64", "_type": "Value"},
        "b": {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "List"},
        "c": {"dtype": "int64", "_type": "Value"},
    }


def test_a_schema_survives_serialisation_with_its_metadata() -> None:
    schema = output_schema(PLAIN, {"image": {"dtype": "image"}})
    assert deserialize_schema(serialize_schema(schema)).equals(schema, check_metadata=True)
    assert serialize_schema(schema) == serialize_schema(
        deserialize_schema(serialize_schema(schema))
    )


def test_images_are_encoded_in_small_pages_without_a_dictionary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "observation.images.top": pa.array(
                [{"bytes": rng.bytes(100_000), "path": None} for _ in range(64)], IMAGE
            ),
            "state": pa.array([[1.0, 2.0]] * 64, pa.list_(pa.float32(), 2)),
        }
    )
    path, target = tmp_path / "source.parquet", tmp_path / "joined.parquet"
    pq.write_table(rows, path, compression="zstd")
    join_tables([Slice(str(path), frames=64)], target, schema=rows.schema)
    group = pq.read_metadata(target).row_group(0)
    leaves = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    images = leaves["observation.images.top.bytes"]
    assert not images.has_dictionary_page
    assert leaves["state.list.element"].has_dictionary_page
    # A page header names its size: pages of about a megabyte, where one page would hold 6.4 MB.
    with DataFile(str(target)) as file:
        assert file.uncompressed_bytes > 6_400_000
    assert target.read_bytes().count(b"\x15\x00\x15") >= 5
    assert pq.read_table(target).equals(rows)
