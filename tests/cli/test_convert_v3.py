"""``leconvert convert`` of a dataset that is v3.0 already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leconvert.cli.main import main


@pytest.mark.parametrize("command", ["convert", "plan"])
def test_without_an_option_there_is_nothing_to_convert(
    result_copy: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(result_copy)]) == 3
    said = capsys.readouterr().err
    assert f"{result_copy} is already v3.0." in said
    assert "There is nothing to convert" in said
    assert "--output DIR writes" in " ".join(said.split())


def test_a_plan_of_it_can_be_looked_at(
    result_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(result_copy), "--layout", "streaming", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["episodes"] == 5
    assert plan["space"]["cloned"] is False
    assert [room["bytes_needed"] > 0 for room in plan["space"]["rooms"]] == [True]
    assert sorted(path.name for path in result_copy.parent.iterdir()) == ["v30"]
