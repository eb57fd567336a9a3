"""Row groups that are copied as they stand: what is, what is not, and that nothing shows."""

import random
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import CREATED_BY, DataFile, join_tables, output_schema
from leconvert.tables.data_file import OpenedTable
from leconvert.tables.parquet_copy import TableCopier

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("state", pa.list_(pa.float32(), 3)),
        pa.field("grid", pa.list_(pa.list_(pa.float64()))),
        pa.field("timestamp", pa.float32()),
        pa.field("done", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("image", IMAGE),
        pa.field("index", pa.int64()),
    ]
)


def rows_of(seed: int, rows: int, image_bytes: int = 50) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        [
            rng.random((rows, 3), dtype=np.float32).tolist(),
            [[[float(i)] * (i % 3)] * (i % 4) for i in range(rows)],
            (np.arange(rows, dtype=np.float32) / np.float32(30)).tolist(),
            (rng.random(rows) > 0.5).tolist(),
            [None if i % 5 == 0 else "x" * (seed + i % 7) for i in range(rows)],
            [{"bytes": rng.bytes(image_bytes), "path": f"{i}.png"} for i in range(rows)],
            list(range(rows)),
        ],
        schema=SCHEMA,
    )


def write(path: Path, table: pa.Table, **options: Any) -> Slice:
    pq.write_table(table, path, **options)
    return Slice(str(path), frames=table.num_rows)


def test_the_copied_pages_are_the_bytes_of_the_source(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"{i}", rows_of(i, n)) for i, n in enumerate([60, 1, 3000])]
    target = tmp_path / "joined"
    result = join_tables(sources, target, schema=output_schema(SCHEMA, {}))
    assert (result.copied_row_groups, result.row_groups) == (3, 3)
    raw = target.read_bytes()
    joined = pq.read_metadata(target)
    for number, source in enumerate(sources):
        found, expected = joined.row_group(number), pq.read_metadata(source.path).row_group(0)
        assert found.total_byte_size == sum(
            expected.column(i).total_uncompressed_size for i in range(expected.num_columns)
        )
        for column in range(expected.num_columns):
            there, here = expected.column(column), found.column(column)
            first = [c.dictionary_page_offset or c.data_page_offset for c in (there, here)]
            size = there.total_compressed_size
            content = Path(source.path).read_bytes()
            assert raw[first[1] : first[1] + size] == content[first[0] : first[0] + size]
            a, b = there.to_dict(), here.to_dict()
            for moved in ("data_page_offset", "dictionary_page_offset"):
                assert (a.pop(moved) is None) == (b.pop(moved) is None)
            assert a == b
    assert result.size_bytes == len(raw)
    assert pq.read_table(target).equals(
        pa.concat_tables([rows_of(0, 60), rows_of(1, 1), rows_of(2, 3000)])
    )


def mixed_sources(folder: Path) -> list[Slice]:
    # Copied, encoded again in runs of one and two, large enough to be copied in the kernel, empty.
    plans: list[tuple[int, int, dict[str, Any]]] = [
        (60, 50, {}),
        (50, 50, {"compression": "zstd"}),
        (40, 50, {"row_group_size": 16}),
        (70, 4000, {}),
        (1, 50, {"use_dictionary": False}),
        (0, 50, {}),
        (30, 50, {"write_statistics": False}),
        (3000, 50, {"data_page_size": 512}),
        (9, 50, {"write_page_index": True}),
        (9, 50, {"data_page_version": "2.0"}),
        (9, 50, {"write_page_checksum": True}),
    ]
    return [
        write(folder / f"{number}", rows_of(number, rows, image_bytes), **options)
        for number, (rows, image_bytes, options) in enumerate(plans)
    ]


@pytest.mark.parametrize("cuts", [[0, 3, 11], [0, 1, 2, 5, 8, 11], [0, 11]])
def test_parts_of_both_kinds_join_to_the_bytes_of_the_direct_way(
    tmp_path: Path, cuts: list[int]
) -> None:
    sources = mixed_sources(tmp_path)
    schema = output_schema(SCHEMA, {"image": {"dtype": "image"}})
    direct = join_tables(sources, tmp_path / "direct", schema=schema)
    assert direct.copied_row_groups == 7
    reasons = [TableCopier(schema).reason_against(each.path, each.frames or 0) for each in sources]
    assert [number for number, reason in enumerate(reasons) if reason] == [1, 2, 5, 6]
    pieces = []
    for first, stop in pairwise(cuts):
        part = tmp_path / f"part-{first}"
        join_tables(sources[first:stop], part, schema=schema)
        rows = [source.frames or 0 for source in sources[first:stop]]
        firsts = accumulate(rows[:-1], initial=0)
        pieces += [Slice(str(part), *span) for span in zip(firsts, rows, strict=True)]
    joined = join_tables(pieces, tmp_path / "joined", schema=schema)
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "direct").read_bytes()
    # What was encoded by the first join is copied by the second, but for the empty episode.
    assert joined.copied_row_groups == 10
    expected = pa.concat_tables([pq.ParquetFile(source.path).read() for source in sources])
    reader = pq.ParquetFile(tmp_path / "joined")
    assert reader.read().equals(expected)
    groups = [reader.read_row_group(number) for number in range(reader.num_row_groups)]
    assert [group.num_rows for group in groups] == [source.frames for source in sources]


