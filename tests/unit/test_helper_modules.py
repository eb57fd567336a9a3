"""Every test file runs alone: what it imports lies in its own folder or in the package `tests`."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def top_level_imports(file: Path) -> set[str]:
    return set(re.findall(r"^ *(?:import|from) (\w+)", file.read_text(), re.MULTILINE))


def test_no_test_imports_a_helper_from_another_folder_of_tests() -> None:
    """pytest adds each folder to the path as it meets it, so this would depend on the order."""
    files = [file for file in TESTS.rglob("*.py") if file.name != "__init__.py"]
    folders_of: dict[str, set[Path]] = {}
    for file in files:
        folders_of.setdefault(file.stem, set()).add(file.parent)
    assert folders_of["trees"] == {TESTS}

    foreign = [
        f"{file.relative_to(TESTS)} imports {name}"
        for file in files
        for name in sorted(top_level_imports(file) & folders_of.keys())
        if file.parent not in folders_of[name]
    ]
    assert foreign == []
