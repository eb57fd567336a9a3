"""``meta/repairs.json``: what a conversion changed beside the format; absent where nothing was."""

from __future__ import annotations

import json
import os
from pathlib import Path

from leconvert.errors import UnreadableSourceError
from leconvert.repairs import NO_REPAIRS, Repairs
from leconvert.tables.paths import REPAIRS_PATH

__all__ = ["read_repairs", "write_repairs"]

_FORMAT = "leconvert/repairs"
_VERSION = 2
# Version 1 had fewer fields, which are those of a source that is read as it stands.
_KNOWN_VERSIONS = (1, _VERSION)


def write_repairs(root: str | os.PathLike[str], repairs: Repairs) -> None:
    """Write the record below ``root``, whose ``meta`` folder exists."""
    record = {"format": _FORMAT, "version": _VERSION, **repairs.as_record()}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (Path(root) / REPAIRS_PATH).write_text(text, encoding="utf-8")


def read_repairs(root: str | os.PathLike[str]) -> Repairs:
    """Return what was changed about the dataset below ``root``.

    Raises:
        UnreadableSourceError: The record cannot be read, or is of another format or version.
    """
    path = Path(root) / REPAIRS_PATH
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != _FORMAT or record["version"] not in _KNOWN_VERSIONS:
            raise ValueError(f"it is {record['format']} version {record['version']}")
        return Repairs.from_record(record)
    except FileNotFoundError:
        return NO_REPAIRS
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.",
            path=str(path),
            next_step="Convert again, or use the version of leconvert that wrote it.",
        ) from error
