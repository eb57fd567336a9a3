"""The schema of a data file against what info.json declares."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from leconvert.model import DATA_STREAM, Finding
from leconvert.tables.lerobot_reader import NUMBER_DTYPES, dtype_name, read_by_lerobot
from leconvert.tables.schemas import HUGGINGFACE_KEY
from leconvert.verify.catalogue import found
from leconvert.verify.declared import Declared

__all__ = ["check_schema", "plain_type"]


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
        reading = read_by_lerobot(name, feature.raw, kind)
        if feature.dtype == "image":
            if reading.verdict != "exact":
                yield wrong("data-types", f"The image {name!r} is stored as {kind}.")
            elif not _says_image(entries.get(name)):
                yield wrong("image-metadata", f"The entry of {name!r} is {entries.get(name)!r}.")
        elif reading.verdict != "exact":
            # Texts that happen to be numbers, and numbers as texts, are cast too; nobody means it.
            is_alike = {feature.dtype, dtype_name(kind)} <= NUMBER_DTYPES
            declared_as = f"{feature.dtype} of shape {list(feature.shape)}"
            yield wrong(
                "data-types",
                f"{name!r} is declared as {declared_as} and stored as {plain_type(kind)}.",
                severity="warning" if is_alike and reading.verdict == "cast" else "error",
            )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type, and other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _dataset_entries(schema: pa.Schema) -> Mapping[str, Any]:
    """Return what the file tells `datasets` about its columns."""
    try:
        entries = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _says_image(entry: object) -> bool:
    return isinstance(entry, Mapping) and entry.get("_type") == "Image"
