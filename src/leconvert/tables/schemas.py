"""Arrow schemas of the data files, and how `datasets` and LeRobot read their columns.

`datasets` keeps its own description of the columns as JSON in the schema metadata under the key
``huggingface``. A reader uses a column's entry if the entry's Arrow type equals the column's, and
otherwise derives one from the column. So an entry can add meaning (``Image``) but do no harm.

`read_by_lerobot` states rules for LeRobot 0.6.1 with `datasets` 4.8. LeRobot's reader derives a
type from the declared ``dtype`` and ``shape``, casts the column to it when the dataset is opened,
and makes a tensor of each value when an item is requested. Either step can refuse. A text passes
unchanged if it is a single value; other values that are not numbers have no tensor. The verdicts
are about types, given that values are present. Three faults show only in the rows, and checks of
the rows find them: empty values, lists whose lengths differ from row to row, and whole numbers from
2^63 on, which no tensor holds.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.arrow import innermost_type, is_binary, is_list, is_text

HUGGINGFACE_KEY = b"huggingface"
IMAGE_TYPE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])

_IMAGE_FEATURE: dict[str, Any] = {"_type": "Image"}
_EXTENSION_PREFIX = b"ARROW:extension:"
# Names in `datasets` that differ from Arrow's own.
_NUMBER_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
_DATASETS_DTYPES = {**_NUMBER_NAMES, "date32[day]": "date32", "date64[ms]": "date64"}
# Types without a name in `datasets`, and types that it names after their contents, such as
# dictionaries. It opens no file with an entry whose name it does not know.
_NAMELESS = ("dictionary<", "fixed_size_binary[", "decimal32(", "decimal64(", "month_day_nano")
_MAX_AXES = 5
_LIST_TYPES = ("List", "LargeList", "Sequence")


def output_schema(
    source: pa.Schema, features: Mapping[str, Any], *, list_entry: str = "List"
) -> pa.Schema:
    """Return the schema of the converted data files.

    Columns keep the order and the types of the source; image columns get the storage type of
    ``datasets.Image``. Of the schema metadata only ``huggingface`` is kept, completed so that every
    column has an entry and image columns are images. ``pandas`` metadata is dropped, since its row
    ranges would be wrong in a joined file.

    Args:
        source: Schema of the source's files.
        features: Features of the result.
        list_entry: ``Sequence`` names all lists so, which `datasets` before 4.0 requires; ``List``
            keeps the source's name.
    """
    stored = stored_entries(source)
    fields: list[pa.Field] = []
    entries: dict[str, Any] = {}
    for field in source:
        feature = features.get(field.name)
        if not isinstance(feature, Mapping):
            feature = {}
        if feature.get("dtype") == "image" and _can_be_image(field.type):
            fields.append(pa.field(field.name, IMAGE_TYPE))
            entries[field.name] = stored.get(field.name)
            if not is_image_entry(entries[field.name]):
                entries[field.name] = dict(_IMAGE_FEATURE)
            continue
        fields.append(pa.field(field.name, field.type, field.nullable, _kept_metadata(field)))
        entry = stored.get(field.name)
        if _is_list_entry(entry) and not list_sizes(field.type):
            entry = None  # a list that was unwrapped
        if entry is None:
            entry = _declared_entry(feature, field.type)
        if entry is None:
            entry = feature_of_type(field.type)
        if entry is not None:
            entries[field.name] = _with_sequences(entry) if list_entry == "Sequence" else entry
    return pa.schema(fields, metadata=huggingface_metadata(entries))


def with_column_of(schema: pa.Schema, name: str, other: pa.Schema) -> pa.Schema:
    """Return a schema with a column of another one, and the entry for `datasets` of that one."""
    entries = {key: entry for key, entry in stored_entries(schema).items() if key != name}
    entries |= {key: entry for key, entry in stored_entries(other).items() if key == name}
    metadata = {**(schema.metadata or {}), **huggingface_metadata(entries)}
    changed = schema.set(schema.get_field_index(name), other.field(name))
    return changed.with_metadata(metadata)


def holds_columns_of(stored: pa.Schema, result: pa.Schema) -> bool:
    """Return whether a file serves readers as well as one with the result's schema.

    It must have the same columns of the same types, in any order, and mark the same columns as
    images.
    """
    if len(set(stored.names)) < len(stored.names) or set(stored.names) != set(result.names):
        return False
    entries, wanted = stored_entries(stored), stored_entries(result)
    return all(
        stored.field(field.name).type.equals(field.type)
        and is_image_entry(entries.get(field.name)) == is_image_entry(wanted.get(field.name))
        for field in result
    )


def _with_sequences(entry: Any) -> Any:
    """Return an entry with the list names of `datasets` before 4.0."""
    if not isinstance(entry, Mapping):
        return entry
    if entry.get("_type") != "List":
        return {key: _with_sequences(value) for key, value in entry.items()}
    inner = _with_sequences(entry.get("feature"))
    if isinstance(inner, Mapping) and "_type" not in inner:
        return [inner]  # there a sequence of mappings is a mapping of lists
    return {**entry, "feature": inner, "_type": "Sequence"}


def huggingface_metadata(entries: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return schema metadata that describes the columns for `datasets`."""
    text = json.dumps({"info": {"features": dict(entries)}})
    return {HUGGINGFACE_KEY: text.encode()}


