"""The layout holds its promises for any sizes, limits and batch sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leconvert.dataset.formats.v3 import USUAL_NAMES
from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import (
    MEBIBYTE,
    FileTable,
    IntArray,
    LayoutOptions,
    Shard,
    SourceScan,
    StreamLayout,
    StreamScan,
)
from leconvert.run import layout as run_layout
from leconvert.run.layout import (
    check_layout_options,
    count_out_of_reach,
    cut_batches,
    layout_streams,
    roll_over,
)
from leconvert.support.errors import UsageError

SIZES = st.lists(st.integers(0, 3 * MEBIBYTE), min_size=1, max_size=60)
STREAMING = LayoutOptions(layout="streaming", loader_workers=1)


def stream_scan(name: str, sizes: list[int], groups: list[int] | None = None) -> StreamScan:
    values = np.array(sizes, dtype=np.int64)
    zeros = np.zeros_like(values)
    group = zeros if groups is None else np.array(groups, dtype=np.int64)
    files = FileTable(np.arange(len(sizes)), values, zeros, zeros)
    return StreamScan.of_whole_files(name, files, frames=zeros + 10, roll_bytes=values, group=group)


def reference_files(sizes: list[int], limit_in_mb: float) -> list[list[int]]:
    """Cut files the way the reference does, with its floating-point MiB."""
    files: list[list[int]] = [[]]
    size_in_mb = 0.0
    for position, size in enumerate(sizes):
        if size_in_mb + size / 1024**2 >= limit_in_mb and files[-1]:
            files.append([])
            size_in_mb = 0.0
        files[-1].append(position)
        size_in_mb += size / 1024**2
    return files


def source_scan(lengths: list[int], streams: list[StreamScan], fps: str = "30") -> SourceScan:
    length = np.array(lengths, dtype=np.int64)
    episode_index = np.arange(len(lengths))
    whole = [replace(stream, frames=length) for stream in streams]
    return SourceScan((), Fraction(fps), episode_index, length, whole, b"", ())


@dataclass(frozen=True)
class Episode:
    """What a layout goes by: frames, bytes of a table and of two clips, and their decoders."""

    frames: int
    data: int
    left: int
    right: int
    left_group: int
    right_group: int


SHORT, LONG = 300, 3000
EPISODES = st.builds(
    Episode,
    st.integers(1, SHORT) | st.integers(1, LONG),
    *[st.integers(0, 2 * MEBIBYTE)] * 3,
    *[st.sampled_from([0, 0, 0, 0, 0, 0, 1])] * 2,
)
RATES = st.sampled_from(["29.97", "30", "10", "7.3"])
SOME_EPISODES = st.lists(EPISODES, min_size=1, max_size=60)


def scan_of(episodes: list[Episode], fps: str = "30") -> SourceScan:
    columns = {
        name: [getattr(episode, name) for episode in episodes]
        for name in Episode.__dataclass_fields__
    }
    streams = [
        stream_scan("data", columns["data"]),
        stream_scan("videos/left", columns["left"], columns["left_group"]),
        stream_scan("videos/right", columns["right"], columns["right_group"]),
    ]
    return source_scan(columns["frames"], streams, fps)


def common_starts(scan: SourceScan, options: LayoutOptions) -> list[int]:
    """Lay a source out and return the one list of starts that all its streams have."""
    layouts = layout_streams(scan, options)
    assert [layout.stream for layout in layouts] == [stream.stream for stream in scan.streams]
    starts = {tuple(layout.starts.tolist()) for layout in layouts}
    assert len(starts) == 1
    return list(starts.pop())


@given(SIZES, st.integers(1, 6))
def test_files_are_cut_where_the_reference_cuts_them(sizes: list[int], limit_in_mb: int) -> None:
    starts = roll_over(
        np.array(sizes), np.zeros(len(sizes), dtype=np.int64), limit_in_mb * MEBIBYTE
    )
    files = [list(range(a, b)) for a, b in pairwise(starts)]
    assert files == reference_files(sizes, limit_in_mb)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), min_size=1, max_size=60))
def test_a_file_never_mixes_decoder_configurations(episodes: list[tuple[int, int]]) -> None:
    sizes, groups = (np.array(column) for column in zip(*episodes, strict=True))
    starts = roll_over(sizes, groups, 1e18)
    for first, stop in pairwise(starts):
        assert len(set(groups[first:stop].tolist())) == 1
    assert len(starts) - 2 == np.count_nonzero(np.diff(groups))


@given(SIZES, SIZES, st.none() | st.integers(1, 70))
def test_every_episode_of_every_stream_is_in_exactly_one_shard(
    data_sizes: list[int], video_sizes: list[int], episodes_per_batch: int | None
) -> None:
    episodes = min(len(data_sizes), len(video_sizes))
    streams = [
        stream_scan("data", data_sizes[:episodes]),
        stream_scan("videos/cam", video_sizes[:episodes]),
    ]
    layouts = [
        StreamLayout(s.stream, roll_over(s.roll_bytes, s.group, 4 * MEBIBYTE)) for s in streams
    ]
    batches = cut_batches(streams, layouts, episodes_per_batch)
    assert [batch.batch_id for batch in batches] == list(range(len(batches)))
    covered: dict[str, list[int]] = {"data": [], "videos/cam": []}
    names: list[str] = []
    for batch in batches:
        assert batch.shards
        for shard in batch.shards:
            covered[shard.stream] += range(shard.first, shard.stop)
            names.append(shard.name)
            layout = layouts[0] if shard.stream == "data" else layouts[1]
            file = layout.file(shard.number)
            assert file.first <= shard.first < shard.stop <= file.stop
            assert shard.whole == ((shard.first, shard.stop) == (file.first, file.stop))
    assert all(sorted(positions) == list(range(episodes)) for positions in covered.values())
    assert len(set(names)) == len(names)
    assert sum(batch.frames for batch in batches) == 2 * 10 * episodes


def test_three_large_files_keep_three_workers_busy() -> None:
    streams = [stream_scan(f"videos/{name}", [50 * MEBIBYTE] * 4) for name in "abc"]
    layouts = [StreamLayout(s.stream, np.array([0, 4])) for s in streams]
    assert len(cut_batches(streams, layouts, None)) == 3


def test_many_tiny_files_share_batches() -> None:
    stream = stream_scan("videos/cam", [1000] * 5000)
    layout = StreamLayout(stream.stream, np.arange(5001))
    batches = cut_batches([stream], [layout], None)
    assert 16 <= len(batches) <= 200
    assert sum(len(batch.shards) for batch in batches) == 5000


def test_file_1000_is_the_first_of_the_second_chunk() -> None:
    assert USUAL_NAMES.path("data", 999) == "data/chunk-000/file-999.parquet"
    assert USUAL_NAMES.path("videos/cam", 1000) == "videos/cam/chunk-001/file-000.mp4"


@given(
    st.lists(
        st.text("a/%2F.~", min_size=1, max_size=6).flatmap(
            lambda end: st.sampled_from([end, "ä" * 120 + end, "/" * 90 + end])
        ),
        min_size=2,
        unique=True,
    )
)
def test_shards_of_different_streams_never_share_a_name(cameras: list[str]) -> None:
    names = {Shard(f"videos/{camera}", 7, 0, 1, True).name for camera in cameras}
    assert len(names) == len(cameras)
    assert not any("/" in name for name in names)
    assert all(len(f"{name}.stats.jsonl".encode()) <= 255 for name in names)


def test_parts_of_one_file_have_names_of_their_own() -> None:
    whole = Shard("data", 999, 0, 4, True)
    parts = [Shard("data", 999, first, first + 2, False) for first in (0, 2)]
    assert len({shard.name for shard in (whole, *parts)}) == 3


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="--data-file-size-in-mb"):
        check_layout_options(LayoutOptions(data_file_size_in_mb=limit))


# --- the layout for streaming -------------------------------------------------------------------


@given(SOME_EPISODES, RATES, st.integers(1, 70), st.floats(0.1, 60))
def test_streams_roll_together_over_every_episode(
    episodes: list[Episode], fps: str, workers: int, limit_in_mb: float
) -> None:
    options = LayoutOptions(
        data_file_size_in_mb=limit_in_mb,
        video_file_size_in_mb=limit_in_mb,
        layout="streaming",
        loader_workers=workers,
    )
    scan = scan_of(episodes, fps)
    starts = common_starts(scan, options)
    assert (starts[0], starts[-1]) == (0, len(episodes))
    assert all(first < stop for first, stop in pairwise(starts))
    assert len(starts) - 1 >= min(workers, len(episodes))
    assert starts == common_starts(scan, options)


@given(SOME_EPISODES, st.integers(1, 9), st.floats(0.5, 9), st.floats(0.5, 9))
def test_no_stream_reaches_its_limit_with_more_than_one_episode(
    episodes: list[Episode], workers: int, data_in_mb: float, video_in_mb: float
) -> None:
    options = LayoutOptions(
        data_file_size_in_mb=data_in_mb,
        video_file_size_in_mb=video_in_mb,
        layout="streaming",
        loader_workers=workers,
    )
    for first, stop in pairwise(common_starts(scan_of(episodes), options)):
        if stop - first > 1:
            held = episodes[first:stop]
            assert sum(episode.data for episode in held) < data_in_mb * MEBIBYTE
            assert sum(episode.left for episode in held) < video_in_mb * MEBIBYTE
            assert sum(episode.right for episode in held) < video_in_mb * MEBIBYTE


@given(SIZES, st.integers(1, 6))
def test_files_are_as_few_as_the_limit_allows(sizes: list[int], limit_in_mb: int) -> None:
    scan = source_scan([10] * len(sizes), [stream_scan("data", sizes)])
    options = replace(STREAMING, data_file_size_in_mb=limit_in_mb)
    starts = common_starts(scan, options)
    assert len(starts) - 1 == len(reference_files(sizes, limit_in_mb))


@given(SOME_EPISODES, st.integers(1, 9))
def test_no_file_mixes_decoder_configurations_of_either_camera(
    episodes: list[Episode], workers: int
) -> None:
    options = replace(STREAMING, loader_workers=workers)
    for first, stop in pairwise(common_starts(scan_of(episodes), options)):
        assert len({(e.left_group, e.right_group) for e in episodes[first:stop]}) == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), RATES, st.integers(1, 9))
def test_only_the_first_episode_of_a_file_may_be_out_of_reach(
    seed: int, fps: str, workers: int
) -> None:
    # Drawn here: Hypothesis prefers few and short episodes, which are all in reach.
    lengths = np.random.default_rng(seed).integers(1, int(300 * float(fps)), 60).tolist()
    streams = [stream_scan(name, [0] * 60) for name in ("data", "videos/left", "videos/right")]
    scan = source_scan(lengths, streams, fps)
    options = replace(STREAMING, loader_workers=workers)
    lost = 0
    for first, stop in pairwise(common_starts(scan, options)):
        length = scan.length[first:stop]
        counts = frames_out_of_reach(np.cumsum(length) - length, length, scan.fps)
        assert not counts[1:].any()
        lost += int(counts.sum())
    layouts = layout_streams(scan, options)
    assert count_out_of_reach(scan, layouts) == {"videos/left": lost, "videos/right": lost}


@given(
    st.lists(st.integers(1, SHORT), min_size=1, max_size=80),
    st.integers(1, 40),
)
def test_files_are_within_an_episode_of_their_mean(lengths: list[int], workers: int) -> None:
    files = min(workers, len(lengths))
    mean = Fraction(sum(lengths), files)
    assume(max(lengths) <= mean)
    streams = [stream_scan("data", [0] * len(lengths)), stream_scan("videos/cam", lengths)]
    options = replace(STREAMING, loader_workers=workers)
    starts = common_starts(source_scan(lengths, streams), options)
    assert len(starts) - 1 == files
    for first, stop in pairwise(starts):
        assert abs(sum(lengths[first:stop]) - mean) < max(lengths)


def test_the_last_file_is_no_small_rest() -> None:
    sizes = [MEBIBYTE] * 105
    scan = source_scan([50] * 105, [stream_scan("data", sizes)])
    assert common_starts(scan, replace(STREAMING, data_file_size_in_mb=100)) == [0, 52, 105]


def test_episodes_of_five_minutes_share_files_of_a_quarter_of_an_hour_evenly() -> None:
    lengths = [9000] * 100
    streams = [stream_scan("data", [0] * 100), stream_scan("videos/cam", [0] * 100)]
    files = np.diff(common_starts(source_scan(lengths, streams), STREAMING)).tolist()
    assert len(files) == 34
    assert set(files) == {2, 3}


def test_shares_are_made_anew_after_cuts_that_size_forced() -> None:
    sizes = [3 * MEBIBYTE] * 10 + [0] * 90
    scan = source_scan([10] * 100, [stream_scan("data", sizes)])
    options = replace(STREAMING, data_file_size_in_mb=4, loader_workers=13)
    assert common_starts(scan, options) == [*range(9), 9, 32, 54, 77, 100]


def test_cuts_that_reach_forced_leave_no_small_rest() -> None:
    lengths = [5700, 3300, 5400, 5400, 9000, 9900, 8100, 12600, 3000, 11400, 3900]
    streams = [stream_scan(name, [0] * len(lengths)) for name in ("data", "videos/cam")]
    starts = common_starts(source_scan(lengths, streams), STREAMING)
    # Three files are enough for most of it, and would leave 3,900 frames to a fourth.
    assert np.add.reduceat(lengths, starts[:-1]).tolist() == [19800, 18900, 20700, 18300]


def test_a_limit_of_a_broken_number_of_bytes_is_reached_at_the_next_whole_one() -> None:
    scan = source_scan([1] * 6, [stream_scan("data", [1] * 6)])
    options = replace(STREAMING, data_file_size_in_mb=2.5 / MEBIBYTE)
    assert common_starts(scan, options) == [0, 2, 4, 6]
    assert [layout.starts.tolist() for layout in layout_streams(scan, options)] == [
        roll_over(np.ones(6, np.int64), np.zeros(6, np.int64), 2.5).tolist()
    ]


def test_tables_without_cameras_have_no_frames_to_look_up() -> None:
    scan = source_scan([9000] * 100, [stream_scan("data", [0] * 100)])
    assert common_starts(scan, STREAMING) == [0, 100]
    assert count_out_of_reach(scan, layout_streams(scan, STREAMING)) == {}


def test_more_files_go_where_files_are_largest() -> None:
    groups = [0] * 30 + [1] * 70
    streams = [stream_scan("data", [0] * 100), stream_scan("videos/cam", [0] * 100, groups)]
    options = replace(STREAMING, loader_workers=4)
    starts = common_starts(source_scan([10] * 100, streams), options)
    assert starts[:2] == [0, 30]
    assert sorted(np.diff(starts[1:]).tolist()) == [23, 23, 24]


@given(SOME_EPISODES, st.integers(1, 70))
def test_the_reference_layout_does_not_know_of_loader_workers(
    episodes: list[Episode], workers: int
) -> None:
    scan = scan_of(episodes)
    layouts = layout_streams(
        scan, LayoutOptions(data_file_size_in_mb=4, video_file_size_in_mb=4, loader_workers=workers)
    )
    for stream, layout in zip(scan.streams, layouts, strict=True):
        expected = roll_over(stream.roll_bytes, stream.group, 4 * MEBIBYTE)
        assert layout.starts.tolist() == expected.tolist()


def test_lost_frames_are_counted_for_each_camera_as_its_own_files_are_cut() -> None:
    sizes = {"data": [1] * 4, "videos/long": [1] * 4, "videos/short": [2 * MEBIBYTE] * 4}
    scan = source_scan([9000] * 4, [stream_scan(name, values) for name, values in sizes.items()])
    layouts = layout_streams(scan, LayoutOptions(video_file_size_in_mb=3))
    expected = frames_out_of_reach(np.arange(4) * 9000, scan.length, scan.fps)
    assert expected.tolist()[:3] == [0, 0, 0]
    assert expected[3] > 0
    lost = {"videos/long": int(expected[3]), "videos/short": 0}
    assert count_out_of_reach(scan, layouts) == lost


@pytest.mark.parametrize("fps", ["29.97", "30"])
def test_no_frame_is_evaluated_more_than_a_few_times(
    fps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def counting(begin_frame: IntArray, length: IntArray, rate: Fraction) -> IntArray:
        nonlocal asked
        asked += len(length)
        return frames_out_of_reach(begin_frame, length, rate)

    monkeypatch.setattr(run_layout, "frames_out_of_reach", counting)
    lengths = (np.arange(20_000) % 40 + 280).tolist()
    streams = [stream_scan(name, [0] * len(lengths)) for name in ("data", "videos/cam")]
    starts = common_starts(source_scan(lengths, streams, fps), STREAMING)
    # What stands 1,024 s into a file of 29.97 frames a second soon needs a file of its own.
    assert (len(starts) > 180) == (fps == "29.97")
    assert asked <= 4 * len(lengths)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            LayoutOptions(layout="best"),
            "--layout takes reference, streaming, episode-files or overlay, not 'best'",
        ),
        (LayoutOptions(layout="streaming", loader_workers=0), "--loader-workers must be at least"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: LayoutOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_layout_options(options)
