"""Pages of a column chunk: whole ones are counted, anything else has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.tables.data_file import OpenedTable
from leconvert.tables.footers import ChunkEntry, FooterReader
from leconvert.tables.parquet_copy import Window
from leconvert.tables.parquet_copy import check_pages as check_chunks
from leconvert.tables.thrift import CompactReader, varint


def window_of(raw: bytes) -> Window:
    def window(position: int, size: int) -> tuple[bytes, int]:
        # What is held of a file begins anywhere; what is read for a long header begins with it.
        before = 3 if size <= 1024 else 0
        return raw[position - before : position + size], before

    return window


def check_pages(window: Window, chunk: ChunkEntry) -> str | None:
    found = check_chunks(window, [chunk])
    return None if found is None else found[1]


def stored(folder: Path, column: pa.Array, **options: Any) -> tuple[bytes, ChunkEntry]:
    path = folder / "file"
    pq.write_table(pa.table({"x": column, "y": pa.nulls(len(column))}), path, **options)
    with OpenedTable(str(path)) as table:
        (group,) = FooterReader().read(table.footer()).row_groups
    return path.read_bytes(), group.chunks()[0]


NUMBERS = pa.array(list(range(3000)))
TWO_PAGES = {"data_page_size": 1024, "write_batch_size": 100}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dictionary_offset": 0}, "its dictionary page is not where the footer says"),
        ({"dictionary_offset": 4}, "its dictionary page is not where the footer says"),
        ({"data_offset": 5}, "its first data page is not where the footer says"),
        ({"num_values": 2999}, "its pages hold another number of values"),
        ({"num_values": 3001}, "its pages hold another number of values"),
        ({"uncompressed_bytes": 1}, "its pages have another size uncompressed"),
        ({"compressed_bytes": 100}, "its last page ends behind it"),
    ],
    ids=str,
)
def test_a_footer_that_says_otherwise_is_the_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    has_dictionary = change != {"dictionary_offset": 4}
    raw, chunk = stored(tmp_path, NUMBERS, use_dictionary=has_dictionary, **TWO_PAGES)
    if change == {"compressed_bytes": 100}:
        # Not the whole of the second page.
        change = {"compressed_bytes": chunk.data_offset - chunk.start + 100}
    assert check_pages(window_of(raw), chunk._replace(**change)) == reason


@pytest.mark.parametrize("start", [b"\xff" * 10, b"\x00", b"\x80\x80\x01"])
def test_a_page_that_is_no_block_of_its_size_is_the_reason(tmp_path: Path, start: bytes) -> None:
    raw, chunk = stored(tmp_path, NUMBERS, use_dictionary=False, data_page_size=10**6)
    # Behind the kind of page stands its size, and with that a Snappy block begins.
    reader = CompactReader(raw, chunk.start + 3)
    size = reader.integer()
    assert size > 3000 * 8
    at = raw.index(varint(size), reader.position)
    damaged = raw[:at] + start + raw[at + len(start) :]
    assert check_pages(window_of(damaged), chunk) == "a page is not a Snappy block of its size"


def test_an_unknown_kind_of_page_and_one_without_sizes_are_damaged(tmp_path: Path) -> None:
    raw, chunk = stored(tmp_path, NUMBERS, use_dictionary=False)
    assert raw[chunk.start : chunk.start + 2] == b"\x15\x00"
    for header, said in ((b"\x15\x02", "unknown kind"), (b"\x00\x00", "not contain the sizes")):
        damaged = raw[: chunk.start] + header + raw[chunk.start + 2 :]
        reason = check_pages(window_of(damaged), chunk)
        assert reason is not None
        assert said in reason
