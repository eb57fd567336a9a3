"""The catalogue, the checks, the tests and the documentation speak of the same findings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE, check_accepted

ROOT = Path(__file__).parents[4]


def test_every_finding_is_made_somewhere_and_tested_somewhere() -> None:
    # The plan adds what follows from the layout.
    planner = ROOT / "src/leconvert/run/planner.py"
    its_test = ROOT / "tests/unit/run/test_planner.py"
    made = "".join(
        path.read_text()
        for path in [
            *(ROOT / "src/leconvert/dataset/scan").glob("*.py"),
            *(ROOT / "src/leconvert/dataset/formats").rglob("*.py"),
            ROOT / "src/leconvert/dataset/findings/resolve.py",
            planner,
        ]
    )
    to_v21 = ROOT / "tests/cli/test_convert_to_v21.py"
    tests = [*Path(__file__).parent.glob("test_findings_*.py"), its_test, to_v21]
    tested = "".join(path.read_text() for path in tests)
    for code in SOURCE_CATALOGUE:
        assert f'"{code}"' in made, code
        assert f'"{code}"' in tested, code


def test_whatever_only_warns_can_be_named_as_accepted() -> None:
    check_accepted([kind.code for kind in SOURCE_CATALOGUE.values() if kind.severity != "error"])


def test_codes_are_names_that_need_no_quotes() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in SOURCE_CATALOGUE)
    assert {kind.severity for kind in SOURCE_CATALOGUE.values()} == {"error", "warning", "info"}


def test_the_how_to_names_for_each_symptom_the_flags_of_its_findings() -> None:
    page = (ROOT / "docs/howto/broken-datasets.md").read_text()
    cells = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in cells if len(row) == 4]
    told = set()
    for _, codes, helps, _ in rows:
        flags = re.findall(r"`(--[a-z-]+(?: (?:drop|trim|episodes))?)", helps)
        for code in re.findall(r"`([a-z0-9-]+)`", codes):
            kind = SOURCE_CATALOGUE[code]
            taken = {flag.partition(" v2")[0] for flag in kind.repairs} or {"--assume-version"}
            assert set(flags) <= taken, code
            told.add(code)
    errors = {code for code, kind in SOURCE_CATALOGUE.items() if kind.severity == "error"}
    # None: `--accept` is the way out of the last.
    without_a_flag = {"task-conflict", "uncomputable-stats", "robot-type"}
    assert errors - told == without_a_flag


@pytest.mark.parametrize("page", ["check", "repair"])
def test_the_tables_of_a_page_name_findings_that_are_there(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    tables = re.findall(r"^\| finding \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()]
    named = {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}
    # Beside codes, a row may name a feature in backticks.
    assert named - {"action"} <= SOURCE_CATALOGUE.keys() | V3_CATALOGUE.keys()
    assert named
