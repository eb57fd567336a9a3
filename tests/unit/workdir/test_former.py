"""Where former states are, and what their records tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.trees import snapshot

import leconvert
from leconvert import LayoutOptions
from leconvert.run.upkeep import clean_kept_source
from leconvert.support.errors import StorageError
from leconvert.testing import DatasetSpec, make_dataset
from leconvert.workdir.former import (
    TreeFacts,
    count_former,
    former_dir,
    former_states,
    is_former,
    stands_as_left,
    write_former,
)

APPEND = LayoutOptions(append=True)
FACTS = TreeFacts(meta_digest="a", files_digest="b", num_files=1, size_bytes=10)


def put_aside(target: Path, run_id: str) -> Path:
    """Do what a run does, but for the tree at the target, which stays."""
    write_former(target, target, run_id, FACTS)
    place = former_dir(target, run_id)
    place.mkdir()
    return place


def test_the_newest_has_the_highest_number_whatever_its_name(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    first, second = put_aside(target, "2-later-clock"), put_aside(target, "1-earlier-clock")
    assert [state.path for state in former_states([target])[target]] == [second, first]
    assert count_former([target]) == (2, 20)
    assert is_former(first)
    # A run that goes on after a crash writes its record again: it puts its tree aside now.
    write_former(target, target, "2-later-clock", FACTS)
    assert [state.path for state in former_states([target])[target]] == [first, second]


def test_targets_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    """Among them are one that begins with a dot, and a former state that is a target itself."""
    targets = [tmp_path / name for name in ("out", ".out", "out2", "out.former-x")]
    for target in targets:
        target.mkdir()
    places = {target: put_aside(target, f"run{n}") for n, target in enumerate(targets)}
    found = former_states(targets)
    assert {target: [s.path for s in states if s.facts] for target, states in found.items()} == {
        target: [place] for target, place in places.items()
    }
    # The third kind of folder has the name alone: it is named, and nothing is known of it.
    assert [s.path.name for s in found[targets[0]] if s.facts is None] == ["out.former-x"]


def test_a_record_that_is_torn_tells_nothing_and_one_that_cannot_be_read_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    place = put_aside(target, "run")
    record = former_states([target])[target][0].record
    whole = record.read_bytes()
    record.write_bytes(whole[: len(whole) // 2])
    (state,) = former_states([target])[target]
    assert (state.facts, state.is_there) == (None, True)
    (row,) = clean_kept_source(target).kept
    assert (row.path, row.reason) == (place, "no record says which run kept it")
    record.write_bytes(whole)
    real = os.listdir

    def failing(folder: object = ".") -> list[str]:
        if Path(str(folder)) == tmp_path:
            raise OSError(5, "Input/output error", str(folder))
        return real(str(folder))

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(StorageError):
        former_states([target])
    assert count_former([target]) == (0, 0)  # it is for show


def test_the_longest_name_has_room_for_all_that_a_former_state_needs(tmp_path: Path) -> None:
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - 50
    target = tmp_path / ("n" * longest)
    for episodes in (1, 2, 3):
        source = make_dataset(tmp_path / str(episodes), DatasetSpec(episodes=episodes, frames=5))
        leconvert.convert(source, output=target, layout=APPEND)
        assert stands_as_left(target) is (episodes > 1)
    assert len(clean_kept_source(target).removed) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2", "3", target.name}


def test_a_record_of_which_nothing_came_goes_when_its_run_is_gone(tmp_path: Path) -> None:
    target = make_dataset(tmp_path / "out", DatasetSpec(episodes=1, frames=5))
    write_former(target, target, "run", FACTS)
    staged = tmp_path / ".out.leconvert-run.1"
    staged.mkdir()
    before = snapshot(tmp_path)
    clean_kept_source(target)  # its run may go on, and put the tree there
    assert snapshot(tmp_path) == before
    staged.rmdir()
    (row,) = clean_kept_source(target).removed
    assert (row.kind, row.path.exists()) == ("record", False)
