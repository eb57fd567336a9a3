"""Footers that are odd but valid, footers that contradict themselves, and what is kept of many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import DataFile, StoredGroups, read_data_schema, row_group_rows
from leconvert.tables import footers as footers_module
from leconvert.tables.data_file import OpenedTable
from leconvert.tables.footers import (
    FileFooter,
    FooterReader,
    chunk_outside,
    parse_schema,
    parse_tail,
)
from leconvert.tables.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftError,
    binary,
    list_header,
    zigzag,
)

ROWS = pa.table({"x": [1.0, 2.0], "n": [7, 8]})


def footer_of(path: Path) -> bytes:
    with OpenedTable(str(path)) as table:
        return table.footer()


def with_footer(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Give a file another footer."""
    raw = path.read_bytes()
    footer_bytes = int.from_bytes(raw[-8:-4], "little")
    footer = change(raw[-8 - footer_bytes : -8])
    path.write_bytes(
        raw[: -8 - footer_bytes] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    )
    return path


def once(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(footer: bytes) -> bytes:
        assert footer.count(old) == 1
        return footer.replace(old, new)

    return change


def field(number: int, kind: int, value: bytes) -> bytes:
    return bytes((number << 4 | kind,)) + value


def write(path: Path, table: pa.Table = ROWS, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"sorting_columns": [pq.SortingColumn(0)]},
        {"write_page_index": True},
        {"store_schema": False},
        {"write_statistics": False},
        {"compression": "none", "use_dictionary": False},
        {"row_group_size": 1},
        {"bloom_filter_options": {"n": True}},
    ],
    ids=str,
)
def test_what_else_a_footer_may_hold_changes_no_count(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = write(tmp_path / "file", **options)
    metadata = pq.read_metadata(path)
    rows = [2 // metadata.num_row_groups] * metadata.num_row_groups
    assert row_group_rows(path) == rows
    with DataFile(str(path)) as file:
        assert (file.footer.rows, file.columns) == (rows, ("x", "n"))
        assert [each.tolist() for each in file.numbers("n", "x")] == [[7, 8], [1, 2]]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"x": pa.array([], pa.float64())}),
        pa.table({"x": pa.array([[]], pa.list_(pa.list_(pa.string())))}),
        pa.table({"x": pa.nulls(3)}),
    ],
    ids=["no columns", "no rows", "no values", "nulls"],
)
def test_files_with_little_in_them_are_counted_like_others(tmp_path: Path, table: pa.Table) -> None:
    path = write(tmp_path / "file", table)
    metadata = pq.read_metadata(path)
    assert sum(row_group_rows(path)) == table.num_rows
    with DataFile(str(path)) as file:
        assert file.rows == table.num_rows
        assert len(file.footer.row_groups) == metadata.num_row_groups
        assert file.columns == tuple(table.column_names)
        assert file.footer.rows == row_group_rows(path)
        assert file.extremes == {}


def test_a_file_without_any_row_group_has_no_rows(tmp_path: Path) -> None:
    pq.ParquetWriter(tmp_path / "file", ROWS.schema).close()
    assert row_group_rows(tmp_path / "file") == []
    assert list(StoredGroups(str(tmp_path / "file")).extremes()) == []
    with DataFile(str(tmp_path / "file")) as file:
        assert (file.rows, file.footer.row_groups) == (0, ())
        assert file.numbers("n")[0].tolist() == []


def test_a_file_that_is_encrypted_or_torn_is_not_left_open(tmp_path: Path) -> None:
    encrypted, torn = (write(tmp_path / name) for name in ("encrypted", "torn"))
    encrypted.write_bytes(encrypted.read_bytes()[:-4] + b"PARE")
    torn.write_bytes(torn.read_bytes()[:-9])
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (encrypted, torn, tmp_path / "gone"):
        for read in (lambda path: DataFile(str(path)), row_group_rows, read_data_schema):
            with pytest.raises(UnreadableSourceError) as caught:
                read(path)
            assert caught.value.path == str(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_a_column_whose_name_is_no_text_is_unreadable(tmp_path: Path) -> None:
    path = with_footer(
        write(tmp_path / "file", pa.table({"name": [1]}), store_schema=False),
        lambda footer: footer.replace(b"\x04name", b"\x04nam\xff"),
    )
    with pytest.raises(UnreadableSourceError, match="cannot be read") as caught:
        DataFile(str(path))
    assert caught.value.path == str(path)


def test_row_groups_of_other_rows_than_the_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "file", row_group_size=1)
    footer = footer_of(path)
    reader = FooterReader()
    known = reader.read(footer)
    assert known.rows == [1, 1]
    at = len(known.schema.raw)
    assert footer[at : at + 2] == b"\x16\x04"
    contradicting = footer[:at] + b"\x16\x06" + footer[at + 2 :]
    with pytest.raises(ThriftError, match="as many rows as the file"):
        reader.read(contradicting)


