"""A short storm of kills and freezes; the long one is ``scripts/storm.py --kills 1000``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "storm.py"


def storm(folder: Path, options: str) -> list[dict[str, Any]]:
    """Run the script, and return the lines of its log."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(SCRIPT), *options.split(),
         "--folder", str(folder)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_storm_over_workers_and_packers_ends_in_the_quiet_runs_bytes(tmp_path: Path) -> None:
    rows = storm(tmp_path, "--kills 8 --kills-per-round 4 --episodes 8 --seed 11")
    header, *rounds, total = rows
    assert header["format"] == "leconvert-storm"
    assert {row["mode"] for row in rounds} == {"output", "in-place"}
    assert [row["troubles"] for row in rounds if not row["ok"]] == []
    assert total["kills"] >= 8
    assert total["kills_at_work"] > 1
    assert total["stops"] > 0
    assert total["take_overs"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # `test_every_operation` kills edits, and does the same, at chosen operations
@pytest.mark.parametrize(
    ("options", "kills"), [("edits --kills 4 --seed 2", 4), ("afterwards --kills 8 --seed 3", 8)]
)
def test_a_storm_over_commands_that_edit_or_with_changes_after_kills_leaves_old_or_new_whole(
    tmp_path: Path, options: str, kills: int
) -> None:
    _, *rounds, total = storm(tmp_path, options)
    assert [row["troubles"] for row in rounds if not row["ok"]] == []
    assert total["kills"] >= kills
    assert len({(row["case"], row.get("afterwards")) for row in rounds}) > 2
    if "afterwards" in options:
        assert {row["ended"].split()[0] for row in rounds} >= {"done"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # `tests.cli.test_fleet` kills workers, and changes results between runs
def test_a_storm_over_a_fleet_loses_nothing_that_a_user_changed(tmp_path: Path) -> None:
    rows = storm(tmp_path, "fleet --datasets 30 --rounds 3 --kills 3 --pace 0.1 --seed 1")
    assert [row for row in rows if row.get("problems")] == []
    assert (rows[-1]["step"], rows[-1]["kills"]) == ("changes", 9)
    assert rows[-1]["former_states"] > 0
    assert rows[-1]["hands"] > 2
    assert list(tmp_path.iterdir()) == []
