"""What ``info.json`` declares, against itself and against the columns that are stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from leconvert.arrow import innermost_type, is_number
from leconvert.repairs import DEFAULT_COLUMNS, TEXT_DTYPES
from leconvert.source.info import INFO_PATH, DatasetInfo
from leconvert.source.seen import Remark, counted, shown

__all__ = [
    "Totals",
    "check_columns",
    "check_declarations",
    "check_images",
    "check_totals",
    "is_of_numbers",
]

_VISUAL_DTYPES = frozenset({"video", "image"})
_ARROW_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
_SHOWN = 5

Features = Mapping[str, Mapping[str, Any]]
# Total in info.json to the numbers that it may have.
Totals = Mapping[str, Sequence[int]]


def check_declarations(features: Features) -> Iterator[Remark]:
    """Say what is unusual about declared features.

    Args:
        features: Those that are left out among them.
    """
    nested, unnamed, old_style = [], [], []
    for name, feature in features.items():
        shape, names, dtype = feature.get("shape"), feature.get("names"), feature["dtype"]
        sizes = shape if isinstance(shape, list) else []
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            said = f"{INFO_PATH} declares {shown(name)} with the shape {shown(shape)}."
            yield Remark("shape-mismatch", said, path=INFO_PATH, feature=name)
        if names is not None and not _is_list_of_texts(names):
            nested.append(name)
        if names is None and len(sizes) == 1 and sizes[0] != 1 and dtype not in _VISUAL_DTYPES:
            unnamed.append(name)
        if dtype == "video" and "video_info" in feature and "info" not in feature:
            old_style.append(name)
    for code, said, found in (
        ("nested-names", "names of {} are no plain list; they stay as they are.", nested),
        ("null-names", "{} have no names.", unnamed),
        ("video-info", "{}: described under video_info instead of info.", old_style),
    ):
        if found:
            yield Remark(code, f"{INFO_PATH}: {said.format(_few(found))}", path=INFO_PATH)


def check_columns(
    features: Features, schema: pa.Schema, *, num_tasks: int, left_out: Collection[str]
) -> Iterator[Remark]:
    """Compare declared features with the columns that most tables have.

    Args:
        features: Those that are left out among them; what is said of these counts as repaired.
        schema: The columns, likewise.
        num_tasks: Different tasks of the dataset.
        left_out: Features that are left out.
    """
    stored = set(schema.names)
    for name in DEFAULT_COLUMNS:
        if name not in stored:
            several = name == "task_index" and num_tasks != 1
            how = f"and there are {num_tasks} tasks to choose from" if several else "it is computed"
            said = f"The tables have no column {name}; {how}."
            yield Remark(
                "missing-column", said, feature=name, severity="error" if several else "warning"
            )
    for name, feature in features.items():
        dtype = feature["dtype"]
        if name not in stored:
            if name not in DEFAULT_COLUMNS and dtype != "video":
                said = f"{INFO_PATH} declares {shown(name)}, but no table has such a column."
                yield Remark("phantom-feature", said, path=INFO_PATH, feature=name)
        elif dtype == "video":
            if name not in left_out:
                # Of no feature, so that nobody is told to drop it: the camera would go, too.
                said = f"The tables have a column {shown(name)}, which is declared as a camera."
                yield Remark("undeclared-column", said)
        elif dtype not in TEXT_DTYPES:
            found = _stored_dtype(schema.field(name).type)
            if found is not None and found != dtype:
                said = f"{shown(name)} is stored as {found}, {shown(dtype)} is declared."
                yield Remark("dtype-mismatch", said, path=INFO_PATH, feature=name)
    for name in sorted(stored - features.keys()):
        said = f"The tables have a column {shown(name)}, which {INFO_PATH} does not declare."
        if name in DEFAULT_COLUMNS:
            # It cannot be left out; to declare it is all that is missing.
            declared = {"dtype": DEFAULT_COLUMNS[name], "shape": [1], "names": None}
            said = f"{said[:-1]}: add {json.dumps({name: declared})[1:-1]} to its features."
        yield Remark("undeclared-column", said, feature=name)


def check_images(features: Features, schema: pa.Schema) -> Iterator[Remark]:
    """Say which images, whose statistics are to be computed, are stored as anything but files.

    Args:
        features: Those that are left out among them; what is said of these counts as repaired.
        schema: The columns that most tables have, likewise.
    """
    for name, feature in features.items():
        if feature["dtype"] != "image" or name not in schema.names:
            continue
        kind = schema.field(name).type
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        held = kind
        if pa.types.is_struct(kind):
            place = kind.get_field_index("bytes")
            held = kind.field(place).type if place >= 0 else pa.null()
        if not _is_binary(held):
            said = f"The images {shown(name)} are stored as {shown(str(kind))} and not as files: "
            said += "no statistics can be computed."
            yield Remark("uncomputable-stats", said, feature=name)


def is_of_numbers(schema: pa.Schema | None, column: str | None) -> bool:
    """Whether a column holds numbers or truth values, or lists of them, nested to any depth."""
    if schema is None or column not in schema.names:
        return False
    return is_number(innermost_type(schema.field(column).type))


def check_totals(info: DatasetInfo, totals: Totals) -> Iterator[Remark]:
    """Compare the totals that ``info.json`` states with those that were found.

    Args:
        info: It.
        totals: What each may be; those that are not stated are passed over.
    """
    wrong = [
        f"{key} {shown(info.raw[key])} instead of {right[0]}"
        for key, right in totals.items()
        if key in info.raw and not (type(info.raw[key]) is int and info.raw[key] in right)
    ]
    if wrong:
        yield Remark("stale-total", f"{INFO_PATH} states {', '.join(wrong)}.", path=INFO_PATH)


def _stored_dtype(kind: pa.DataType) -> str | None:
    """Return the type of a column's numbers as ``info.json`` would name it; None if untold."""
    kind = innermost_type(kind)
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "image"
    if pa.types.is_large_string(kind):
        return "string"
    name = str(kind)
    return _ARROW_NAMES.get(name, name)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_list_of_texts(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _few(names: Sequence[str]) -> str:
    said = ", ".join(map(shown, names[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{said} and {counted(more, 'other')}" if more > 0 else said
