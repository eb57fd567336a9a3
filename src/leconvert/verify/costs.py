"""How long pieces will take, a guess that decides who shares them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from leconvert.verify.pieces import Comparer, Piece

__all__ = ["expected_seconds"]

# What an episode's slice costs besides its bytes, and how fast these are compared on both sides.
_SECONDS_A_SLICE = 0.0003
_BYTES_A_SECOND = 1e9


def expected_seconds(compare: Comparer, pieces: Sequence[Piece]) -> list[float]:
    """Return for each piece how long one process will take for it.

    Args:
        compare: What will compare them.
        pieces: The pieces; each file's size is asked once.
    """
    sizes: dict[str, int] = {}
    seconds = []
    for piece in pieces:
        path = compare.path_of(piece.stream, piece.first)
        if compare.read_bytes and path not in sizes:
            sizes[path] = 0
            with suppress(OSError):
                sizes[path] = (compare.result / path).stat().st_size
        episodes = compare.num_compared(piece)
        share = episodes / (piece.file_stop - piece.file_first)
        reading = sizes.get(path, 0) * share / _BYTES_A_SECOND
        seconds.append(episodes * _SECONDS_A_SLICE + reading)
    return seconds
