"""The layout holds its promises for any sizes, limits and batch sizes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.errors import UsageError
from leconvert.layout import cut_batches, layout_streams, roll_over
from leconvert.model import (
    MEBIBYTE,
    LayoutOptions,
    Shard,
    StreamLayout,
    StreamScan,
    output_path,
)

SIZES = st.lists(st.integers(0, 3 * MEBIBYTE), min_size=1, max_size=60)


def stream_scan(name: str, sizes: list[int], groups: list[int] | None = None) -> StreamScan:
    values = np.array(sizes, dtype=np.int64)
    zeros = np.zeros_like(values)
    group = zeros if groups is None else np.array(groups, dtype=np.int64)
    return StreamScan(name, values, zeros, zeros, zeros + 10, values, group)


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
    assert output_path("data", 999) == "data/chunk-000/file-999.parquet"
    assert output_path("videos/cam", 1000) == "videos/cam/chunk-001/file-000.mp4"


@given(st.lists(st.text("a/%2F.", min_size=1, max_size=6), min_size=2, unique=True))
def test_shards_of_different_streams_never_share_a_name(cameras: list[str]) -> None:
    names = {Shard(f"videos/{camera}", 7, 0, 1, True).name for camera in cameras}
    assert len(names) == len(cameras)
    assert not any("/" in name for name in names)


def test_parts_of_one_file_have_names_of_their_own() -> None:
    whole = Shard("data", 999, 0, 4, True)
    parts = [Shard("data", 999, first, first + 2, False) for first in (0, 2)]
    assert len({shard.name for shard in (whole, *parts)}) == 3


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="--data-file-size-in-mb"):
        layout_streams(
            None,  # type: ignore[arg-type]  # refused before the scan is looked at
            LayoutOptions(data_file_size_in_mb=limit),
        )
