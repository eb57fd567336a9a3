"""Damage to the data files: rows, row groups, columns and footers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mutation import BYTES, DATA, SPARE_DATA, STRUCTURE, Mutation, bytes_of, chunk_of, cut, exchange
from tests.dataset_damage import Damage

__all__ = ["MUTATIONS"]

Groups = Sequence[pa.Table]


def _regroup(change: Callable[[list[pa.Table]], Groups]) -> Damage:
    """Write the first data file anew from its changed row groups."""

    def damage(root: Path) -> None:
        with pq.ParquetFile(root / DATA) as file:
            groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        changed = change(groups)
        with pq.ParquetWriter(root / DATA, changed[0].schema) as writer:
            for group in changed:
                writer.write_table(group)

    return damage


def _each(change: Callable[[pa.Table], pa.Table]) -> Damage:
    return _regroup(lambda groups: [change(group) for group in groups])


def _cell(column: str, row: int, change: Callable[[Any], Any]) -> Damage:
    """Change one value of the second episode."""

    def edit(groups: list[pa.Table]) -> Groups:
        values = groups[1].column(column).to_pylist()
        values[row] = change(values[row])
        at = groups[1].schema.get_field_index(column)
        field = groups[1].schema.field(at)
        groups[1] = groups[1].set_column(at, field, pa.array(values, field.type))
        return groups

    return _regroup(edit)


def other_pixel(image: dict[str, Any]) -> dict[str, Any]:
    content = bytearray(image["bytes"])
    content[-20] ^= 1
    return {**image, "bytes": bytes(content)}


def _cast(column: str, kind: pa.DataType) -> Damage:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        return table.set_column(at, pa.field(column, kind), table.column(at).cast(kind))

    return _each(change)


def _retold(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change what the file tells `datasets` about its columns."""

    def edit(table: pa.Table) -> pa.Table:
        told = json.loads(table.schema.metadata[b"huggingface"])
        change(told["info"]["features"])
        return table.replace_schema_metadata({"huggingface": json.dumps(told)})

    return _each(edit)


def move_row(groups: list[pa.Table]) -> Groups:
    """Let the second episode's last row be the third's first."""
    both = pa.concat_tables(groups[1:3])
    return [groups[0], both.slice(0, 3), both.slice(3), groups[3]]


