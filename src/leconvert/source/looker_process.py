"""A process that looks at blocks of episodes for another: ``python -m`` this module.

It reads a pickled `Looker` and then pairs of places from standard input, answers each pair with a
pickled `Block` on standard output, and ends where its input ends.
"""

from __future__ import annotations

import pickle
import sys
from typing import BinaryIO

from leconvert.source.looker import Looker

__all__ = ["serve"]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    look: Looker = pickle.load(requests)  # noqa: S301 - it comes from the parent process
    while True:
        try:
            first, stop = pickle.load(requests)  # noqa: S301
        except EOFError:
            return
        pickle.dump(look(first, stop), answers)
        answers.flush()


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except (BrokenPipeError, EOFError):
        sys.exit(1)  # the parent is gone
