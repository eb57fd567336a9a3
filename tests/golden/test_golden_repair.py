"""A repair that version 0.1.0 ended, or was killed in, is read, proven, ended and undone."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from tests.trees import snapshot

from leconvert.dataset.check import check_dataset
from leconvert.run.proof import verify_pair
from leconvert.run.repairing import compare_trees, read_changes, repair_dataset
from leconvert.run.upkeep import undo_conversion
from leconvert.workdir.swap import TREE_RECORD, staging_dir

PATCHED = "videos/observation.images.top/chunk-000/file-000.mp4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A conversion of ``source``, repaired in place: one file patched, one joined, one total."""
    with tarfile.open(Path(__file__).parent / "v1_repair/in_place.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_it_is_sound_and_what_it_was_made_of_is_put_back(folder: Path) -> None:
    changes = read_changes(folder / "set")
    assert changes is not None
    assert compare_trees(folder / "set_old", folder / "set", changes) == []
    assert check_dataset(folder / "set").findings == ()
    assert not repair_dataset(folder / "set").plan
    before, repaired = snapshot(folder / "set_old"), snapshot(folder / "set")
    assert not undo_conversion(folder / "set").was_undone
    assert snapshot(folder / "set") == before
    assert snapshot(folder / "set_repaired") == repaired
    assert undo_conversion(folder / "set").was_undone


def test_an_undo_that_was_killed_between_two_renames_is_ended(folder: Path) -> None:
    before = snapshot(folder / "set_old")
    (folder / "set").rename(folder / "set_repaired")
    undo_conversion(folder / "set")
    assert snapshot(folder / "set") == before


def test_only_a_repair_leaves_room_in_an_index(folder: Path) -> None:
    """The boxes that a patch left mean nothing, and nothing else may differ."""

    def differences() -> list[str]:
        report = verify_pair(folder / "set", folder / "source", depth="bytes")
        return [str(found) for found in report.differences if found.path == PATCHED]

    assert differences() == []
    (folder / "set/meta/repaired.json").rename(folder / "record")
    assert "free" in differences()[0]
    (folder / "record").rename(folder / "set/meta/repaired.json")
    content = bytearray((folder / "set" / PATCHED).read_bytes())
    content[content.index(b"mvhd") + 10] ^= 1
    (folder / "set" / PATCHED).write_bytes(content)
    assert "mvhd" in differences()[0]


def test_a_patched_file_that_changed_since_is_noticed(folder: Path) -> None:
    changes = read_changes(folder / "set")
    assert changes is not None
    content = bytearray((folder / "set" / PATCHED).read_bytes())
    content[-1] ^= 1
    (folder / "set" / PATCHED).write_bytes(content)
    assert compare_trees(folder / "set_old", folder / "set", changes) == [
        f"{PATCHED} has packets of other bytes."
    ]


def killed_while_writing(folder: Path) -> None:
    tree = staging_dir(folder / "set", "repair", 1)
    shutil.rmtree(folder / "set")
    (folder / "set_old").rename(folder / "set")
    shutil.copytree(folder / "mark", tree)
    shutil.copytree(folder / "set/meta", tree / "meta")


def killed_between_two_renames(folder: Path) -> None:
    shutil.copy(folder / "mark" / TREE_RECORD, folder / "set")
    (folder / "set").rename(staging_dir(folder / "set", "repair", 1))


def killed_after_the_exchange(folder: Path) -> None:
    shutil.copy(folder / "mark" / TREE_RECORD, folder / "set")
    (folder / "set_old").rename(staging_dir(folder / "set", "repair", 1))


def killed_before_the_mark_was_removed(folder: Path) -> None:
    shutil.copy(folder / "mark" / TREE_RECORD, folder / "set")


@pytest.mark.parametrize(
    "kill",
    [
        killed_while_writing,
        killed_between_two_renames,
        killed_after_the_exchange,
        killed_before_the_mark_was_removed,
    ],
)
def test_one_that_was_killed_is_ended_by_the_same_command(folder: Path, kill: object) -> None:
    assert callable(kill)
    damaged = snapshot(folder / "set_old")
    kill(folder)
    repair_dataset(folder / "set")
    assert check_dataset(folder / "set").findings == ()
    assert snapshot(folder / "set_old") == damaged
    names = ["mark", "set", "set_old", "source"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert not (folder / "set" / TREE_RECORD).exists()
    undo_conversion(folder / "set")
    assert snapshot(folder / "set") == damaged
