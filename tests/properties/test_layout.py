"""The layout holds its promises for any sizes, limits and batch sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.run.layout.layout_scans import of_whole_files

from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import (
    MEBIBYTE,
    FileTable,
    LayoutOptions,
    Shard,
    SourceScan,
    StreamLayout,
    StreamScan,
)
from leconvert.run.layout import (
    count_out_of_reach,
    cut_batches,
    layout_streams,
    roll_over,
)

FEWER = settings(max_examples=50)
SIZES = st.lists(st.integers(0, 3 * MEBIBYTE), min_size=1, max_size=60)
STREAMING = LayoutOptions(layout="streaming", loader_workers=1)


def stream_scan(name: str, sizes: list[int], groups: list[int] | None = None) -> StreamScan:
    values = np.array(sizes, dtype=np.int64)
    zeros = np.zeros_like(values)
    group = zeros if groups is None else np.array(groups, dtype=np.int64)
    files = FileTable(np.arange(len(sizes)), values, zeros, zeros)
    return of_whole_files(name, files, frames=zeros + 10, roll_bytes=values, group=group)


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


@FEWER
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


# --- the layout for streaming -------------------------------------------------------------------


@FEWER
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


@FEWER
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


@FEWER
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


@FEWER
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


def test_lost_frames_are_counted_for_each_camera_as_its_own_files_are_cut() -> None:
    sizes = {"data": [1] * 4, "videos/long": [1] * 4, "videos/short": [2 * MEBIBYTE] * 4}
    scan = source_scan([9000] * 4, [stream_scan(name, values) for name, values in sizes.items()])
    layouts = layout_streams(scan, LayoutOptions(video_file_size_in_mb=3))
    expected = frames_out_of_reach(np.arange(4) * 9000, scan.length, scan.fps)
    assert expected.tolist()[:3] == [0, 0, 0]
    assert expected[3] > 0
    lost = {"videos/long": int(expected[3]), "videos/short": 0}
    assert count_out_of_reach(scan, layouts) == lost
