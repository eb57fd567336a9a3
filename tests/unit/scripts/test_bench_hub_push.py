"""`bench.py hub-push` on a dataset of three clips: what it prints is what was sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "benches.hub_push"


def test_each_push_is_measured_warm_and_cold(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = script.Shape("tiny", episodes=3, frames=10, side=48, clip_bytes=20_000)
    script.measure(shape, tmp_path / "tiny", [0])
    warm, cold = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [line["cache"] for line in (warm, cold)] == ["warm", "cold"]
    for line in (warm, cold):
        assert 0 < line["sent_bytes"] <= line["result_bytes"]
        assert line["sent_shard_bytes"] > 0
        assert line["video_bytes"] < line["result_bytes"]
    assert warm["sent_bytes"] <= cold["sent_bytes"]
