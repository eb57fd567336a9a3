"""`--num-workers auto`: what bounds the number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from leconvert.machine import Machine
from leconvert.workdir.opened import OpenedRun
from leconvert.workforce import auto_workers, handling_seconds, moving_seconds

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
    for memory, workers in ((0, 1), (GIB, 2), (3 * GIB // 2, 3), (3 * GIB // 2 - 1, 2)):
        assert auto_workers(many_files, Room(any_memory=memory)) == workers
