"""The records of a run, read for display: torn or edited records are skipped.

`leconvert.workdir.activity` reads the records that processes write about themselves. This module
reads the records of settled batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from leconvert.run.leasing import read_done
from leconvert.support.errors import LeconvertError
from leconvert.workdir.former import count_former
from leconvert.workdir.records import RunPaths

UNREADABLE = (OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError)
"""Errors from reading a record that is gone, torn, or edited by hand or by an unknown program."""


class SettledBatches[Value]:
    """The records of settled batches; each is read once, however often `look` is called.

    Args:
        read: Reads the record of one batch.

    Attributes:
        values: The records by batch; unusable ones are missing.
        errors: Why a record is unusable, by batch, as of the last look.
    """

    def __init__(self, read: Callable[[int], Value]) -> None:
        self._read = read
        self.values: dict[int, Value] = {}
        self.errors: dict[int, Exception] = {}

    def look(self, settled: Collection[int], most: int | None = None) -> Mapping[int, Value]:
        """Return the records of settled batches; at most ``most`` new ones are read."""
        wanted = set(settled)
        for batch_id in self.values.keys() - wanted:  # voided or released since the last look
            del self.values[batch_id]
        self.errors = {}
        for batch_id in sorted(wanted - self.values.keys())[:most]:
            try:
                self.values[batch_id] = self._read(batch_id)
            except UNREADABLE as error:
                self.errors[batch_id] = error
        return self.values


class DoneBatch(NamedTuple):
    """The record of a batch that is done."""

    record: Mapping[str, Any]  # without its shards
    shard_bytes: Mapping[str, int]  # size of every shard
    cloned_bytes: int  # coded video bytes that are shared with the source
    copied_bytes: int  # coded video bytes that were copied


def read_done_batch(run: RunPaths, batch_id: int) -> DoneBatch:
    """Read the record of a finished batch.

    Raises:
        OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError: It cannot be used.
    """
    record = read_done(run, batch_id)
    shards = record.pop("shards")
    return DoneBatch(
        record,
        {str(shard["path"]): int(shard["size_bytes"]) for shard in shards},
        sum(int(shard.get("cloned_bytes", 0)) for shard in shards),
        sum(int(shard.get("copied_bytes", 0)) for shard in shards),
    )


class FormerCount:
    """Counts the former states of results, for display.

    Their folders are listed again only if a name was added or removed there since.
    """

    def __init__(self, targets: Iterable[Path]) -> None:
        self._targets = list(targets)
        self._folders = {Path(os.path.realpath(target)).parent for target in self._targets}
        self._changed_at: dict[Path, int] | None = None
        self._found = 0, 0

    def look(self) -> tuple[int, int]:
        """Return the number of former states, and their bytes; see `count_former`."""
        changed_at = {folder: _changed_at(folder) for folder in self._folders}
        if changed_at != self._changed_at:
            self._changed_at, self._found = changed_at, count_former(self._targets)
        return self._found


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def moment(text: object) -> float | None:
    """Return an ISO 8601 time as seconds since 1970; None if it is not one, or has no time zone."""
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None


def seconds_of(value: object) -> float | None:
    """Return a number of seconds from a record; None if it is not one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None
