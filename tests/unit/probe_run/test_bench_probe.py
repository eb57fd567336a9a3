"""The loading benchmark runs everything once a repeat, and its ratios are of medians."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        spec = importlib.util.spec_from_file_location("bench_probe", SCRIPTS / "bench_probe.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "bench_probe", module)  # its dataclasses look themselves up
        spec.loader.exec_module(module)
        yield module


def row(loader: str, rate: float, **changes: Any) -> dict[str, Any]:
    return {
        "conversion": "ours", "loader": loader, "mode": "single", "workers": 2,
        "samples_per_s": rate, "frames_per_s_node": 3 * rate, "pct_of_limit": 50.0,
        "first_batch_latency_s": 0.2, "p99_batch_wait_ms": 9.0, "peak_pss_gb": 0.5,
        "shuffle_randomness_frac": 0.9,
    } | changes  # fmt: skip


def test_every_loader_mode_and_number_of_workers_runs_on_both_layouts_of_files(
    script: ModuleType,
) -> None:
    runs = script.planned_runs([0, 2], ["single", "sarm"])

    assert len(set(runs)) == len(runs) == 4 + 2 * (2 * 3 * 2 + 2 * 2)
    assert {run.conversion for run in runs if run.loader == "limit"} == set(script.CONVERSIONS)
    assert {run.workers for run in runs if run.conversion == "streaming" and run.mode} == {2}


def test_the_table_compares_the_medians_of_the_best_set_ups(script: ModuleType) -> None:
    rows = [row("map", rate) for rate in (10.0, 12.0, 90.0)]
    rows += [row("map", rate, workers=0) for rate in (5.0, 5.0, 5.0)]
    rows += [row("stream", rate) for rate in (24.0, 30.0, 1.0)]
    rows += [{"conversion": "ours", "loader": "stream-lerobot", "mode": "single", "workers": 2,
              "error": "it broke"}]  # fmt: skip
    rows += [{"kind": "check", "conversion": "ours", "loader": "stream", "mode": "single",
              "check": {"samples": 7, "wrong_frames": 0, "unreadable_frames": 1,
                        "wrong_pad_flags": 2, "wrong_values": 3}}]  # fmt: skip

    shown = script.table(rows)

    assert "ours single: stream is 2.00 times the better of the others" in shown
    assert "ours stream-lerobot single w2       fails: it broke" in shown
    assert "in 7 samples 0 frames are wrong, 1 unreadable, 5 flags or values wrong" in shown


def test_commands_are_shown_without_this_machines_paths(script: ModuleType, tmp_path: Path) -> None:
    options = script.argparse.Namespace(
        batch_size=16, duration_s=1.0, probe_samples=5, limit_duration_s=1.0, check=9
    )
    bench = script.Bench(tmp_path, {"ours": tmp_path / "ours"}, options)

    command = bench.check_command(script.Run("ours", "stream", "sarm", 2))

    assert bench.shown(command).startswith(
        "python -m leconvert probe run --root $SCRATCH/ours --out-dir $SCRATCH/out-ours --json "
        "--loader stream --mode sarm --num-workers 2"
    )
    assert "--check 9" in bench.shown(command)
