"""A process that does pieces of a job for another: ``python -m`` this module.

It reads a pickled callable and then tuples of arguments from standard input, answers each with the
pickled result on standard output, and ends where its input ends. A call that fails ends it: the
parent then does that piece itself, and meets the same error where somebody can be told.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["serve"]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    work: Callable[..., Any] = pickle.load(requests)  # noqa: S301 - it comes from the parent process
    while True:
        try:
            piece = pickle.load(requests)  # noqa: S301
        except EOFError:
            return
        pickle.dump(work(*piece), answers)
        answers.flush()


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except (BrokenPipeError, EOFError):
        sys.exit(1)  # the parent is gone
