"""How fast a run's result loads, where ``convert --probe`` measured it; nothing decides by it.

    probe.json    replaced by whoever measured last

Like `leconvert.workdir.invocation`, writing it cannot fail a run, and readers pass over what is
missing or torn.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from leconvert.errors import LeconvertError, StorageError
from leconvert.workdir.durable import replace_record
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.records import encode_record, read_record

__all__ = ["read_probe", "record_probe"]

_VERSION = 1


def record_probe(
    run: RunPaths, run_id: str, document: Mapping[str, Any], *, fs: FileSystem = LOCAL
) -> None:
    """Record the probe's document, or the error that says why there is none; never fails."""
    with suppress(OSError, StorageError, ValueError):
        record = encode_record("probe-of-run", _VERSION, run_id, {"probe": dict(document)})
        replace_record(run.probe_result, record, fs=fs)


def read_probe(run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> Mapping[str, Any] | None:
    """Return the probe's document, or None where nothing was measured."""
    try:
        record = read_record(
            run.probe_result, "probe-of-run", version=_VERSION, run_id=run_id, fs=fs
        )
    except (OSError, LeconvertError):
        return None
    document = record.get("probe")
    return document if isinstance(document, Mapping) else None
