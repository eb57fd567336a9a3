"""A source that cannot be read is no difference of its result, and the message names its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert.run.proof import verify_pair
from leconvert.support.errors import SourceError, UnreadableSourceError

EPISODES, STATS, TASKS = "meta/episodes.jsonl", "meta/episodes_stats.jsonl", "meta/tasks.jsonl"

Damage = Callable[[Path], object]


def edit_line(path: str, **changes: Any) -> Damage:
    """Change keys of the second line of a table; None removes one."""

    def damage(source: Path) -> None:
        lines = (source / path).read_text().splitlines()
        record = {**json.loads(lines[1]), **changes}
        kept = {key: value for key, value in record.items() if value is not None}
        lines[1] = json.dumps(kept)
        (source / path).write_text("\n".join(lines) + "\n")

    return damage


def unreadable(path: str) -> Damage:
    """Put a link to a file there that can be opened and fails to be read."""

    def damage(source: Path) -> None:
        (source / path).unlink()
        (source / path).symlink_to("/proc/self/mem")

    return damage


STRUCTURE: dict[str, tuple[Damage, str]] = {
    "no tasks": (lambda source: (source / TASKS).unlink(), "cannot be read"),
    "tasks that are no JSON": (
        lambda source: (source / TASKS).write_text("tasks"), "line 1 is not JSON",
    ),
    "an episode without a length": (
        edit_line(EPISODES, length=None), "gives episode 1 the impossible length None",
    ),
    "a length in words": (
        edit_line(EPISODES, length="x"), "gives episode 1 the impossible length x",
    ),
    "a length beyond all numbers": (
        edit_line(EPISODES, length=2**40), f"gives episode 1 the impossible length {2**40}",
    ),
    "tasks that fail to be read": (unreadable(TASKS), "Input/output error"),
    "episodes that fail to be read": (unreadable(EPISODES), "Input/output error"),
    "a line that ends early": (
        lambda source: (source / EPISODES).write_bytes((source / EPISODES).read_bytes()[:-9]),
        "is not JSON",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURE)
def test_a_damaged_table_is_the_sources_and_no_difference(
    small_result: Path, source_copy: Path, name: str
) -> None:
    damage, words = STRUCTURE[name]
    damage(source_copy)
    with pytest.raises(SourceError) as caught:
        verify_pair(small_result, source_copy)
    assert words in caught.value.message
    assert Path(str(caught.value.path)).is_relative_to(source_copy)


@pytest.mark.parametrize("stats", ["x", -1, [[]]])
def test_statistics_that_are_no_table_are_the_sources(
    small_result: Path, source_copy: Path, stats: object
) -> None:
    edit_line(STATS, stats=stats)(source_copy)
    with pytest.raises(SourceError, match=r"episodes_stats\.jsonl.* for episode 1\."):
        verify_pair(small_result, source_copy, depth="bytes")


def test_statistics_that_cannot_be_read_are_the_sources_and_none_are_told_from_their_row(
    small_result: Path, source_copy: Path
) -> None:
    edit_line(STATS, stats=None)(source_copy)
    report = verify_pair(small_result, source_copy, depth="bytes")
    assert {found.episode for found in report.differences if found.episode is not None} == {1}
    assert {found.expected for found in report.differences if found.episode == 1} == {"None"}
    (source_copy / STATS).write_text('{"episode_index": 0, "stats": \n')
    with pytest.raises(UnreadableSourceError, match=r"episodes_stats\.jsonl"):
        verify_pair(small_result, source_copy, depth="bytes")


@pytest.mark.parametrize("splits", [[1], {"a": 1}])
def test_splits_of_any_kind_are_converted_and_compared(
    source_copy: Path, tmp_path: Path, splits: object, edit_json: Callable[..., None]
) -> None:
    edit_json(source_copy / "meta/info.json", splits=splits)
    leconvert.convert(source_copy, output=tmp_path / "out")
    info = json.loads((tmp_path / "out/meta/info.json").read_bytes())
    assert info["splits"] == (splits if isinstance(splits, dict) else {})
    assert verify_pair(tmp_path / "out", source_copy).ok
