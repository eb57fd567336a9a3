"""A proof of a million episodes fits into memory: each further episode adds little to it."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert import media
from leconvert.run.proof import pair, verify_pair
from leconvert.support.parallel import Spread
from leconvert.tables import StoredGroups
from leconvert.testing import DatasetSpec, make_dataset


def converted(root: Path, episodes: int) -> tuple[Path, Path]:
    source, result = root / f"source-{episodes}", root / f"result-{episodes}"
    make_dataset(source, DatasetSpec(episodes=episodes, frames=10, distinct_clips=1))
    leconvert.convert(source, output=result)
    return result, source


def test_an_episode_adds_less_than_a_kilobyte_to_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The footers of this test are small, and so are the pieces in which they are read.
    monkeypatch.setattr("leconvert.tables.footers._PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr("leconvert.tables.footers._MOST_PART_BYTES", 8 * 1024)
    few, many, peaks = 50, 200, dict[int, int]()
    for episodes in (few, many):
        result, source = converted(tmp_path, episodes)
        for _ in range(2):  # the first proof learns what is common to all files
            tracemalloc.start()
            report = verify_pair(result, source, spread=Spread())
            _, peaks[episodes] = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert (report.ok, report.files) == (True, 2), "all episodes are in one file a stream"
    assert (peaks[many] - peaks[few]) / (many - few) < 1000


def test_threads_that_take_turns_read_a_large_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, source = converted(tmp_path, 20)
    read: Counter[str] = Counter()

    class Groups(StoredGroups):
        def __init__(self, path: str) -> None:
            read[path] += 1
            super().__init__(path)

    def clips(paths: Sequence[str], **options: Any) -> Iterator[Any]:
        read.update(path for path in paths if path.startswith(str(result)))
        return read_clips(paths, **options)

    def in_turns(
        work: Callable[..., Any], todo: Sequence[Any], *_: Any, **__: Any
    ) -> Iterator[Any]:
        done: list[Any] = []
        for piece in todo:
            thread = threading.Thread(target=lambda each=piece: done.append(work(*each)))
            thread.start()
            thread.join()
            yield done.pop()

    read_clips = media.read_clips
    monkeypatch.setattr(pair, "StoredGroups", Groups)
    monkeypatch.setattr(media, "read_clips", clips)
    monkeypatch.setattr(pair, "parallel_map", in_turns)
    assert verify_pair(result, source).ok
    assert sorted(read.values()) == [1, 1], read
