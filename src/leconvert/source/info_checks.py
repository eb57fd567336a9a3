"""What ``info.json`` declares, against itself and against the columns that are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from leconvert.arrow import innermost_type, is_number
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.source.episode_table import tasks_helps
from leconvert.source.info import INFO_PATH, DatasetInfo
from leconvert.source.seen import Remark, counted, said_of_paths, shown
from leconvert.source.whole_checks import DataColumns
from leconvert.tables import declaration_of, dtype_name, list_sizes, read_by_lerobot
from leconvert.tables.lerobot_reader import LANGUAGE_COLUMNS, NUMBER_DTYPES

__all__ = [
    "Totals",
    "check_columns",
    "check_declarations",
    "check_images",
    "check_totals",
    "declared_as_stored",
    "is_of_numbers",
]

_VISUAL_DTYPES = frozenset({"video", "image"})
_SHOWN = 5

Features = Mapping[str, Mapping[str, Any]]
# Total in info.json to the numbers that it may have.
Totals = Mapping[str, Sequence[int]]


def check_declarations(features: Features) -> Iterator[Remark]:
    """Say what is unusual about declared features.

    Args:
        features: Those that are left out among them.
    """
    nested, unnamed, old_style, untold = [], [], [], []
    for name, feature in features.items():
        shape, names, dtype = feature.get("shape"), feature.get("names"), feature["dtype"]
        sizes = shape if isinstance(shape, list) else []
        if not _is_shape(shape):
            said = f"{INFO_PATH} declares {shown(name)} with the shape {shown(shape)}."
            yield Remark("shape-mismatch", said, path=INFO_PATH, feature=name)
        if names is not None and not _is_list_of_texts(names):
            nested.append(name)
        if names is None and len(sizes) == 1 and sizes[0] != 1 and dtype not in _VISUAL_DTYPES:
            unnamed.append(name)
        if dtype == "video" and "video_info" in feature and "info" not in feature:
            old_style.append(name)
        if not all(isinstance(feature.get(key) or {}, dict) for key in ("info", "video_info")):
            untold.append(name)
    for code, said, found in (
        ("nested-names", "names of {} are no plain list; they stay as they are.", nested),
        ("null-names", "{} have no names.", unnamed),
        ("video-info", "{}: described under video_info instead of info.", old_style),
        ("video-info", "what describes {} is no table of facts; it is left out.", untold),
    ):
        if found:
            yield Remark(code, f"{INFO_PATH}: {said.format(_few(found))}", path=INFO_PATH)


def check_columns(
    features: Features,
    columns: DataColumns,
    *,
    num_tasks: int,
    one_text_each: bool,
    left_out: Collection[str],
) -> Iterator[Remark]:
    """Compare declared features with the columns that most tables have.

    Args:
        features: Those that are left out among them; what is said of these counts as repaired.
        columns: The columns, likewise; there are some.
        num_tasks: Different tasks of the dataset.
        one_text_each: Whether each episode lists one task.
        left_out: Features that are left out.
    """
    assert columns.schema is not None
    stored = set(columns.schema.names)
    for name in DEFAULT_COLUMNS:
        if name not in stored:
            several = name == "task_index" and num_tasks != 1
            how = f"and there are {num_tasks} tasks to choose from" if several else "it is computed"
            said = f"The tables have no column {name}; {how}."
            helps = tasks_helps("missing-column", several and one_text_each)
            severity = "error" if several else "warning"
            yield Remark("missing-column", said, feature=name, severity=severity, helps=helps)
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
        elif dtype == "image" and _holds_paths(columns.schema.field(name).type):
            yield Remark("image-paths", said_of_paths(name), path=INFO_PATH, feature=name)
        else:
            yield from _check_type(name, feature, columns)
    for name in sorted(stored - features.keys()):
        said = f"The tables have a column {shown(name)}, which {INFO_PATH} does not declare."
        yield Remark("undeclared-column", said, feature=name)
        if name in columns.wrapped:
            yield Remark("wrapped-scalar", _said_of_wrapped(name), feature=name)


def _said_of_wrapped(name: str) -> str:
    return f"{shown(name)} is stored as lists of one value, which LeRobot cannot load."


def declared_as_stored(features: Features, columns: DataColumns) -> dict[str, dict[str, Any]]:
    """Return features whose declaration is to change, so that LeRobot reads what is stored.

    Args:
        features: As declared.
        columns: What is stored; there is something.

    Returns:
        Feature to its new declaration.
    """
    assert columns.schema is not None
    changes: dict[str, dict[str, Any]] = {}
    for name in columns.schema.names:
        if name in features and features[name]["dtype"] != "video":
            declared = _readable_declaration(name, features[name], columns)
            if declared is not None and not declared.items() <= features[name].items():
                changes[name] = {**features[name], **declared}
    return changes


def _check_type(name: str, feature: Mapping[str, Any], columns: DataColumns) -> Iterator[Remark]:
    """Say whether LeRobot reads a column as it is declared, or with which other declaration."""
    assert columns.schema is not None
    kind, lengths = columns.schema.field(name).type, columns.lengths.get(name)
    declared = _readable_declaration(name, feature, columns)
    if declared is None:
        as_stored = {"dtype": dtype_name(kind), "shape": list_sizes(kind) or [1]}
        of_images = feature["dtype"] == "image" or name in LANGUAGE_COLUMNS
        reason = read_by_lerobot(name, feature if of_images else as_stored, kind).reason
        if isinstance(lengths, str):
            reason = f"it holds {lengths}"
        said = f"{shown(name)} is stored as {shown(str(kind))}, which LeRobot cannot load"
        yield Remark(
            "unloadable-feature", f"{said}: {reason or 'it holds no files'}.", feature=name
        )
        return
    if name in columns.wrapped:
        yield Remark("wrapped-scalar", _said_of_wrapped(name), feature=name)
    dtype, shape = feature["dtype"], feature.get("shape")
    if declared["dtype"] != dtype:
        said = f"{shown(name)} is stored as {declared['dtype']}, {shown(dtype)} is declared."
        yield Remark("dtype-mismatch", said, path=INFO_PATH, feature=name)
    if declared["shape"] != shape and _is_shape(shape):
        said = f"{shown(name)} is stored in the shape {declared['shape']}, {shape} is declared."
        yield Remark("shape-mismatch", said, path=INFO_PATH, feature=name)


def _readable_declaration(
    name: str, feature: Mapping[str, Any], columns: DataColumns
) -> dict[str, Any] | None:
    """Return dtype and shape with which LeRobot reads a column, as far as possible the declared.

    Of a column that holds lists of one value they are those of the value.
    """
    assert columns.schema is not None
    kind, lengths = columns.schema.field(name).type, columns.lengths.get(name)
    as_declared = {"dtype": feature["dtype"], "shape": feature.get("shape")}
    if feature["dtype"] == "image" or name in LANGUAGE_COLUMNS:
        # Paths lead to files beside the dataset, and arrays of pixels are no files.
        if read_by_lerobot(name, feature, kind).verdict == "exact":
            return as_declared
        if name in LANGUAGE_COLUMNS or dtype_name(kind) not in NUMBER_DTYPES:
            return None
    if isinstance(lengths, str):
        return None
    if name in columns.wrapped:
        lengths = ()
        kind = innermost_type(kind)
    if read_by_lerobot(name, feature, kind, lengths).verdict == "exact":
        return as_declared
    return declaration_of(name, kind, lengths)


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, list)
        and bool(shape)
        and all(type(size) is int and size > 0 for size in shape)
    )


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
        if not _is_binary(held) and not _holds_paths(kind):  # those have a finding of their own
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


def _holds_paths(kind: pa.DataType) -> bool:
    """Whether a column of images can hold nothing but the paths of files."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") < 0 <= kind.get_field_index("path"))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
