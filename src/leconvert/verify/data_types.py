"""The schema of a data file against what info.json declares."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from leconvert.model import DATA_STREAM, Finding
from leconvert.tables.schemas import HUGGINGFACE_KEY
from leconvert.verify.catalogue import found
from leconvert.verify.declared import Declared, Feature

__all__ = ["check_schema", "plain_type"]

_TEXTS = ("string", "large_string", "string_view")


def check_schema(schema: pa.Schema, declared: Declared, path: str) -> Iterator[Finding]:
    """Yield columns that are missing, too many, or of another type.

    What LeRobot casts without a word (another width of number, a list of any length) is a warning
    or nothing, the rest an error: its loader passes the declared types to `datasets`, which raises.
    """

    def wrong(code: str, message: str, *, severity: str | None = None) -> Finding:
        return found(code, message, stream=DATA_STREAM, path=path, severity=severity)

    features = declared.features
    stored = {key: feature for key, feature in features.items() if feature.dtype != "video"}
    missing = sorted(stored.keys() - set(schema.names))
    extra = sorted(set(schema.names) - declared.names | set(schema.names) & set(declared.cameras))
    if missing:
        yield wrong("data-columns", f"There is no column {', '.join(map(repr, missing))}.")
    if extra:
        yield wrong("data-columns", f"info.json does not declare {', '.join(map(repr, extra))}.")
    if len(set(schema.names)) < len(schema.names):
        yield wrong("data-columns", "Two columns have the same name.")
        return
    entries = _dataset_entries(schema)
    for name in schema.names:
        if name not in stored:
            continue
        feature, kind = stored[name], schema.field(name).type
        if feature.dtype == "image":
            if not _is_image(kind):
                yield wrong("data-types", f"The image {name!r} is stored as {kind}.")
            elif not _says_image(entries.get(name)):
                yield wrong("image-metadata", f"The entry of {name!r} is {entries.get(name)!r}.")
        elif feature.is_number:
            problem, severity = _number_problem(feature, kind)
            if problem:
                yield wrong("data-types", problem, severity=severity)
        elif feature.dtype == "string" and _element(kind)[0] not in _TEXTS:
            yield wrong("data-types", f"{name!r} is declared as string and stored as {kind}.")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type, and other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _number_problem(feature: Feature, kind: pa.DataType) -> tuple[str | None, str | None]:
    element, sizes = _element(kind)
    depth = 0 if feature.shape == (1,) else len(feature.shape)
    declared = f"{feature.dtype} of shape {list(feature.shape)}"
    said = f"{feature.key!r} is declared as {declared} and stored as {plain_type(kind)}."
    fits = len(sizes) == depth and all(
        size in (None, length) for size, length in zip(sizes, feature.shape, strict=False)
    )
    if not fits:
        return said, "error"
    if element == feature.dtype:
        return None, None
    is_number = Feature("", element, (), {}).is_number
    return said, "warning" if is_number else "error"


def _element(kind: pa.DataType) -> tuple[str, list[int | None]]:
    """Return the innermost type by the name that features have, and the size of each list."""
    kind = plain_type(kind)
    sizes: list[int | None] = []
    while True:
        if pa.types.is_fixed_size_list(kind):
            sizes.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            sizes.append(None)
        elif pa.types.is_dictionary(kind):
            pass  # what is in it counts, to `datasets` as well
        else:
            name = str(kind)
            names = {"halffloat": "float16", "float": "float32", "double": "float64"}
            return names.get(name, name), sizes
        kind = kind.value_type


def _is_image(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    names = {kind.field(number).name for number in range(kind.num_fields)}
    return "bytes" in names and names <= {"bytes", "path"}


def _dataset_entries(schema: pa.Schema) -> Mapping[str, Any]:
    """Return what the file tells `datasets` about its columns."""
    try:
        entries = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _says_image(entry: object) -> bool:
    return isinstance(entry, Mapping) and entry.get("_type") == "Image"
