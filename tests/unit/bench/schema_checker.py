"""Checks a document of the probe against its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

SCHEMA_PATH = Path(__file__).resolve().parents[3] / "docs/formats/probe-result.schema.json"


def violations(document: Any) -> list[str]:
    """Return what is wrong with a document, a sentence each."""
    schema = json.loads(SCHEMA_PATH.read_bytes())
    # As JSON has it: tuples become lists, and what is no JSON fails.
    as_json = json.loads(json.dumps(document, allow_nan=False))
    errors = Draft202012Validator(schema).iter_errors(as_json)
    return [f"{each.json_path}: {each.message}" for error in errors for each in _told(error)]


def _told(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the errors of the kind of document that fits best."""
    if error.validator != "oneOf" or not error.context:
        yield error
        return
    kinds = groupby(error.context, key=lambda each: each.schema_path[0])
    yield from min((list(errors) for _, errors in kinds), key=len)
