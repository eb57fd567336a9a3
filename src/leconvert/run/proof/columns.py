"""The columns of a data file and what its footer states, against what its source gives.

Readers go by these without looking at a row: `datasets` takes types and images from the schema, and
whoever filters rows skips row groups by the least and greatest value that the footer states.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM
from leconvert.run.proof.difference import Difference
from leconvert.run.proof.expected import Expected
from leconvert.tables.schemas import HUGGINGFACE_KEY

# Parquet's own numbers of fields, which Arrow shows as metadata.
_FIELD_ID = b"PARQUET:field_id"


class DataSchemas:
    """The schemas that the data files of a result may have: those that its source gives.

    Episodes whose columns can be brought to those of the others may differ a little, and the
    result has the schema of most. So a schema is right if any episode of the source gives it; the
    others are looked at only where the file's own first episode does not. Threads may share it.

    Args:
        expected: The sources, as the result must hold them.
        list_entry: See `leconvert.tables.output_schema`.
    """

    def __init__(self, expected: Expected, list_entry: str) -> None:
        self._list_entry = list_entry
        self._features = expected.features
        self._expected = expected
        self._lock = threading.Lock()
        self._known: list[pa.Schema] = []
        self._is_complete = False
        # Of the source's file that was read last: many episodes in a row may be in it, and mostly
        # the next file has the same columns.
        self._last_path: tuple[str, pa.Schema] | None = None
        self._last: tuple[pa.Schema, Repairs, pa.Schema] | None = None
        self._right: tuple[pa.Schema, pa.Schema, bool] | None = None

    def of(self, position: int) -> pa.Schema:
        """Return the schema of a file that is made of one episode."""
        path, last = self._expected.path(DATA_STREAM, position), self._last_path
        if last is not None and last[0] == path:
            return last[1]
        given = self.given(tables.read_data_schema(path), position)
        self._last_path = path, given
        return given

    def given(self, stored: pa.Schema, position: int) -> pa.Schema:
        """Return the schema of a file that is made of one episode, given that of its source."""
        repairs, last = self._expected.source_of(position).repairs, self._last
        if (
            last is not None
            and last[1] is repairs
            and (stored is last[0] or stored.equals(last[0], check_metadata=True))
        ):
            return last[2]
        source = tables.repaired_schema(stored, repairs)
        given = _plain(tables.output_schema(source, self._features, list_entry=self._list_entry))
        self._last = stored, repairs, given
        return given

    def had_right(self, found: pa.Schema, wanted: pa.Schema, *, is_kept: bool) -> bool:
        """Tell whether a file has the columns of the last one in which they were right."""
        last = self._right
        return (
            last is not None
            and last[1] is wanted
            and last[2] == is_kept
            and (found is last[0] or bool(found.equals(last[0], check_metadata=True)))
        )

    def note_right(self, found: pa.Schema, wanted: pa.Schema, *, is_kept: bool) -> None:
        """Note the columns of a file in which nothing was wrong."""
        self._right = found, wanted, is_kept

    def episodes(self, positions: Sequence[int]) -> list[int]:
        """Return the numbers of some episodes in the source."""
        numbers: list[int] = self._expected.index[positions].tolist()
        return numbers

    def unreadable(self, found: pa.Schema, path: str) -> Iterator[Difference]:
        """Yield what LeRobot would not read as the result's ``info.json`` is to declare it."""
        for name, feature in self._features.items():
            if feature["dtype"] == "video":
                continue
            what = f"column {name!r} that LeRobot reads"
            wanted = f"{feature['dtype']} of shape {feature.get('shape')}"
            if name not in found.names:
                yield Difference(what, path, wanted, "none", stream=DATA_STREAM)
                continue
            kind = found.field(name).type
            if tables.read_by_lerobot(name, feature, kind).verdict == "refused":
                yield Difference(what, path, wanted, str(kind), stream=DATA_STREAM)
        for name in found.names:
            if name not in self._features or self._features[name]["dtype"] == "video":
                what = f"column {name!r}"
                yield Difference(what, path, "none that is not declared", "it", stream=DATA_STREAM)

    def allow(self, found: pa.Schema) -> bool:
        """Tell whether any episode of the source gives a schema."""
        with self._lock:
            if not self._is_complete:
                for position in range(len(self._expected)):
                    schema = self.of(position)
                    if not any(_same(schema, known) for known in self._known):
                        self._known.append(schema)
                self._is_complete = True
        return any(_same(found, known) for known in self._known)


