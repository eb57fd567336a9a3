"""``leconvert plan``, and the plan that ``leconvert convert --dry-run`` shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leconvert.cli.main import main
from tests.trees import snapshot


@pytest.mark.parametrize("command", ["plan", "plan --dry-run", "convert --dry-run"])
def test_what_the_packer_would_refuse_is_refused_before_the_work(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "mine").mkdir()
    before = snapshot(tmp_path)
    assert plan(command, small_source, tmp_path / "mine") == 5
    assert (
        f"{tmp_path / 'mine'} exists already and is not a v3.0 dataset." in capsys.readouterr().err
    )
    assert snapshot(tmp_path) == before


def test_a_plan_over_a_result_says_how_to_pack_it_and_what_is_kept(
    small_source: Path, small_result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(small_result, tmp_path / "out")
    assert plan("convert --dry-run", small_source, out) == 0
    assert "There is nothing to do" in capsys.readouterr().out
    assert plan("plan", small_source, out) == 0
    said = capsys.readouterr().out
    assert f"leconvert pack {tmp_path / '.out.leconvert-work'} --force-conversion\n" in said
    assert f"{out} holds a v3.0 dataset now, which will be kept as {out}_old.\n" in said


def test_a_plan_of_a_run_under_way_leaves_the_target_to_its_packer(
    small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert plan("plan", small_source, out) == 0
    out.mkdir()
    assert plan("plan", small_source, out) == 0


@pytest.mark.parametrize("command", ["plan", "convert", "convert --dry-run"])
def test_an_output_that_is_the_source_is_refused(
    source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = snapshot(tmp_path)
    assert plan(command, source_copy, tmp_path / "other" / ".." / source_copy.name) == 2
    said = capsys.readouterr().err
    assert "--output is the source itself" in said
    assert "The source is then kept as small_old." in said
    assert snapshot(tmp_path) == before


def plan(command: str, source: Path, target: Path) -> int:
    return main([*command.split(), "--root", str(source), "--output", str(target)])