def test_what_went_before_does_not_show_in_the_bytes(tmp_path: Path) -> None:
    # Texts, images and nulls give a column many shapes, more than are kept.
    sources = mixed_sources(tmp_path) * 2
    random.Random(0).shuffle(sources)
    schema = output_schema(SCHEMA, {})
    first = join_tables(sources, tmp_path / "first", schema=schema)
    again = join_tables(sources, tmp_path / "again", schema=schema)
    assert first == again


ROWS = pa.table({"x": [1.0, 2.0, 3.0], "n": [1, 2, 3]})
LISTS = pa.list_(pa.float32(), 2)
OTHER_TYPE = "column x is missing or has another type"


def lists(kind: pa.DataType) -> pa.Table:
    return pa.table({"x": pa.array([[1.0, 2.0]] * 3, kind)})


@pytest.mark.parametrize(
    ("table", "wanted", "options", "reason"),
    [
        (ROWS, ROWS.schema, {}, None),
        (ROWS.select(["n", "x"]), ROWS.schema, {}, "it has further columns, or another order"),
        (ROWS, ROWS.schema, {"compression": "gzip"}, "it is not compressed with Snappy"),
        (ROWS, ROWS.schema, {"row_group_size": 2}, "it has 2 row groups"),
        (ROWS, ROWS.schema, {"write_statistics": False}, "it has no statistics"),
        (ROWS, ROWS.schema, {"data_page_version": "2.0"}, None),
        (lists(pa.list_(pa.float32())), pa.schema([("x", LISTS)]), {}, OTHER_TYPE),
        (lists(pa.large_list(pa.float32())), pa.schema([("x", LISTS)]), {}, OTHER_TYPE),
        (lists(LISTS), pa.schema([("x", pa.list_(pa.float64(), 2))]), {}, OTHER_TYPE),
    ],
    ids=range(9),
)
def test_a_copy_is_due_exactly_where_the_join_made_one(
    tmp_path: Path,
    table: pa.Table,
    wanted: pa.Schema,
    options: dict[str, Any],
    reason: str | None,
) -> None:
    source, target = write(tmp_path / "source", table, **options), tmp_path / "joined"
    result = join_tables([source], target, schema=wanted)
    assert pq.read_table(target)["x"].to_pylist() == table["x"].to_pylist()
    with pq.ParquetFile(target) as file:
        assert file.metadata.created_by.encode() == CREATED_BY
        copier = TableCopier(file.schema_arrow)
    found = copier.reason_against(source.path, 3)
    assert (found or "").startswith(reason or "")
    assert (found is None) is (reason is None) is (result.copied_row_groups == 1)
    assert copier.reason_against(source.path, 4), "of another number of rows nothing is copied"


def test_list_elements_get_the_name_of_the_result(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32()))})
    source = write(tmp_path / "s", table, use_compliant_nested_type=False)
    assert pq.read_metadata(source.path).row_group(0).column(0).path_in_schema == "x.list.item"
    result = join_tables([source], tmp_path / "t", schema=table.schema)
    assert result.copied_row_groups == 1
    metadata = pq.read_metadata(tmp_path / "t")
    assert metadata.row_group(0).column(0).path_in_schema == "x.list.element"
    assert pq.read_table(tmp_path / "t").equals(table)


def test_a_source_that_needs_no_encoding_keeps_only_its_columns_in_memory(tmp_path: Path) -> None:
    payload = np.random.default_rng(0).bytes(3_000_000)
    table = pa.table({"image": pa.array([{"bytes": payload, "path": None}] * 4, IMAGE)})
    source = write(tmp_path / "s", table)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    held: list[int] = []

    def note() -> bool:
        held.append(pool.bytes_allocated() - before)
        return False

    result = join_tables([source] * 5, tmp_path / "t", schema=table.schema, should_stop=note)
    assert result.copied_row_groups == 5
    assert max(held) < 1_000_000


