"""The columns of ``meta/episodes``: those that lead to files, and those that the source gave."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.arrow import int64_values
from leconvert.model import FILES_PER_CHUNK, camera_of
from leconvert.tables.paths import EPISODES_DIR, episodes_path
from leconvert.tables.schemas import HUGGINGFACE_KEY, feature_of_type
from leconvert.verify.difference import Difference

__all__ = ["compare_location", "compare_own_values", "placing_columns", "unusable_columns"]

_ROUTED = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
# More chunks would be more files than any file system has.
_CHUNKS_STOP = 10**12
_LOCATION = ("meta/episodes/chunk_index", "meta/episodes/file_index")


def placing_columns(streams: Sequence[str]) -> list[str]:
    """Return the columns that say where the episodes are, in the streams and in the dataset."""
    names = list(_ROUTED)
    for stream in streams:
        names += [f"{stream}/chunk_index", f"{stream}/file_index"]
        if camera_of(stream) is not None:
            names += [f"{stream}/from_timestamp", f"{stream}/to_timestamp"]
    return names


def unusable_columns(table: pa.Table, streams: Sequence[str]) -> Iterator[Difference]:
    """Yield columns without which nothing can be compared: missing, incomplete, of another type.

    Args:
        table: ``meta/episodes``.
        streams: The streams of the source.
    """
    for name in [*placing_columns(streams), *_LOCATION, "tasks"]:
        wanted = pa.float64() if name.endswith("_timestamp") else pa.int64()
        at = table.schema.get_field_index(name)
        if at < 0:
            yield Difference(f"column {name!r}", EPISODES_DIR, "one such column", "none or several")
            continue
        found = table.column(at)
        if name == "tasks":
            if not pa.types.is_list(found.type):
                yield Difference(f"column {name!r}", EPISODES_DIR, "lists", str(found.type))
        elif found.type != wanted:
            yield Difference(f"column {name!r}", EPISODES_DIR, str(wanted), str(found.type))
        elif found.null_count:
            missing = f"{found.null_count} missing"
            yield Difference(f"column {name!r}", EPISODES_DIR, "a value for each episode", missing)
        elif name.endswith(("/chunk_index", "/file_index")):
            yield from _impossible_numbers(name, found)


def _impossible_numbers(name: str, column: pa.ChunkedArray) -> Iterator[Difference]:
    """Yield numbers of files that are none; two that are wrong together could make a right one."""
    stop = FILES_PER_CHUNK if name.endswith("/file_index") else _CHUNKS_STOP
    values = int64_values(column)
    wrong = np.flatnonzero((values < 0) | (values >= stop))
    if len(wrong):
        what = f"column {name!r}, row {wrong[0]}"
        yield Difference(
            what, EPISODES_DIR, f"a number from 0 to {stop - 1}", str(values[wrong[0]])
        )


def compare_own_values(
    lines: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[Any]], known: Sequence[str]
) -> Iterator[Difference]:
    """Compare what lines of ``episodes.jsonl`` say beside places with their rows.

    Args:
        lines: Some lines.
        rows: Their rows, column by column, without statistics.
        known: Columns that are compared elsewhere.
    """
    passed = {*known, *_LOCATION}
    names = dict.fromkeys(name for line in lines for name in line if name not in passed)
    names |= dict.fromkeys(name for name in rows if name not in passed)
    for name in names:
        found = rows.get(name, [None] * len(lines))
        for line, have in zip(lines, found, strict=True):
            if not _same(line.get(name), have):
                yield Difference(
                    name, EPISODES_DIR, str(line.get(name)), str(have), int(line["episode_index"])
                )


def compare_location(root: Path) -> Iterator[Difference]:
    """Compare what files of ``meta/episodes`` say of themselves with their names and their types.

    Args:
        root: The result.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is no parquet file.
    """
    paths = sorted(path for path in (root / EPISODES_DIR).glob("*/*.parquet"))
    for number, path in enumerate(paths):
        relative = path.relative_to(root).as_posix()
        if relative != episodes_path(number):
            continue  # a name that should not be there is told where files are compared
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            present = [name for name in _LOCATION if name in schema.names]
            table = file.read(columns=present, use_threads=False)
        for name, place in zip(_LOCATION, divmod(number, FILES_PER_CHUNK), strict=True):
            values = set(table.column(name).to_pylist()) if name in present else set()
            if values != {place}:
                yield Difference(name, relative, str(place), ", ".join(map(str, sorted(values))))
        for name in [name for name, count in Counter(schema.names).items() if count > 1]:
            yield Difference(f"column {name!r}", relative, "one such column", "several")
        yield from _compare_description(schema, relative)


def _compare_description(schema: pa.Schema, path: str) -> Iterator[Difference]:
    """Compare what the file tells `datasets` about its columns with their types."""
    try:
        described = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
        told = dict(described)
    except (KeyError, ValueError, TypeError, RecursionError):
        told = {}
    for field in schema:
        expected = feature_of_type(field.type)
        if told.get(field.name) != expected:
            what = f"`huggingface` entry of column {field.name!r}"
            yield Difference(what, path, str(expected), str(told.get(field.name)))


def _same(expected: object, found: object) -> bool:
    """Tell whether a column holds a JSON value, in the widest type that its column may need."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(_same(expected.get(key), found.get(key)) for key in {**expected, **found})
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(found, str) and expected is not None and not isinstance(expected, str):
        try:  # what shares a column with texts is text itself
            return bool(json.loads(found) == expected)
        except ValueError:
            return False
    if isinstance(found, float) and isinstance(expected, int | float):
        return float(expected) == found or (found != found and expected != expected)  # noqa: PLR0124
    return type(expected) is type(found) and expected == found