def test_columns_of_row_groups_are_the_same_however_much_was_seen_before(tmp_path: Path) -> None:
    # Nulls, one value and many are written in other ways, more than are kept.
    values = pa.array([None, 1, 1, 1, 2, 3, 4, None, None, 5], pa.int64())
    lists = pa.array([[1.0] * (row % 3) for row in range(10)])
    table = pa.table({"x": values, "text": [str(row) for row in range(10)], "list": lists})
    first = write(tmp_path / "first", table, row_group_size=1)
    other = write(tmp_path / "other", table, row_group_size=3, use_dictionary=["x"])
    learned = FooterReader()
    for path in (first, other, first, other):
        footer = footer_of(path)
        metadata = pq.read_metadata(path)
        expected = [
            [
                (column.num_values, column.total_compressed_size, column.data_page_offset)
                for column in map(metadata.row_group(group).column, (2, 0))
            ]
            for group in range(metadata.num_row_groups)
        ]
        for reader in (learned, FooterReader()):
            known = reader.read(footer)
            for groups in (
                known.row_groups,
                [reader.row_group(footer, at, known.schema) for at in known.places[:-1]],
            ):
                assert [
                    [
                        (chunk.num_values, chunk.compressed_bytes, chunk.data_offset)
                        for chunk in (group.chunks()[2], group.chunks()[0])
                    ]
                    for group in groups
                ] == expected


@pytest.mark.parametrize("most_part_bytes", [1, 1000])
def test_a_footer_that_is_read_in_pieces_is_the_same(
    most_part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": [float(n) for n in range(20)], "n": [n % 3 for n in range(20)]})
    table = table.replace_schema_metadata({"about": "a long tail" * 100})
    footer = footer_of(write(tmp_path / "file", table, row_group_size=1))
    monkeypatch.setattr(footers_module, "_MOST_PART_BYTES", most_part_bytes)

    def outline(of: bytes) -> FileFooter:
        return FooterReader().outline(len(of), lambda first, size: of[first : first + size])

    damaged = footer[:-900] + b"\xff" + footer[-899:]
    with pytest.raises(ThriftError) as wanted:
        FooterReader().read(damaged)
    for piece_bytes in range(most_part_bytes, len(footer) + 1, 509):
        monkeypatch.setattr(footers_module, "_PIECE_BYTES", piece_bytes)
        whole, found = FooterReader().read(footer), outline(footer)
        assert (found.rows, found.places, found.tail) == (whole.rows, whole.places, whole.tail)
        assert (found.schema.raw, found.row_groups) == (whole.schema.raw, ())
        with pytest.raises(ThriftError) as caught:
            outline(damaged)
        assert str(caught.value) == str(wanted.value)


@pytest.mark.parametrize("use_dictionary", [True, False, ["x"]])
def test_the_numbers_of_a_row_group_are_those_that_arrow_reads(
    tmp_path: Path, use_dictionary: bool | list[str]
) -> None:
    reader = FooterReader()
    for rows in (3, 70_000, 5):
        values = pa.array([None, *range(1, rows)], pa.int64())
        table = pa.table({"x": values, "list": [[1.5, 2.5]] * rows, "y": pa.array(range(rows))})
        path = write(tmp_path / "file", table, use_dictionary=use_dictionary)
        (group,) = reader.read(footer_of(path)).row_groups
        stated = pq.read_metadata(path).row_group(0)
        columns = [stated.column(leaf) for leaf in range(3)]
        for leaf, (chunk, column) in enumerate(zip(group.chunks(), columns, strict=True)):
            assert chunk.num_values == column.num_values
            assert chunk.uncompressed_bytes == column.total_uncompressed_size
            assert chunk.compressed_bytes == column.total_compressed_size
            assert chunk.data_offset == column.data_page_offset
            assert chunk.dictionary_offset == (column.dictionary_page_offset or 0)
            assert chunk.start == (column.dictionary_page_offset or column.data_page_offset)
            nulls = column.statistics.null_count
            assert group.null_counts()[leaf] == nulls == int(leaf == 0)
        end = max(chunk.start + chunk.compressed_bytes for chunk in group.chunks())
        assert chunk_outside(group.chunks(), end) is None
        assert chunk_outside(group.chunks(), end - 1) is not None


def test_a_large_footer_that_contradicts_itself_is_not_shown_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "file", pa.table({"x": pa.array([[1], []], pa.list_(pa.int64()))}))
    # Arrow ends the process where a histogram has another size than the schema says.
    four, five = (b"\x19" + list_header(I64, size) for size in (4, 5))
    damaged = with_footer(path, once(four, five + zigzag(0)))
    monkeypatch.setattr("leconvert.tables.data_file.LARGE_FOOTER_BYTES", 1)
    with pytest.raises(UnreadableSourceError, match="histogram of levels"):
        row_group_rows(damaged)