def feature_of_type(arrow_type: pa.DataType) -> Any:
    """Return the JSON form of the `datasets` feature of an Arrow type.

    Returns:
        A mapping; None for a type without a feature in `datasets`.
    """
    if pa.types.is_struct(arrow_type):
        children = {
            arrow_type.field(i).name: feature_of_type(arrow_type.field(i).type)
            for i in range(arrow_type.num_fields)
        }
        return None if None in children.values() else children
    if is_list(arrow_type):
        inner = feature_of_type(arrow_type.value_type)
        if inner is None:
            return None
        if pa.types.is_fixed_size_list(arrow_type):
            return {"feature": inner, "length": arrow_type.list_size, "_type": "List"}
        kind = "LargeList" if pa.types.is_large_list(arrow_type) else "List"
        return {"feature": inner, "_type": kind}
    if pa.types.is_nested(arrow_type) or isinstance(arrow_type, pa.BaseExtensionType):
        return None
    name = str(arrow_type)
    if name.startswith(_NAMELESS):
        return None
    return {"dtype": _DATASETS_DTYPES.get(name, name), "_type": "Value"}


def serialize_schema(schema: pa.Schema) -> bytes:
    """Return a schema as an Arrow IPC message, metadata included."""
    return bytes(schema.serialize())


def deserialize_schema(data: bytes) -> pa.Schema:
    """Return the schema that :func:`serialize_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def stored_entries(schema: pa.Schema) -> dict[str, Any]:
    """Return what a file tells `datasets` about its columns; empty if it cannot be read."""
    try:
        entries = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        # Damaged metadata does no harm: every entry can be derived again.
        return {}
    return entries if isinstance(entries, dict) else {}


def _kept_metadata(field: pa.Field) -> dict[bytes, bytes] | None:
    """Keep the metadata of an extension type; parquet field ids belong to the source file."""
    kept = {
        key: value
        for key, value in (field.metadata or {}).items()
        if key.startswith(_EXTENSION_PREFIX)
    }
    return kept or None


def is_image_entry(entry: object) -> bool:
    """Return whether an entry of the ``huggingface`` metadata marks a column as images."""
    return isinstance(entry, Mapping) and entry.get("_type") == "Image"


def _is_list_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("_type") in _LIST_TYPES


def _can_be_image(arrow_type: pa.DataType) -> bool:
    if is_binary(arrow_type):
        return True
    if not pa.types.is_struct(arrow_type):
        return False
    names = {arrow_type.field(i).name for i in range(arrow_type.num_fields)}
    return "bytes" in names and names <= {"bytes", "path"}


def _declared_entry(feature: Mapping[str, Any], arrow_type: pa.DataType) -> Any:
    """Return the entry that ``info.json`` declares, or None if the column contradicts it.

    Shape (1,) is a scalar, one dimension a list of fixed length, two to five an array.
    """
    dtype = feature.get("dtype")
    shape = feature.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, Sequence) or isinstance(shape, str):
        return None
    if not all(type(size) is int for size in shape):
        return None
    element, depth = innermost_type(arrow_type), len(list_sizes(arrow_type))
    value = {"dtype": dtype, "_type": "Value"}
    if feature_of_type(element) != value:
        return None
    if list(shape) == [1] and depth == 0:
        return value
    if depth != len(shape) or not 1 <= depth <= _MAX_AXES:
        return None
    if depth == 1:
        return {"feature": value, "length": shape[0], "_type": "List"}
    return {"shape": list(shape), "dtype": dtype, "_type": f"Array{depth}D"}


def align_table(table: pa.Table, schema: pa.Schema, *, path: str) -> pa.Table:
    """Return ``table`` with the columns, order and types of ``schema``, without any loss.

    These changes are made: column order, nullable flags, variable to fixed list length and back,
    short to long offsets and back, views, dictionaries to their values and back, an all-null
    column, wider integers and floats, and image bytes to the storage type of an image.

    Raises:
        UnreadableSourceError: Columns are missing or unexpected, or a type does not fit.
    """
    if table.schema.equals(schema, check_metadata=False):
        return table
    names = table.schema.names
    if sorted(names) != sorted(schema.names) or len(set(names)) < len(names):
        missing = sorted(set(schema.names) - set(names))
        extra = sorted(set(names) - set(schema.names))
        said = "; ".join(
            f"{what} {', '.join(columns)}"
            for what, columns in (("missing:", missing), ("not expected:", extra))
            if columns
        )
        raise UnreadableSourceError(
            f"The columns of {path} differ from those of the dataset ({said or 'repeated names'}).",
            path=path,
            next_step="Give the file the columns of the other files, or leave its episode out.",
        )
    columns = [_align_column(table.column(field.name), field, path) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _align_column(column: pa.ChunkedArray, field: pa.Field, path: str) -> pa.ChunkedArray:
    if not field.nullable and column.null_count:
        raise _misfit(field, column.type, path, "it has empty values")
    if column.type.equals(field.type):
        return column
    if not fits(column.type, field.type):
        raise _misfit(field, column.type, path, f"{field.type} is expected")
    try:
        if field.type.equals(IMAGE_TYPE):
            return pa.chunked_array([_as_image(chunk) for chunk in column.chunks], IMAGE_TYPE)
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _misfit(field, column.type, path, str(error).splitlines()[0]) from error


def _misfit(field: pa.Field, found: pa.DataType, path: str, reason: str) -> UnreadableSourceError:
    helps = "Give the column the type that it has in the other files"
    if field.name not in DEFAULT_COLUMNS:
        helps += f", or leave the feature out with --drop-feature {shlex.quote(field.name)}"
    return UnreadableSourceError(
        f"Column {field.name} of {path} has the type {found}, which does not fit: "
        f"{reason.rstrip('.')}.",
        path=path,
        next_step=f"{helps}.",
    )


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type can be cast without loss; the cast itself checks lengths and ranges."""
    if found.equals(wanted) or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return fits(found.value_type, wanted)
    if pa.types.is_dictionary(wanted):
        return fits(found, wanted.value_type)
    if is_list(found) and is_list(wanted):
        # The cast checks the length, too, but not for a column without rows.
        if len({list_sizes(found)[0], list_sizes(wanted)[0]} - {None}) > 1:
            return False
        return fits(found.value_type, wanted.value_type)
    if wanted.equals(IMAGE_TYPE) and is_binary(found):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        inner = {found.field(i).name: found.field(i).type for i in range(found.num_fields)}
        outer = {wanted.field(i).name: wanted.field(i).type for i in range(wanted.num_fields)}
        if wanted.equals(IMAGE_TYPE):
            return set(inner) <= set(outer) and all(fits(inner[n], outer[n]) for n in inner)
        return set(inner) == set(outer) and all(fits(inner[name], outer[name]) for name in outer)
    if pa.types.is_integer(found) and pa.types.is_integer(wanted):
        return True
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    return (is_binary(found) and is_binary(wanted)) or (is_text(found) and is_text(wanted))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the one of two types that holds the values of both, the second if both do; or None."""
    inner, others_inner = innermost_type(one), innermost_type(other)
    are_integers = pa.types.is_integer(inner) and pa.types.is_integer(others_inner)
    is_wider = are_integers and inner.bit_width > others_inner.bit_width
    if fits(one, other) and not is_wider:
        return other
    return one if fits(other, one) else None


def _as_image(array: pa.Array) -> pa.StructArray:
    """Return image bytes, or a struct of bytes and path in any order, as stored images."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), IMAGE_TYPE)
    if pa.types.is_struct(array.type):
        names = {array.type.field(i).name for i in range(array.type.num_fields)}
        parts = {name: array.field(name) for name in names}
    else:
        parts = {"bytes": array}
    children = [
        parts[field.name].cast(field.type)
        if field.name in parts
        else pa.nulls(len(array), field.type)
        for field in IMAGE_TYPE
    ]
    return pa.StructArray.from_arrays(children, fields=list(IMAGE_TYPE), mask=array.is_null())


