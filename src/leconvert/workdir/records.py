"""Versioned records: how every small file of the work dir begins, and how it is read back.

A record is one line of JSON. Its first keys are ``format`` (``leconvert/<kind>``), ``version`` and
``run_id``. A reader ignores keys that it does not know and refuses versions that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leconvert.errors import WorkDirError
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.filesystem import LOCAL, FileSystem

__all__ = ["decode_record", "encode_record", "find_record", "read_record"]

_HEADER = ("format", "version", "run_id")
_RESTART = "Start a new run with --restart; nothing of the dataset is lost by that."


def encode_record(kind: str, version: int, run_id: str, fields: Mapping[str, Any]) -> bytes:
    """Return a record as bytes: one line of JSON with a line feed.

    Args:
        kind: What it is, for example ``done``.
        version: Version of this kind of record, from 1.
        run_id: The run that it belongs to.
        fields: Everything else, JSON-serialisable, written in the order given.

    Raises:
        ValueError: A field has the name of a header key, or is not JSON.
    """
    taken = [name for name in _HEADER if name in fields]
    if taken:
        raise ValueError(f"a record's own field may not be called {', '.join(taken)}")
    record = {"format": f"leconvert/{kind}", "version": version, "run_id": run_id, **fields}
    return (json.dumps(record, allow_nan=False, separators=(", ", ": ")) + "\n").encode()


def decode_record(
    raw: bytes, kind: str, *, version: int, path: Path | str, run_id: str | None = None
) -> dict[str, Any]:
    """Return a record's keys, after checking that it is what the caller expects.

    Args:
        raw: The file's content.
        kind: The kind that it must be.
        version: The newest version that the caller knows; older ones are accepted.
        path: Where it was read, for errors.
        run_id: The run that it must belong to, or None for any.

    Raises:
        WorkDirError: Torn or foreign content, another kind, an unknown version, another run.
    """
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WorkDirError(
            f"{path} is not a whole record: it is empty, cut off, or was edited.",
            path=str(path),
            next_step=_RESTART,
        ) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != f"leconvert/{kind}":
        raise WorkDirError(
            f"{path} is no leconvert {kind} record.",
            path=str(path),
            next_step="Check that --work-dir names a folder that leconvert made. " + _RESTART,
        )
    number = record.get("version")
    if type(number) is not int or not 1 <= number <= version:
        raise WorkDirError(
            f"{path} is a {kind} record of version {number}; this program knows up to {version}.",
            path=str(path),
            next_step="Use the leconvert version that began this run, or start a new run with"
            " --restart.",
        )
    if run_id is not None and record.get("run_id") != run_id:
        raise WorkDirError(
            f"{path} belongs to run {record.get('run_id')}, not to {run_id}.",
            path=str(path),
            next_step=_RESTART,
        )
    return record  # type: ignore[no-any-return]


def read_record(
    path: Path,
    kind: str,
    *,
    version: int,
    run_id: str | None = None,
    fs: FileSystem = LOCAL,
) -> dict[str, Any]:
    """Read a record by open and read (never ``stat``: see docs/leasing.md).

    Raises:
        FileNotFoundError: There is no such file.
        WorkDirError: As `decode_record`.
        StorageError: The disk fails.
    """
    with storage_errors(path):
        raw = fs.read_bytes(path)
    return decode_record(raw, kind, version=version, path=path, run_id=run_id)


def find_record(
    path: Path,
    kind: str,
    *,
    version: int,
    run_id: str | None = None,
    fs: FileSystem = LOCAL,
) -> dict[str, Any] | None:
    """Read a record as `read_record` does, or return None where there is no such file.

    Raises:
        WorkDirError: As `decode_record`.
        StorageError: The disk fails.
    """
    try:
        return read_record(path, kind, version=version, run_id=run_id, fs=fs)
    except FileNotFoundError:
        return None
