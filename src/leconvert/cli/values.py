"""What options take: numbers within bounds, and sizes; each refuses with a sentence."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

__all__ = [
    "block_align",
    "megabytes",
    "seconds",
    "size_in_bytes",
    "some_seconds",
    "whole",
    "worker_count",
]

_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"takes a whole number of at least {least}, not {text!r}"
            )
        return value

    return read


def worker_count(text: str) -> int | str:
    """Read how many workers: a whole number of at least 1, or ``auto``."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"takes auto or a whole number of at least 1, not {text!r}")


def seconds(text: str) -> float:
    """Read a stretch of time that may be empty."""
    value = _number(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"takes a number of seconds of at least 0, not {text!r}")
    return value


def some_seconds(text: str) -> float:
    """Read a stretch of time that is not empty."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"takes a number of seconds above 0, not {text!r}")
    return value


def megabytes(text: str) -> float:
    """Read a size limit in MB; a whole one stays whole, as info.json stores it."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"takes a number of MB above 0, not {text!r}")
    return int(value) if value.is_integer() else value


def size_in_bytes(text: str) -> int:
    """Read a number of bytes; K, M, G and T are powers of 1,024."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"takes a size such as 500M or 20G, not {text!r}")
    power = "KMGT".index(found[2].upper()) + 1 if found[2] else 0
    return int(found[1]) * int(1024**power)


def block_align(text: str) -> int | None:
    """Read a block size in bytes, 0 for none; None stands for ``auto``."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes auto, 0 or a number of bytes such as 4096, not {text!r}"
        ) from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