def mutants(raw: bytes, first: int, stop: int, count: int) -> list[bytes]:
    """Return files with a few bytes changed between two places."""
    rng = random.Random(first)
    found = []
    for _ in range(count):
        mutant = bytearray(raw)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            at = rng.randrange(first, stop)
            mutant[at] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256), mutant[at] ^ 1])
        found.append(bytes(mutant))
    return found


def test_a_damaged_footer_is_refused_wherever_arrow_refuses_it(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    write(sound, rows_of(1, 20).select(["state", "timestamp", "text", "index"]), row_group_size=12)
    raw = sound.read_bytes()
    damaged = tmp_path / "damaged"
    footer_bytes = int.from_bytes(raw[-8:-4], "little")
    answered = 0
    for mutant in mutants(raw, len(raw) - 8 - footer_bytes, len(raw), 500):
        damaged.write_bytes(mutant)
        try:
            with DataFile(str(damaged)) as file:
                found = file.rows, len(file.footer.row_groups)
        except UnreadableSourceError:
            continue
        # Not its column chunks: Arrow ends the process where they contradict the schema.
        metadata = pq.ParquetFile(damaged).metadata
        assert found == (metadata.num_rows, metadata.num_row_groups)
        answered += 1
    assert answered > 30


def test_a_damaged_footer_is_copied_from_or_refused_with_a_reason(tmp_path: Path) -> None:
    table = rows_of(1, 20).select(["state", "timestamp", "text", "index"])
    sound, damaged = tmp_path / "sound", tmp_path / "damaged"
    write(sound, table)
    raw = sound.read_bytes()
    copier = TableCopier(output_schema(table.schema, {}))
    taken = reasons = 0
    for mutant in mutants(raw, 4, len(raw), 500):
        damaged.write_bytes(mutant)
        with OpenedTable(str(damaged)) as source:
            try:
                plan = copier.plan(source, source.parsed_footer(), None, 20)
            except UnreadableSourceError:
                continue
        if isinstance(plan, str):
            reasons += 1
            continue
        taken += 1
        assert all(4 <= start < start + size <= len(raw) for start, size in plan.ranges)
        assert copier.row_group(plan.row_group, plan.chunks, 4)
    assert taken > 30
    assert reasons > 30


def test_a_dictionary_and_a_data_page_in_one_place_are_not_copied(tmp_path: Path) -> None:
    source = write(tmp_path / "source", rows_of(1, 20).select(["timestamp"]), use_dictionary=False)
    with OpenedTable(source.path) as table:
        copier = TableCopier(output_schema(pa.schema([SCHEMA.field("timestamp")]), {}))
        footer = table.parsed_footer()
        assert not isinstance(copier.plan(table, footer, None, 20), str)
        # The footer claims a dictionary where the only data page begins.
        (group,) = footer.row_groups
        numbers = group.form.numbers
        form = replace(group.form, numbers=lambda groups: (*(n := numbers(groups))[:4], n[3]))
        claimed = footer._replace(row_groups=(group._replace(form=form),))
        assert copier.plan(table, claimed, None, 20) == (
            "column timestamp: its dictionary page is not where the footer says"
        )


@pytest.mark.parametrize("groups", [1, 40, 3000])
def test_rows_of_row_groups_are_those_that_arrow_counts(tmp_path: Path, groups: int) -> None:
    from leconvert.tables import row_group_rows

    path = tmp_path / "many.parquet"
    lengths = [1 + (7 * number) % 5 for number in range(groups)]
    table = pa.table(
        {
            "timestamp": pa.array(np.arange(8) / 30, pa.float32()),
            "state": pa.array(np.ones((8, 3)).tolist(), pa.list_(pa.float32(), 3)),
            # Chunks with and without a null, and of one value, are written in other ways.
            "mark": pa.array([None, 1, 1, 1, 2, 3, 4, 5], pa.int64()),
        }
    )
    with pq.ParquetWriter(path, table.schema) as writer:
        for number, length in enumerate(lengths):
            writer.write_table(table.slice(number % 3, length), row_group_size=length)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(groups)] == lengths
    assert row_group_rows(path) == lengths
    large = metadata.serialized_size > 256 * 1024
    assert large == (groups == 3000), "both ways of counting are covered"


def test_a_large_footer_that_is_cut_off_is_a_clear_error(tmp_path: Path) -> None:
    from leconvert.tables import row_group_rows

    path = tmp_path / "many.parquet"
    table = pa.table({name: [1.0] for name in "abcdefghij"})
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(400):
            writer.write_table(table)
    whole = path.read_bytes()
    assert row_group_rows(path) == [1] * 400
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    assert footer_bytes > 256 * 1024
    at = len(whole) - 8 - footer_bytes // 2
    path.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        row_group_rows(path)
