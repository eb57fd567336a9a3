"""The versions that can be read, decided by ``meta/info.json`` alone: versions must match exactly.

A version that merely begins like a known one is another format with unknown changes, so it is
refused. The same holds for an unknown storage format. Local folders, the Hub, the loader and the
fleet all ask this module before they open any other file. Every command imports it, so it imports
nothing slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leconvert.support.errors import SourceError
from leconvert.support.text import shown

SOURCE_VERSIONS = ("v2.0", "v2.1")
"""Versions with one file per episode; the user can tell us to read a source as one of them."""
V3_VERSION = "v3.0"
"""The version with many episodes per file."""
_STORAGE_FORMAT = "parquet"


def unreadable(info: Mapping[str, Any], name: str, path: str = "") -> SourceError | None:
    """Return why a dataset cannot be read, as an error to raise; None if it can be read.

    Args:
        info: The contents of ``meta/info.json``.
        name: The dataset's name in the message.
        path: Its path; its name by default.
    """
    version = info.get("codebase_version")
    if version in (*SOURCE_VERSIONS, V3_VERSION):
        return other_storage(info, name, path)
    return other_storage(info, name, path) or SourceError(
        f"{name} {said_version(version)} in its meta/info.json. leconvert reads "
        f"{', '.join(SOURCE_VERSIONS)} and {V3_VERSION}.",
        path=path or name,
        next_step=_version_help(version),
    )


def other_storage(info: Mapping[str, Any], name: str, path: str = "") -> SourceError | None:
    """Return why the storage format cannot be read, as an error to raise; None if it can be read.

    This check alone decides when the version is assumed.
    """
    storage = info.get("storage_format")
    if storage in (None, _STORAGE_FORMAT):
        return None
    return SourceError(
        f"{name} stores its data as {shown(storage)}. leconvert reads only parquet and MP4 files.",
        path=path or name,
        next_step="Export the dataset to parquet and MP4 with the program that wrote it.",
    )


def said_version(version: object) -> str:
    """Return what ``codebase_version`` says, as the second half of a sentence."""
    if version is None:
        return "has no codebase_version"
    return f"has codebase_version {ascii(version)[:60]}"


def _version_help(version: object) -> str:
    """Return the help for a ``codebase_version`` that leconvert does not read.

    LeRobot had its script up to 0.3, as ``lerobot/datasets/v2/convert_dataset_v1_to_v2.py``.
    """
    if not isinstance(version, str) or not version.startswith("v"):
        return (
            "Write the version of the files there: v3.0 if meta/episodes is a folder, v2.1 if "
            "meta/episodes_stats.jsonl is a file, otherwise v2.0."
        )
    if version.startswith(("v0", "v1")):
        return "Convert the dataset to v2.0 first, with convert_dataset_v1_to_v2.py of LeRobot 0.3."
    return "The dataset is newer than this leconvert. Install a newer version of leconvert."
