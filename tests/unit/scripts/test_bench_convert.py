"""The benchmark's commands, log names and ratios are what its reader takes them for."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = "benches.convert"


def test_ratios_are_of_medians_against_the_reference_and_the_copy(
    script: ModuleType, measured_row: Any
) -> None:
    rows = [measured_row("reference", wall) for wall in (9.0, 30.0, 10.0)]
    rows += [measured_row("inline", wall) for wall in (2.0, 2.5, 90.0)]
    rows += [measured_row("cp -r", wall) for wall in (1.0, 1.0, 1.0)]

    head, _, *lines = script.table(rows).splitlines()

    assert head.endswith("| CPU s | peak MB | reference / it | it / `cp -r` |")
    assert lines == [
        "| reference | 3 | 10.00 (9.00-30.00) |  | 1.50 | 95 | 1.0 | 10.00 |",
        "| inline | 3 | 2.50 (2.00-90.00) |  | 1.50 | 95 | 4.0 | 2.50 |",
        "| cp -r | 3 | 1.00 (1.00-1.00) |  | 1.50 | 95 | 10.0 | 1.00 |",
    ]


def test_a_log_never_replaces_an_older_one(script: ModuleType, tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = script.kit.new_log(tmp_path, {"started": "2030-01-01T00:00"}, "small", "tmpfs")
        path.write_text("")
        names.append(path.name)

    assert names == [f"2030-01-01-small-tmpfs{end}.jsonl" for end in ("", "-2", "-3")]


def test_the_profiles_are_those_of_the_package(script: ModuleType) -> None:
    from leconvert.testing import PROFILES

    assert tuple(PROFILES) == script.kit.PROFILE_NAMES


def test_trees_take_turns_and_what_is_not_ours_runs_once(
    script: ModuleType, tmp_path: Path
) -> None:
    trees = [tmp_path / "before/src", tmp_path / "after/src"]

    found = script.kit.of_trees(script.LAYOUT_RUNNERS[-2:], trees, {script.COPY})

    assert [runner.name for runner in found] == ["overlay, before", "overlay, after", script.COPY]
    assert [runner.environment.get("PYTHONPATH") for runner in found] == [
        str(trees[0]), str(trees[1]), None,
    ]  # fmt: skip
    assert script.kit.of_trees(script.RUNNERS, [], ()) == list(script.RUNNERS)


def test_space_is_counted_once_it_has_settled(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([900, 700, 500, 400, 400, 400, 300])

    class State:
        f_blocks = 1_000
        f_frsize = 4_096

        def __init__(self) -> None:
            self.f_bfree = next(free)

    monkeypatch.setattr(script, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(script.os, "statvfs", lambda _: State())

    assert script.used_bytes(tmp_path) == 600 * 4_096
