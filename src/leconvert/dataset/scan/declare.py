"""What columns that ``info.json`` does not declare would be declared as: as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.formats.v2 import EpisodeTable
from leconvert.dataset.scan.dataset_checks import DataColumns
from leconvert.dataset.scan.gathering import EpisodePaths
from leconvert.model.values import DATA_STREAM
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import shown
from leconvert.tables import dtype_name, read_by_lerobot
from leconvert.tables.arrow import (
    innermost_type,
    is_binary,
    is_list,
    is_number,
    is_text,
    list_length,
    list_values,
)


def declare_columns(
    features: Mapping[str, Mapping[str, Any]],
    columns: DataColumns,
    paths: EpisodePaths,
    episodes: EpisodeTable,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return a declaration for each undeclared column that LeRobot can read, and why for others.

    Every table that has the dataset's columns is read where lists may differ in their lengths.
    """
    declared: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for field in columns.schema or ():
        if field.name in features:
            continue
        try:
            shape, names = _shape(field, paths, episodes.index[columns.is_common].tolist())
            dtype = "image" if names else dtype_name(field.type)
            feature = {"dtype": dtype, "shape": shape, "names": names}
            kind = innermost_type(field.type) if field.name in columns.wrapped else field.type
            if field.name in columns.floating:
                feature["dtype"], kind = "int64", pa.int64()
            reading = read_by_lerobot(field.name, feature, kind)
            if reading.reason:
                raise ValueError(reading.reason)
            declared[field.name] = feature
        except ValueError as error:
            refused[field.name] = str(error)
        except (OSError, pa.ArrowException, UnreadableSourceError) as error:
            refused[field.name] = f"its values cannot be read: {shown(str(error))}"
    return declared, refused


def _shape(
    field: pa.Field, paths: EpisodePaths, episodes: list[int]
) -> tuple[list[int], list[str] | None]:
    """Return the shape of a column's values, and the names of its dimensions."""
    kind, held = _plain(field.type), innermost_type(field.type)
    # A file may hold many of the episodes.
    files = iter(dict.fromkeys(paths.absolute(DATA_STREAM, episodes)))
    if pa.types.is_struct(kind) or is_binary(kind):
        return _image_shape(next(_read(files, field.name))), ["height", "width", "channels"]
    if not (is_number(held) or is_text(kind)):
        raise ValueError(f"LeRobot reads no {shown(str(kind))}")
    shapes = {_value_shape(values) for values in _read(files, field.name)}
    if len(shapes) > 1:
        raise ValueError("its values differ in shape from episode to episode")
    return list(shapes.pop()) or [1], None


def _read(files: Iterator[str], name: str) -> Iterator[pa.Array]:
    for path in files:
        with pq.ParquetFile(path) as file:
            column = file.read(columns=[name], use_threads=False).column(0).combine_chunks()
        while isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        yield column


def _value_shape(values: pa.Array) -> tuple[int, ...]:
    """Return the shape that all values of a column have; () for plain numbers and texts."""
    if values.null_count:
        raise ValueError("it has empty values")
    if not is_list(values.type):
        return ()
    try:
        length = list_length(values)
    except (ValueError, IndexError) as error:  # IndexError: there are no rows
        raise ValueError("its lists differ in length") from error
    return (length, *_value_shape(list_values(values)))


def _image_shape(values: pa.Array) -> list[int]:
    from leconvert.media import decode_image  # only where there are such columns

    first = values[0].as_py()
    data = first.get("bytes") if isinstance(first, dict) else first
    if not isinstance(data, bytes):
        raise ValueError("its values are no image files")
    try:
        return list(decode_image(data).shape)
    except (ValueError, UnreadableSourceError):
        raise ValueError("its values are no image files") from None


def _plain(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind
