"""One data file of a result against the parquet files that it was joined from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.errors import UnreadableSourceError
from leconvert.verify.difference import Difference

__all__ = ["RowSpan", "compare_table", "same_values"]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One episode's rows: its index, its length and the parquet file it came from."""

    episode: int
    length: int
    source: str


def compare_table(
    root: Path,
    path: str,
    num_episodes: int,
    spans: Iterable[RowSpan],
    *,
    read_rows: bool,
    on_frames: Callable[[int], None],
) -> Iterator[Difference]:
    """Yield whatever in one data file is not its episodes' rows, one row group an episode.

    Args:
        root: The result.
        path: The file, relative to it.
        num_episodes: How many episodes it holds.
        spans: They, in order.
        read_rows: Compare every value too, not only the number of rows.
        on_frames: Called with the rows of each episode that was compared.
    """

    def differs(
        what: str, expected: object, found: object, span: RowSpan | None = None
    ) -> Difference:
        episode = None if span is None else span.episode
        return Difference(what, path, str(expected), str(found), episode, "data")

    try:
        counts = tables.row_group_rows(root / path)
        file = pq.ParquetFile(root / path) if read_rows else None
    except (UnreadableSourceError, OSError, pa.ArrowException) as error:
        yield differs("readable parquet", "a footer", error)
        return
    with file or nullcontext():
        if len(counts) != num_episodes:
            yield differs("row groups, one an episode", num_episodes, len(counts))
            return
        for group, (rows, span) in enumerate(zip(counts, spans, strict=True)):
            if rows != span.length:
                yield differs("rows", span.length, rows, span)
            elif file is not None:
                try:
                    found = file.read_row_group(group, use_threads=False)
                except (OSError, pa.ArrowException) as error:
                    yield differs("readable row group", "rows", error, span)
                    continue
                for what, expected, seen in _compare_columns(span.source, found):
                    yield differs(what, expected, seen, span)
            on_frames(span.length)


def _compare_columns(source: str, found: pa.Table) -> Iterator[tuple[str, object, object]]:
    with pq.ParquetFile(source) as file:
        expected = file.read(use_threads=False)
    if sorted(expected.column_names) != sorted(found.column_names):
        yield "columns", expected.column_names, found.column_names
        return
    for name in expected.column_names:
        ours = found.column(name).combine_chunks()
        theirs = expected.column(name).combine_chunks()
        if not same_values(theirs, ours):
            row = _first_difference(theirs, ours)
            place = f"column {name!r}, row {row}"
            yield (
                place,
                theirs[row].as_py() if row < len(theirs) else None,
                ours[row].as_py() if row < len(ours) else None,
            )


def _first_difference(expected: pa.Array, found: pa.Array) -> int:
    low, high = 0, max(len(expected), len(found))
    while low < high:  # the longest equal head, by bisection
        middle = (low + high + 1) // 2
        if same_values(expected.slice(0, middle), found.slice(0, middle)):
            low = middle
        else:
            high = middle - 1
    return low


def same_values(expected: pa.Array, found: pa.Array) -> bool:
    """Tell whether two arrays hold the same values bit by bit.

    Floats are compared by their bits, so NaN equals NaN and 0.0 does not equal -0.0. A list of
    fixed size equals one of variable size with the same values.
    """
    if len(expected) != len(found) or expected.null_count != found.null_count:
        return False
    if expected.null_count:
        if not expected.is_null().equals(found.is_null()):
            return False
        expected, found = expected.drop_null(), found.drop_null()
    if _is_list(expected.type):
        import pyarrow.compute as pc  # costs a conversion that reads no rows 50 ms

        return bool(
            _is_list(found.type)
            and pc.list_value_length(expected)
            .cast(pa.int64())
            .equals(pc.list_value_length(found).cast(pa.int64()))
            and same_values(pc.list_flatten(expected), pc.list_flatten(found))
        )
    if pa.types.is_struct(expected.type):
        names = [field.name for field in expected.type]
        return bool(
            pa.types.is_struct(found.type)
            and names == [field.name for field in found.type]
            and all(
                same_values(left, right)
                for left, right in zip(expected.flatten(), found.flatten(), strict=True)
            )
        )
    if expected.type != found.type:
        return False
    if pa.types.is_floating(expected.type):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[expected.type.bit_width]
        expected, found = expected.view(bits), found.view(bits)
    return bool(expected.equals(found))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
