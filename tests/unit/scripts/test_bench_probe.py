"""The loading benchmark runs everything once a repeat."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "benches.probe"


def test_every_loader_mode_and_number_of_workers_runs_on_both_layouts_of_files(
    script: ModuleType,
) -> None:
    runs = script.planned_runs("h264", [0, 2], ["single", "sarm"], 0)

    # Beside the limits: both modes with every loader, and the other conversions with the stream
    # in both modes and the map in one.
    assert len(set(runs)) == len(runs) == 4 + 2 * (2 * 3 * 2) + 2 * 3
    assert {run.conversion for run in runs if run.loader == "limit"} == set(script.CONVERSIONS)
    assert {run.workers for run in runs if run.conversion == "streaming" and run.mode} == {2}
    again = script.planned_runs("h264", [0, 2], ["single", "sarm"], 1)
    assert set(runs) - set(again) == {
        script.Run("reference", "limit"), script.Run("streaming", "limit")
    }  # fmt: skip


def test_limits_come_first_and_each_repeat_begins_elsewhere(script: ModuleType) -> None:
    orders = [
        script.in_turn(script.planned_runs("h264", [2], ["single"], 1), repeat, 2)
        for repeat in range(2)
    ]

    assert all([run.loader for run in order[:2]] == ["limit", "limit"] for order in orders)
    assert set(orders[0]) == set(orders[1])
    assert orders[0][2:7] == orders[1][-5:]


def test_pictures_in_tables_have_no_decode_limit_and_every_loader_on_three_conversions(
    script: ModuleType,
) -> None:
    runs = script.planned_runs("images", [2], ["single", "sarm"], 0)

    assert [run.name for run in runs] == [
        f"{conversion} {loader} single w2"
        for conversion in ("reference", "ours", "streaming")
        for loader in ("map", "stream-lerobot", "stream")
    ]
    assert {run.loader for run in script.planned_checks("images", ["single"])} == {"stream"}


def test_commands_are_shown_without_this_machines_paths(script: ModuleType, tmp_path: Path) -> None:
    options = script.argparse.Namespace(
        batch_size=16, duration_s=1.0, probe_samples=5, limit_duration_s=1.0, check=9,
        warmup_batches=6,
    )  # fmt: skip
    bench = script.Bench(tmp_path, {"ours": tmp_path / "ours"}, options)

    command = bench.check_command(script.Run("ours", "stream", "sarm", 2))

    assert script.kit.shown(command, tmp_path).startswith(
        "python -m leconvert probe run --root $SCRATCH/ours --out-dir $SCRATCH/out-ours --json "
        "--loader stream --mode sarm --num-workers 2"
    )
    assert "--check 9" in script.kit.shown(command, tmp_path)


def test_our_stream_is_compared_in_every_mode_and_the_released_one_in_the_first(
    script: ModuleType,
) -> None:
    checks = script.planned_checks("av1", ["single", "sarm"])

    for conversion in ("ours", "one-file"):
        compared = [(run.loader, run.mode) for run in checks if run.conversion == conversion]
        assert compared == [("stream", "single"), ("stream", "sarm"), ("stream-lerobot", "single")]
    assert len(checks) == 6


def test_runs_share_compiled_modules_in_the_scratch_folder(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = script.Bench(tmp_path, {}, None).environment()

    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPYCACHEPREFIX"] == str(tmp_path / "compiled")
