"""Checks a document against as much of JSON Schema as our schema uses; unknown words are errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA_PATH = Path(__file__).resolve().parents[3] / "docs/formats/probe-result.schema.json"

_IS_OF_TYPE = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_SILENT = {"$schema", "title", "description", "$defs"}


def violations(document: Any, schema: Mapping[str, Any] | None = None) -> list[str]:
    """Return what is wrong with a document, a sentence each."""
    whole = json.loads(SCHEMA_PATH.read_bytes())
    # As JSON has it: tuples become lists, and what is no JSON fails.
    as_json = json.loads(json.dumps(document, allow_nan=False))
    return list(_violations(as_json, whole if schema is None else schema, whole, "$"))


def _violations(
    value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any], place: str
) -> Iterator[str]:
    for word, wanted in schema.items():
        if word in _SILENT:
            continue
        if word == "$ref":
            target = whole["$defs"][wanted.removeprefix("#/$defs/")]
            yield from _violations(value, target, whole, place)
        elif word == "oneOf":
            fitting = [one for one in wanted if not list(_violations(value, one, whole, place))]
            if len(fitting) != 1:
                reasons = [list(_violations(value, one, whole, place)) for one in wanted]
                yield f"{place} fits {len(fitting)} of its kinds: {min(reasons, key=len)}"
        elif word == "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            if not any(_IS_OF_TYPE[name](value) for name in names):
                yield f"{place} is {value!r}, not {names}"
        elif word == "const":
            if value != wanted:
                yield f"{place} is {value!r}, not {wanted!r}"
        elif word == "enum":
            if value not in wanted:
                yield f"{place} is {value!r}, none of {wanted}"
        elif word == "minimum":
            if value is not None and value < wanted:
                yield f"{place} is {value}, less than {wanted}"
        elif word == "maximum":
            if value is not None and value > wanted:
                yield f"{place} is {value}, more than {wanted}"
        elif word == "required":
            if isinstance(value, dict):
                yield from (f"{place}.{key} is missing" for key in wanted if key not in value)
        elif word == "properties":
            if isinstance(value, dict):
                for key, below in wanted.items():
                    if key in value:
                        yield from _violations(value[key], below, whole, f"{place}.{key}")
        elif word == "additionalProperties":
            named = schema.get("properties", {})
            for key in value or {}:
                if key not in named:
                    yield from _violations(value[key], wanted, whole, f"{place}.{key}")
        elif word == "items":
            for number, item in enumerate(value or []):
                yield from _violations(item, wanted, whole, f"{place}[{number}]")
        else:
            raise AssertionError(f"the checker does not know {word!r}")
