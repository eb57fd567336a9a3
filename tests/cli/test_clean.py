"""``leconvert clean`` as an operator uses it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.program import Leconvert


def test_after_a_finished_run_clean_leaves_the_result_alone_beside_the_source(
    leconvert_here: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    places = ("--root", source_copy, "--output", tmp_path / "out", "--work-dir", work)
    converted = leconvert_here("convert", *places, code=0)
    assert f"  records       {work}; `leconvert clean {work}` removes them\n" in converted.stdout
    shown = leconvert_here("clean", work, "--dry-run")
    assert "would remove run" in shown.stdout
    assert any(work.glob("runs/*"))
    cleaned = leconvert_here("clean", work, "--json", code=0)
    assert [row["kind"] for row in json.loads(cleaned.stdout)["removed"]] == ["run"]
    assert list(work.iterdir()) == []
    assert leconvert_here("verify", tmp_path / "out", "--source", source_copy).returncode == 0


def test_the_old_dataset_goes_after_proof(leconvert_here: Leconvert, source_copy: Path) -> None:
    assert leconvert_here("convert", "--root", source_copy, "--keep-work-dir").returncode == 0
    cleaned = leconvert_here("clean", "--of", source_copy, "--old", code=0)
    assert "removed work dir" in cleaned.stdout
    assert "removed kept source" in cleaned.stdout
    assert [path.name for path in source_copy.parent.iterdir()] == ["small"]
    again = leconvert_here("clean", "--of", source_copy, "--old")
    assert again.stdout.startswith(f"kept source {source_copy}_old: it does not exist\n")


def test_a_dataset_that_does_not_exist_is_not_called_clean(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    typo = tmp_path / "typo"
    said = leconvert_here("clean", "--of", typo).stdout
    assert said == (
        f"There is nothing to remove: {typo} does not exist, and no run of it exists.\n"
    )
    assert leconvert_here("clean", "--of", small_source).stdout == "There is nothing to remove.\n"


def test_what_to_clean_must_be_said(leconvert_here: Leconvert, tmp_path: Path) -> None:
    assert leconvert_here("clean").returncode == 2
    assert leconvert_here("clean", tmp_path, "--of", tmp_path).returncode == 2
    assert leconvert_here("clean", tmp_path, "--old").returncode == 2
    (tmp_path / "notes.txt").write_text("no work dir")
    assert leconvert_here("clean", tmp_path).returncode == 7
