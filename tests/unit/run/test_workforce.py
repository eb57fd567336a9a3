"""`--num-workers auto`: what bounds the number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import FileTable, IntArray, StreamLayout, StreamScan
from leconvert.run.worker_pool import auto_workers, handling_seconds, moving_seconds, worker_bytes
from leconvert.support.machine import Machine
from leconvert.tables import deserialize_schema
from leconvert.workdir.run import OpenedRun, ScanTable

GIB = 2**30


@dataclass(frozen=True)
class Room(Machine):
    """A machine of any size."""

    any_cores: int = 64
    any_memory: int = 1024 * GIB

    def cores(self) -> int:
        return self.any_cores

    def free_memory(self) -> int:
        return self.any_memory


def of_size(run: OpenedRun, *, episodes: int, source_bytes: int) -> OpenedRun:
    manifest = replace(run.manifest, num_episodes=episodes, source_bytes=source_bytes)
    return replace(run, manifest=manifest)


@pytest.fixture
def many_files(planned: OpenedRun) -> OpenedRun:
    """A million short episodes: files to handle."""
    run = of_size(planned, episodes=1_000_000, source_bytes=100 * GIB)
    assert handling_seconds(run.manifest) > moving_seconds(run.manifest)
    return run


def test_files_are_handled_by_a_worker_a_core(many_files: OpenedRun) -> None:
    assert [auto_workers(many_files, Room(any_cores=cores)) for cores in (1, 6, 16, 17, 64)] == [
        *(1, 6, 16, 16, 16),
    ]


def test_bytes_are_moved_by_four(planned: OpenedRun) -> None:
    run = of_size(planned, episodes=1000, source_bytes=1000 * GIB)
    assert [auto_workers(run, Room(any_cores=cores)) for cores in (1, 3, 64)] == [1, 3, 4]


def test_half_of_the_free_memory_is_left(many_files: OpenedRun) -> None:
    each = worker_bytes(many_files)
    for memory, workers in ((0, 1), (4 * each, 2), (6 * each, 3), (6 * each - 2, 2)):
        assert auto_workers(many_files, Room(any_memory=memory)) == workers


class Lengths(ScanTable):
    """Two episodes: of so many bytes, uncompressed bytes and frames."""

    def __init__(self, size_bytes: list[int], roll_bytes: list[int], frames: list[int]) -> None:
        self._size, self._roll, self._frames = map(np.array, (size_bytes, roll_bytes, frames))

    def stream(self, stream: str, *_: object) -> tuple[StreamScan, IntArray]:
        nothing = np.zeros(2, dtype=np.int64)
        files = FileTable(np.arange(2), self._size, nothing, nothing)
        scan = StreamScan.of_whole_files(
            stream, files, frames=self._frames, roll_bytes=self._roll, group=nothing
        )
        return scan, nothing

    def lengths(self, *_: object) -> tuple[IntArray, IntArray]:
        return np.arange(2), self._frames


def test_what_a_worker_needs_follows_from_the_plan(planned: OpenedRun) -> None:
    columns = len(deserialize_schema(planned.manifest.data_schema))
    video = StreamLayout("videos/top", np.array([0, 1, 2]))

    def needs(table: StreamLayout, repairs: Repairs = NO_REPAIRS) -> int:
        source = replace(planned.manifest.sources[0], repairs=repairs)
        manifest = replace(planned.manifest, streams=[table, video], sources=[source])
        scan = Lengths([100, 5000], [200, 300], [10, 7])
        return worker_bytes(replace(planned, manifest=manifest, scan=scan))

    one_file = StreamLayout("data", np.array([0, 2]))
    # 5000 bytes of the larger table, two row groups, ten frames, five batches.
    expected = 128 * 2**20 + 6 * 5000 + 640 * columns * 2 + 64 * 10 + 512 * 5
    assert needs(one_file) == expected
    assert needs(StreamLayout("data", np.array([0, 1, 2]))) == expected - 640 * columns
    assert needs(one_file, replace(NO_REPAIRS, computed_stats=("top",))) == expected + 64 * 2**20
