"""``leconvert check`` as a user runs it: a table, a last line, JSON, and the exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leconvert.testing import edit_info
from tests.program import Leconvert


@pytest.fixture
def broken(small_result: Path, tmp_path: Path, edit_json: Callable[..., None]) -> Path:
    """A copy with one error, two warnings and one remark."""
    root = Path(shutil.copytree(small_result, tmp_path / "hub" / "org" / "näme ö"))
    edit_json(root / "meta/info.json", total_frames=7, splits={"train": "0:9"}, total_tasks=5)
    (root / "videos/left over.txt").write_text("")
    return root


def test_a_sound_dataset_is_one_line_and_code_0(
    leconvert_here: Leconvert, small_result: Path
) -> None:
    checked = leconvert_here("check", small_result, "--strict", code=0)
    (line,) = checked.stdout.splitlines()
    assert line.startswith(f"{small_result} (v3.0): 0 errors, 0 warnings, 0 infos in 5 episodes, ")
    assert "44 frames, 3 files" in line


def test_json_holds_every_finding_and_warnings_fail_a_strict_check_alone(
    leconvert_here: Leconvert, broken: Path, edit_json: Callable[..., None]
) -> None:
    checked = leconvert_here("check", broken, "--json", code=3)
    report = json.loads(checked.stdout)
    assert (report["ok"], report["errors"], report["warnings"], report["infos"]) == (False, 1, 2, 1)
    assert [(found["severity"], found["code"]) for found in report["findings"]] == [
        ("error", "stale-total"), ("warning", "stale-total"),
        ("warning", "stray-file"), ("info", "splits"),
    ]  # fmt: skip
    assert report["findings"][2]["path"] == "videos/left over.txt"
    assert all(found["message"] and found["remedy"] for found in report["findings"])
    edit_json(broken / "meta/info.json", total_frames=44)
    assert leconvert_here("check", broken).returncode == 0
    assert leconvert_here("check", broken, "--strict").returncode == 3


def test_a_repo_id_names_the_folder_that_lerobot_uses(leconvert: Leconvert, broken: Path) -> None:
    env = {**os.environ, "HF_LEROBOT_HOME": str(broken.parents[1])}
    checked = leconvert("check", "--repo-id", f"org/{broken.name}", "--json", env=env, code=3)
    assert json.loads(checked.stdout)["root"] == str(broken)


def test_a_v2_dataset_is_checked_too(leconvert_here: Leconvert, source_copy: Path) -> None:
    assert leconvert_here("check", source_copy).returncode == 0
    (source_copy / "data/chunk-000/episode_000002.parquet").unlink()
    checked = leconvert_here("check", source_copy, "--json", code=3)
    report = json.loads(checked.stdout)
    assert report["version"] == "v2.1"
    assert [found["episode"] for found in report["findings"] if found["severity"] == "error"] == [2]


def test_the_advice_for_a_missing_rate_is_a_whole_command(
    source_copy: Path, leconvert_here: Leconvert
) -> None:
    edit_info(source_copy, lambda info: info.pop("fps"))
    advice = leconvert_here("check", source_copy, "--json", code=3)
    (command,) = re.findall("`(.*)`", json.loads(advice.stdout)["next_step"])
    words = shlex.split(
        command.replace("DIR", str(source_copy.with_name("out"))).replace("FPS", "30")
    )
    leconvert_here(*words[1:], code=0)


@pytest.mark.parametrize("rate", [None, 0, "thirty"])
def test_a_rate_that_a_v3_dataset_lacks_can_be_given(
    result_copy: Path, leconvert_here: Leconvert, rate: object
) -> None:
    edit_info(result_copy, lambda info: info.update(fps=rate))
    assert "info-value" in leconvert_here("check", result_copy, code=3).stdout
    made = result_copy.with_name("made")
    leconvert_here("convert", result_copy, made, "--assume-fps", "30", code=0)
    leconvert_here("check", made, code=0)
