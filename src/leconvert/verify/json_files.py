"""The JSON files of a result, held to what LeRobot's readers take."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["read_json_object"]

# Python shows and compares what is nested less deeply than this, whoever asks it to.
_MOST_LEVELS = 100


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    LeRobot opens these files as UTF-8 text, in which a byte order mark, or UTF-16, is no JSON.

    Raises:
        OSError: The file cannot be read, or is none: reading a pipe would never end.
        ValueError: It is no JSON object, or one that is nested too deeply to be compared.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if _is_deeper(content, _MOST_LEVELS):
        raise ValueError("it is nested too deeply")
    return content


def _is_deeper(value: object, levels: int) -> bool:
    level: list[Any] = [value]
    for _ in range(levels):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
