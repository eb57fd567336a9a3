"""``convert --probe``: the figures of the fresh result stand in the report."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import leconvert
from leconvert.support.errors import InstallationError
from tests.program import Leconvert


def test_the_report_says_how_fast_the_result_loads(
    small_source: Path, leconvert_here: Leconvert, tmp_path: Path
) -> None:
    done = leconvert_here(
        "convert", "--root", small_source, "--output", tmp_path / "out", "--no-push", "--probe",
        "--probe-seconds", "0.5", "--json", code=0,
    )  # fmt: skip
    probe = json.loads(done.stdout)["probe"]
    assert probe["samples_per_s"] > 0
    assert probe["options"]["root"] == str(tmp_path / "out")
    assert probe["loaded_episodes"] == 5


def test_a_conversion_that_could_not_be_measured_does_not_begin(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    with pytest.raises(InstallationError, match="not installed"):
        leconvert.convert(small_source, output=tmp_path / "out", probe_seconds=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_cannot_be_measured_is_converted_all_the_same(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('no torch for you')\n")
    report = leconvert.convert(small_source, output=tmp_path / "out", probe_seconds=1.0)
    assert (tmp_path / "out/meta/info.json").exists()
    assert "could not be measured" in report.probe["message"]
