"""How much room a conversion takes: what stands twice is counted twice, the rest once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from tests.unit.run.layout.layout_scans import of_whole_files

from leconvert.model.values import MEBIBYTE, Batch, FileTable, Shard, StreamScan
from leconvert.run import space
from leconvert.run.space import Room, SpaceNeeded, can_link, check_room, free_bytes_of, space_needed
from leconvert.support.errors import StorageError
from leconvert.workdir.former import TreeFacts, former_dir, write_former

VIDEO = "videos/observation.images.top"
ALIGN = 4096


def scan(stream: str, *sizes: int) -> StreamScan:
    zeros = np.zeros(len(sizes), dtype=np.int64)
    files = FileTable(np.arange(len(sizes)), np.array(sizes), zeros, zeros)
    return of_whole_files(stream, files, frames=zeros, roll_bytes=zeros, group=zeros)


STREAMS = [scan("data", 10, 20), scan(VIDEO, 1000, 2000)]
WHOLE = [Batch(0, (Shard("data", 0, 0, 2, True), Shard(VIDEO, 0, 0, 2, True)), 0, 0)]
PARTS = [
    Batch(0, (Shard("data", 0, 0, 2, True), Shard(VIDEO, 0, 0, 1, False)), 0, 0),
    Batch(1, (Shard(VIDEO, 0, 1, 2, False),), 0, 0),
]


@pytest.fixture
def places(tmp_path: Path) -> tuple[list[Path], Path, Path]:
    (tmp_path / "set").mkdir()
    return [tmp_path / "set"], tmp_path / "out", tmp_path / "work" / "deeper"


@pytest.mark.parametrize(
    ("batches", "links", "twice"),
    [(WHOLE, True, 0), (WHOLE, False, 3030), (PARTS, True, 3000), (PARTS, False, 3030)],
)
def test_what_is_copied_or_joined_stands_twice(
    places: tuple[list[Path], Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    batches: list[Batch],
    links: bool,
    twice: int,
) -> None:
    if not links:
        refused = OSError(errno.EPERM, os.strerror(errno.EPERM), "one", None, "other")
        monkeypatch.setattr(os, "link", Mock(side_effect=refused))
    found = space_needed(*places, 0, STREAMS, batches)
    assert found.twice_bytes == twice
    assert [(room.folder, room.bytes_needed) for room in found.rooms] == [
        (str(places[1].parent), 3030 + twice)
    ]
    assert found.cloned is False
    assert sorted(path.name for path in places[1].parent.iterdir()) == ["set"]


def test_two_file_systems_each_need_room_for_everything(
    places: tuple[list[Path], Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "is_one_file_system", lambda *_: False)
    places[2].mkdir(parents=True)
    found = space_needed(*places, 0, STREAMS, PARTS)
    assert [(room.folder, room.bytes_needed) for room in found.rooms] == [
        (str(places[1].parent), 3030),
        (str(places[2]), 3030),
    ]
    assert found.twice_bytes == 0


def test_shared_extents_take_three_blocks_a_clip_and_tables_their_bytes(
    places: tuple[list[Path], Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "can_clone", lambda *_: True)
    found = space_needed(*places, ALIGN, STREAMS, WHOLE)
    assert (found.cloned, found.rooms[0].bytes_needed) == (True, 30 + 2 * 3 * ALIGN)
    joined = space_needed(*places, ALIGN, STREAMS, PARTS)
    assert joined.twice_bytes == 2 * 3 * ALIGN


@pytest.mark.parametrize("trouble", [None, OSError(errno.ENOSYS, "no statvfs")])
def test_unknown_room_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: OSError | None
) -> None:
    usage = Mock(side_effect=trouble, return_value=SimpleNamespace(total=0, used=0, free=0))
    monkeypatch.setattr("shutil.disk_usage", usage)
    assert free_bytes_of(tmp_path) is None
    room = Room(str(tmp_path), 1 << 60, free_bytes_of(tmp_path))
    assert room.suffices
    check_room(SpaceNeeded(cloned=False, twice_bytes=0, rooms=(room,)), tmp_path / "out")


@pytest.mark.parametrize(
    ("folder", "twice", "said", "helps"),
    [
        ("at", 0, "the result needs about 30.0 MiB.", "--output"),
        ("at", 9, "the result needs about 30.0 MiB while the workers' files", "--output"),
        ("work", 0, "the files of the workers need about 30.0 MiB.", "--work-dir"),
    ],
)
def test_too_little_room_is_an_error_that_says_where(
    tmp_path: Path, folder: str, twice: int, said: str, helps: str
) -> None:
    room = Room(str(tmp_path / folder), 30 * MEBIBYTE, 20 * MEBIBYTE)
    with pytest.raises(StorageError) as caught:
        check_room(SpaceNeeded(False, twice, (room,)), tmp_path / "at" / "out")
    assert caught.value.message.startswith(
        f"{tmp_path / folder} has only 20.0 MiB free, but {said}"
    )
    assert helps in (caught.value.next_step or "")
    target = tmp_path / "at" / "out"
    target.mkdir(parents=True)
    for run_id in ("one", "two"):
        facts = TreeFacts(meta_digest="", files_digest="", num_files=1, size_bytes=9 << 19)
        write_former(target, target, run_id, facts)
        former_dir(target, run_id).mkdir()
    with pytest.raises(StorageError) as caught:
        check_room(SpaceNeeded(False, twice, (room,)), target)
    clean = f"`leconvert clean --of {target} --old` removes former states"
    assert str(caught.value.next_step).startswith(clean)
    assert "2 states, up to 9.0 MiB" in str(caught.value.next_step)


def test_a_try_that_is_disturbed_counts_as_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def disturbed(one: Path, other: Path) -> None:
        one.unlink()
        real(one, other)

    monkeypatch.setattr(os, "link", disturbed)
    assert can_link(tmp_path, tmp_path, "probe")
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "cross-device")))
    assert not can_link(tmp_path, tmp_path, "probe")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_counts_as_yes_and_what_a_crashed_try_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe").touch()
    (tmp_path / "probe-link").touch()
    assert can_link(tmp_path, tmp_path, "probe")
    assert list(tmp_path.iterdir()) == []
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=read_only))
    assert can_link(tmp_path, tmp_path, "probe")
