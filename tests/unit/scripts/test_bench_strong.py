"""Strong scaling: what is measured, and how efficiency is reckoned."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from tests.scripts import loaded_script

SCRIPT = "benches.show"


def _row(workers: int, window: float, wall: float) -> str:
    return json.dumps(
        {
            "workers": workers,
            "window_seconds": window,
            "wall_seconds": wall,
            "last_worker_began_after": 0.5,
            "cpu_seconds": 3.0,
        }
    )


def test_efficiency_is_of_medians_against_one_worker(script: ModuleType, tmp_path: Path) -> None:
    head = json.dumps({"format": "leconvert-bench", "version": 1})
    (tmp_path / "a.jsonl").write_text("\n".join([head, _row(16, 7, 10), _row(1, 99, 120)]))
    (tmp_path / "b.jsonl").write_text(
        "\n".join([head, _row(16, 5, 8), _row(1, 96, 120), head, _row(16, 60, 90), _row(1, 9, 10)])
    )
    rows = script.scaling_of(script.read_log(tmp_path / name)[1] for name in ("a.jsonl", "b.jsonl"))
    assert list(rows) == [1, 16]
    assert script.efficiency(rows, 16, script.WINDOW) == 96 / (16 * 7)
    assert script.efficiency(rows, 16, script.WHOLE) == 120 / (16 * 10)
    assert script.efficiency(rows, 1, script.WHOLE) == 1
    last = script.scaling_table(rows).splitlines()[-1]
    assert last == ("| 16 | 3 | 7.00 (5.00-60.00) | 0.857 | 10.00 (8.00-90.00) | 0.750 | 3.0 |")


def test_a_slow_disk_makes_workers_sleep_for_every_byte(tmp_path: Path) -> None:
    with loaded_script("benches.strong") as bench:
        bench.make_source(tmp_path / "source", 4)
        shape = bench.kit.dataset_shape(tmp_path / "source", "slow-disk")
        row = bench.run_once(tmp_path / "source", tmp_path, 1, 0.4 / shape["video_bytes"])
    assert (row["workers"], row["batches"], row["batches_a_worker"]) == (1, 4, [4])
    # Tables are slow too; the rest is the work itself.
    assert row["busy_seconds"] >= 0.4
    assert row["window_seconds"] >= row["busy_seconds"] * 0.99
    assert row["wall_seconds"] > row["window_seconds"]
    assert row["last_worker_began_after"] == row["first_worker_ended_before"] == 0
