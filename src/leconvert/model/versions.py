"""Which datasets can be read, by what their ``meta/info.json`` says: exact names, asked everywhere.

A version that merely begins like one of these is another format: nobody here knows what it changed,
so that it is refused and not guessed at. The same goes for a storage format. Local folders, the
Hub, the loader and the fleet all ask this module, before they open any other file. It imports
nothing that costs time, since every command does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leconvert.support.errors import SourceError
from leconvert.support.text import shown

SOURCE_VERSIONS = ("v2.0", "v2.1")
"""Versions with a file an episode; a source can be told to be read as one of them."""
V3_VERSION = "v3.0"
"""The version with files of many episodes."""
_STORAGE_FORMAT = "parquet"


def unreadable(info: Mapping[str, Any], name: str, path: str = "") -> SourceError | None:
    """Return why a dataset cannot be read, ready to raise; None where it can.

    Args:
        info: Its ``meta/info.json``.
        name: What the message calls it.
        path: Where it is; by default its name.
    """
    version = info.get("codebase_version")
    if version in (*SOURCE_VERSIONS, V3_VERSION):
        return other_storage(info, name, path)
    return other_storage(info, name, path) or SourceError(
        f"{name} {said_version(version)} in its meta/info.json; leconvert reads "
        f"{', '.join(SOURCE_VERSIONS)} and {V3_VERSION}.",
        path=path or name,
        next_step=_version_help(version),
    )


def other_storage(info: Mapping[str, Any], name: str, path: str = "") -> SourceError | None:
    """Return the same by the storage format alone, where the version can be assumed."""
    storage = info.get("storage_format")
    if storage in (None, _STORAGE_FORMAT):
        return None
    return SourceError(
        f"{name} keeps its data in the storage format {shown(storage)}; leconvert reads data in "
        "parquet and MP4 files.",
        path=path or name,
        next_step="Export it to parquet and MP4 with the program that wrote it.",
    )


def said_version(version: object) -> str:
    """Return what a ``codebase_version`` says, as half a sentence."""
    if version is None:
        return "has no codebase_version"
    return f"says codebase_version {ascii(version)[:60]}"


def _version_help(version: object) -> str:
    """Return what helps with a ``codebase_version`` that nobody here reads.

    LeRobot had its script up to 0.3, as ``lerobot/datasets/v2/convert_dataset_v1_to_v2.py``.
    """
    if not isinstance(version, str) or not version.startswith("v"):
        return (
            "Write the version of its files there: v3.0 where meta/episodes is a "
            "folder, v2.1 where meta/episodes_stats.jsonl is a file, v2.0 else."
        )
    if version.startswith(("v0", "v1")):
        return "Bring it to v2.0 first, with convert_dataset_v1_to_v2.py of LeRobot 0.3."
    return "It is newer than this leconvert; look for a newer version."
