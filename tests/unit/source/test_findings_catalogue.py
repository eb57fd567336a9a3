"""The catalogue, the checks, the tests and the documentation speak of the same findings."""

from __future__ import annotations

import re
from pathlib import Path

from leconvert.source.catalogue import CATALOGUE, Kind

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs/findings.md"


def row(kind: Kind) -> str:
    helps = f"`{kind.repair}`" if kind.repair else ""
    if kind.acceptable:
        helps += f", `--accept {kind.code}`"
    return f"| `{kind.code}` | {kind.severity} | {kind.meaning} | {helps} |"


def test_the_documentation_has_the_table_of_all_findings() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if re.match(r"\| `[a-z]", line)]
    assert rows == [row(kind) for kind in CATALOGUE.values()]


def test_every_finding_is_made_somewhere_and_tested_somewhere() -> None:
    made = "".join(
        path.read_text()
        for path in (ROOT / "src/leconvert/source").glob("*.py")
        if path.name != "catalogue.py"
    )
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_findings_*.py"))
    for code in CATALOGUE:
        assert f'"{code}"' in made, code
        assert f'"{code}"' in tested, code


def test_codes_are_names_that_need_no_quotes() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in CATALOGUE)
    assert {kind.severity for kind in CATALOGUE.values()} == {"error", "warning", "info"}