def flip_page_bit(root: Path) -> None:
    """Flip a bit of the compressed positions of the second episode."""
    chunk = chunk_of(root / DATA, "action", 1)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    with bytes_of(root / DATA) as content:
        content[begin + chunk.total_compressed_size // 2] ^= 4


def spoil_text(root: Path) -> None:
    """Set a bit of a text that makes it no UTF-8: texts lie in the dictionary page as they are."""
    chunk = chunk_of(root / DATA, "note", 1)
    with bytes_of(root / DATA) as content:
        at = content.index(b"frame 0", chunk.dictionary_page_offset, chunk.data_page_offset)
        # Snappy refers back to the first text for what others share: the digits stand alone.
        content[content.index(b"1", at, chunk.data_page_offset)] |= 128


def flip_page_header_bit(root: Path) -> None:
    """Flip a bit of a page's header that Arrow does not look at: the values stay."""
    begin = chunk_of(root / DATA, "note", 1).data_page_offset
    with bytes_of(root / DATA) as content:
        # The header repeats the least and the greatest value, as texts.
        content[content.index(b"frame 3", begin, begin + 80)] ^= 1
    with pq.ParquetFile(root / DATA) as file:
        assert file.read_row_group(1).column("note").to_pylist()[3] == "frame 3"


def flip_footer_maximum(root: Path) -> None:
    """Make the footer state a smaller greatest value than a row group's column has."""
    greatest = np.float32(chunk_of(root / DATA, "timestamp").statistics.max)
    with bytes_of(root / DATA) as content:
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        changed = content[footer:].replace(greatest.tobytes(), np.float32(greatest / 2).tobytes())
        assert changed != content[footer:]
        content[footer:] = changed


MUTATIONS = [
    # Values.
    Mutation("a bit of a page is flipped", BYTES, flip_page_bit, DATA, "", episode=1),
    Mutation("a bit of a page's header is flipped that Arrow does not read", BYTES,
             flip_page_header_bit, DATA, "stored form of the row group", "the source's bytes",
             "other bytes", episode=1),
    Mutation("an integer is another", BYTES, _cell("task_index", 2, lambda task: task + 1), DATA,
             "column 'task_index', row 2", episode=1),
    Mutation("a float is the next one", BYTES,
             _cell("action", 1, lambda v: [np.nextafter(np.float32(v[0]), np.float32(9)), *v[1:]]),
             DATA, "column 'action', row 1", episode=1),
    Mutation("a float is NaN", BYTES, _cell("timestamp", 3, lambda _: float("nan")), DATA,
             "column 'timestamp', row 3", "0.1", "nan", episode=1),
    Mutation("a zero has a sign", BYTES, _cell("timestamp", 0, lambda _: -0.0), DATA,
             "column 'timestamp', row 0", "0.0", "-0.0", episode=1),
    Mutation("a truth value is the other", BYTES, _cell("next.done", 3, lambda done: not done),
             DATA, "column 'next.done', row 3", "True", "False", episode=1),
    Mutation("a text has another letter", BYTES, _cell("note", 2, lambda _: "frame two"), DATA,
             "column 'note', row 2", "frame 2", "frame two", episode=1),
    Mutation("a text is none (not UTF-8)", BYTES, spoil_text, DATA, "column 'note', row 1",
             "frame 1", "no string", episode=1),
    Mutation("a value is missing", BYTES, _cell("note", 2, lambda _: None), DATA,
             "column 'note'", "frame 2", "None", episode=1),
    Mutation("two values of a list are exchanged", BYTES,
             _cell("action", 2, lambda values: [values[1], values[0], *values[2:]]), DATA,
             "column 'action', row 2", episode=1),
    Mutation("a byte of an image is another", BYTES,
             _cell("observation.images.still", 1, other_pixel), DATA,
             "column 'observation.images.still', row 1", episode=1),
    # Rows.
    Mutation("two rows of an episode are exchanged", BYTES,
             _regroup(lambda groups: [groups[0], groups[1].take([0, 2, 1, 3]), *groups[2:]]),
             DATA, "row 1", episode=1),
    Mutation("a row is dropped", STRUCTURE,
             _regroup(lambda groups: [groups[0], groups[1].slice(1), *groups[2:]]), DATA, "rows",
             "4", "3", episode=1),
    Mutation("a row is there twice", STRUCTURE,
             _regroup(lambda groups: [groups[0], groups[1].take([0, 1, 1, 2, 3]), *groups[2:]]),
             DATA, "rows", "4", "5", episode=1),
    Mutation("a row is in the next episode's row group", STRUCTURE, _regroup(move_row), DATA,
             "rows", "4", "3", episode=1),
    Mutation("two row groups of equal length are exchanged", STRUCTURE,
             _regroup(lambda groups: [groups[0], groups[2], groups[1], groups[3]]), DATA,
             "least and greatest 'index'", "(6, 9)", "(10, 13)", episode=1),
    Mutation("row groups are merged", STRUCTURE,
             _regroup(lambda groups: [pa.concat_tables(groups).combine_chunks()]), DATA,
             "row groups (one for each episode)", "4", "1"),
    Mutation("a row group is dropped", STRUCTURE, _regroup(lambda groups: groups[:-1]), DATA,
             "row groups (one for each episode)", "4", "3"),
    Mutation("a row group is there twice", STRUCTURE,
             _regroup(lambda groups: [*groups, groups[-1]]), DATA,
             "row groups (one for each episode)", "4", "5"),
    Mutation("two data files are exchanged", STRUCTURE, exchange(DATA, SPARE_DATA), SPARE_DATA,
             "row groups (one for each episode)", "2", "4"),
    # Columns.
    Mutation("a column of integers is narrower", STRUCTURE, _cast("frame_index", pa.int32()),
             DATA, "type of column 'frame_index'", "int64", "int32"),
    Mutation("a column of floats is wider", STRUCTURE, _cast("timestamp", pa.float64()), DATA,
             "type of column 'timestamp'", "float", "double"),
    Mutation("a column is dropped", STRUCTURE, _each(lambda table: table.drop_columns(["note"])),
             DATA, "columns", "note"),
    Mutation("a column is added", STRUCTURE,
             _each(lambda table: table.append_column("mood", table["index"])), DATA, "columns",
             found="mood"),
    Mutation("columns are in another order", STRUCTURE,
             _each(lambda table: table.select(table.column_names[::-1])), DATA, "columns"),
    Mutation("an image is not called one (`huggingface`)", STRUCTURE,
             _retold(lambda told: told.pop("observation.images.still")), DATA,
             "`huggingface` entry of column 'observation.images.still'", "Image", "None"),
    Mutation("the schema has no metadata (`huggingface`)", STRUCTURE,
             _each(lambda table: table.replace_schema_metadata(None)), DATA,
             "`huggingface` entry"),
    Mutation("the footer states a smaller maximum than a column has", BYTES, flip_footer_maximum,
             DATA, "least and greatest 'timestamp' by the footer", episode=0),
    # The file.
    *(Mutation(f"a data file {what}", STRUCTURE, cut(DATA, keep), DATA, "readable parquet",
               "a footer")
      for what, keep in (("loses its last byte", lambda size: size - 1),
                         ("loses its second half", lambda size: size // 2),
                         ("is empty", lambda _: 0))),
]  # fmt: skip
