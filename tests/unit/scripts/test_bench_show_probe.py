"""The tables of the loading benchmark are medians of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.scripts import loaded_script

SCRIPT = "benches.probe_tables"

HEADER = {
    "file_system": "tmpfs",
    "dataset": {
        "profile": "h264", "episodes": 16, "frames": 3211, "cameras": 3, "bytes": 30_027_514,
    },
}  # fmt: skip


def row(loader: str, rate: float, repeat: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "repeat": repeat, "conversion": "ours", "loader": loader, "mode": "single", "workers": 2,
        "samples_per_s": rate, "frames_per_s_node": 3 * rate, "pct_of_limit": 1.0,
        "first_batch_latency_s": 0.2, "p99_batch_wait_ms": 9.0, "peak_pss_gb": 0.5,
        "shuffle_randomness_frac": 0.9,
    } | changes  # fmt: skip


def limit(rate: float, repeat: int = 0) -> dict[str, Any]:
    return {
        "repeat": repeat, "conversion": "ours", "loader": "limit", "frames_per_s": rate,
    }  # fmt: skip


def test_a_log_becomes_a_row_a_loader(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        *(limit(100.0 * (repeat + 1), repeat) for repeat in range(3)),
        *(row("map", rate, repeat) for repeat, rate in enumerate((10.0, 12.0, 90.0))),
        *(row("stream", rate, repeat) for repeat, rate in enumerate((24.0, 30.0, 1.0))),
        *(row("stream", 7.0, repeat, workers=0) for repeat in range(3)),
        row("stream-lerobot", 6.0, peak_pss_gb=2.0),
        row("stream-lerobot", 6.0, mode="sarm", error="it |\nbroke"),
        {"kind": "check", "conversion": "ours", "loader": "stream", "mode": "single",
         "check": {"samples": 7, "wrong_frames": 0, "unreadable_frames": 1,
                   "wrong_pad_flags": 2, "wrong_values": 3}},
        {"kind": "check", "conversion": "ours", "loader": "map", "mode": "single",
         "error": "no LeRobot"},
    ]  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, [HEADER, *rows])) + "\n")

    with loaded_script("bench") as bench:
        assert bench.main(["show", str(log)]) == 0
    shown = capsys.readouterr().out.splitlines()

    assert shown[0] == "**h264, tmpfs**: 16 episodes, 3,211 frames, 3 cameras, 30 MB"
    # 72 of 100, 90 of 200 and 3 of 300 frames/s: of each repeat's own limit.
    assert (
        "| single | ours | stream | 2 | 3 | 24.0 (1.0-30.0) | 72 | 45 | 0.20 | 9 | 500 | 0.90 |"
        in shown
    )
    assert (
        "| single | ours | map | 2 | 3 | 12.0 (10.0-90.0) | 36 | 30 | 0.20 | 9 | 500 | 0.90 |"
        in shown
    )
    assert (
        "| sarm | ours | stream-lerobot | 2 | 1 | fails: it \\| broke |  |  |  |  |  |  |" in shown
    )
    assert "| stream | single | ours | 7 | 0 | 1 | 5 |" in shown
    assert "| map | single | ours | fails: no LeRobot |  |  |  |" in shown


def test_a_limit_of_another_repeat_stands_in_where_there_is_none(script: ModuleType) -> None:
    log = script.grouped(HEADER, [limit(100.0), row("stream", 10.0), row("stream", 20.0, 1)])

    assert log.share_of_limit(script.Run("ours", "stream", "single", 2)) == 45.0


def test_without_limits_and_checks_what_needs_them_is_left_out(script: ModuleType) -> None:
    shown = script.tables(script.grouped(HEADER, [row("map", 10.0, peak_pss_gb=None)]))

    assert (
        "| single | ours | map | 2 | 1 | 10.0 (10.0-10.0) | 30 |  | 0.20 | 9 |  | 0.90 |" in shown
    )
    assert "compared" not in shown