def compare_footer(
    path: str,
    file: tables.StoredGroups,
    schemas: DataSchemas,
    lengths: Sequence[int],
    positions: Sequence[int],
    first_indices: Sequence[int],
) -> Iterator[Difference]:
    """Yield where a data file has other columns or types, or row groups of other places.

    Nothing is said of a file whose row groups are not its episodes: `compare_rows` says that.
    """
    schema, expected = file.schema, schemas.of(positions[0])
    if not schemas.had_right(schema, expected, is_kept=False):
        found, differences = _plain(schema), list[Difference]()
        if not _same(found, expected) and not schemas.allow(found):
            differences += [
                Difference(what, path, wanted, have, stream=DATA_STREAM)
                for what, wanted, have in _schema_differences(expected, found)
            ]
        differences += schemas.unreadable(found, path)
        if not differences:
            schemas.note_right(schema, expected, is_kept=False)
        yield from differences
    if file.rows != list(lengths):
        return
    groups = zip(lengths, positions, first_indices, strict=True)
    for (length, position, first), stated in zip(groups, file.extremes(), strict=True):
        demanded = {"index": (first, first + length - 1), "episode_index": (position, position)}
        if demanded.items() <= stated.items():
            continue
        (episode,) = schemas.episodes([position])
        for column, values in demanded.items():
            if stated.get(column, values) != values:
                what, have = _stated(column), str(stated[column])
                yield Difference(what, path, str(values), have, episode, DATA_STREAM)


def wrong_extremes(
    group: pq.RowGroupMetaData, rows: pa.Table
) -> Iterator[tuple[str, object, object]]:
    """Yield column, actual and stated extremes where a row group's footer is too narrow."""
    import pyarrow.compute as pc  # costs a conversion that reads no rows 50 ms

    for number in range(group.num_columns):
        chunk = group.column(number)
        name, stated = chunk.path_in_schema, chunk.statistics
        at = rows.schema.get_field_index(name)
        kind = None if at < 0 else rows.schema.field(at).type
        is_number = kind is not None and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )
        if stated is None or not stated.has_min_max or not is_number:
            continue
        column, bounds = rows.column(at), (stated.min, stated.max)
        if pa.types.is_float16(column.type):  # Arrow compares none, and gives the bounds as bytes
            column = column.cast(pa.float32())
            bounds = tuple(np.frombuffer(b"".join(bounds), "<f2").tolist())
        actual = pc.min_max(column).as_py()
        least, greatest = actual["min"], actual["max"]
        # Comparing with NaN, or with nothing, says nothing.
        if least is not None and (least < bounds[0] or greatest > bounds[1]):
            yield _stated(name), (least, greatest), bounds


def _stated(column: str) -> str:
    return f"least and greatest {column!r} by the footer"


def _schema_differences(expected: pa.Schema, found: pa.Schema) -> Iterator[tuple[str, str, str]]:
    if expected.names != found.names:
        yield "columns", str(expected.names), str(found.names)
        return
    for wanted, have in zip(expected, found, strict=True):
        if not _same_field(wanted, have):
            yield f"type of column {have.name!r}", _described(wanted), _described(have)
    told, tells = _told_to_datasets(expected), _told_to_datasets(found)
    for name in [name for name in {**told, **tells} if told.get(name) != tells.get(name)]:
        yield f"`huggingface` entry of column {name!r}", str(told.get(name)), str(tells.get(name))
    if _other_metadata(expected) != _other_metadata(found):
        yield "schema metadata", str(_other_metadata(expected)), str(_other_metadata(found))


def _same_field(left: pa.Field, right: pa.Field) -> bool:
    """Tell whether two columns are alike, whatever the elements of their lists are called."""
    return bool(left.equals(right) and (left.metadata or {}) == (right.metadata or {}))


def _described(field: pa.Field) -> str:
    text = str(field.type) if field.nullable else f"{field.type} not null"
    return f"{text} {field.metadata}" if field.metadata else text


def _same(left: pa.Schema, right: pa.Schema) -> bool:
    return bool(
        left.equals(right)
        and all(map(_same_field, left, right))
        and _told_to_datasets(left) == _told_to_datasets(right)
        and _other_metadata(left) == _other_metadata(right)
    )


def _plain(schema: pa.Schema) -> pa.Schema:
    fields = [
        field.with_metadata(
            {key: value for key, value in field.metadata.items() if key != _FIELD_ID}
        )
        if field.metadata
        else field
        for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def _told_to_datasets(schema: pa.Schema) -> Mapping[str, Any]:
    try:
        told = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _other_metadata(schema: pa.Schema) -> dict[bytes, bytes]:
    return {key: value for key, value in (schema.metadata or {}).items() if key != HUGGINGFACE_KEY}
