"""Files of the streaming layout by number: what ends them, and how frames are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from layout_scans import stream_of

from leconvert.model.values import MEBIBYTE, StreamScan
from leconvert.run.layout import roll_together

BIG = 1e18


def cut(
    lengths: Sequence[int],
    *streams: StreamScan,
    limit: float = BIG,
    files: int = 1,
    fps: str = "30",
) -> list[int]:
    limits = [limit * MEBIBYTE] * len(streams)
    return roll_together(
        streams, limits, np.array(lengths), Fraction(fps), min_files=files
    ).tolist()


def light(lengths: Sequence[int], name: str = "data") -> StreamScan:
    return stream_of(name, [0] * len(lengths))


@pytest.mark.parametrize(
    ("lengths", "files", "starts"),
    [
        ([1, 1, 1, 97], 2, [0, 3, 4]),
        ([97, 1, 1, 1], 2, [0, 1, 4]),
        ([97, 2, 1, 1], 3, [0, 1, 2, 4]),
        ([60, 80, 60], 2, [0, 1, 3]),  # both are as near: the first
        ([60, 79, 61], 2, [0, 2, 3]),
        ([61, 79, 60], 2, [0, 1, 3]),
        ([10, 20, 30, 40, 50, 60], 3, [0, 3, 5, 6]),
        ([60, 50, 40, 30, 20, 10], 3, [0, 1, 3, 6]),
        ([5, 5, 90, 5, 5], 3, [0, 2, 3, 5]),
        ([1, 1, 1, 97], 3, [0, 2, 3, 4]),  # no file without an episode
        ([1, 1, 1, 97], 4, [0, 1, 2, 3, 4]),
        ([1, 1, 1, 1, 1], 3, [0, 2, 3, 5]),
    ],
)
def test_a_cut_is_at_the_episode_nearest_to_the_share(
    lengths: list[int], files: int, starts: list[int]
) -> None:
    assert cut(lengths, light(lengths), files=files) == starts


def test_the_stream_that_is_first_at_its_limit_ends_the_file_of_all() -> None:
    table, left, right = (
        stream_of("data", [1, 1, 1, 1, 1, 1, 1, 1]),
        stream_of("videos/left", [1, 1, 4, 1, 1, 1, 1, 1]),
        stream_of("videos/right", [1, 1, 1, 1, 1, 4, 1, 1]),
    )
    assert cut([10] * 8, table, left, right, limit=6) == [0, 2, 4, 6, 8]
    assert cut([10] * 8, table, left, right, limit=7) == [0, 3, 5, 8]
    assert cut([10] * 8, table, left, right, limit=8) == [0, 4, 8]


def test_limits_are_each_streams_own_and_reached_by_equality() -> None:
    table, video = stream_of("data", [1] * 6), stream_of("videos/a", [2] * 6)
    lengths = np.array([10] * 6)

    def starts(table_limit: float, video_limit: float) -> list[int]:
        limits = [table_limit * MEBIBYTE, video_limit * MEBIBYTE]
        return roll_together([table, video], limits, lengths, Fraction(30), min_files=1).tolist()

    assert starts(4, BIG) == [0, 3, 6]
    assert starts(3.99, BIG) == [0, 3, 6]
    assert starts(3, BIG) == [0, 2, 4, 6]
    assert starts(BIG, 8) == [0, 3, 6]
    assert starts(BIG, 6) == [0, 2, 4, 6]
    assert starts(BIG, 6 + 1 / MEBIBYTE) == [0, 3, 6]
    assert starts(BIG, 1) == [*range(7)], "an episode beyond the limit has a file of its own"


def test_files_end_where_a_decoder_changes_and_more_go_to_the_longer_run() -> None:
    left = stream_of("videos/left", [0] * 10, groups=[0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    right = stream_of("videos/right", [0] * 10, groups=[0, 0, 0, 0, 0, 0, 0, 0, 0, 5])
    lengths = [10] * 10
    assert cut(lengths, left, right) == [0, 3, 9, 10]
    assert cut(lengths, left, right, files=4) == [0, 3, 6, 9, 10]
    assert cut(lengths, left, right, files=5) == [0, 1, 3, 6, 9, 10]
    assert cut(lengths, left, right, files=6) == [0, 1, 3, 5, 7, 9, 10]
    assert cut(lengths, left, right, files=10) == [*range(11)]
    assert cut(lengths, left, right, files=11) == [*range(11)]


def made(
    count: int, step: int, within: int, weight: int, sizes_within: int
) -> tuple[list[int], list[int]]:
    """Lengths and sizes that look like chance and are the same for ever."""
    places = range(count)
    return (
        [place * step % within + 1 for place in places],
        [place * weight % sizes_within for place in places],
    )


@pytest.mark.parametrize(
    ("source", "decoders_every", "fps", "limit", "files", "starts"),
    [
        ((8, 15448, 2981, 39, 23), 4, "30", 33, 3, [0, 4, 6, 8]),
        ((9, 11023, 19741, 20, 29), 5, "30", 49, 6, [0, 3, 5, 6, 7, 8, 9]),
        ((6, 14533, 32610, 37, 16), 4, "10", 141, 5, [0, 1, 2, 4, 5, 6]),
        (
            (13, 18492, 138, 6, 27), None, "29.97", 16, 10,
            [0, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13],
        ),
        (
            (30, 7458, 17043, 10, 59), 7, "30", 54, 1,
            [
                0, 2, 4, 5, 7, 9, 10, 11, 13, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 27, 28, 29,
                30,
            ],
        ),
        (
            (67, 5619, 18926, 33, 36), None, "30", 45, 45,
            [
                0, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 17, 19, 20, 21, 23, 24, 26, 27, 28,
                29, 30, 31, 33, 34, 36, 37, 38, 39, 40, 41, 43, 45, 47, 48, 49, 50, 51, 52, 53, 55,
                57, 58, 62, 63, 64, 65, 67,
            ],
        ),
        (
            (62, 16497, 7181, 35, 7), None, "30", 65, 16,
            [0, 5, 9, 12, 16, 20, 23, 27, 31, 35, 40, 43, 47, 50, 54, 58, 62],
        ),
    ],
)  # fmt: skip
def test_what_was_cut_once_is_cut_the_same_for_ever(
    source: tuple[int, int, int, int, int],
    decoders_every: int | None,
    fps: str,
    limit: int,
    files: int,
    starts: list[int],
) -> None:
    """A run that is resumed by a later release must not find its files elsewhere."""
    lengths, sizes = made(*source)
    groups = [place // (decoders_every or len(lengths)) % 2 for place in range(len(lengths))]
    video = stream_of("videos/a", sizes, groups=groups)
    assert cut(lengths, video, limit=limit, files=files, fps=fps) == starts