def element(name: bytes, *, children: int = 0, kind: int | None = 2) -> bytes:
    parts = [] if kind is None else [field(1, I32, zigzag(kind))]
    parts.append(field(4 - (kind is not None), BINARY, binary(name)))
    if children:
        parts.append(field(1, I32, zigzag(children)))
    return b"".join(parts) + b"\0"


def schema(*elements: bytes) -> bytes:
    head = field(1, I32, zigzag(2)) + field(1, LIST, list_header(STRUCT, len(elements)))
    return head + b"".join(elements)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x00", "does not begin with a version"),
        (field(1, I64, zigzag(2)), "does not begin with a version"),
        (field(1, I32, zigzag(2)) + b"\x00", "no schema behind the version"),
        (schema(), "has no columns"),
        (schema(element(b"root", children=2, kind=None), element(b"a")), "too few columns"),
        (
            schema(element(b"root", children=1, kind=None), element(b"a"), element(b"b")),
            "too many columns",
        ),
        (
            schema(element(b"root", children=1, kind=None), element(b"a", kind=None)),
            "without a type",
        ),
        (
            schema(element(b"root", children=1, kind=None), field(1, I64, zigzag(2)) + b"\0"),
            "type that is not a number",
        ),
        (
            schema(element(b"root", children=1, kind=None), field(5, I64, zigzag(2)) + b"\0"),
            "fields of other types",
        ),
        (
            schema(element(b"root", children=1, kind=None), field(3, I32, zigzag(-1)) + b"\0"),
            "neither required, optional nor repeated",
        ),
    ],
)
def test_a_schema_that_is_none_is_refused_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(ThriftError, match=reason):
        parse_schema(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (field(1, LIST, list_header(I32, 1) + zigzag(1)) + b"\0", "not made of structs"),
        (field(4, STRUCT, b"\0") + b"\0", "encrypted"),
        (b"\0\0", "bytes behind the footer"),
        (
            field(1, LIST, list_header(STRUCT, 1) + field(2, BINARY, binary(b"one")) + b"\0")
            + b"\0",
            "no key",
        ),
    ],
)
def test_an_end_of_a_footer_that_is_none_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(ThriftError, match=reason):
        parse_tail(raw)


def test_schemas_are_those_that_arrow_reads_whatever_was_read_before(tmp_path: Path) -> None:
    for told in ({"about": "one"}, {"about": "another"}, {}):
        table = ROWS.replace_schema_metadata(told)
        path = write(tmp_path / "file", table)
        assert read_data_schema(path).equals(pq.read_schema(path), check_metadata=True)
        groups = StoredGroups(str(path))
        assert groups.schema.equals(pq.read_schema(path), check_metadata=True)
        assert groups.rows == [table.num_rows]


@pytest.mark.parametrize("trials", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_arrow_reads_whatever_footer_is_accepted_and_finds_the_same(
    tmp_path: Path, trials: int
) -> None:
    path = write(tmp_path / "file", ROWS.replace_schema_metadata({"about": "one"}))
    raw, footer = path.read_bytes(), footer_of(path)
    reader = FooterReader()
    for _ in range(3):  # its forms are known then, and damaged footers are compared with them
        reader.read(footer)
    random = Random(trials)
    accepted = 0
    for _ in range(trials):
        damaged = bytearray(footer)
        for at in random.choices(range(len(footer)), k=random.choice([1, 1, 2])):
            damaged[at] = random.choice([random.randrange(256), damaged[at] ^ 0x80])
        try:
            ours = reader.read(bytes(damaged))
        except ThriftError:
            continue
        arrow = pq.ParquetFile(pa.BufferReader(raw[: -8 - len(footer)] + damaged + raw[-8:]))
        groups = range(arrow.metadata.num_row_groups)
        assert ours.rows == [arrow.metadata.row_group(group).num_rows for group in groups]
        assert ours.arrow_schema.equals(arrow.schema_arrow)
        accepted += 1
    assert 0 < accepted < trials
