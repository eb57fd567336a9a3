"""Batches by number: what each costs, who shares one, and what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.run.layout.layout_scans import of_whole_files

from leconvert.model.values import MEBIBYTE, Batch, FileTable, StreamLayout, StreamScan
from leconvert.run.layout import cut_batches
from leconvert.support.errors import UsageError

FRAMES = 10


def stream(name: str, *mebibytes: float) -> StreamScan:
    """A stream of one episode a size, each with ten frames."""
    sizes = np.array([int(size * MEBIBYTE) for size in mebibytes], dtype=np.int64)
    zeros = np.zeros_like(sizes)
    files = FileTable(np.arange(len(sizes)), sizes, zeros, zeros)
    return of_whole_files(name, files, frames=zeros + FRAMES, roll_bytes=sizes, group=zeros)


def files(scan: StreamScan, *starts: int) -> StreamLayout:
    """Its files; one an episode by default."""
    return StreamLayout(scan.stream, np.array(starts or range(len(scan.size_bytes) + 1)))


def places(batch: Batch) -> list[tuple[str, int, int, int, bool]]:
    return [(s.stream, s.number, s.first, s.stop, s.whole) for s in batch.shards]


def test_the_most_expensive_come_first_by_bytes_and_by_episodes() -> None:
    # Cost in MiB: twelve times a table and 0.75 an episode, a clip and 0.25 an episode. Without the
    # parts for episodes, neighbours in this order would change places.
    data = stream("data", 2, 30, 1, 5)  # 24.75, 360.75, 12.75, 60.75
    left = stream("videos/left", 100, 24.4, 300, 14)  # 100.25, 24.65, 300.25, 14.25
    right = stream("videos/right", 60.6)  # 60.85
    batches = cut_batches([data, left, right], [files(data), files(left), files(right)], None)
    assert [place[:2] for batch in batches for place in places(batch)] == [
        ("data", 1), ("videos/left", 2), ("videos/left", 0), ("videos/right", 0), ("data", 3),
        ("data", 0), ("videos/left", 1), ("videos/left", 3), ("data", 2),
    ]  # fmt: skip
    assert [batch.batch_id for batch in batches] == list(range(9))
    assert all(batch.frames == FRAMES and batch.shards[0].whole for batch in batches)
    assert [batch.source_bytes // MEBIBYTE for batch in batches] == [
        *(30, 300, 100, 60, 5, 2, 24, 14, 1)
    ]


def test_neighbours_share_16_mebibytes_or_a_64th_of_all_but_at_most_256() -> None:
    scan = stream("videos/top", *[3.75] * 9)  # a cost of 4 each
    batches = cut_batches([scan], [files(scan)], None)
    assert [[place[1] for place in places(batch)] for batch in batches] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8]
    ]  # fmt: skip
    assert [batch.frames for batch in batches] == [40, 40, 10]
    assert batches[1].source_bytes == 15 * MEBIBYTE
    scan = stream("videos/top", *[9.75] * 128)  # 1,280 in all
    batches = cut_batches([scan], [files(scan)], None)
    assert [len(batch.shards) for batch in batches] == [2] * 64
    scan = stream("videos/top", *[127.75] * 256)  # 32,768 in all, a 64th is 512
    batches = cut_batches([scan], [files(scan)], None)
    assert [len(batch.shards) for batch in batches] == [2] * 128


def test_episodes_of_a_batch_are_slices_of_all_streams_and_one_stream_is_enough() -> None:
    data, top = stream("data", 1, 2, 4, 8, 16), stream("videos/top", 32, 64, 128, 256, 512)
    layouts = [files(data, 0, 3, 5), files(top, 0, 4, 5)]
    batches = cut_batches([data, top], layouts, 2)
    assert [(b.source_bytes // MEBIBYTE, b.frames) for b in batches] == [
        (16 + 512, 20), (4 + 8 + 128 + 256, 40), (1 + 2 + 32 + 64, 40),
    ]  # fmt: skip
    assert [places(batch) for batch in batches] == [
        [("data", 1, 4, 5, False), ("videos/top", 1, 4, 5, True)],
        [("data", 0, 2, 3, False), ("data", 1, 3, 4, False), ("videos/top", 0, 2, 4, False)],
        [("data", 0, 0, 2, False), ("videos/top", 0, 0, 2, False)],
    ]
    data = stream("data", 1, 1, 1)
    assert [batch.frames for batch in cut_batches([data], [files(data, 0, 3)], 2)] == [20, 10]
    assert [batch.frames for batch in cut_batches([data], [files(data, 0, 3)], 1)] == [10, 10, 10]
    assert cut_batches([], [], 2) == []


@pytest.mark.parametrize("episodes", [0, -3])
def test_a_batch_holds_at_least_one_episode(episodes: int) -> None:
    data = stream("data", 1)
    with pytest.raises(UsageError) as refused:
        cut_batches([data], [files(data)], episodes)
    assert refused.value.message == f"--episodes-per-batch must be at least 1, not {episodes}."
