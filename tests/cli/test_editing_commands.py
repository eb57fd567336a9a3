"""``leconvert split``, ``trim`` and ``repair``: what they say, and that they can be given again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Leconvert


@pytest.mark.parametrize(
    ("command", "results"),
    [
        ("split {v21} --output-dir out --into a=0-2,b=3-4", {"out/a": "work/a", "out/b": "work/b"}),
        ("repair {v30} -o out --quantiles", {"out": "work"}),
    ],
)
def test_an_editing_command_keeps_its_run_where_it_is_told_and_writes_a_report(
    leconvert_here: Leconvert, small_source: Path, small_result: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, command: str, results: dict[str, str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = command.format(v21=small_source, v30=small_result).split()
    common = "--work-dir work --report --verify bytes --quiet"
    dry = leconvert_here(*words, *common.replace("--report ", "").split(), "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, ""), dry.stderr
    assert not list(tmp_path.iterdir())
    done = leconvert_here(*words, *common.split())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for result, work_dir in results.items():
        assert leconvert_here("check", tmp_path / result).returncode == 0
        assert tmp_path.joinpath(f"{result}.report.html").is_file()
        told = leconvert_here("status", work_dir, "--json")
        assert json.loads(told.stdout)["target"] == str(tmp_path / result)
        assert json.loads(told.stdout)["packed"] is True
