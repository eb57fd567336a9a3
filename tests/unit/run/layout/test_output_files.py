"""Where files end by size and decoder, what may not be asked for, and how episodes are aligned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layout_scans import source_of, stream_of

from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import LayoutOptions, StreamLayout
from leconvert.run import layout
from leconvert.run.layout import (
    choose_block_align,
    count_out_of_reach,
    layout_streams,
)
from leconvert.support.errors import UsageError

KIBIBYTE = 1024


def test_tables_and_cameras_have_limits_of_their_own() -> None:
    scan = source_of(
        [10] * 4, stream_of("data", [1] * 4), stream_of("videos/a", [1] * 4),
        stream_of("videos/b", [2] * 4),
    )  # fmt: skip
    options = LayoutOptions(data_file_size_in_mb=2, video_file_size_in_mb=4)
    layouts = layout_streams(scan, options)
    assert [(layout.stream, layout.starts.tolist()) for layout in layouts] == [
        ("data", [0, 1, 2, 3, 4]), ("videos/a", [0, 3, 4]), ("videos/b", [0, 1, 2, 3, 4]),
    ]  # fmt: skip


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


def test_lost_frames_are_counted_once_for_cameras_that_are_cut_alike(
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


@pytest.mark.parametrize("wanted", [0, 512, 4096, 1048576])
def test_an_alignment_that_was_asked_for_is_taken(wanted: int) -> None:
    assert choose_block_align([], wanted) == wanted
    assert choose_block_align([stream_of("videos/a", [50])], wanted) == wanted


@pytest.mark.parametrize("wanted", [-512, 1, 256, 513, 4095, 6144, 2097152])
def test_an_alignment_that_no_block_has_is_refused(wanted: int) -> None:
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
