"""Where files end by size and decoder, what may not be asked for, and how episodes are aligned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from layout_scans import source_of, stream_of

from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import LayoutOptions, StreamLayout
from leconvert.run import layout
from leconvert.run.layout import (
    check_layout_options,
    choose_block_align,
    count_out_of_reach,
    layout_streams,
    roll_over,
)
from leconvert.support.errors import UsageError

KIBIBYTE = 1024


def cut(sizes: list[int], limit: float, groups: list[int] | None = None) -> list[int]:
    group = np.array(groups or [0] * len(sizes))
    return roll_over(np.array(sizes), group, limit).tolist()


def test_a_file_ends_before_its_limit_is_reached_and_where_the_decoder_changes() -> None:
    assert cut([4, 4, 4], 12) == [0, 2, 3]
    assert cut([4, 4, 4], 12.5) == [0, 3]
    assert cut([4, 4, 3, 4, 4, 3], 12) == [0, 3, 6], "counting begins anew with each file"
    assert cut([12, 1, 99, 1], 12) == [0, 1, 2, 3, 4]
    assert cut([99], 12) == [0, 1]
    assert cut([1] * 5, 100, [7, 7, 8, 8, 7]) == [0, 2, 4, 5]
    assert cut([5, 5, 5, 5], 11, [0, 1, 1, 1]) == [0, 1, 3, 4], "counting begins anew there too"
    assert roll_over(np.array([1]), np.array([0]), 5).dtype == np.int64
    with pytest.raises(ValueError, match="zip"):
        roll_over(np.array([1, 1]), np.array([0]), 5)


def test_tables_and_cameras_have_limits_of_their_own_also_below_a_mebibyte() -> None:
    scan = source_of(
        [10] * 4, stream_of("data", [1] * 4), stream_of("videos/a", [1] * 4),
        stream_of("videos/b", [2] * 4),
    )  # fmt: skip
    options = LayoutOptions(data_file_size_in_mb=2, video_file_size_in_mb=4)
    layouts = layout_streams(scan, options)
    assert [(layout.stream, layout.starts.tolist()) for layout in layouts] == [
        ("data", [0, 1, 2, 3, 4]), ("videos/a", [0, 3, 4]), ("videos/b", [0, 1, 2, 3, 4]),
    ]  # fmt: skip
    scan = source_of([1] * 3, stream_of("data", [0.25] * 3))
    assert layout_streams(
        scan, LayoutOptions(data_file_size_in_mb=0.75, video_file_size_in_mb=0.5)
    )[0].starts.tolist() == [0, 2, 3]


def test_for_streaming_all_streams_start_their_files_together_with_limits_of_their_own() -> None:
    scan = source_of([10] * 6, stream_of("data", [1] * 6), stream_of("videos/a", [2] * 6))
    options = LayoutOptions(
        data_file_size_in_mb=100, video_file_size_in_mb=5, layout="streaming", loader_workers=1
    )
    layouts = layout_streams(scan, options)
    assert [(layout.stream, layout.starts.tolist()) for layout in layouts] == [
        ("data", [0, 2, 4, 6]), ("videos/a", [0, 2, 4, 6]),
    ]  # fmt: skip
    more = LayoutOptions(
        data_file_size_in_mb=100, video_file_size_in_mb=100, layout="streaming", loader_workers=2
    )
    assert layout_streams(scan, more)[0].starts.tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_file_size_in_mb": 0.0}, "--data-file-size-in-mb must be above 0, not 0.0."),
        ({"data_file_size_in_mb": math.nan}, "--data-file-size-in-mb must be above 0, not nan."),
        ({"video_file_size_in_mb": math.inf}, "--video-file-size-in-mb must be finite, not inf."),
        ({"video_file_size_in_mb": -2}, "--video-file-size-in-mb must be above 0, not -2."),
        ({"layout": "best"}, "--layout takes reference, streaming, episode-files or overlay, not "),
        ({"loader_workers": 0}, "--loader-workers must be at least 1, not 0."),
    ],
)
def test_a_senseless_option_is_refused_with_its_value(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_layout_options(LayoutOptions(**options))
    assert refused.value.message.startswith(message)


def test_lost_frames_are_counted_once_for_cameras_cut_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[list[int]] = []

    def counting(*arguments: object) -> object:
        calls.append(arguments[0].tolist())  # type: ignore[attr-defined]
        return frames_out_of_reach(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(layout, "frames_out_of_reach", counting)
    lengths = [9000, 8000, 7000, 9000, 9000]
    videos = [
        replace(stream_of(f"videos/{name}", [1] * 5), frames=np.array(lengths)) for name in "abc"
    ]
    scan = source_of(lengths, stream_of("data", [1] * 5), *videos)
    whole, halves = np.array([0, 5]), np.array([0, 2, 5])
    layouts = [
        StreamLayout("data", whole), StreamLayout("videos/b", whole),
        StreamLayout("videos/c", halves), StreamLayout("videos/a", whole),
    ]  # fmt: skip
    lost = count_out_of_reach(scan, layouts)
    assert list(lost) == ["videos/b", "videos/c", "videos/a"], "in the order of the layouts"
    assert lost["videos/a"] == lost["videos/b"] > 0 == lost["videos/c"]
    assert type(lost["videos/a"]) is int
    assert calls == [[0, 9000, 17000, 24000, 33000], [0, 9000, 0, 7000, 16000]]


def test_an_alignment_that_was_asked_for_is_taken_unless_no_block_has_it() -> None:
    for wanted in (0, 512, 4096, 1048576):
        assert choose_block_align([], wanted) == wanted
        assert choose_block_align([stream_of("videos/a", [50])], wanted) == wanted
    for wanted in (-512, 1, 256, 513, 4095, 6144, 2097152):
        with pytest.raises(UsageError) as refused:
            choose_block_align([], wanted)
        assert refused.value.message == (
            f"--block-align takes auto, 0 or a power of two from 512 to 1048576, not {wanted}."
        )


@pytest.mark.parametrize(
    ("clip_bytes", "align"),
    [
        ([[64 * KIBIBYTE]], 4096),
        ([[64 * KIBIBYTE - 1]], 0),
        ([[63 * KIBIBYTE, 65 * KIBIBYTE]], 4096),
        ([[63 * KIBIBYTE, 64 * KIBIBYTE]], 0),
        ([[30 * KIBIBYTE], [98 * KIBIBYTE]], 4096),
        ([[30 * KIBIBYTE, 30 * KIBIBYTE], [98 * KIBIBYTE]], 0),
        ([[]], 0),
        ([], 0),
    ],
)
def test_episodes_are_aligned_where_clips_have_16_blocks_on_average(
    clip_bytes: list[list[int]], align: int
) -> None:
    tables = stream_of("data", [50, 50])  # no clips, and so not counted
    clips = [
        stream_of(f"videos/{number}", [0] * len(sizes), stored_bytes=sizes)
        for number, sizes in enumerate(clip_bytes)
    ]
    assert choose_block_align([tables, *clips], None) == align
