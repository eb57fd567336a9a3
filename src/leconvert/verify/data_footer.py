"""The footer of a data file: its columns and types, and what it states of each row group.

Readers go by these without looking at a row: `datasets` takes types and images from the schema,
and whoever filters rows skips row groups by the least and greatest value that the footer states.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM
from leconvert.repairs import Repairs
from leconvert.source import SourcePaths
from leconvert.source.info import DatasetInfo
from leconvert.tables.schemas import HUGGINGFACE_KEY
from leconvert.verify.difference import Difference
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["DataSchemas", "compare_footer"]

# Parquet's own numbers of fields, which Arrow shows as metadata.
_FIELD_ID = b"PARQUET:field_id"


class DataSchemas:
    """The schemas that the data files of a result may have: those that its source gives.

    Episodes whose columns can be brought to those of the others may differ a little, and the
    result has the schema of most. So a schema is right if any episode of the source gives it; the
    others are looked at only where the file's own first episode does not. Threads may share it.

    Args:
        info: The source's ``info.json``.
        paths: Where its episodes' files are.
        episodes: The indices of those that are in the result.
        repairs: What the conversion changed.
    """

    def __init__(
        self, info: DatasetInfo, paths: SourcePaths, episodes: Sequence[int], repairs: Repairs
    ) -> None:
        self._features = repairs.features(info.features)
        self._paths = paths
        self._episodes = episodes
        self._repairs = repairs
        self._lock = threading.Lock()
        self._known: list[pa.Schema] = []
        self._is_complete = False

    def of(self, episode: int) -> pa.Schema:
        """Return the schema of a file that is made of one episode.

        Raises:
            UnreadableSourceError: The episode's file cannot be read.
        """
        (path,) = self._paths.absolute(DATA_STREAM, [episode])
        source = tables.repaired_schema(tables.read_data_schema(path), self._repairs)
        return _plain(tables.output_schema(source, self._features))

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
                for episode in self._episodes:
                    schema = self.of(episode)
                    if not any(_same(schema, known) for known in self._known):
                        self._known.append(schema)
                self._is_complete = True
        return any(_same(found, known) for known in self._known)


def compare_footer(
    root: Path,
    path: str,
    schemas: DataSchemas,
    episodes: Sequence[int],
    lengths: Sequence[int],
    positions: Sequence[int],
    first_indices: Sequence[int],
) -> Iterator[Difference]:
    """Yield where a data file has other columns or types, or row groups of other places.

    Nothing is said of a file that cannot be read, or whose row groups are not its episodes: that is
    for `leconvert.verify.rows` to say.

    Args:
        root: The result.
        path: The file, relative to it.
        schemas: What its columns may be.
        episodes: The indices of its episodes in the source.
        lengths: Their rows.
        positions: Their places in the result.
        first_indices: The place of each one's first row in the result.
    """
    try:
        found = _plain(tables.read_data_schema(root / path))
        counts = tables.row_group_rows(root / path)
    except (UnreadableSourceError, OSError, pa.ArrowException) as error:
        raise_storage_trouble(error, root / path)
        return
    expected = schemas.of(episodes[0])
    if not _same(found, expected) and not schemas.allow(found):
        for what, wanted, have in _schema_differences(expected, found):
            yield Difference(what, path, wanted, have, stream=DATA_STREAM)
    yield from schemas.unreadable(found, path)
    if counts != list(lengths):
        return
    groups = zip(episodes, lengths, positions, first_indices, strict=True)
    extremes = tables.row_group_extremes(str(root / path), ("index", "episode_index"))
    for (episode, length, position, first), stated in zip(groups, extremes, strict=False):
        demanded = {"index": (first, first + length - 1), "episode_index": (position, position)}
        for column, values in demanded.items():
            if stated.get(column, values) != values:
                what, have = _stated(column), str(stated[column])
                yield Difference(what, path, str(values), have, episode, DATA_STREAM)


def wrong_extremes(
    group: pq.RowGroupMetaData, rows: pa.Table
) -> Iterator[tuple[str, object, object]]:
    """Yield column, actual and stated extremes where a row group's footer states too narrow ones.

    Args:
        group: What the footer says of the row group.
        rows: Its rows.
    """
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
        actual = pc.min_max(rows.column(at)).as_py()
        least, greatest = actual["min"], actual["max"]
        # Comparing with NaN, or with nothing, says nothing.
        if least is not None and (least < stated.min or greatest > stated.max):
            yield _stated(name), (least, greatest), (stated.min, stated.max)


def _stated(column: str) -> str:
    return f"least and greatest {column!r} by the footer"


def _schema_differences(expected: pa.Schema, found: pa.Schema) -> Iterator[tuple[str, str, str]]:
    if expected.names != found.names:
        yield "columns", str(expected.names), str(found.names)
        return
    for wanted, have in zip(expected, found, strict=True):
        if not wanted.equals(have, check_metadata=True):
            yield f"type of column {have.name!r}", _described(wanted), _described(have)
    told, tells = _told_to_datasets(expected), _told_to_datasets(found)
    for name in [name for name in {**told, **tells} if told.get(name) != tells.get(name)]:
        yield f"`huggingface` entry of column {name!r}", str(told.get(name)), str(tells.get(name))
    if _other_metadata(expected) != _other_metadata(found):
        yield "schema metadata", str(_other_metadata(expected)), str(_other_metadata(found))


def _described(field: pa.Field) -> str:
    text = str(field.type) if field.nullable else f"{field.type} not null"
    return f"{text} {field.metadata}" if field.metadata else text


def _same(left: pa.Schema, right: pa.Schema) -> bool:
    return bool(
        left.equals(right)
        and all(map(pa.Field.equals, left, right, repeat(True)))
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
