"""``leconvert undo`` as a user gives it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.program import Leconvert
from tests.trees import snapshot


def test_convert_then_undo_gives_the_dataset_as_it_was(
    leconvert_here: Leconvert, source_copy: Path
) -> None:
    before = snapshot(source_copy)
    assert leconvert_here("convert", "--root", source_copy).returncode == 0
    dry = leconvert_here("undo", source_copy, "--dry-run", code=0)
    assert f"Would keep the result as {source_copy}_v30" in dry.stdout
    done = leconvert_here("undo", source_copy, code=0)
    assert (
        "Source and result contain the same: 5 episodes, 44 frames, 88 camera frames."
        in done.stdout
    )
    assert snapshot(source_copy) == before
    again = leconvert_here("undo", source_copy, "--json", code=0)
    assert json.loads(again.stdout) == {
        "dataset": str(source_copy),
        "result": f"{source_copy}_v30",
        "dry_run": False,
        "was_undone": True,
        "episodes": 0,
        "rows": 0,
        "camera_frames": 0,
    }


def test_what_cannot_be_undone_says_why_and_ends_with_5(
    leconvert_here: Leconvert, source_copy: Path
) -> None:
    told = leconvert_here("undo", source_copy, code=5)
    assert "but no kept source" in told.stderr
    assert "Give a dataset that was converted in place" in told.stderr
