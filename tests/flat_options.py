"""Options of a conversion by their fields' names alone, for tests that vary them in a table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from leconvert import LayoutOptions, PlanOptions, ProofOptions, WorkerOptions

_OBJECTS = {
    "layout": LayoutOptions,
    "plan": PlanOptions,
    "proof": ProofOptions,
    "workers": WorkerOptions,
}


def as_objects(flat: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `leconvert.convert`; what is no field of an object stays as it is."""
    left, given = dict(flat), {}
    for name, kind in _OBJECTS.items():
        own = {field.name: left.pop(field.name) for field in fields(kind) if field.name in left}
        if own:
            given[name] = kind(**own)
    return given | left