NUMBER_DTYPES = frozenset(
    {"bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)
# LeRobot reads columns of these names as annotations, whatever is declared.
LANGUAGE_COLUMNS = frozenset({"language_persistent", "language_events"})

_TEXT_DTYPES = frozenset({"string", "large_string", "string_view"})
# Further names in `datasets`; it knows fewer of them for arrays with two axes or more.
_ALIASES = {"bool_": "bool", "utf8": "string", "large_utf8": "large_string"}
_ALIASES_OF_FEW_AXES = {"float": "float32", "double": "float64"}
_ANNOTATION_KEYS = frozenset({"role", "content", "style", "timestamp", "camera", "tool_calls"})


class Reading(NamedTuple):
    """How LeRobot reads a column.

    Attributes:
        verdict: ``exact``: the declaration is the stored type, and any value can be read. ``cast``:
            the column is cast, which fails for values that do not fit. ``refused``: no value can be
            read.
        reason: Why the column is refused; empty otherwise.
    """

    verdict: Literal["exact", "cast", "refused"]
    reason: str = ""


def read_by_lerobot(
    name: str,
    feature: Mapping[str, Any],
    kind: pa.DataType,
    lengths: Sequence[int] | None = None,
) -> Reading:
    """Return how LeRobot reads a column.

    Args:
        name: The column.
        feature: Its declaration in ``info.json``.
        kind: Its Arrow type.
        lengths: The lengths of its lists, the outer list's first; those of ``kind`` by default.
    """
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
            return Reading("refused", "LeRobot cannot make a tensor from lists with empty values")
        if wanted in _READ_DTYPES:
            return Reading("cast")  # every value is None
    if len(sizes) != depth:
        return Reading("refused", _misplaced(sizes, depth))
    known = [(size, length) for size, length in zip(sizes, shape, strict=False) if size is not None]
    if depth == 1 and any(size != length for size, length in known):
        return Reading("refused", f"its lists have {sizes[0]} values")
    if len(known) == depth > 1 and math.prod(size for size, _ in known) != math.prod(shape):
        return Reading("refused", f"its arrays have the shape {sizes}")
    if wanted in _TEXT_DTYPES and depth:
        return Reading("refused", "LeRobot cannot make a tensor from a list of texts")
    if wanted not in _READ_DTYPES:
        return Reading("refused", f"LeRobot cannot make a tensor from {dtype}")
    if not _can_be_cast(element, wanted):
        return Reading("refused", f"{element} cannot become {dtype}")
    # Other names that LeRobot accepts are not exact: its tools and leconvert's know only one.
    is_exact = dtype_name(kind) == dtype and all(size == length for size, length in known)
    return Reading("exact" if is_exact else "cast")


def declaration_of(
    name: str, kind: pa.DataType, lengths: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Return ``dtype`` and ``shape`` with which LeRobot reads a column as stored.

    Returns:
        A mapping; None if there is no such declaration.
    """
    sizes: Sequence[int | None] = list_sizes(kind) if lengths is None else lengths
    declared = {"dtype": dtype_name(kind), "shape": list(sizes) or [1]}
    reading = read_by_lerobot(name, declared, kind, lengths)
    return None if reading.verdict == "refused" else declared


def dtype_name(kind: pa.DataType) -> str:
    """Return the type of a column, or of its lists' elements, by its name in ``info.json``."""
    element = innermost_type(kind)
    if pa.types.is_dictionary(element):
        element = element.value_type
    name = str(element)
    # Texts of any offset width count as ``string``, which loses nothing.
    return "string" if name in _TEXT_DTYPES else _NUMBER_NAMES.get(name, name)


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
        return f"it holds no lists, but arrays of {depth} axes are declared"
    if not depth:
        return "it holds lists, but single values are declared"
    return f"it holds lists of {len(sizes)} axes, but {depth} are declared"


def _can_be_cast(found: pa.DataType, wanted: str) -> bool:
    """Return whether Arrow can cast one type to the other, for some values at least."""
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
    """Return how images are read: encoded files, their paths, or arrays of pixels."""
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
    """Return how annotations are read: lists of mappings with LeRobot's keys only."""
    element = innermost_type(kind)
    if is_list(kind) and pa.types.is_struct(element):
        names = {element.field(number).name for number in range(element.num_fields)}
        if names <= _ANNOTATION_KEYS:
            return Reading("exact")
    return Reading("refused", "columns of this name hold lists of annotations")
