"""Findings as users see them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.cli.output import findings_lines
from leconvert.model.values import Finding
from tests.program import Leconvert

LOST = Finding(
    "missing-file",
    "error",
    "/data/set/videos/top/episode_000003.mp4 is missing.",
    episode=3,
    stream="videos/top",
    path="videos/top/episode_000003.mp4",
    remedy="--on-bad-episode drop",
)
STALE = Finding("stale-total", "warning", "info.json says total_frames 9, the episodes have 12.")


def test_the_gravest_come_first_with_what_helps_and_first_what_loses_nothing() -> None:
    assert findings_lines([STALE, LOST], 86) == [
        "severity  finding       episode  stream      what is wrong, and what helps",
        "error     missing-file  3        videos/top  videos/top/episode_000003.mp4 is missing.",
        "                                             → Get the file again from where it came:",
        "                                             `git lfs pull`, the Hub, or another copy.",
        "                                             → or --on-bad-episode drop",
        "warning   stale-total                        info.json says total_frames 9, the",
        "                                             episodes have 12.",
    ]


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = findings_lines([LOST, STALE], width)
    words = max(len(word) for line in lines for word in line.split())
    assert max(map(len, lines)) <= max(width, words + 45)


def test_a_check_counts_every_error(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(small_source, tmp_path / "source"))
    clips = sorted(source.glob("videos/chunk-000/*top/*.mp4"))[1:]
    for clip in clips:
        clip.unlink()
    record = json.loads(leconvert_here("check", source, "--json").stdout)
    assert record["errors"] == len(clips) == 4
    (found,) = [each for each in record["findings"] if each["severity"] == "error"]
    assert (found["code"], found["count"], found["episode"]) == ("missing-file", 4, 1)
    assert "4 errors, 0 warnings" in leconvert_here("check", source).stdout


def test_an_empty_description_is_called_empty(leconvert_here: Leconvert, tmp_path: Path) -> None:
    (tmp_path / "source/meta").mkdir(parents=True)
    (tmp_path / "source/meta/info.json").touch()
    for command in ("check", "convert", "repair"):
        refused = leconvert_here(command, tmp_path / "source")
        assert refused.returncode == 3
        assert f"{tmp_path}/source/meta/info.json is empty." in refused.stderr
