"""The script that keeps raw rows of resampling."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leconvert.bench.options import ResampleOptions

SCRIPT = "benches.resample"


def test_every_set_up_makes_sense(script: ModuleType) -> None:
    for changes in script.SETUPS.values():
        ResampleOptions(**changes)


def test_the_log_says_what_was_run_and_keeps_every_repeat(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"max_trajectories": 6, "batch_sizes": (3,)}
    monkeypatch.setattr(script, "SETUPS", {"small": small})

    assert script.main(["small", "--repeats", "2", "--log-dir", str(tmp_path)]) == 0

    (log,) = tmp_path.glob("*-resample.jsonl")
    head, about, *rows = map(json.loads, log.read_text().splitlines())
    assert head["command"].startswith("python scripts/bench.py resample small --repeats 2")
    assert head["cores"] >= 1
    assert about["options"]["repeats"] == 2
    results: list[dict[str, Any]] = [row for row in rows if row["kind"] == "result"]
    assert [row["way"] for row in results] == ["baseline", "batched", "table"]
    assert all(len(row["raw"]) == 2 for row in results)
    assert sum(row["kind"] == "speedup" for row in rows) == 2
    assert str(tmp_path) not in json.dumps(head)
