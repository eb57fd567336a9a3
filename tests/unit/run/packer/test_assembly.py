"""Files come into the new tree linked, copied where they cannot be, or joined without gaps."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from leconvert.dataset.formats.v3 import USUAL_NAMES
from leconvert.model.values import DATA_STREAM, OutputFile, Shard
from leconvert.run.packer.assembly import Assembly
from leconvert.support.errors import WorkDirError
from leconvert.workdir.run import OpenedRun

FILE = OutputFile(DATA_STREAM, 0, 0, 5)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / ".out.leconvert-run.1"
    tree.mkdir()
    return tree


def part(first: int, stop: int, folder: Path) -> tuple[Shard, str]:
    return Shard(DATA_STREAM, 0, first, stop, whole=False), str(folder / "part")


@pytest.mark.parametrize("links", [True, False])
def test_a_whole_file_is_linked_and_copied_only_where_links_do_not_reach(
    planned: OpenedRun, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    shard = tmp_path / "shard"
    shard.write_bytes(b"rows")

    if not links:
        elsewhere = OSError(errno.EXDEV, "Invalid cross-device link")
        monkeypatch.setattr(os, "link", Mock(side_effect=elsewhere))
    assembly = Assembly(planned, tree)
    assembly.add_file(FILE, [(Shard(DATA_STREAM, 0, 0, 5, whole=True), str(shard))])
    assert assembly.counts == {"linked": int(links), "copied": int(not links), "joined": 0}
    placed = tree / USUAL_NAMES.path(FILE.stream, FILE.number)
    assert placed.read_bytes() == b"rows"
    assert placed.samefile(shard) is links


@pytest.mark.parametrize(
    "edges",
    [[(0, 2), (3, 5)], [(0, 3), (2, 5)], [(1, 5)], [(0, 4)], [(0, 5), (5, 6)]],
    ids=["gap", "overlap", "late", "short", "long"],
)
def test_parts_that_are_not_exactly_the_file_are_never_joined(
    planned: OpenedRun, tree: Path, tmp_path: Path, edges: list[tuple[int, int]]
) -> None:
    parts = [part(first, stop, tmp_path) for first, stop in reversed(edges)]
    with pytest.raises(WorkDirError) as caught:
        Assembly(planned, tree).add_file(FILE, parts)
    path = USUAL_NAMES.path(FILE.stream, FILE.number)
    assert str(planned.paths.batches) in caught.value.message
    assert f"has gaps in {path}" in caught.value.message
    assert "--restart" in str(caught.value.next_step)
    assert list(tree.rglob("*")) == []


def test_a_joined_file_of_a_packer_that_was_killed_is_kept(
    planned: OpenedRun, tree: Path, tmp_path: Path
) -> None:
    there = tree / USUAL_NAMES.path(FILE.stream, FILE.number)
    there.parent.mkdir(parents=True)
    there.write_bytes(b"joined before")
    assembly = Assembly(planned, tree)
    assembly.add_file(FILE, [part(0, 2, tmp_path), part(2, 5, tmp_path)])
    assert (assembly.counts["joined"], there.read_bytes()) == (1, b"joined before")
