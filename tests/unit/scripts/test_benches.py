"""The benchmarks' commands, log names and ratios are what their reader takes them for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.scripts import SCRIPTS, loaded_script

from leconvert.api import convert
from leconvert.bench.options import ResampleOptions
from leconvert.model.values import LayoutOptions
from leconvert.testing import PROFILES


@pytest.fixture
def case() -> Iterator[Callable[[str], ModuleType]]:
    """Load a case of the benchmarks by its name."""
    with loaded_script("bench") as bench:
        yield lambda name: bench.import_module(f"benches.{name}")


def test_ratios_are_of_medians_against_the_reference_and_the_copy(
    case: Callable[[str], ModuleType],
) -> None:
    def row(runner: str, wall_seconds: float) -> dict[str, Any]:
        row = {"runner": runner, "wall_seconds": wall_seconds, "user_seconds": 1.0}
        return row | {"system_seconds": 0.5, "peak_rss_bytes": 100_000_000}

    rows = [row("reference", wall) for wall in (9.0, 30.0, 10.0)]
    rows += [row("inline", wall) for wall in (2.0, 2.5, 90.0)]
    rows += [row("cp -r", wall) for wall in (1.0, 1.0, 1.0)]

    table = case("kit").conversions_table(rows, ("reference", "cp -r"))
    head, _, *lines = table.splitlines()

    assert head == (
        "| runner | runs | s (least to most) | CPU s | peak MB | plan s | work s | pack s "
        "| it / `reference` | it / `cp -r` |"
    )
    assert lines == [
        "| reference | 3 | 10.00 (9.00-30.00) | 1.50 | 95 |  |  |  | 1.00 | 10.00 |",
        "| inline | 3 | 2.50 (2.00-90.00) | 1.50 | 95 |  |  |  | 0.25 | 2.50 |",
        "| cp -r | 3 | 1.00 (1.00-1.00) | 1.50 | 95 |  |  |  | 0.10 | 1.00 |",
    ]


def test_a_log_never_replaces_an_older_one(
    case: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    names = []
    for _ in range(3):
        path = case("kit").new_log(tmp_path, "2030-01-01", "small", "tmpfs")
        path.write_text("")
        names.append(path.name)

    assert names == [f"2030-01-01-small-tmpfs{end}.jsonl" for end in ("", "-2", "-3")]


def test_source_trees_in_folders_of_one_name_stay_apart(case: Callable[[str], ModuleType]) -> None:
    names_of = case("kit").names_of
    assert names_of([Path("/before/src"), Path("/after/src")]) == ["before", "after"]
    clones = [Path("/before/leconvert/src"), Path("/after/leconvert/src")]
    assert names_of(clones) == ["leconvert 1", "leconvert 2"]


def test_profiles_and_set_ups_are_those_of_the_package(case: Callable[[str], ModuleType]) -> None:
    assert tuple(PROFILES) == case("kit").PROFILE_NAMES
    for changes in case("resample").SETUPS.values():
        ResampleOptions(**changes)


def test_a_verification_is_measured_by_a_command_without_paths_and_must_find_no_difference(
    case: Callable[[str], ModuleType], tmp_path: Path, small_source: Path
) -> None:
    (tmp_path / "source").symlink_to(small_source)
    convert(small_source, output=tmp_path / "result")
    runners = {runner.name: runner for runner in case("conversions").verify_runners(tmp_path)}
    for runner in runners.values():
        shown = case("kit").shown([*map(str, runner.command)], tmp_path)
        assert str(tmp_path) not in shown
        assert shown.startswith(("python -m leconvert ", "python scripts/bench.py verify "))
    row = runners["bytes 1"].run(tmp_path)
    assert row["command"].startswith("python -m leconvert verify $SCRATCH/result --source")
    assert row["peak_rss_bytes"] > 2**20
    video = tmp_path / "result/videos/observation.images.top/chunk-000/file-000.mp4"
    video.write_bytes(video.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="ended with 10"):
        runners["bytes"].run(tmp_path)


def test_a_source_has_the_bytes_of_the_one_that_it_has_grown_from(
    case: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    case("conversions")._make_grown(tmp_path, "many", 2)
    grown = convert(
        tmp_path / "source", output=tmp_path / "result", layout=LayoutOptions(append=True)
    )
    assert grown.kept_episodes == 2
    assert grown.episodes == 12


def test_every_file_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_bytes(b"x")
    command = [sys.executable, str(SCRIPTS / "bench.py"), "verify", "--hash", str(tmp_path)]
    command += ["--processes", "2"]
    assert subprocess.run(command, check=False).returncode == 0
    (tmp_path / "sub/lost").symlink_to(tmp_path / "nothing")
    lost = subprocess.run(command, check=False, capture_output=True, text=True)
    assert lost.returncode == 1
    assert "sub/lost" in lost.stderr


def test_a_case_finds_the_parts_of_the_tests_that_it_uses(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench.py"), "scale", "--help"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert "bench.py scale lease" in done.stdout, done.stderr


def test_efficiency_is_of_medians_against_one_worker(
    case: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    def row(workers: int, window: float, wall: float) -> str:
        times = {"window_seconds": window, "wall_seconds": wall, "cpu_seconds": 3.0}
        return json.dumps({"workers": workers, **times})

    show = case("show")
    head = json.dumps({"format": "leconvert-bench", "version": 1})
    (tmp_path / "log.jsonl").write_text(
        "\n".join([
            *(head, row(16, 7, 10), row(1, 99, 120), row(16, 5, 8), row(1, 96, 120)),
            *(head, row(16, 60, 90), row(1, 9, 10)),
        ])
    )  # fmt: skip
    rows = show.Log.read(tmp_path / "log.jsonl").rows
    first, last = show.scaling_table(rows).splitlines()[-2:]
    assert first == "| 1 | 3 | 96.00 (9.00-99.00) | 1.000 | 120.00 | 1.000 | 3.0 |"
    assert last == "| 16 | 3 | 7.00 (5.00-60.00) | 0.857 | 10.00 | 0.750 | 3.0 |"
