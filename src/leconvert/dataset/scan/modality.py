"""Files of GR00T beside LeRobot's tables: ``modality.json``, and statistics of its own.

``modality.json`` names features and parts of them. Groups of ``state`` and ``action`` are slices of
a vector, ``video`` entries are cameras, and ``annotation`` entries are columns of task indices.
``stats_gr00t.json`` has an entry for each column, ``relative_stats*.json`` one for each group of
``action``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from leconvert.dataset.findings import Observation, source_finding
from leconvert.model.repairs import Repairs
from leconvert.model.values import Finding
from leconvert.support.text import shown

MODALITY_PATH = "meta/modality.json"
_GR00T_STATS_PATH = "meta/stats_gr00t.json"
_RELATIVE_STATS = re.compile(r"meta/relative_stats(_[0-9]+)?\.json")
_DEFAULTS = {
    "state": "observation.state",
    "action": "action",
    "video": "observation.images.{}",
    "annotation": "annotation.{}",
}

Modality = Mapping[str, Mapping[str, Mapping[str, Any]]]


def read_modality(root: Path) -> Modality | None:
    """Return the entries of each kind of ``modality.json``; None if it is missing or bad."""
    try:
        found = json.loads((root / MODALITY_PATH).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {
        kind: {
            str(name): entry if isinstance(entry, dict) else {}
            for name, entry in found[kind].items()
        }
        for kind in _DEFAULTS
        if isinstance(found.get(kind), dict)
    }


def feature_of_entry(kind: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the feature that an entry of ``modality.json`` is about."""
    return str(entry.get("original_key") or _DEFAULTS[kind].format(name))


def task_columns(modality: Modality | None, schema: pa.Schema | None) -> list[str]:
    """Return the columns that ``modality.json`` declares as task indices, sorted."""
    if modality is None or schema is None:
        return []
    named = {
        feature_of_entry("annotation", name, entry)
        for name, entry in modality.get("annotation", {}).items()
    }
    return sorted(
        field.name
        for field in schema
        if field.name in named and pa.types.is_integer(field.type) and field.name != "task_index"
    )


def check_modality(
    root: Path,
    features: Mapping[str, Mapping[str, Any]],
    schema: pa.Schema | None,
    left_out: Sequence[str],
    renames: Mapping[str, str],
    *,
    remaps_tasks: bool,
) -> Iterator[Observation]:
    """Report entries of ``modality.json`` without a feature, and columns that it should name."""
    modality = read_modality(root)
    if modality is None and (root / MODALITY_PATH).exists():
        said = f"{MODALITY_PATH} does not contain a JSON object. It is copied as it is."
        yield Observation("modality", said, path=MODALITY_PATH)
    for kind, entries in (modality or {}).items():
        for name, entry in entries.items():
            feature = feature_of_entry(kind, name, entry)
            said = f"{MODALITY_PATH} names {shown(feature)} for {kind} {shown(name)}"
            if feature in left_out:
                said += ". The entry is left out together with the feature."
                yield Observation("modality", said, path=MODALITY_PATH, severity="repaired")
            elif feature in renames:
                said += (
                    f", which is {shown(renames[feature])} in the result. The file is not changed."
                )
                yield Observation("modality", said, path=MODALITY_PATH)
            elif feature not in features:
                said += ", which the dataset does not have."
                yield Observation("modality", said, path=MODALITY_PATH)
            elif (end := entry.get("end")) is not None and kind in ("state", "action"):
                size = (features[feature].get("shape") or [None])[0]
                if type(end) is int and type(size) is int and end > size:
                    said += f" as its values up to {end}, of which there are {size}."
                    yield Observation("modality", said, path=MODALITY_PATH)
    if not remaps_tasks or schema is None:
        return
    mapped = task_columns(modality, schema)
    for field in schema:
        is_index = field.name.startswith("annotation.") and pa.types.is_integer(field.type)
        if is_index and field.name not in mapped and field.name not in left_out:
            said = f"{shown(field.name)} may hold task indices, but {MODALITY_PATH} does not name "
            said += "this column among annotations. Tasks get new numbers, but the column is not "
            said += f"changed. If the column holds task indices, name it in {MODALITY_PATH} first."
            yield Observation("annotation-tasks", said, feature=field.name)


def stale_extensions(extra_files: Sequence[str], num_episodes: int, kept: int) -> Iterator[Finding]:
    """Report statistics of GR00T about more episodes than the result has."""
    dropped = num_episodes - kept
    for path in extra_files if dropped else ():
        if path == _GR00T_STATS_PATH or _RELATIVE_STATS.fullmatch(path):
            said = f"{path} describes all episodes of the source, but {dropped} are left out. "
            said += "GR00T computes the file again if it does not exist."
            yield source_finding("gr00t-stats", said, path=path)


def extension_files(extra_files: Sequence[str], repairs: Repairs) -> list[str]:
    """Return which copied files name features, if any features are left out."""
    if not repairs.dropped_features:
        return []
    return [
        path
        for path in extra_files
        if path in (MODALITY_PATH, _GR00T_STATS_PATH) or _RELATIVE_STATS.fullmatch(path)
    ]


def mended_extension(root: Path, path: str, repairs: Repairs) -> bytes | None:
    """Return a file of GR00T without the features that are left out; None if it stays unchanged."""
    try:
        content = json.loads((root / path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    gone = set(repairs.dropped_features)
    modality = read_modality(root) or {}
    lost = {
        (kind, name)
        for kind, entries in modality.items()
        for name, entry in entries.items()
        if feature_of_entry(kind, name, entry) in gone
    }
    if path == MODALITY_PATH:
        for kind, name in lost:
            del content[kind][name]
        is_changed = bool(lost)
    else:
        groups = {name for kind, name in lost if kind in ("state", "action")}
        wanted = gone if path == _GR00T_STATS_PATH else groups
        found = [key for key in content if key in wanted]
        for key in found:
            del content[key]
        is_changed = bool(found)
    if not is_changed:
        return None
    return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode()
