"""What LeRobot's reader makes of a column: LeRobot 0.6.1 with `datasets` 4.8, as a rule of ours.

The reader derives a type from the declared ``dtype`` and ``shape``, casts the column to it when the
dataset is opened, and makes a tensor of each value when an item is asked for. It refuses in either
step. Text goes through as it is, only alone; everything else that is no number has no tensor.

The verdicts are about types, for values that are there. Empty values, lists whose lengths differ
from row to row, and whole numbers from 2^63 on, which no tensor holds, are for those to find who
look at rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from leconvert.tables.arrow import innermost_type, is_list

NUMBER_DTYPES = frozenset(
    {"bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)
# Columns of these names are read as annotations, whatever is declared.
LANGUAGE_COLUMNS = frozenset({"language_persistent", "language_events"})

_TEXT_DTYPES = frozenset({"string", "large_string", "string_view"})
_ARROW_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
# Names that `datasets` takes too; of arrays with two axes or more it knows fewer.
_ALIASES = {"bool_": "bool", "utf8": "string", "large_utf8": "large_string"}
_ALIASES_OF_FEW_AXES = {"float": "float32", "double": "float64"}
_MAX_AXES = 5
_ANNOTATION_KEYS = frozenset({"role", "content", "style", "timestamp", "camera", "tool_calls"})


class Reading(NamedTuple):
    """How LeRobot reads a column.

    Attributes:
        verdict: ``exact``: it is declared as it is stored, and read whatever its values are.
            ``cast``: it is cast, and refused where a value does not fit. ``refused``: no value can
            be read.
        reason: Why it is refused; empty otherwise.
    """

    verdict: Literal["exact", "cast", "refused"]
    reason: str = ""


def read_by_lerobot(
    name: str,
    feature: Mapping[str, Any],
    kind: pa.DataType,
    lengths: Sequence[int] | None = None,
) -> Reading:
    """Say how LeRobot reads a column."""
    dtype, shape = feature.get("dtype"), feature.get("shape")
    if name in LANGUAGE_COLUMNS:
        return _reading_of_language(kind)
    if dtype == "image":
        return _reading_of_images(kind)
    if not isinstance(dtype, str):
        return Reading("refused", "it has no dtype")
    if not isinstance(shape, Sequence) or not all(type(size) is int for size in shape):
        return Reading("refused", "its lists have no length that all rows share")
    if not 1 <= len(shape) <= _MAX_AXES or min(shape) < 1:
        return Reading("refused", f"no column has the shape {list(shape)}")
    wanted = _ALIASES.get(dtype, dtype)
    if len(shape) == 1:
        wanted = _ALIASES_OF_FEW_AXES.get(wanted, wanted)
    depth = 0 if tuple(shape) == (1,) else len(shape)
    sizes = list_sizes(kind) if lengths is None else list(lengths)
    element = innermost_type(kind)
    if pa.types.is_null(element):
        if sizes:
            return Reading("refused", "LeRobot makes no tensor of lists of empty values")
        if wanted in _READ_DTYPES:
            return Reading("cast")  # every value is None
    if len(sizes) != depth:
        return Reading("refused", _misplaced(sizes, depth))
    known = [(size, length) for size, length in zip(sizes, shape, strict=False) if size is not None]
    if depth == 1 and any(size != length for size, length in known):
        return Reading("refused", f"its lists have {sizes[0]} values")
    if len(known) == depth > 1 and _product(sizes) != _product(shape):
        return Reading("refused", f"its arrays have the shape {sizes}")
    if wanted in _TEXT_DTYPES and depth:
        return Reading("refused", "LeRobot makes no tensor of a list of texts")
    if wanted not in _READ_DTYPES:
        return Reading("refused", f"LeRobot makes no tensor of {dtype}")
    if not _can_be_cast(element, wanted):
        return Reading("refused", f"{element} cannot become {dtype}")
    # Other names of types that LeRobot takes are not exact: its tools and ours know but one.
    is_exact = dtype_name(kind) == dtype and all(size == length for size, length in known)
    return Reading("exact" if is_exact else "cast")


def declaration_of(
    name: str, kind: pa.DataType, lengths: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Return ``dtype`` and ``shape`` with which LeRobot reads a column as it is stored.

    Returns:
        A mapping; None where there is no such declaration.
    """
    sizes: Sequence[int | None] = list_sizes(kind) if lengths is None else lengths
    declared = {"dtype": dtype_name(kind), "shape": list(sizes) or [1]}
    reading = read_by_lerobot(name, declared, kind, lengths)
    return None if reading.verdict == "refused" else declared


def dtype_name(kind: pa.DataType) -> str:
    """Return what is in a column, or in its lists, by the name that ``info.json`` has for it."""
    element = innermost_type(kind)
    if pa.types.is_dictionary(element):
        element = element.value_type
    name = str(element)
    # However long the texts are: to make them `string` loses nothing.
    return "string" if name in _TEXT_DTYPES else _ARROW_NAMES.get(name, name)


def list_sizes(kind: pa.DataType) -> list[int | None]:
    """Return the length of a column's lists, the outer one first; None for any length."""
    sizes: list[int | None] = []
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif is_list(kind):
            sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
            kind = kind.value_type
        else:
            return sizes


_READ_DTYPES = NUMBER_DTYPES | _TEXT_DTYPES


def _misplaced(sizes: Sequence[int | None], depth: int) -> str:
    if not sizes:
        return f"it holds no lists, where arrays of {depth} axes are declared"
    if not depth:
        return "it holds lists, where single values are declared"
    return f"it holds lists of {len(sizes)} axes, where {depth} are declared"


def _product(sizes: Sequence[Any]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _can_be_cast(found: pa.DataType, wanted: str) -> bool:
    """Whether Arrow can cast one type to the other, for some values at least."""
    target = pa.bool_() if wanted == "bool" else pa.type_for_alias(wanted)
    if found.equals(target):
        return True
    if pa.types.is_nested(found):
        return False
    try:
        pa.nulls(0, found).cast(target)
    except pa.ArrowException:
        return False
    return True


def _reading_of_images(kind: pa.DataType) -> Reading:
    """Say how images are read: encoded files, the paths of some, or arrays of pixels."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        names = {kind.field(number).name for number in range(kind.num_fields)}
        if not names & {"bytes", "path"}:
            return Reading("refused", "its values are neither files nor paths")
        return Reading("exact" if "bytes" in names else "cast")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Reading("exact")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return Reading("cast")
    if pa.types.is_list(kind) and dtype_name(kind) in NUMBER_DTYPES:
        return Reading("cast")
    return Reading("refused", f"{kind} holds no images")


def _reading_of_language(kind: pa.DataType) -> Reading:
    """Say how annotations are read: lists of mappings that have no other keys than LeRobot's."""
    element = innermost_type(kind)
    if is_list(kind) and pa.types.is_struct(element):
        names = {element.field(number).name for number in range(element.num_fields)}
        if names <= _ANNOTATION_KEYS:
            return Reading("exact")
    return Reading("refused", "columns of this name hold lists of annotations")
