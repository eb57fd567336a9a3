"""Files of the streaming layout by number: what ends them, and how frames are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from layout_scans import stream_of

from leconvert.model.values import MEBIBYTE, IntArray, StreamScan
from leconvert.run import layout
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


def test_one_file_holds_all_until_the_stream_that_is_first_at_its_limit_ends_it() -> None:
    lengths = [100] * 9
    assert cut(lengths, light(lengths), light(lengths, "videos/a")) == [0, 9]
    table, left, right = (
        stream_of("data", [1, 1, 1, 1, 1, 1, 1, 1]),
        stream_of("videos/left", [1, 1, 4, 1, 1, 1, 1, 1]),
        stream_of("videos/right", [1, 1, 1, 1, 1, 4, 1, 1]),
    )
    assert cut([10] * 8, table, left, right, limit=6) == [0, 2, 4, 6, 8]
    assert cut([10] * 8, table, left, right, limit=7) == [0, 3, 5, 8]
    assert cut([10] * 8, table, left, right, limit=8) == [0, 4, 8]


@pytest.mark.parametrize(
    ("files", "starts"),
    [
        (2, [0, 4, 8]), (3, [0, 3, 5, 8]), (4, [0, 2, 4, 6, 8]),
        (5, [0, 2, 3, 5, 6, 8]), (8, [*range(9)]), (99, [*range(9)]),
    ],
)  # fmt: skip
def test_frames_are_shared_out_evenly_over_the_wanted_files(files: int, starts: list[int]) -> None:
    lengths = [100] * 8
    assert cut(lengths, light(lengths), files=files) == starts


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


def test_the_first_file_ends_at_its_limit_and_limits_are_each_streams_own() -> None:
    assert cut([10, 10], stream_of("data", [1, 1]), limit=2) == [0, 1, 2]
    assert cut([10] * 4, stream_of("data", [1] * 4), limit=2) == [0, 1, 2, 3, 4]
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
    with pytest.raises(ValueError, match="zip"):
        roll_together(
            [light([1]), light([1], "videos/a")], [1.0], np.array([1]), Fraction(30), min_files=1
        )


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


def test_of_runs_that_with_the_largest_files_is_cut_first_and_an_episode_alone_is_not() -> None:
    scan = stream_of("videos/a", [0] * 8, groups=[0, 0, 0, 0, 1, 1, 1, 1])
    assert cut([10] * 8, scan, files=3) == [0, 2, 4, 8]
    assert cut([10] * 8, scan, files=4) == [0, 2, 4, 6, 8]
    # Two files of 200 frames each, which a limit asks for, and one of 300: the third is cut.
    sizes, groups = [1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]
    video = stream_of("videos/a", sizes, groups=groups)
    assert cut([100] * 7, video, limit=3) == [0, 2, 4, 7]
    assert cut([100] * 7, video, limit=3, files=4) == [0, 2, 4, 5, 7]
    scan = stream_of("videos/a", [0] * 4, groups=[0, 1, 1, 1])
    assert cut([9000, 10, 10, 10], scan, files=3) == [0, 1, 2, 4]
    assert cut([9000, 10, 10, 10], scan, files=4) == [0, 1, 2, 3, 4]


def test_what_cannot_be_shared_because_of_a_limit_is_shared_out_among_the_rest() -> None:
    heavy = [3] * 4 + [0] * 12
    first, last = stream_of("data", heavy), stream_of("data", heavy[::-1])
    assert cut([10] * 16, first, limit=4) == [0, 1, 2, 3, 16]
    assert cut([10] * 16, first, limit=4, files=6) == [0, 1, 2, 3, 7, 12, 16]
    assert cut([10] * 16, last, limit=4) == [0, 13, 14, 15, 16]
    assert cut([10] * 16, last, limit=4, files=6) == [0, 3, 5, 13, 14, 15, 16]


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


# 15 episodes of 30 s to 28 min, at ten frames a second, in clips of up to 40 MiB.
STUBBORN_LENGTHS = [place * 9108 % 16403 + 300 for place in range(15)]
STUBBORN_SIZES = [place * 7 % 41 for place in range(15)]


def test_shares_are_made_anew_a_few_times_and_without_a_camera_no_frame_is_out_of_reach() -> None:
    video = stream_of("videos/a", STUBBORN_SIZES)
    starts = cut(STUBBORN_LENGTHS, video, limit=100, fps="10")
    # Five if each were filled; reach forces seven, of seven eight, and so on: ten is let be.
    assert starts == [0, 3, 5, 6, 7, 8, 9, 10, 13, 14, 15]
    table = stream_of("data", STUBBORN_SIZES)
    assert cut(STUBBORN_LENGTHS, table, limit=100, fps="10") == [0, 5, 10, 15]
    video = stream_of("videos/a", [0] * 15)
    assert cut(STUBBORN_LENGTHS, video, fps="10") == [0, 3, 5, 15]


@pytest.mark.parametrize(("many", "files"), [(6, 7), (7, 8), (8, 9), (9, 10), (10, 10)])
def test_among_many_files_one_small_rest_is_let_be(
    many: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_MANY_FILES", many)
    video = stream_of("videos/a", STUBBORN_SIZES)
    assert len(cut(STUBBORN_LENGTHS, video, limit=100, fps="10")) - 1 == files


def test_doubts_are_asked_once_a_file_in_windows_that_double(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []

    def nothing_lost(begin_frame: IntArray, length: IntArray, fps: Fraction) -> IntArray:
        asked.append((int(begin_frame[0]), len(length)))
        assert (length == 96).all()
        assert np.diff(begin_frame).tolist() == [96] * (len(length) - 1)
        return np.zeros(len(length), np.int64)

    monkeypatch.setattr(layout, "frames_out_of_reach", nothing_lost)
    lengths = [96] * 400
    assert cut(lengths, light(lengths, "videos/a"), files=1) == [0, 400]
    # 30,720 frames of 30 a second are certain, which is where episode 320 begins.
    windows = [(30720, 16), (30720 + 16 * 96, 32), (30720 + 48 * 96, 32)]
    assert asked == windows * 2, "to count files, and to cut them"
